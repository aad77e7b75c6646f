"""What every wire is translated to and from. A wire is a pair of pure translations with no logic about tokens, sessions or engines.

To add a wire, write one file with an object that satisfies `Wire` and list it in ``wires/__init__.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentlightning.templates.base import ParsedDelta
from agentlightning.types import FinishReason, Json, Message, Tool


class CallError(Exception):
    """A request that is answered with an error. ``status`` is HTTP's; ``param`` names the offending field; ``code`` is machine-readable.

    ``retry`` is False where a client that tried again could only make things worse.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry = retry


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One model call as the agent asked for it. None means that the agent did not say.

    ``parse_tools`` is False under tool choice `none`: the tools stay in the prompt, and what looks like a call stays text. ``asked`` is what the
    record keeps of the request besides messages and tools.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    parse_tools: bool = True
    n: int = 1
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    token_ids: bool = False
    include_usage: bool = False
    asked: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Choice:
    """One sample of a reply. ``token_texts`` (one per token) is there where the request asked for logprobs."""

    message: Message
    finish: FinishReason
    token_ids: array[int]
    logprobs: array[float]
    token_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A recorded call as its client is told of it. ``created`` is Unix time in seconds; ``prompt_ids`` is there where the request asked for ids."""

    id: str
    created: int
    choices: Sequence[Choice]
    prompt_tokens: int
    sampled_tokens: int
    reused_tokens: int
    prompt_ids: array[int] | None = None


class ReplyStream(Protocol):
    """The events of one reply. ``begin`` comes with the first delta, ``end`` holds everything from the last delta to the end of the stream."""

    def begin(self) -> bytes: ...

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        """What sample ``index`` of the call adds."""
        ...

    def end(self, reply: Reply) -> bytes: ...


class Wire(Protocol):
    """One API. All methods are pure; ``request`` raises CallError."""

    name: str

    def serves(self, path: str) -> bool:
        """Whether a path (below the attempt's URL, without `/v1`) makes a model call on this wire."""
        ...

    def request(self, path: str, body: Mapping[str, Json]) -> WireRequest: ...

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        """The JSON body."""
        ...

    def stream(self, request: WireRequest, call_id: str, created: int) -> ReplyStream: ...

    def error(self, error: CallError) -> bytes:
        """The JSON body of an error in this wire's own shape."""
        ...
