"""Memory: what keeps a training step from spending its time in the kernel, and how much it took. Touches no tensors.

On Linux the C library hands every large block back to the kernel when it is freed, and takes it anew, page by page, for
the next one. A training step frees and takes gigabytes. The library's settings are usually made by environment
variables before a process starts; ``mallopt`` makes them from inside.
"""

from __future__ import annotations

import ctypes
import logging
import resource
import sys
from pathlib import Path

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8
"""Names in malloc.h."""
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory in the process, for all threads, from now on. Linux with glibc only;
    elsewhere nothing. Says whether it did."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One arena: a further one is made of 64 MB heaps, in which no large block fits, and which are given back one by
    # one.
    settings = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: _LARGEST, _TOP_PAD: 64 * 2**20}
    return all(mallopt(name, value) == 1 for name, value in settings.items())


class PeakMemory:
    """The most memory the process held since this was made, in bytes. Linux resets its own mark; elsewhere it is the
    peak of the process's life."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            logging.getLogger(__name__).debug("the peak of memory could not be reset: %s", error)

    def read(self) -> int:
        try:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except OSError as error:
            logging.getLogger(__name__).debug("the peak of memory could not be read: %s", error)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
