"""``agentlightning.types`` as programs import it: the nouns that users build and agents are handed, and the names that
they annotate with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from agentlightning.agent.resources import LLM, Dataset, NamedResources, PromptTemplate, ProxyLLM
from agentlightning.agent.rollouts import Attempt, Rollout, RolloutConfig
from agentlightning.agent.triplets import Triplet
from agentlightning.tracing.spans import OtelResource, Span, SpanContext, SpanEvent, SpanLink, TraceStatus

Event, Link = SpanEvent, SpanLink

TaskInput: TypeAlias = Any
"""What an agent is handed as its task."""
RolloutRawResult: TypeAlias = float | int | Sequence[Triplet] | Sequence[Span] | None
"""What an agent may return."""
RolloutMode: TypeAlias = Literal["train", "val", "test", "dev"]
RolloutStatus: TypeAlias = Literal["queuing", "preparing", "running", "succeeded", "failed", "cancelled", "requeuing"]
AttemptStatus: TypeAlias = Literal[
    "preparing", "running", "succeeded", "failed", "timeout", "unresponsive", "cancelled"
]
AttemptedRollout: TypeAlias = Rollout
"""A rollout with the attempt that runs it: what an agent is handed has one."""


class Hook:
    """What programs derive the hooks of ``Trainer(hooks=...)`` from. Each method is called around every attempt, where
    its agent runs; a subclass has those that it needs, plain or async."""

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        """Before all of an attempt."""

    async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        """Before the agent, within the tracer's context."""

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        """After the agent, within the tracer's context, however it ended."""

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
        """After all of an attempt, with the spans of its calls, however it ended."""


__all__ = [
    "LLM",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "Dataset",
    "Event",
    "Hook",
    "Link",
    "NamedResources",
    "OtelResource",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "Span",
    "SpanContext",
    "TaskInput",
    "TraceStatus",
    "Triplet",
]
