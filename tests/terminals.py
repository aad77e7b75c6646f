"""Real terminals for tests: a command in a pseudo-terminal of a size, what it wrote, and the screen that a terminal
makes of it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]
AGL = (sys.executable, "-c", "from agentlightning.cli import main; main()")


@dataclass(frozen=True)
class Shown:
    """What a command wrote to its terminal, and its exit code."""

    code: int
    raw: bytes
    columns: int
    encoding: str = "utf-8"

    @property
    def text(self) -> str:
        return self.raw.decode(self.encoding, "replace")

    @property
    def lines(self) -> list[str]:
        """The screen's lines at the end, those that left it at the top too."""
        screen = pyte.Screen(self.columns, 400)
        pyte.Stream(screen).feed(self.text)
        lines = [line.rstrip() for line in screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def environment(**more: str) -> dict[str, str]:
    """The process' own, without what would change how things are shown."""
    left_out = ("NO_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING", "FORCE_COLOR")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AGL_") and key not in left_out}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def in_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    rows: int = 24,
    cwd: Path = ROOT,
    encoding: str = "utf-8",
    until: Callable[[bytes], bool] | None = None,
    stdout: int | None = None,
    **env: str,
) -> Shown:
    """Runs a command in a terminal of its own until it ends; the terminal is closed before that when ``until`` holds of
    what was written.

    ``stdout`` is another file for its standard output.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=cwd, stdin=follower, stdout=follower if stdout is None else stdout, stderr=follower,
        close_fds=True, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), env=environment(PYTHONIOENCODING=encoding, **env),
    )  # fmt: skip
    os.close(follower)
    raw = b""
    try:
        while chunk := os.read(leader, 65536):
            raw += chunk
            if until is not None and until(raw):
                break
    except OSError:
        pass  # the other side was closed: the process ended
    os.close(leader)
    return Shown(process.wait(240), raw, columns, encoding)
