"""What OpenAI's APIs have in common: the shape of an error, of usage, and of a stream of chunks. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import orjson

from agentlightning.gateway.wires.base import CallError, Reply, WireRequest
from agentlightning.gateway.wires.fields import boolean, settings
from agentlightning.nouns import Json

MESSAGES_TOO_LONG = (
    "This model's maximum context length is {context} tokens. However, your messages resulted in {prompt} tokens. "
    "Please reduce the length of the messages."
)
PROMPT_TOO_LONG = (
    "This model's maximum context length is {context} tokens, however your prompt has {prompt} tokens. Please reduce "
    "your prompt."
)
INPUT_TOO_LONG = (
    "Your input exceeds the context window of this model: it has {prompt} tokens, and this model's maximum context "
    "length is {context} tokens. Please adjust your input and try again."
)
"""What the three APIs say of a prompt that does not fit, in the words that clients look for."""


def openai_error(error: CallError, too_long: str = MESSAGES_TOO_LONG) -> bytes:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    message = error.worded(too_long)
    return orjson.dumps({"error": {"message": message, "type": kind, "param": error.param, "code": error.code}})


def include_usage(body: Mapping[str, Json]) -> bool | None:
    """`stream_options.include_usage`. Raises CallError."""
    options = settings(body, "stream_options")
    return (
        None
        if options.get("include_usage") is None
        else boolean(options, "include_usage", param="stream_options.include_usage")
    )


def usage(reply: Reply) -> dict[str, Json]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.thought_tokens},
    }


class ChunkStream(ABC):
    """Server-sent chunks of one reply, up to its finish chunks (one for each sample), usage and ``[DONE]``.

    Logprobs and token ids come with the finish chunk: the engine tells them when the sample is whole. Where
    ``include_usage`` was not said the usage rides on the last finish chunk; where it is false there is none. ``base``
    is what every chunk begins with.
    """

    content_type = "text/event-stream; charset=utf-8"
    heartbeat = b": waiting\n\n"

    def __init__(self, request: WireRequest, base: Mapping[str, Json]) -> None:
        self._request = request
        self._base = {**base, "usage": None} if request.options.include_usage else dict(base)

    def end(self, reply: Reply) -> bytes:
        last = len(reply.choices) - 1
        rides = {"usage": usage(reply)} if self._request.options.include_usage is None else {}
        events = [
            self._chunk([self._finished(reply, index)], **({**self._beside(reply), **rides} if index == last else {}))
            for index in range(len(reply.choices))
        ]
        if self._request.options.include_usage:
            events.append(self._chunk([], usage=usage(reply)))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def _chunk(self, choices: Sequence[Mapping[str, Json]], **more: Json) -> bytes:
        return b"data: " + orjson.dumps({**self._base, "choices": choices, **more}) + b"\n\n"

    @abstractmethod
    def _finished(self, reply: Reply, index: int) -> dict[str, Json]:
        """The choice of a sample's finish chunk."""

    def _beside(self, reply: Reply) -> dict[str, Json]:
        """What stands beside the choices of the last finish chunk."""
        return {}
