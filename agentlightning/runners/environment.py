"""Hiding: takes the keys of external models out of what other processes of the same user can read of this one.

Linux shows the environment that a process was started with in `/proc/PID/environ`, to every process of its user: an
agent that looks there would find what its own environment was kept free of.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection
from pathlib import Path

from agentlightning.agent.resources import SHORTEST_KEY


def hide_inherited(keys: Collection[str]) -> None:
    """Overwrites ``keys`` in the environment that this process was started with. Its variables keep their values, for
    itself and for what it starts."""
    secret = [key.encode() for key in keys if len(key) >= SHORTEST_KEY]
    if sys.platform != "linux" or not secret:
        return
    shown = Path("/proc/self/environ").read_bytes()
    start, end = _place()
    if (
        not start
        or end - start != len(shown)
        or not any(key in shown for key in secret)
        or ctypes.string_at(start, len(shown)) != shown
    ):
        return
    for name, value in os.environb.items():
        if any(key in value for key in secret):
            os.environb[name] = value  # in new memory: what is overwritten is what the process no longer uses
    for key in secret:
        at = shown.find(key)
        while at >= 0:
            ctypes.memset(start + at, ord("*"), len(key))
            at = shown.find(key, at + len(key))


def _place() -> tuple[int, int]:
    """Where in memory the environment lies that the process was started with, by proc_pid_stat(5); zeros where it is
    not told."""
    numbers = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return (int(numbers[47]), int(numbers[48])) if len(numbers) > 48 else (0, 0)
