"""NotebookView: the live panel as one output of a notebook's cell, updated in place. Asks the kernel that is there;
needs no widgets."""

from __future__ import annotations

import io
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType

from agentlightning.nouns import Json
from agentlightning.text import one_line
from agentlightning.views.live.plain import PlainView
from agentlightning.views.live.state import PATHS, summary
from agentlightning.views.live.terminal import LiveView
from agentlightning.views.screen import Labelled, Text

WIDTH = 100
"""Columns of the panel."""
REFRESH = 0.5
"""Seconds between updates, where something has changed."""

_PRE = (
    "<pre style=\"white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans "
    "Mono',consolas,monospace\">{code}</pre>"
)


def kernel_shell() -> Any | None:
    """IPython's shell where this is a notebook's kernel, else None: a plain program, or IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


class NotebookView(LiveView):
    """See Progress. What it is told is shown at the next update; messages are printed below."""

    def __init__(self, shell: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console=_console(), clock=clock)
        self.stream = sys.stdout
        self._shell = shell
        self._lines = PlainView(clock=clock)
        self._display: dict[str, str] = {}
        self._shown = ""
        self._publishing = threading.Lock()
        self._over = threading.Event()

    def message(self, text: str) -> None:
        self._lines.message(text)

    def finished(self, result: Mapping[str, Json]) -> None:
        self._check()
        self._end(Group(Text(one_line(self._state.name), style="bold"), Labelled(summary(result), paths=PATHS)))

    def close(self) -> None:
        if self._display:
            self._end(self.render(WIDTH))

    def _end(self, last: RenderableType) -> None:
        if not self._closed:
            self._over.set()
            self._show(last)
            self._closed = True

    def _open(self) -> None:
        with self._publishing:
            if self._display or self._closed:
                return
            self._display = {"display_id": secrets.token_hex(8)}
            self._publish(self.render(WIDTH), update=False)
        threading.Thread(target=self._refresh, name="agentlightning-view", daemon=True).start()

    def _refresh(self) -> None:
        while not self._over.wait(REFRESH) and self.failed is None:
            try:
                self._show(self.render(WIDTH))
            except (Exception, SystemExit) as error:  # noqa: BLE001  # raised by the next call, as everything that fails in a view
                self.failed = error

    def _show(self, panel: RenderableType) -> None:
        with self._publishing:
            if not self._closed:
                self._publish(panel, update=bool(self._display))

    def _publish(self, panel: RenderableType, *, update: bool) -> None:
        console = _console()
        console.print(panel)
        html = console.export_html(inline_styles=True, code_format=_PRE, clear=False)
        if html == self._shown:
            return
        self._shown = html
        data = {"text/html": html, "text/plain": console.export_text()}
        self._shell.display_pub.publish(data, metadata={}, transient=self._display, update=update)


def _console() -> Console:
    return Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        highlight=False,
    )
