"""Threads: tells torch with how many threads to compute, on each thread that computes, from loading the model on.

The number is the setting's where one is set. Else it follows what other processes leave free (thread_count.py,
cores.py), between two pieces of work and never within one. Where others want the cores too, threads that wait hardly
spin, and where that leaves a single core ours are bound to it together.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import torch

from agentlightning.engines.local.cores import Machine, Reading, free_cores, idlest
from agentlightning.engines.local.team import Team, name_thread
from agentlightning.engines.local.thread_count import MORE_AFTER, WINDOW, cores_for, most_threads, threads_on

_log = logging.getLogger(__name__)

_SAY_EVERY = 60.0
"""Seconds between two lines about a change, so that a machine whose load comes and goes does not fill the screen. The
log has all."""


class Threads:
    """With how many threads a run computes. One for all that computes in it; ``adapt`` is called between two pieces of
    work, on the thread that does them.

    ``fixed`` is the setting. ``say`` is told, in a line, when and why the number changed. ``since`` is an earlier
    reading to begin with.
    """

    def __init__(
        self,
        fixed: int | None = None,
        *,
        say: Callable[[str], object] | None = None,
        machine: Machine | None = None,
        since: Reading | None = None,
    ) -> None:
        self._machine = machine or Machine()
        self._most = most_threads(self._machine.cores)
        self.count: int = fixed or self._most
        self._fixed = fixed is not None
        self._looks = self.count > 1
        self._cores = self._most
        """On how many of them to compute."""
        self._teams = threading.local()
        self._say = say
        self._said = -math.inf
        self._last = since or (self._machine.read() if self._looks else Reading(0.0, 0.0))
        self._free: deque[float] = deque(maxlen=MORE_AFTER)
        self._sleepers: Sleepers | None = None

    @classmethod
    def unchanging(cls) -> Threads:
        """As many as there may be, at any load: what equal bits need where no number is set."""
        return cls(most_threads(Machine().cores))

    def enlist(self) -> None:
        """Lets this thread be bound to some of the cores. For a thread that does nothing but compute, and has not begun
        to."""
        if self._looks:
            self._teams.mine = Team()

    def adapt(self) -> None:
        """Looks at the machine if it is time to, and sets this thread's number of threads."""
        if self._looks and time.monotonic() - self._last.at >= WINDOW:
            last, self._last = self._last, self._machine.read()
            self._look(last)
            self._place(last)
        if torch.get_num_threads() != self.count:
            torch.set_num_threads(self.count)

    def _look(self, last: Reading) -> None:
        quota = self._machine.quota
        free = free_cores(last, self._last, self._machine.cores, None if quota is None else quota.cores)
        if free is None:
            return
        # A piece of work that took several windows is as good as several.
        self._free.extend([free] * min(MORE_AFTER, int((self._last.at - last.at) / WINDOW)))
        self._cores = cores_for(self._cores, self._most, list(self._free))
        count = self.count if self._fixed else threads_on(self._cores, self._most)
        tight = self._cores < count
        if count == self.count and tight == (self._sleepers is not None):
            return
        cores = self._machine.cores
        number = f"{self.count} -> {count}" if count != self.count else f"{count}"
        where = f"on {self._cores} of {cores} cores, not spinning" if tight else "spinning"
        line = (
            f"compute threads: {number}, {where} while they wait: other processes use {max(0.0, cores - free):.1f} "
            "cores"
        )
        self.count = count
        self._rest(tight)
        _log.info("%s", line)
        if self._say is not None and self._last.at - self._said >= _SAY_EVERY:
            self._said = self._last.at
            self._say(line)

    def _rest(self, tight: bool) -> None:
        if tight and self._sleepers is None:
            self._sleepers = Sleepers(self._machine.cores)
        elif not tight and self._sleepers is not None:
            self._sleepers.close()
            self._sleepers = None

    def _place(self, last: Reading) -> None:
        team: Team | None = getattr(self._teams, "mine", None)
        every = self._machine.bound_to
        if team is None or every is None:
            return
        if self._sleepers is None:
            if team.bound_to is not None:
                team.bind(every)
        elif (chosen := idlest(last, self._last, self._cores, team.bound_to or frozenset())) is not None:
            team.bind(chosen)


class Sleepers:
    """Threads of GNU's OpenMP library that sleep until this is closed, or nobody holds it any more.

    While the library has more threads than the process may use cores, those that wait for others hardly spin before
    they sleep. It has no other way to change that while a program runs. For other OpenMP libraries they are a few
    threads that sleep. There are as many as ``cores``, whatever number others compute with; whoever makes them computes
    nothing meanwhile, since a part of torch has one number for all threads.
    """

    def __init__(self, cores: int) -> None:
        over = threading.Event()
        self._close = weakref.finalize(self, over.set)
        ready = threading.Event()
        threading.Thread(target=_sleep, args=(cores, ready, over), name="engine-sleepers", daemon=True).start()
        ready.wait()

    def close(self) -> None:
        self._close()


def _sleep(cores: int, ready: threading.Event, over: threading.Event) -> None:
    with suppress(OSError):  # another system: it has no names that others inherit
        name_thread("engine-sleepers")
    count = torch.get_num_threads()
    torch.set_num_threads(cores)
    torch.zeros(cores << 16).add_(1.0)  # large enough to be computed by all threads, which stay with this one
    torch.set_num_threads(count)
    ready.set()
    over.wait()
