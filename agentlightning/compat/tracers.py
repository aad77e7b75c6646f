"""``agentlightning.tracer`` as programs import it: the tracers that they make, derive their own from and ask about what
was called. All of them are the one tracer here (tracing/tracer.py): calls are recorded by the endpoint, whatever
instruments the agent."""

from __future__ import annotations

from typing import Any

from agentlightning.compat.agent_framework import complete
from agentlightning.tracing import DrawnTrace, last_trace
from agentlightning.tracing.tracer import TraceContext, Tracer

BaseTracer = Tracer
"""By the name that it had in 0.1."""

__all__ = ["AgentOpsTracer", "BaseTracer", "DrawnTrace", "OtelTracer", "TraceContext", "Tracer", "last_trace"]


class OtelTracer(Tracer):
    """For programs whose agents make OpenTelemetry's spans."""


class AgentOpsTracer(Tracer):
    """For programs whose agents are instrumented by AgentOps, and for Agent Framework's lab, which derives its own.

    Who starts AgentOps and instruments the libraries (``agentops_managed``, ``instrument_managed``, ``daemon``) makes
    no difference to what is recorded: all three are taken, and nothing is instrumented for them.
    """

    def __init__(self, *, agentops_managed: bool = True, instrument_managed: bool = True, daemon: bool = True) -> None:
        del agentops_managed, instrument_managed, daemon

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        complete(cls.__module__)
