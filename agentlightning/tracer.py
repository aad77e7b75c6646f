"""tracer: the name under which programs written for this package look for their traces. ``tracer.last_trace()`` is ``tracing.last_trace()``.

Recorders that such programs hand to a trainer, or subclass, are not here: the endpoint records every call.
"""

from __future__ import annotations

from agentlightning.spellings.paths import why_no_module
from agentlightning.tracing import last_trace

__all__ = ["last_trace"]

__path__: list[str] = []  # so that what is not in here is refused with its sentence (spellings/paths.py)


def __getattr__(name: str) -> object:
    raise AttributeError(why_no_module(f"{__name__}.{name}") or f"module {__name__!r} has no attribute {name!r}", name=name)
