"""Cores: how many this process may use, and how many of them the other processes leave free, from what the system says.

On Linux that is `/proc/stat` for the cores that this process is bound to, and its control group's quota and use;
elsewhere the load average; where nothing can be read, nothing is known. Loads no torch.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of a line of /proc/stat that are no rest: user, nice, system, irq, softirq, and what the hypervisor gave to
others."""
_WORTH_MOVING = 0.35
"""Of a core, that others have to leave more of elsewhere."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of processor time that were used until ``at``. None: it cannot be read."""

    at: float
    own: float
    """By this process, and by those that it started and saw end."""
    cores: Mapping[int, float] | None = None
    """By anybody, on each of the cores that this process may use."""
    group: float | None = None
    """By anybody in the control group whose quota holds for this process."""
    load: float | None = None
    """The load average: how many processes and threads wanted a core in the last minute. Read only where there are no
    ``cores``."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The tightest limit of the control groups that this process is in: ``cores`` of processor time per time, and the
    file that counts what was used of it."""

    cores: float
    used: Path
    unit: float
    """Seconds of one count in the file."""


def free_cores(before: Reading, after: Reading, cores: int, quota: float | None = None) -> float | None:
    """How many of ``cores`` (and of the ``quota``) other processes left free between two readings. None where that is
    not known."""
    seconds = after.at - before.at
    own = (after.own - before.own) / seconds
    left: list[float] = []
    if before.cores is not None and after.cores is not None:
        left.append(cores - max(0.0, (sum(after.cores.values()) - sum(before.cores.values())) / seconds - own))
    elif after.load is not None:
        left.append(cores - max(0.0, after.load - own))
    if quota is not None and before.group is not None and after.group is not None:
        left.append(quota - max(0.0, (after.group - before.group) / seconds - own))
    return max(0.0, min(left)) if left else None


def idlest(before: Reading, after: Reading, count: int, ours: frozenset[int]) -> frozenset[int] | None:
    """The ``count`` cores of which others used least between two readings; None where that is not known. ``ours``:
    where all of our own use was, if anywhere.

    Those that are ours already stay, unless others leave ``_WORTH_MOVING`` more of a core elsewhere.
    """
    if before.cores is None or after.cores is None:
        return None
    seconds = after.at - before.at
    own = (after.own - before.own) / seconds / max(1, len(ours))
    others = {
        core: (used - before.cores.get(core, used)) / seconds - (own if core in ours else 0.0)
        for core, used in after.cores.items()
    }
    chosen = frozenset(sorted(others, key=others.__getitem__)[:count])
    if (
        len(ours) == count
        and ours <= others.keys()
        and sum(others[c] for c in ours) - sum(others[c] for c in chosen) < _WORTH_MOVING
    ):
        return ours
    return chosen


class Machine:
    """Reads the machine this process runs on. ``root`` is for tests: where `/proc` and `/sys` are looked for."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        affinity = getattr(os, "sched_getaffinity", None)
        self.bound_to: frozenset[int] | None = frozenset(affinity(0)) if affinity is not None else None
        """The cores that this process may use; None where a system binds no process."""
        self.quota = _quota(root)
        bound = len(self.bound_to) if self.bound_to is not None else os.cpu_count() or 1
        self.cores: int = max(1, min(bound, math.ceil(self.quota.cores) if self.quota is not None else bound))
        """Cores of which this process can make use at once."""

    def read(self) -> Reading:
        cores = self._cores()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + ended.ru_utime + ended.ru_stime
        return Reading(time.monotonic(), own, cores, self._group(), None if cores is not None else _load())

    def _cores(self) -> dict[int, float] | None:
        if self.bound_to is None:
            return None
        try:
            used: dict[int, float] = {}
            for line in self._stat.read_text().split("\nintr", 1)[0].splitlines():
                name, *columns = line.split()
                number = name.removeprefix("cpu")
                if number and int(number) in self.bound_to:
                    used[int(number)] = sum(int(columns[i]) for i in _BUSY) / os.sysconf("SC_CLK_TCK")
            return used
        except (OSError, ValueError, IndexError):
            return None

    def _group(self) -> float | None:
        if self.quota is None:
            return None
        try:
            return int(self.quota.used.read_text().removeprefix("usage_usec").split()[0]) * self.quota.unit
        except (OSError, ValueError, IndexError):
            return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _quota(root: Path) -> Quota | None:
    """The tightest quota of the control groups above this process, of either version; None where there is none."""
    try:
        entries = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    found: list[Quota] = []
    for _, controllers, path in entries:
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            top = root / "sys/fs/cgroup/cpu"
        else:
            continue
        folder = top / path.lstrip("/")
        # In a container the path may be the host's, of which nothing is to be seen: the top is then the container's own
        # group.
        for place in [place for place in (folder, *folder.parents) if place == top or top in place.parents]:
            if (one := _quota_of(place)) is not None:
                found.append(one)
    return min(found, key=lambda quota: quota.cores, default=None)


def _quota_of(group: Path) -> Quota | None:
    try:
        if (group / "cpu.max").is_file():
            limit, period = (group / "cpu.max").read_text().split()
            return None if limit == "max" else Quota(int(limit) / int(period), group / "cpu.stat", 1e-6)
        limit = int((group / "cpu.cfs_quota_us").read_text())
        return (
            None
            if limit <= 0
            else Quota(limit / int((group / "cpu.cfs_period_us").read_text()), group / "cpuacct.usage", 1e-9)
        )
    except (OSError, ValueError, ZeroDivisionError):
        return None
