"""The OpenAI Agents SDK: the agent that runs here, by the spans that the SDK keeps for itself.

They are there whether its tracing is on or off. That is left alone: where it is on, the SDK posts conversations to an
outside address. Nothing is registered with it, and nothing of it is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from agentlightning.tracing.names import Named

DEEPEST = 100
"""Spans within spans that are looked through."""


def current_agent() -> Named | None:
    """The nearest agent around; None where there is none, or no such SDK.

    A span keeps the token that set it, and with it the one before; an identifier of its parent it has only where
    tracing is on.
    """
    scope: Any = sys.modules.get("agents.tracing.scope")
    span = scope.Scope.get_current_span() if scope is not None else None
    for _ in range(DEEPEST):
        if span is None:
            return None
        if span.span_data.type == "agent":
            return span.span_data.name, "name"
        token = span._prev_span_token
        span = token.old_value if token is not None and token.old_value is not token.MISSING else None
    return None
