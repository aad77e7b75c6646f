"""Which view a run gets: a notebook's, a terminal's, or plain lines."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from agentlightning.records.progress import Progress, SilentView
from agentlightning.views.live.notebook import NotebookView, kernel_shell
from agentlightning.views.live.plain import PlainView
from agentlightning.views.live.terminal import LiveView


def make_progress(progress: Progress | bool = True, stream: TextIO | None = None) -> Progress:
    """A view as asked for: a Progress is taken as it is, False shows nothing.

    True is a NotebookView in a notebook, a LiveView where ``stream`` (stdout) is a terminal that can move its cursor,
    else a PlainView.
    """
    if not isinstance(progress, bool):
        return progress
    if not progress:
        return SilentView()
    if stream in (None, sys.stdout, sys.stderr):
        shell = kernel_shell()
        if shell is not None:
            return NotebookView(shell)
    target: TextIO | None = stream or sys.stdout
    if target is not None and not target.closed and target.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        return LiveView(stream)
    return PlainView(stream)
