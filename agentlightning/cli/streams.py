"""The standard streams of an ``agl`` process, made safe once, before anything is written: no character is too much for
them, and a reader may leave.

``say`` is how a command writes a line on them.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

from agentlightning.text import printable
from agentlightning.views.screen import LEFT


def say(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """A text on stdout or stderr, at once, with control characters as escapes."""
    print(printable(text), file=sys.stderr if err else sys.stdout, end=end, flush=True)


class _Patient(io.FileIO):
    """A descriptor whose reader may leave: what is written after that goes nowhere. Any other error is raised once."""

    gone = False

    def write(self, data: object, /) -> int:
        if not self.gone:
            try:
                return super().write(data)  # pyright: ignore[reportArgumentType]  # any buffer
            except OSError as error:
                self.gone = True
                if error.errno not in LEFT:
                    raise
        return memoryview(data).nbytes  # pyright: ignore[reportArgumentType]


def make_safe() -> None:
    """Replaces sys.stdout and sys.stderr, and opens what the process was started without, so that no file takes its
    number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        encoding = getattr(old, "encoding", None) or "utf-8"
        line_buffering = getattr(old, "line_buffering", True)
        raw = io.BufferedWriter(_Patient(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=line_buffering))
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # lives as long as the process
    else:
        stdin: Any = sys.stdin
        stdin.reconfigure(errors="replace")


def let_go() -> None:
    """Writes what is held back. Nothing can be done about an error any more, and it is none of a command that did its
    work."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
