"""Spans: what is recorded of an attempt in the form that tracing tools speak, OpenTelemetry's: one for each sample of
each call with its agent, tokens and logprobs, one for each reward, and what the agent told.

Made of the record when somebody asks, tokens as they were sampled; nothing reads them back. Names of attributes are
those of OpenTelemetry's conventions for generative AI where those have one, and our own below.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentlightning.agent.rewards import REWARD
from agentlightning.nouns import (
    GIVEN,
    Call,
    CallStatus,
    Json,
    Node,
    Reward,
    SampleRecord,
    SpanRecord,
    SpanStatus,
)
from agentlightning.records.traces import AttemptTrace
from agentlightning.tracing.messages import message_json

CALL = "openai.chat.completion"
"""The name of a call's span, whichever API it came by: the one that programs search for. The API is in ``WIRE``."""
GIVEN_CALL = "agentlightning.given"
"""The name of the span of a call that came from no API: a triplet that the agent returned."""

PROMPT_IDS = "prompt_token_ids"
RESPONSE_IDS = "response_token_ids"
"""The tokens of a call, as they were recorded. A call without a sample has none."""
LOGPROBS = "agentlightning.call.logprobs"
"""One for each token of the response, natural logs under the full softmax at the temperature used."""
LOG_KEPT = "agentlightning.call.log_kept"
"""One for each, where top_p, top_k or a grammar cut what could be drawn: the log of the probability that was left."""
VERSIONS = "agentlightning.call.versions"
"""The versions of the policy that the response was sampled with, in their order."""
CALL_INDEX = "agentlightning.call.index"
SAMPLE = "agentlightning.call.sample"
"""Which of a call's samples it is, from 0."""
WIRE = "agentlightning.call.wire"
CALL_STATUS = "agentlightning.call.status"
BRANCH = "agentlightning.call.branch"
POLICY = "agentlightning.call.policy"
EXTERNAL = "agentlightning.call.external"
"""Whether it went to somebody else's model: then it has no tokens."""
METADATA = "agentlightning.call.metadata"
"""Of a triplet that the agent returned, its metadata as JSON."""
AGENT = "agent.name"
"""The name of the agent that made the call; it is under OpenTelemetry's ``gen_ai.agent.name`` as well."""
REWARD_SOURCE = f"{REWARD}.source"
REWARD_CALL = f"{REWARD}.call_id"
REWARD_AGENT = f"{REWARD}.agent"
REWARD_TOOL_CALL = f"{REWARD}.tool_call_id"
REWARD_REASON = f"{REWARD}.reason"
REWARD_LATE = f"{REWARD}.late"

RESPONSE_ID = "gen_ai.response.id"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOLS = "gen_ai.tool.definitions"
"""As JSON: the messages of a call's prompt and of its reply, and the tools that it was offered."""
ROLLOUT_ID = "agentlightning.rollout_id"
ATTEMPT_ID = "agentlightning.attempt_id"


StatusCode = Literal["UNSET", "OK", "ERROR"]


class TraceStatus(BaseModel):
    """How what a span tells of ended."""

    status_code: StatusCode = "UNSET"
    description: str | None = None


class SpanEvent(BaseModel):
    """Something that happened within a span. ``timestamp`` is Unix time in seconds."""

    name: str
    attributes: dict[str, Any] = Field(default_factory=dict)
    timestamp: float | None = None


class SpanContext(BaseModel):
    """A span as others refer to it."""

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: dict[str, str] = Field(default_factory=dict)


class SpanLink(BaseModel):
    """Another span that has to do with this one."""

    context: SpanContext
    attributes: dict[str, Any] | None = None


class OtelResource(BaseModel):
    """What made a span."""

    attributes: dict[str, Any] = Field(default_factory=dict)
    schema_url: str = ""


class Span(BaseModel):
    """A span of an attempt. Times are Unix time in seconds; ``sequence_id`` is its place among the attempt's, from 1,
    in the order in which they began. ``trace_id`` and ``span_id`` are hexadecimal, as OpenTelemetry writes them."""

    model_config = ConfigDict(extra="allow")

    rollout_id: str = ""
    attempt_id: str = ""
    sequence_id: int = 0
    trace_id: str = ""
    span_id: str = ""
    parent_id: str | None = None
    name: str = ""
    status: TraceStatus = Field(default_factory=TraceStatus)
    attributes: dict[str, Any] = Field(default_factory=dict)
    events: list[SpanEvent] = Field(default_factory=list[SpanEvent])
    links: list[SpanLink] = Field(default_factory=list[SpanLink])
    start_time: float | None = None
    end_time: float | None = None
    resource: OtelResource = Field(default_factory=OtelResource)

    @property
    def context(self) -> SpanContext:
        return SpanContext(trace_id=self.trace_id, span_id=self.span_id)

    @property
    def parent(self) -> SpanContext | None:
        return None if self.parent_id is None else SpanContext(trace_id=self.trace_id, span_id=self.parent_id)

    @classmethod
    def from_attributes(cls, *, attributes: Mapping[str, Any], **fields: Any) -> Span:
        """One with these attributes; what else it has may be left out."""
        return cls(attributes=dict(attributes), **{name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_opentelemetry(cls, src: Any, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
        """What OpenTelemetry's SDK hands to exporters, a ``ReadableSpan``, as ours."""
        context = src.get_span_context()
        status = getattr(src, "status", None)
        code: Any = getattr(getattr(status, "status_code", None), "name", "UNSET")
        resource = getattr(src, "resource", None)
        return cls(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            trace_id=f"{context.trace_id:032x}",
            span_id=f"{context.span_id:016x}",
            parent_id=None if src.parent is None else f"{src.parent.span_id:016x}",
            name=src.name,
            status=TraceStatus(status_code=code, description=getattr(status, "description", None)),
            attributes=dict(src.attributes or {}),
            events=[
                SpanEvent(name=each.name, attributes=dict(each.attributes or {}), timestamp=_seconds(each.timestamp))
                for each in src.events
            ],
            links=[
                SpanLink(
                    context=SpanContext(
                        trace_id=f"{each.context.trace_id:032x}", span_id=f"{each.context.span_id:016x}"
                    ),
                    attributes=dict(each.attributes or {}),
                )
                for each in src.links
            ],
            start_time=_seconds(src.start_time),
            end_time=_seconds(src.end_time),
            resource=OtelResource(attributes=dict(resource.attributes), schema_url=resource.schema_url)
            if resource is not None
            else OtelResource(),
        )


_CODES: Mapping[SpanStatus, StatusCode] = {
    SpanStatus.UNSET: "UNSET",
    SpanStatus.OK: "OK",
    SpanStatus.ERROR: "ERROR",
}


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def spans_of(trace: AttemptTrace) -> list[Span]:
    """The spans of an attempt, in the order in which they began, the same ones each time. ``trace.rewards`` are those
    of its attempt alone."""
    makes = _Spans(trace)
    made = [makes.told(span) for span in trace.spans]
    for call in sorted(trace.calls, key=lambda call: call.index):
        made += makes.call(call)
    made += [makes.reward(reward, place) for place, reward in enumerate(trace.rewards)]
    made.sort(key=lambda span: span.start_time or 0.0)
    for place, span in enumerate(made, 1):
        span.sequence_id = place
    return made


class _Spans:
    """Makes the spans of one attempt."""

    def __init__(self, trace: AttemptTrace) -> None:
        self._attempt = trace.attempt
        self._nodes = {node.id: node for node in trace.nodes}
        self._calls = {call.id for call in trace.calls}
        self._began = {call.index: call for call in trace.calls}
        self._said = {
            sample.node: message_json(sample.message)
            for call in trace.calls
            if call.wire != GIVEN
            for sample in call.samples
        }
        """By node that a sample ends in, its message."""
        self._trace_id = _hex(16, "trace", trace.attempt.id)
        self._resource = OtelResource(
            attributes={
                "service.name": "agentlightning",
                ROLLOUT_ID: trace.attempt.rollout_id,
                ATTEMPT_ID: trace.attempt.id,
            }
        )

    def told(self, span: SpanRecord) -> Span:
        message = span.attributes.get("exception.message")
        return self._span(
            span.name,
            span.span_id,
            (span.started_at, span.ended_at),
            span.attributes,
            status=TraceStatus(
                status_code=_CODES[span.status], description=message if isinstance(message, str) else None
            ),
            parent=span.parent_id,
        )

    def call(self, call: Call) -> list[Span]:
        """One for each of its samples; one where it has none."""
        if not call.samples:
            return [self._call(call, 0, {})]
        return [self._call(call, place, self._tokens(call, sample)) for place, sample in enumerate(call.samples)]

    def reward(self, reward: Reward, place: int) -> Span:
        about = {
            REWARD_SOURCE: reward.source,
            REWARD_CALL: reward.call_id,
            REWARD_AGENT: reward.agent,
            REWARD_TOOL_CALL: reward.tool_call_id,
            REWARD_REASON: reward.reason,
            REWARD_LATE: reward.late or None,
            "reward": reward.value if reward.name == "reward" else None,
        }
        own: dict[str, Json] = {f"{REWARD}.0.name": reward.name, f"{REWARD}.0.value": reward.value, **_said(about)}
        of_call = reward.call_id if reward.call_id in self._calls else None
        return self._span(
            REWARD,
            _hex(8, "reward", self._attempt.id, place),
            (reward.created_at, reward.created_at),
            {**(reward.attributes or {}), **own},
            status=TraceStatus(status_code="OK"),
            parent=None if of_call is None else _hex(8, "call", of_call, 0),
        )

    def _call(self, call: Call, sample: int, tokens: Mapping[str, Json]) -> Span:
        failed = call.status in (CallStatus.REFUSED, CallStatus.INCOMPLETE, CallStatus.LATE) or call.error is not None
        ended = call.received_at + (call.total_s or 0.0)
        return self._span(
            GIVEN_CALL if call.wire == GIVEN else CALL,
            _hex(8, "call", call.id, sample),
            (call.received_at, ended),
            {**_about(call), SAMPLE: sample, **tokens},
            status=TraceStatus(status_code="ERROR" if failed else "OK", description=call.error),
        )

    def _tokens(self, call: Call, sample: SampleRecord) -> dict[str, Json]:
        """What a sample's path has. Its finish reason, its text and its tokens are of that sample alone."""
        prompt = self._path(call.prompt_node, None)
        reply = self._path(sample.node, call.prompt_node)
        ids, logprobs, log_kept = array("i"), array("f"), array("f")
        for node in reply:
            ids.extend(node.token_ids)
            logprobs.extend(node.logprobs or ())
            log_kept.extend(node.log_kept if node.log_kept is not None else [0.0] * len(node.token_ids))
        told: dict[str, Json] = {
            PROMPT_IDS: [token for node in prompt for token in node.token_ids],
            RESPONSE_IDS: ids.tolist(),
            "gen_ai.response.finish_reasons": [str(sample.finish)],
            "gen_ai.usage.output_tokens": len(ids),
        }
        if call.wire != GIVEN:
            told |= self._texts(prompt)
            told[OUTPUT_MESSAGES] = json.dumps([message_json(sample.message, str(sample.finish))])
        if logprobs:
            told[LOGPROBS] = logprobs.tolist()
            told[VERSIONS] = list(dict.fromkeys(node.version for node in reply if node.version is not None))
        if any(node.log_kept is not None for node in reply):
            told[LOG_KEPT] = log_kept.tolist()
        return told

    def _texts(self, prompt: Sequence[Node]) -> dict[str, Json]:
        """The messages and tools that a prompt was made of: what the calls that began its nodes brought, and what was
        sampled on its way. Nothing where one of them brought no messages, as a prompt of text does."""
        messages: list[dict[str, Json]] = []
        tools: Json = None
        for node in prompt:
            if not node.sampled:
                began = self._began.get(node.call_index)
                brought: Mapping[str, Json] = {} if began is None or began.wire == GIVEN else began.asked
                if "messages" not in brought:
                    return {}
                messages += brought["messages"]
                tools = brought.get("tools", tools)
            elif node.id in self._said:
                messages.append(self._said[node.id])
        told: dict[str, Json] = {INPUT_MESSAGES: json.dumps(messages)}
        return told if tools is None else {**told, TOOLS: json.dumps(tools)}

    def _path(self, last: int | None, before: int | None) -> list[Node]:
        """The nodes from the root, or from below ``before`` on."""
        path: list[Node] = []
        while last is not None and last != before:
            path.append(self._nodes[last])
            last = self._nodes[last].parent
        return path[::-1]

    def _span(
        self,
        name: str,
        span_id: str,
        times: tuple[float, float],
        attributes: Mapping[str, Json],
        *,
        status: TraceStatus,
        parent: str | None = None,
    ) -> Span:
        return Span(
            rollout_id=self._attempt.rollout_id,
            attempt_id=self._attempt.id,
            trace_id=self._trace_id,
            span_id=span_id,
            parent_id=parent,
            name=name,
            status=status,
            attributes=dict(attributes),
            start_time=times[0],
            end_time=times[1],
            resource=self._resource,
        )


_OPERATIONS: Mapping[str, str | None] = {"completions": "text_completion", GIVEN: None}


def _about(call: Call) -> dict[str, Json]:
    """What is said of a call whatever its samples are."""
    external = call.external is not None
    prompt_tokens, reply_tokens = call.external.tokens if call.external is not None else (call.prompt_tokens, None)
    used = call.used
    return _said(
        {
            "gen_ai.operation.name": _OPERATIONS.get(call.wire, "chat"),
            "gen_ai.request.model": call.model or None,
            "gen_ai.response.model": None if external else call.policy or None,
            RESPONSE_ID: call.id,
            "gen_ai.agent.name": call.agent,
            AGENT: call.agent,
            "gen_ai.usage.input_tokens": prompt_tokens,
            "gen_ai.usage.output_tokens": reply_tokens,
            "gen_ai.request.temperature": used and used.temperature,
            "gen_ai.request.top_p": used and used.top_p,
            "gen_ai.request.top_k": (used and used.top_k) or None,
            "gen_ai.request.max_tokens": used and used.max_tokens,
            "gen_ai.request.seed": used and used.seed,
            "gen_ai.request.stop_sequences": list(used.stop) if used and used.stop else None,
            WIRE: call.wire,
            CALL_INDEX: call.index,
            CALL_STATUS: str(call.status),
            BRANCH: call.branch or None,
            POLICY: call.policy or None,
            EXTERNAL: external or None,
            METADATA: json.dumps(call.asked["metadata"]) if call.wire == GIVEN and "metadata" in call.asked else None,
        }
    )


def _said(values: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in values.items() if value is not None}


def _hex(size: int, *parts: str | int) -> str:
    """An id that follows from what it is of."""
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=size).hexdigest()


def call_tokens(span: Any) -> tuple[Sequence[int], Sequence[int]] | None:
    """The prompt's and the response's tokens that a span has; None for one that is of no recorded sample."""
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    prompt, response = attributes.get(PROMPT_IDS), attributes.get(RESPONSE_IDS)
    return None if prompt is None or response is None else (prompt, response)
