"""Threads that compute: how many, and how long one that has nothing to do may spin. Decided here, in plain numbers; `local_threads` tells torch.

With more threads than free cores all wait for the slowest at every barrier, and what waits in a spin keeps a core from it.
Loads no torch, so that it can be called before torch is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

WINDOW = 0.5
"""Seconds between two looks at the machine."""
FEWER_AFTER = 2
"""Windows in a row that have to say so before there are fewer threads."""
MORE_AFTER = 4
"""Windows in a row that have to say so before there are more."""
_SPARE = 0.35
"""Of a core: as much of the last one may be in use when a thread is added. One is taken away when it is half."""
_TOGETHER = 0.85
"""What threads that share their cores with others get done together, of what their time would be worth: they wait for the slowest."""

_SPINNING = {"GOMP_SPINCOUNT": "30000", "KMP_BLOCKTIME": "1"}
"""For the two OpenMP libraries that torch comes with (GNU's on Linux, LLVM's elsewhere): one or two milliseconds, instead of 15 and 200."""


def bound_spinning() -> None:
    """Bounds how long torch's threads spin while they wait, where torch is not loaded yet: it looks once. What the user set stays."""
    if "torch" not in sys.modules and not _is_set():
        os.environ.update(_SPINNING)


def long_spins() -> str | None:
    """A line that says what to set, where torch was loaded before spinning was bounded."""
    if "torch" not in sys.modules or _is_set():
        return None
    name = "KMP_BLOCKTIME" if sys.platform == "darwin" else "GOMP_SPINCOUNT"
    return (
        "torch was imported before the Trainer was made, so its threads spin for long where they wait, which costs much beside other work: set "
        f"{name}={_SPINNING[name]} before Python starts, or import torch later"
    )


def _is_set() -> bool:
    return any(name in os.environ for name in ("OMP_WAIT_POLICY", *_SPINNING))


def most_threads(cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """The most threads there may be: as many as usable cores, or fewer where OMP_NUM_THREADS says so."""
    said = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, min(cores, int(said))) if said.isdecimal() else cores


def threads_for(current: int, most: int, free: Sequence[float]) -> int:
    """How many threads to compute with, from the free cores of the last windows (the last one last), of which this process's own use is free.

    ``FEWER_AFTER`` windows that agree take threads away, ``MORE_AFTER`` bring them back; in between it stays, so that a passing process changes nothing.
    """
    if len(free) >= FEWER_AFTER and (fewer := _worth(most, max(free[-FEWER_AFTER:]), 0.5)) < current:
        return fewer
    if len(free) >= MORE_AFTER and (more := _worth(most, min(free[-MORE_AFTER:]), _SPARE)) > current:
        return more
    return current


def _worth(most: int, free: float, spare: float) -> int:
    """The number that gets most done. On free cores threads run undisturbed; but where few are free, one on each core gets more from a system that shares
    cores among all that want them. An estimate: benchmarks/busy.py has what comes of it."""
    undisturbed = max(1, min(most, int(free + spare)))
    shared = _TOGETHER * most * most / (most + max(0.0, most - free))
    return most if shared > min(free, undisturbed) else undisturbed


def crowded(before: bool, threads: int, free: Sequence[float]) -> bool:
    """Whether others leave fewer cores than there are ``threads``, so that those that wait should not spin; by the same windows."""
    if len(free) >= FEWER_AFTER and max(free[-FEWER_AFTER:]) < threads - 0.5:
        return True
    if len(free) >= MORE_AFTER and min(free[-MORE_AFTER:]) > threads - _SPARE:
        return False
    return before
