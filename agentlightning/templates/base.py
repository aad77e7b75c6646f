"""What the gateway needs from a chat template: messages -> tokens, sampled tokens -> messages. Imports no torch."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentlightning.errors import TemplateError
from agentlightning.nouns import FinishReason, Json, Message, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """An assistant message of a history that the gateway itself sampled.

    ``text`` is the decoded sample without its end-of-turn token; ``ended_with`` is the text of that token, "" where the
    sample was cut (by length or a stop string) and the end of the turn has to come from the template.
    """

    text: str
    ended_with: str


@dataclass(frozen=True, slots=True)
class Rendering:
    """A history rendered with a marker in place of each recorded sample.

    ``texts[k]`` is the template's and the client's text before the k-th recorded sample; the last entry is what follows
    the last one (with the generation prompt). ``len(texts) == number of recorded samples + 1``. A sampled end-of-turn
    is not repeated in the text after it. The texts may carry private escapes that keep special-token text inside
    messages from becoming control tokens: compare them as they are, encode them with ``encode``.
    """

    texts: tuple[str, ...]
    rewrote: str | None = None
    """Why the template would not render a recorded sample as it was sampled (it drops earlier reasoning, say); None
    when it would."""
    rewritten: tuple[int, ...] = ()
    """With ``rewrote``: the indices of those messages. Rendering again without them in ``sampled`` gives what the
    template makes of them."""


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """What newly sampled tokens add to a reply that is being streamed."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Whole calls only, each once."""


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """Which tool format a template was found to need. ``sure``: its own rendering or the user says so; else it was
    guessed, and ``why`` from what."""

    name: str
    sure: bool
    why: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole sample: its message, how often something in it began like a tool call (or a channel) and was none (that
    is text of the message), and how many of its tokens are reasoning, the tags around it among them."""

    message: Message
    malformed: int = 0
    thought_tokens: int = 0


def shown(text: str) -> str:
    """A sampled text as clients get it."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


class StreamParser(Protocol):
    """Turns one sample into a message while it grows. Never shows half a tag, half a character or text that a stop
    string will cut."""

    @property
    def malformed(self) -> int:
        """How often something in what was fed began like a tool call (or a channel) and was none. It is text of the
        message."""
        ...

    @property
    def thought_tokens(self) -> int:
        """How many of the ids that were fed are reasoning, the tags around it among them. Right once the sample is
        finished."""
        ...

    def feed(self, token_ids: array[int]) -> ParsedDelta: ...

    def finish(self, finish: FinishReason, stop_string: str | None = None) -> ParsedDelta:
        """The rest. The deltas put together equal ``Template.read`` of the whole sample."""
        ...


class Template(Protocol):
    stop_token_ids: tuple[int, ...]
    """Ids that end the assistant's turn."""
    tool_format: str
    kwargs_key: bytes
    """Tells histories apart that are rendered with other `chat_template_kwargs`; empty without any, else it begins with
    a NUL."""

    def with_kwargs(self, kwargs: Mapping[str, Json]) -> Template:
        """The same template, handed those of ``kwargs`` (values from outside) that it takes. Raises TemplateError where
        it cannot be used with them."""
        ...

    def unused_kwargs(self, kwargs: Mapping[str, Json]) -> tuple[str, ...]:
        """The names in ``kwargs`` that the template takes no notice of."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], sampled: Mapping[int, SampledTurn]
    ) -> Rendering:
        """Renders for generation. ``sampled`` maps indices of assistant messages to their recorded samples. Raises
        TemplateError."""
        ...

    def encode(self, text: str, *, start: bool) -> array[int]:
        """Tokenises a text of a Rendering. ``start``: the text begins the prompt (a tokenizer that adds a leading space
        or BOS does so only here)."""
        ...

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
        """As ``encode`` of each text with its ``start``, all of them in one call of the tokenizer."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens included, with no clean-up."""
        ...

    def sampled_turn(self, token_ids: Sequence[int]) -> SampledTurn: ...

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        finish: FinishReason,
        stop_string: str | None = None,
        *,
        plain: bool = False,
    ) -> Parsed:
        """The message in a sample: text with the end-of-turn and a final stop string cut off, reasoning, tool calls
        with fresh ids.

        Malformed tool calls stay text. With ``plain`` all is text: nothing is a call or reasoning. Never raises for any
        ids below the vocabulary size.
        """
        ...

    def stream(self, tools: Sequence[Tool], stop: Sequence[str] = (), *, plain: bool = False) -> StreamParser:
        """Reads a sample as ``read`` does while it grows. ``stop``: the request's stop strings, so that no text is
        shown that one of them may cut."""
        ...
