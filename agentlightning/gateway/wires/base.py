"""What every wire is translated to and from. A wire is a pair of pure translations with no logic about tokens, sessions
or engines.

To add a wire, write one file with an object that satisfies `Wire` and list it in ``wires/__init__.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from agentlightning.nouns import FinishReason, Json, Message, SamplingParams, Tool
from agentlightning.templates.base import ParsedDelta


class CallError(Exception):
    """A request that is answered with an error. ``status`` is HTTP's; ``param`` names the offending field; ``code`` is
    machine-readable.

    ``retry`` is False where a client that tried again could only make things worse. ``overflow`` is there where a
    prompt does not fit: the tokens of it and of the context, and ``aside`` what else there is to say of that.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry: bool = True,
        overflow: tuple[int, int] | None = None,
        aside: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry = retry
        self.overflow = overflow
        self.aside = aside

    def worded(self, overflow: str) -> str:
        """The message; of a prompt that does not fit in an API's own words, which clients look for, with places for
        ``prompt`` and ``context``."""
        if self.overflow is None:
            return self.message
        prompt, context = self.overflow
        told = overflow.format(prompt=prompt, context=context)
        return f"{told} ({self.aside})" if self.aside else told


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is for: ``path`` lies below the attempt's URL and is without `/v1`, ``query`` has the last value
    of each name."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Count:
    """The number of a prompt's tokens is asked for. ``written`` makes the JSON body that tells it."""

    written: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Something about earlier calls is asked for. ``answer`` makes the JSON body that tells it, or raises CallError."""

    answer: Callable[[Mapping[str, Json], EarlierReplies], bytes]


Use = Literal["call"] | Count | Lookup
"""What a target asks for; "call": a model call."""

ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What a reply's text has to be: all of it after a ``regex``, one of ``choice``, a sentence of a ``grammar`` (Lark
    or GBNF), or JSON after ``schema``; any JSON object where none of them is there. ``where`` and ``value`` are how it
    was asked for."""

    schema: Mapping[str, Json] | None = None
    where: str = field(default="response_format", compare=False)
    value: Json = field(default=None, compare=False)
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class SettingNames:
    """What an API calls the settings that keep a sample to a grammar, so that a refusal names the caller's own: the
    tool choice, the field and value that allow one call at most, and the field (with the tool's place for ``{}``) that
    makes a tool strict."""

    choice: str = "tool_choice"
    parallel: tuple[str, Json] = ("parallel_tool_calls", False)
    strict: str = "tools[{}].strict"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the model may use its tools. ``choice`` `none`: the tools stay in the prompt, and what looks like a call
    stays text. ``names`` are those that may be called, None: all of them; a named function is `required` with that one
    name. ``parallel``: several calls may come in one reply. ``setting_names`` are what the API calls all that."""

    choice: ToolChoice = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True
    setting_names: SettingNames = SettingNames()


@dataclass(frozen=True, slots=True)
class AskedSampling:
    """How the agent asks to be sampled. None means that it did not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """What a reply holds, and how it comes: ``n`` samples, as a ``stream`` of events or whole; with logprobs, token
    ids, its usage (None: the agent did not say), and, after an ``echo``, the prompt itself."""

    n: int = 1
    stream: bool = False
    logprobs: bool = False
    token_ids: bool = False
    include_usage: bool | None = None
    echo: bool = False


@dataclass(frozen=True, slots=True)
class HistoryLinks:
    """What ties a request to earlier replies, and later requests to it.

    The first ``preface`` messages are the request's own and no part of the conversation that a later request may refer
    to; ``store`` says whether one may. ``conversation`` is one that the call is added to, and the ``from_conversation``
    messages after the preface come from it. ``after`` is the id of the kept reply that the request names as the one it
    goes on from.
    """

    preface: int = 0
    store: bool = False
    conversation: str | None = None
    from_conversation: int = 0
    after: str | None = None


_NO_KWARGS: Mapping[str, Json] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One model call as the agent asked for it.

    The last ``loaded`` of the tools came to the conversation as it went on. ``prompt`` is a text or token ids to be
    continued as they are, without messages and template; ``template_kwargs`` are what the chat template is handed
    besides. ``prompt_field`` is what the API calls what the model reads. ``failed_tools`` are the ids of the tool calls
    whose results the API marks as errors. ``asked`` is what the record keeps of the request besides messages and tools.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    loaded: int = 0
    tool_use: ToolUse = ToolUse()
    output: OutputFormat | None = None
    prompt: str | array[int] | None = None
    prompt_field: str = "messages"
    template_kwargs: Mapping[str, Json] = field(default_factory=lambda: _NO_KWARGS)
    sampling: AskedSampling = AskedSampling()
    options: ReplyOptions = ReplyOptions()
    links: HistoryLinks = HistoryLinks()
    failed_tools: frozenset[str] = frozenset()
    asked: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Choice:
    """One sample of a reply. ``token_texts`` (one per token) is there where the request asked for logprobs; ``stop`` is
    the stop string that ended it, ``thought_tokens`` how many of its tokens are reasoning, the tags around it among
    them."""

    message: Message
    finish: FinishReason
    token_ids: array[int]
    logprobs: array[float]
    token_texts: tuple[str, ...] = ()
    stop: str | None = None
    thought_tokens: int = 0


PLAIN = SamplingParams()


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known of a call when its first sample begins: its prompt's tokens, and what it is sampled with."""

    prompt_tokens: int
    used: SamplingParams


@dataclass(frozen=True, slots=True)
class Reply:
    """A recorded call as its client is told of it. ``created`` and ``completed`` are Unix time in seconds;
    ``prompt_ids`` is there where the request asked for ids, ``used`` is what it was sampled with."""

    id: str
    created: int
    choices: Sequence[Choice]
    prompt_tokens: int
    sampled_tokens: int
    reused_tokens: int
    prompt_ids: array[int] | None = None
    used: SamplingParams = PLAIN
    completed: int = 0

    @property
    def thought_tokens(self) -> int:
        """How many of the sampled tokens are reasoning."""
        return sum([choice.thought_tokens for choice in self.choices])


@dataclass(slots=True)
class Conversation:
    """A conversation that an agent keeps on the server: all up to call ``last``, then ``added``. ``created`` is Unix
    time in seconds."""

    id: str
    created: int
    metadata: Mapping[str, Json]
    added: tuple[Message, ...] = ()
    last: str | None = None


class EarlierReplies(Protocol):
    """What an attempt's earlier calls left for later requests to refer to. Only calls that asked for ``store`` are
    here."""

    conversations: dict[str, Conversation]

    def call(self, call_id: str) -> tuple[WireRequest, Reply] | None:
        """A recorded call. Of the request's messages only the preface is there."""
        ...

    def history(self, call_id: str) -> tuple[Message, ...]:
        """All messages up to the reply of a call (its first sample), without its request's preface. Raises KeyError."""
        ...

    def forget(self, call_id: str) -> bool:
        """Whether there was such a call; none of its tokens are forgotten, and a conversation keeps its messages."""
        ...


class ReplyStream(Protocol):
    """The events of one reply. ``begin`` comes with the first delta, ``end`` holds everything from the last delta to
    the end of the stream.

    ``heartbeat`` may be sent any number of times between two events, and before the first one.
    """

    content_type: str
    heartbeat: bytes

    def begin(self, begun: Begun) -> bytes: ...

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        """What sample ``index`` of the call adds."""
        ...

    def end(self, reply: Reply) -> bytes: ...


class Wire(Protocol):
    """One API. All methods are pure; ``request`` raises CallError.

    A call's id is ``id_prefix`` and 24 hexadecimal digits, and is the id of its reply.
    """

    name: str
    id_prefix: str

    def owns(self, path: str) -> bool:
        """Whether a path is one of this API's, so that it is answered in its shape, whatever the method."""
        ...

    def use(self, target: Target) -> Use | None:
        """None for a method that the path does not take."""
        ...

    def request(self, target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> WireRequest:
        """The call that is asked for, or whose prompt is to be counted."""
        ...

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        """The JSON body."""
        ...

    def stream(self, request: WireRequest, call_id: str, created: int) -> ReplyStream: ...

    def error(self, error: CallError) -> bytes:
        """The JSON body of an error in this wire's own shape."""
        ...
