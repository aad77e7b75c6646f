"""Google's Gemini API: `generateContent`, `streamGenerateContent` (as server-sent events, or as one JSON array that
grows) and `countTokens`. `gemini_request` reads the requests.

Pure translation. Thoughts are told only where `thinkingConfig.includeThoughts` asks for them; elsewhere they travel as
the thought signature of the turn's last part, so that the client sends them back unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from agentlightning.gateway.wires.base import (
    Begun,
    CallError,
    Choice,
    Count,
    EarlierReplies,
    Reply,
    Target,
    Use,
    WireRequest,
)
from agentlightning.gateway.wires.fields import mapping
from agentlightning.gateway.wires.gemini_request import read_request, resource
from agentlightning.gateway.wires.round_trip import as_object, sealed
from agentlightning.nouns import FinishReason, Json, ToolCall
from agentlightning.templates.base import ParsedDelta

_STATUS = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED", 409: "ABORTED",
    410: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


TOO_LONG = "The input token count ({prompt}) exceeds the maximum number of tokens allowed ({context})."
"""Clients look for these words."""


def gemini_error(error: CallError) -> bytes:
    message = error.worded(TOO_LONG)
    status = _STATUS.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
    details: list[dict[str, Json]] = []
    if error.param:
        violation = {"field": error.param, "description": message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if error.code:
        details.append(
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": error.code.upper(),
                "domain": "agentlightning",
            }
        )
    return orjson.dumps({"error": {"code": error.status, "message": message, "status": status, "details": details}})


class Gemini:
    """``POST models/{model}:{method}``, also below a publisher, a project or a version that the server leaves in the
    path. Satisfies `Wire`."""

    name = "gemini"

    id_prefix = "gen-"

    def owns(self, path: str) -> bool:
        return resource(path) is not None

    def use(self, target: Target) -> Use | None:
        found = resource(target.path)
        if found is None or target.method != "POST":
            return None
        return Count(_counted) if found[1] == "countTokens" else "call"

    def request(self, target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> WireRequest:
        return read_request(target, body)

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        thoughts = _tells_thoughts(request)
        candidates: list[dict[str, Json]] = []
        for index, choice in enumerate(reply.choices):
            message = choice.message
            parts = _parts(message.reasoning, message.content, message.tool_calls, thoughts=thoughts)
            candidates.append(_finished(index, parts, choice, thoughts=thoughts, logprobs=request.options.logprobs))
        return orjson.dumps(
            {
                "candidates": candidates,
                "usageMetadata": _usage(reply),
                "modelVersion": request.model,
                "responseId": reply.id,
            }
        )

    def stream(self, request: WireRequest, call_id: str, created: int) -> GeminiStream:
        return GeminiStream(request, call_id)

    def error(self, error: CallError) -> bytes:
        return gemini_error(error)


class GeminiStream:
    """The chunks of one reply, each with one candidate: as server-sent events, or as the items of one array.

    A candidate's latest parts are held back until the next ones come, so that the finish has some of its own: the
    official client's chats forget a turn of which a chunk came without, or (before release 3) with an empty text.
    Heartbeats are line ends, which mean nothing in either form; the official client takes a comment for a chunk.
    """

    heartbeat = b"\n"

    def __init__(self, request: WireRequest, call_id: str) -> None:
        self._request = request
        self._thoughts = _tells_thoughts(request)
        self._events = request.asked.get("alt") == "sse"
        self._base: dict[str, Json] = {"modelVersion": request.model, "responseId": call_id}
        self._held: list[list[dict[str, Json]]] = [[] for _ in range(request.options.n)]
        self._chunks = 0
        self.content_type = "text/event-stream; charset=utf-8" if self._events else "application/json; charset=utf-8"

    def begin(self, begun: Begun) -> bytes:
        return b"" if self._events else b"["

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        parts = _parts(delta.reasoning, delta.content, delta.tool_calls, thoughts=self._thoughts)
        if not parts:
            return b""
        held, self._held[index] = self._held[index], parts
        return self._chunk({"index": index, "content": {"role": "model", "parts": held}}) if held else b""

    def end(self, reply: Reply) -> bytes:
        last = len(reply.choices) - 1
        chunks = [
            self._chunk(
                _finished(i, self._held[i], choice, thoughts=self._thoughts, logprobs=self._request.options.logprobs),
                **({"usageMetadata": _usage(reply)} if i == last else {}),
            )
            for i, choice in enumerate(reply.choices)
        ]
        return b"".join(chunks) + (b"" if self._events else b"]")

    def _chunk(self, candidate: Mapping[str, Json], **more: Json) -> bytes:
        data = orjson.dumps({"candidates": [candidate], **more, **self._base})
        self._chunks += 1
        if not self._events:
            return data if self._chunks == 1 else b",\n" + data
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
        return b"data: " + data + b"\n\n"


_LINE_ENDS = tuple((chr(code).encode(), f"\\u{code:04x}".encode()) for code in (0x85, 0x2028, 0x2029))
"""What readers of lines (httpx, and so the official client before release 3) take for the end of one, besides those
that JSON escapes anyway."""


# --------------------------------------------------------------------------- parts of a reply


def _counted(tokens: int) -> bytes:
    return orjson.dumps({"totalTokens": tokens})


def _tells_thoughts(request: WireRequest) -> bool:
    return mapping(request.asked.get("thinking_config")).get("includeThoughts") is True


def _parts(reasoning: str | None, content: str, calls: Sequence[ToolCall], *, thoughts: bool) -> list[dict[str, Json]]:
    parts: list[dict[str, Json]] = []
    if reasoning and thoughts:
        parts.append({"text": reasoning, "thought": True})
    if content:
        parts.append({"text": content})
    parts.extend({"functionCall": {"id": call.id, "name": call.name, "args": _args(call.arguments)}} for call in calls)
    return parts


def _args(arguments: str) -> Json:
    # Line ends between the tokens of JSON are mere space, and would end an event.
    return orjson.Fragment(as_object(arguments).replace("\n", " ").replace("\r", " ").encode())


def _finished(
    index: int, parts: list[dict[str, Json]], choice: Choice, *, thoughts: bool, logprobs: bool
) -> dict[str, Json]:
    """A candidate with its last parts."""
    parts = parts or [{"text": ""}]
    if choice.message.reasoning and not thoughts:
        parts = [*parts[:-1], {**parts[-1], "thoughtSignature": sealed(choice.message.reasoning)}]
    finish = "MAX_TOKENS" if choice.finish is FinishReason.LENGTH else "STOP"
    candidate: dict[str, Json] = {"index": index, "content": {"role": "model", "parts": parts}, "finishReason": finish}
    if logprobs:
        total = sum(choice.logprobs)
        chosen = [
            {"token": text, "tokenId": token, "logProbability": logprob}
            for text, token, logprob in zip(choice.token_texts, choice.token_ids, choice.logprobs, strict=True)
        ]
        candidate["avgLogprobs"] = total / max(len(chosen), 1)
        candidate["logprobsResult"] = {"chosenCandidates": chosen, "logProbabilitySum": total}
    return candidate


def _usage(reply: Reply) -> dict[str, Json]:
    """The API counts the tokens of thoughts apart from the candidates'."""
    usage: dict[str, Json] = {
        "promptTokenCount": reply.prompt_tokens,
        "candidatesTokenCount": reply.sampled_tokens - reply.thought_tokens,
        "totalTokenCount": reply.prompt_tokens + reply.sampled_tokens,
    }
    if reply.thought_tokens:
        usage["thoughtsTokenCount"] = reply.thought_tokens
    if reply.reused_tokens:
        usage["cachedContentTokenCount"] = reply.reused_tokens
    return usage
