"""Guarded: a view that cannot end a run. What it fails at is said in one line, and the run goes on with plain lines in
its place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from agentlightning.records.progress import Progress, SilentView
from agentlightning.text import one_line
from agentlightning.views.live.plain import PlainView

logger = logging.getLogger("agentlightning")


def guarded(view: Progress) -> Progress:
    """The same view behind a guard."""
    return cast(Progress, _Guarded(view))


class _Guarded:
    """Whatever Progress has is handed on; a view that was written before a method came is not told of it."""

    def __init__(self, view: Progress) -> None:
        self._view = view
        self._began: tuple[Any, ...] | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in dir(Progress):
            raise AttributeError(f"Progress has no {name!r}")

        def tell(*args: Any, **options: Any) -> None:
            if name == "run_started":
                self._began = args
            self._tell(name, *args, **options)

        return tell

    def _tell(self, name: str, *args: Any, **options: Any) -> None:
        try:
            method = getattr(self._view, name, None)
            if method is not None:
                method(*args, **options)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a display fails at is no reason to end a run
            self._replace(name, error)
            if name != "run_started":
                self._tell(name, *args, **options)

    def _replace(self, name: str, error: BaseException) -> None:
        failed = self._view
        stream = getattr(failed, "stream", None)
        self._view = (
            SilentView() if isinstance(failed, PlainView) else PlainView(stream if hasattr(stream, "write") else None)
        )
        with suppress(Exception, SystemExit):
            failed.close()
        line = one_line(
            f"{type(failed).__name__}.{name} failed ({type(error).__name__}: {error}): the run goes on with plain lines"
        )
        if isinstance(error, OSError):
            logger.info(line)  # a terminal that is gone shows no line
        self._view.message(line)
        if self._began is not None:
            self._view.run_started(*self._began)
