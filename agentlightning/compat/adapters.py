"""``agentlightning.adapter`` as programs import it: what makes triplets and messages of an attempt's spans.

Spans hold what was recorded (tracing/spans.py): a triplet's tokens are those that were sampled, never a text tokenised
again, and messages are those that were sent. Nothing here decides what is trained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypedDict, TypeVar, cast

from agentlightning.agent.emitters import get_reward_value
from agentlightning.agent.rewards import REWARD
from agentlightning.agent.trained_agents import TrainedAgents, as_search, check_pattern
from agentlightning.agent.triplets import Triplet
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json
from agentlightning.tracing import spans as names
from agentlightning.tracing.messages import chat_message
from agentlightning.tracing.spans import Span, call_tokens

__all__ = [
    "Adapter",
    "BaseTraceTripletAdapter",
    "LlmProxyTraceToTriplet",
    "OpenAIMessages",
    "OtelTraceAdapter",
    "TraceAdapter",
    "TraceToMessages",
    "TraceTripletAdapter",
    "TracerTraceToTriplet",
    "TripletExporter",
]

From = TypeVar("From")
To = TypeVar("To")


class Adapter(Generic[From, To]):
    """Makes one thing of another; programs derive their own, with an ``adapt``."""

    def adapt(self, source: From, /) -> To:
        raise ConfigError(f"{type(self).__name__} has no adapt: write adapt(self, spans)")

    def __call__(self, source: From, /) -> To:
        return self.adapt(source)


class TraceAdapter(Adapter[Sequence[Any], To], Generic[To]):
    """Makes something of an attempt's spans, `Span` or OpenTelemetry's own."""


class OtelTraceAdapter(TraceAdapter[To], Generic[To]):
    """Another name of it."""


class TracerTraceToTriplet(TraceAdapter[list[Triplet]]):
    """A triplet for each sample of each call, in order: ``prompt`` and ``response`` as ``{"token_ids": [...]}``, the
    response with its ``logprobs``, and ``metadata`` with the call's ``response_id``, ``agent_name`` and
    ``finish_reason``.

    ``agent_match`` chooses agents by name as ``trained_agents`` does (None: all), ``llm_call_match`` calls by what is
    searched for in their spans' names (None: all). A call's reward is the last one that names it; else the first that
    was given to the whole rollout after it and before the next call.

    ``repair_hierarchy`` makes no difference: which agent made a call is recorded with it. Raises ConfigError for a
    pattern that is none, and for a choice that the record does not allow.
    """

    def __init__(
        self,
        *,
        agent_match: str | None = None,
        llm_call_match: str | None = None,
        repair_hierarchy: bool = True,
        exclude_llm_call_in_reward: bool = False,
        reward_match: str = "first_occurrence",
    ) -> None:
        del repair_hierarchy
        for name, pattern in (("agent_match", agent_match), ("llm_call_match", llm_call_match)):
            if pattern is not None:
                check_pattern(pattern, type(self).__name__, name)
        if exclude_llm_call_in_reward:
            raise ConfigError(
                f"{type(self).__name__}(exclude_llm_call_in_reward=True): calls inside a reward function are not told "
                "apart; let an external model judge (an LLM resource with an endpoint), whose calls are never trained"
            )
        if getattr(reward_match, "value", reward_match) != "first_occurrence":
            raise ConfigError(
                f"{type(self).__name__}(reward_match={reward_match!r}): it is 'first_occurrence'; "
                "emit_reward(x, call_id=...) says whose a reward is"
            )
        self.agent_match = agent_match
        self.llm_call_match = llm_call_match

    def adapt(self, source: Sequence[Any], /) -> list[Triplet]:
        """Raises ConfigError for what is no list of spans."""
        told = checked_spans(source, type(self).__name__)
        calls = [(place, span, tokens) for place, span in enumerate(told) if (tokens := call_tokens(span)) is not None]
        # As a run does: a name that equals an agent's is that agent, else it is searched in names.
        chosen = TrainedAgents(as_search(self.agent_match, [span.attributes.get(names.AGENT) for _, span, _ in calls]))
        rewards = _rewards(told)
        return [
            _triplet(span, tokens, rewards.get(place))
            for place, span, tokens in calls
            if chosen.trains(span.attributes.get(names.AGENT))
            and (self.llm_call_match is None or re.search(self.llm_call_match, span.name))
        ]


class TripletExporter(TracerTraceToTriplet):
    """The same by the name that it had in 0.1."""

    def export(self, spans: Sequence[Any]) -> list[Triplet]:
        return self.adapt(spans)


class LlmProxyTraceToTriplet(TracerTraceToTriplet):
    """The same for all calls of an endpoint: there is nothing to choose."""

    def __init__(self) -> None:
        super().__init__()


TraceTripletAdapter = BaseTraceTripletAdapter = TracerTraceToTriplet


class OpenAIMessages(TypedDict):
    """One call's messages as Chat Completions writes them, the reply last, and the tools that it was offered."""

    messages: list[dict[str, Json]]
    tools: list[dict[str, Json]] | None


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """The messages of each call, in order, as they were sent and as the reply was given out. A call whose prompt was a
    text or token ids has none and is left out."""

    def adapt(self, source: Sequence[Any], /) -> list[OpenAIMessages]:
        """Raises ConfigError for what is no list of spans."""
        return [
            _messages(span.attributes)
            for span in checked_spans(source, type(self).__name__)
            if names.INPUT_MESSAGES in span.attributes
        ]


# --------------------------------------------------------------------------- parts


def checked_spans(source: object, who: str) -> list[Any]:
    """The items of a list of spans. Raises ConfigError, which names the first that is none."""
    if isinstance(source, str | bytes | Mapping) or not hasattr(source, "__iter__"):
        raise ConfigError(
            f"{who}.adapt: expected a list of spans, such as tracer.get_last_trace() gives, not {source!r:.80} "
            f"({type(cast(object, source)).__name__})"
        )
    items = list(cast("Sequence[object]", source))
    for place, item in enumerate(items, 1):
        if not isinstance(getattr(item, "attributes", None), Mapping) or not hasattr(item, "name"):
            raise ConfigError(
                f"{who}.adapt: item {place} of {len(items)} is {type(item).__name__}, no span: a span has a name and "
                "attributes"
            )
    return items


def _rewards(told: Sequence[Any]) -> dict[int, float]:
    """By the place of a call's span, its reward."""
    of_call: dict[str, float] = {}
    after: dict[int, float] = {}
    last: int | None = None
    for place, span in enumerate(told):
        value = get_reward_value(span)
        about = span.attributes
        if value is None:
            if call_tokens(span) is not None:
                last = place
        elif about.get(names.REWARD_LATE):
            continue
        elif names.REWARD_CALL in about:
            of_call[str(about[names.REWARD_CALL])] = value
        elif last is not None and names.REWARD_AGENT not in about:
            named = about.get(f"{REWARD}.0.name", "reward") == "reward" or "reward" in about
            if named:
                after.setdefault(last, value)
    own = {
        place: of_call[call]
        for place, span in enumerate(told)
        if call_tokens(span) is not None and (call := span.attributes.get(names.RESPONSE_ID)) in of_call
    }
    return {**after, **own}


def _triplet(span: Span, tokens: tuple[Sequence[int], Sequence[int]], reward: float | None) -> Triplet:
    kept = span.attributes
    response: dict[str, Any] = {"token_ids": list(tokens[1])}
    if (logprobs := kept.get(names.LOGPROBS)) is not None:
        response["logprobs"] = list(logprobs)
    finish: Sequence[str] = kept.get("gen_ai.response.finish_reasons") or ("",)
    metadata = {
        "response_id": kept.get(names.RESPONSE_ID),
        "agent_name": kept.get(names.AGENT) or "",
        "finish_reason": finish[0],
    }
    if (given := kept.get(names.METADATA)) is not None:
        metadata = {**json.loads(given), **metadata}
    return Triplet(prompt={"token_ids": list(tokens[0])}, response=response, reward=reward, metadata=metadata)


def _messages(kept: Mapping[str, Any]) -> OpenAIMessages:
    said = [*json.loads(kept[names.INPUT_MESSAGES]), *json.loads(kept.get(names.OUTPUT_MESSAGES, "[]"))]
    tools = json.loads(kept[names.TOOLS]) if names.TOOLS in kept else None
    return {
        "messages": [chat_message(message) for message in said],
        "tools": None if tools is None else [{"type": "function", "function": tool} for tool in tools],
    }
