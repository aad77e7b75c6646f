"""Anthropic's Messages: the reply as JSON and as server-sent events. `messages_request` reads the requests.

Pure translation. A call's ``input`` has to be an object: arguments that are none are given out as ``{"INVALID_JSON":
"<the text>"}`` and recognised when they come back. The signature of a thinking block is an encoding of its text, no
secret and no proof.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from agentlightning.gateway.wires.base import (
    Begun,
    CallError,
    Choice,
    Count,
    EarlierReplies,
    Lookup,
    Reply,
    Target,
    Use,
    WireRequest,
)
from agentlightning.gateway.wires.fields import mapping
from agentlightning.gateway.wires.messages_request import CALL, read_request
from agentlightning.gateway.wires.round_trip import as_object, sealed
from agentlightning.nouns import FinishReason, Json, ToolCall
from agentlightning.templates.base import ParsedDelta

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


TOO_LONG = "prompt is too long: {prompt} tokens > {context} maximum"
"""Agents that shorten their history look for these words."""


def anthropic_error(error: CallError) -> bytes:
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, Json] = {"type": kind, "message": error.worded(TOO_LONG)}
    # The official client sends the whole history for some of these
    if error.code is not None and error.code.startswith("thread_"):
        told["details"] = {"error_code": error.code}
    return orjson.dumps({"type": "error", "error": told})


class Messages:
    """``POST messages`` and ``POST messages/count_tokens``. Satisfies `Wire`."""

    name = "messages"

    id_prefix = CALL

    def owns(self, path: str) -> bool:
        return path == "messages" or path.startswith("messages/")

    def use(self, target: Target) -> Use | None:
        if target.path == "messages":
            return "call" if target.method == "POST" else None
        if target.path == "messages/count_tokens":
            return Count(_counted) if target.method == "POST" else None
        return Lookup(lambda body, earlier: _refused(target))

    def request(self, target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> WireRequest:
        return read_request(body, earlier, counted=target.path == "messages/count_tokens")

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        choice = reply.choices[0]
        content: list[dict[str, Json]] = []
        if choice.message.reasoning:
            content.append(
                {
                    "type": "thinking",
                    "thinking": "" if _omits_thinking(request) else choice.message.reasoning,
                    "signature": sealed(choice.message.reasoning),
                }
            )
        if choice.message.content:
            content.append({"type": "text", "text": choice.message.content})
        content += [
            {**_call(call), "input": orjson.Fragment(as_object(call.arguments))} for call in choice.message.tool_calls
        ]
        return orjson.dumps(
            {**_message(request, reply.id), "content": content, **_ending(choice), "usage": _usage_of(reply)}
        )

    def stream(self, request: WireRequest, call_id: str, created: int) -> MessageStream:
        return MessageStream(request, call_id)

    def error(self, error: CallError) -> bytes:
        return anthropic_error(error)


class MessageStream:
    """Server-sent events of one reply: a block of thinking, one of text, one for each tool call, then how it ended.

    Blocks come one after the other, so calls wait for the end: text may still follow them, and in a whole reply it
    stands before them. ``message_start`` tells how many tokens the prompt has, ``message_delta`` how many of them were
    read from the cache. Thinking that comes after text is a block of its own.
    """

    content_type = "text/event-stream; charset=utf-8"
    heartbeat = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, request: WireRequest, call_id: str) -> None:
        self._request = request
        self._id = call_id
        self._omits_thinking = _omits_thinking(request)
        self._blocks = 0
        self._open = ""
        self._thought = ""

    def begin(self, begun: Begun) -> bytes:
        message = _message(self._request, self._id)
        message |= {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(begun.prompt_tokens, 0, 0, 0),
        }
        return _event("message_start", message=message)

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        events: list[bytes] = []
        if delta.reasoning:
            events += self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thought += delta.reasoning
            if not self._omits_thinking:
                events.append(self._added({"type": "thinking_delta", "thinking": delta.reasoning}))
        if delta.content:
            events += self._enter("text", {"type": "text", "text": ""})
            events.append(self._added({"type": "text_delta", "text": delta.content}))
        return b"".join(events)

    def end(self, reply: Reply) -> bytes:
        choice = reply.choices[0]
        events: list[bytes] = []
        for call in choice.message.tool_calls:
            events += self._leave()
            events += self._enter("tool_use", {**_call(call), "input": {}})
            events.append(self._added({"type": "input_json_delta", "partial_json": as_object(call.arguments)}))
        events += self._leave()
        events.append(_event("message_delta", delta=_ending(choice), usage=_usage_of(reply)))
        events.append(_event("message_stop"))
        return b"".join(events)

    def _enter(self, kind: str, block: dict[str, Json]) -> list[bytes]:
        """Begins a block, where the open one is not of its kind."""
        if self._open == kind:
            return []
        events = self._leave()
        self._open = kind
        events.append(_event("content_block_start", index=self._blocks, content_block=block))
        return events

    def _leave(self) -> list[bytes]:
        if not self._open:
            return []
        events: list[bytes] = []
        if self._open == "thinking":
            events.append(self._added({"type": "signature_delta", "signature": sealed(self._thought)}))
            self._thought = ""
        events.append(_event("content_block_stop", index=self._blocks))
        self._open = ""
        self._blocks += 1
        return events

    def _added(self, delta: dict[str, Json]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)


# --------------------------------------------------------------------------- parts of a reply


def _counted(tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": tokens})


def _refused(target: Target) -> bytes:
    """Nothing of this API tells about earlier calls: the paths that are not served are refused, by name."""
    if target.path.split("/")[1] == "batches":
        raise CallError(
            404, "message batches (messages/batches) are not served: send each request to messages", code="not_served"
        )
    raise CallError(
        404,
        f"there is nothing at {target.path!r}: this API serves messages and messages/count_tokens",
        code="unknown_url",
    )


def _event(kind: str, **fields: Json) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def _message(request: WireRequest, call_id: str) -> dict[str, Json]:
    return {"id": call_id, "type": "message", "role": "assistant", "model": request.model}


def _call(call: ToolCall) -> dict[str, Json]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "caller": {"type": "direct"}}


def _ending(choice: Choice) -> dict[str, Json]:
    if choice.finish is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if choice.message.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if choice.stop is None else "stop_sequence", "stop_sequence": choice.stop}


def _usage_of(reply: Reply) -> dict[str, Json]:
    return _usage(reply.prompt_tokens, reply.reused_tokens, reply.sampled_tokens, reply.thought_tokens)


def _usage(prompt: int, reused: int, sampled: int, thought: int) -> dict[str, Json]:
    """The prompt's tokens are those read from the cache and the others; the API counts them apart."""
    return {
        "input_tokens": prompt - reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reused,
        "output_tokens": sampled,
        "output_tokens_details": {"thinking_tokens": thought},
    }


def _omits_thinking(request: WireRequest) -> bool:
    return mapping(request.asked.get("thinking")).get("display") == "omitted"
