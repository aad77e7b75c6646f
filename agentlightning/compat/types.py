"""``agentlightning.types`` as programs import it: the nouns that users build and agents are handed."""

from __future__ import annotations

from agentlightning.agent.resources import LLM, Dataset, NamedResources, PromptTemplate, ProxyLLM
from agentlightning.agent.rollouts import Attempt, Rollout, RolloutConfig
from agentlightning.agent.triplets import Triplet
from agentlightning.tracing.spans import OtelResource, Span, SpanContext, SpanEvent, SpanLink, TraceStatus

Event, Link = SpanEvent, SpanLink

__all__ = [
    "LLM",
    "Attempt",
    "Dataset",
    "Event",
    "Link",
    "NamedResources",
    "OtelResource",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RolloutConfig",
    "Span",
    "SpanContext",
    "TraceStatus",
    "Triplet",
]
