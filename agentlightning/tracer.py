"""tracer: the name under which programs written for this package look for their traces. ``tracer.last_trace()`` is ``tracing.last_trace()``.

Recorders that such programs hand to a trainer, or subclass, have no part behind them: the endpoint records every call.
"""

from __future__ import annotations

from agentlightning.tracing import last_trace

__all__ = ["last_trace"]

_NOT_YET = {
    "AgentOpsTracer": "leave the tracer out: the endpoint records every call",
    "OtelTracer": "leave the tracer out: the endpoint records every call",
    "get_last_trace": "last_trace() has the recorded tree; spans are not made",
}


def __getattr__(name: str) -> object:
    if name in _NOT_YET:
        raise ImportError(f"agentlightning.tracer has no {name} yet: {_NOT_YET[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
