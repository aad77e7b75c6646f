"""Threads that compute: how many, on how many cores, and how long one that has nothing to do may spin. Decided here, in
plain numbers; threads.py tells torch.

With more threads than free cores all wait for the slowest at every barrier, and what waits in a spin keeps a core from
it. Loads no torch, so that it can be called before torch is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

WINDOW = 0.5
"""Seconds between two looks at the machine."""
FEWER_AFTER = 2
"""Windows in a row that have to say so before fewer cores are used."""
MORE_AFTER = 4
"""Windows in a row that have to say so before more are used."""
_SPARE = 0.35
"""Of a core: as much of the last one may be in use when it is taken. It is left when half of it is."""

_SPINNING = {"GOMP_SPINCOUNT": "100000", "KMP_BLOCKTIME": "5"}
"""For the two OpenMP libraries that torch comes with (GNU's on Linux, LLVM's elsewhere): about five milliseconds,
instead of 15 and 200."""


def bound_spinning() -> None:
    """Bounds how long torch's threads spin while they wait, where torch is not loaded yet: it looks once. What the user
    set stays."""
    if "torch" not in sys.modules and not _is_set():
        os.environ.update(_SPINNING)


def long_spins() -> str | None:
    """A line that says what to set, where torch was loaded before spinning was bounded."""
    if "torch" not in sys.modules or _is_set():
        return None
    name = "KMP_BLOCKTIME" if sys.platform == "darwin" else "GOMP_SPINCOUNT"
    return (
        "torch was imported before the Trainer was made, so its threads spin for long where they wait, which costs "
        f"much beside other work: set {name}={_SPINNING[name]} before Python starts, or import torch later"
    )


def _is_set() -> bool:
    return any(name in os.environ for name in ("OMP_WAIT_POLICY", *_SPINNING))


def most_threads(cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """The most threads there may be: as many as usable cores, or fewer where OMP_NUM_THREADS says so."""
    said = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, min(cores, int(said))) if said.isdecimal() else cores


def cores_for(current: int, most: int, free: Sequence[float]) -> int:
    """On how many cores to compute, at most ``most``, from the free cores of the last windows (the last one last), of
    which this process's own use is free.

    ``FEWER_AFTER`` windows that agree take cores away, ``MORE_AFTER`` bring them back; in between it stays, so that a
    passing process changes nothing.
    """
    if len(free) >= FEWER_AFTER and (fewer := _whole(most, max(free[-FEWER_AFTER:]) + 0.5)) < current:
        return fewer
    if len(free) >= MORE_AFTER and (more := _whole(most, min(free[-MORE_AFTER:]) + _SPARE)) > current:
        return more
    return current


def _whole(most: int, cores: float) -> int:
    return max(1, min(most, int(cores)))


def threads_on(cores: int, most: int) -> int:
    """With how many threads to compute where that many cores are free: one on each, but two where it is a single one.

    A system that shares cores among all that want them gives more to two threads, and together on one core they lose
    nothing by that (benchmarks/busy.py). On several cores all would wait for those that take turns on one."""
    return min(most, max(2, cores))
