"""Parser: one sample's tokens to the message a client gets, all at once or while they arrive.

Each stage is a transducer whose whole output depends on its whole input alone: ids to text (whole characters,
end-of-turn cut), stop strings, reasoning, tool calls. Parsing a finished sample is feeding it once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from agentlightning.nouns import FinishReason, ToolCall
from agentlightning.templates.base import ParsedDelta, shown
from agentlightning.templates.call_scanner import Scanner, overlap
from agentlightning.templates.codec import Codec

THINK = "<think>"
END_THINK = "</think>"

Span = tuple[int, int]
"""From which character of a text to which."""

Tags = tuple[str, str]
TAGS: tuple[Tags, ...] = ((THINK, END_THINK), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>"))
"""What encloses reasoning: Qwen, DeepSeek, GLM and most others; Magistral; Gemma 4."""


class Reader(Protocol):
    """Takes the text of a reply apart while it grows."""

    @property
    def malformed(self) -> int: ...

    @property
    def thoughts(self) -> Sequence[Span]:
        """Where reasoning stands in what was fed, its tags among it."""
        ...

    def feed(self, text: str) -> ParsedDelta: ...

    def finish(self) -> ParsedDelta: ...


class _Text:
    """Ids to text. Holds back what the next token can still change: part of a character, a last end-of-turn token. A
    sampled NUL is shown as U+FFFD: a client has to be able to send back what it was given, and no request may hold
    NUL."""

    def __init__(self, codec: Codec, stop_ids: frozenset[int]) -> None:
        self._decoder = codec.decoder()
        self._stop_ids = stop_ids
        self._held: int | None = None

    def feed(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        ids = [*token_ids] if self._held is None else [self._held, *token_ids]
        self._held = ids.pop() if ids[-1] in self._stop_ids else None
        return shown(self._decoder.feed(ids)) if ids else ""

    @property
    def ended(self) -> bool:
        """Whether the last id so far ends the turn."""
        return self._held is not None

    def finish(self) -> str:
        return shown(self._decoder.finish())


class _Stops:
    """Lets text through up to the first stop string, and never part of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(word for word in stop if word)
        self._held = ""
        self._frozen = False

    def feed(self, text: str) -> str:
        if not self._stop:
            return text
        self._held += text
        if self._frozen:
            return ""
        starts = [at for word in self._stop if (at := self._held.find(word)) >= 0]
        self._frozen = bool(starts)
        # A longer stop string may have begun before the one that is whole.
        cut = min([*starts, len(self._held) - overlap(self._held, self._stop)])
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def finish(self, stop_string: str | None) -> str:
        """The rest: what lies before the stop string that ended the sample, or everything where none did."""
        at = self._held.find(stop_string) if stop_string else -1
        return self._held[:at] if at >= 0 else self._held


class _Reasoning:
    """Parts a leading ``<think>...</think>`` from the reply. White space around the tags goes. ``inside``: the prompt
    opened the tag already."""

    def __init__(self, tags: Tags, *, inside: bool) -> None:
        self._open, self._close = tags
        self._state = "inside" if inside else "start"
        self._buffer = ""
        self._shown = False
        self._fed = 0
        self._ended: int | None = None

    @property
    def span(self) -> Span:
        """Where it stands in what was fed."""
        return 0, self._ended if self._ended is not None else self._fed if self._state == "inside" else 0

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, reply)"""
        if self._state == "reply":
            return "", text
        self._buffer += text
        self._fed += len(text)
        reasoning = ""
        if self._state == "start":
            rest = self._buffer.lstrip()
            if rest.startswith(self._open):
                self._state, self._buffer = "inside", rest[len(self._open) :]
            elif self._open.startswith(rest):
                return "", ""
            else:
                self._state = "reply"
        if self._state == "inside":
            at = self._buffer.find(self._close)
            ready = self._buffer[
                : at if at >= 0 else len(self._buffer) - overlap(self._buffer, (self._close,))
            ].rstrip()
            rest = self._buffer[at + len(self._close) :] if at >= 0 else self._buffer[len(ready) :]
            reasoning = ready if self._shown else ready.lstrip()
            self._shown = self._shown or bool(reasoning)
            self._buffer = rest
            if at < 0:
                return reasoning, ""
            self._state = "after"
            self._ended = self._fed - len(rest)
        if self._state == "after":
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                return reasoning, ""
            self._state = "reply"
        reply, self._buffer = self._buffer, ""
        return reasoning, reply

    def finish(self) -> tuple[str, str]:
        rest, self._buffer = self._buffer, ""
        if self._state == "inside":
            return (rest if self._shown else rest.lstrip()).rstrip(), ""
        return "", "" if self._state == "after" else rest


class TextReader:
    """Reads a reply that is text: reasoning in front, if the model writes ``tags``, then text with calls in it, if
    ``scanner`` looks for them."""

    def __init__(self, tags: Tags | None, scanner: Scanner | None, *, inside: bool) -> None:
        self._reasoning = _Reasoning(tags, inside=inside) if tags else None
        self._scanner = scanner

    @property
    def malformed(self) -> int:
        return self._scanner.malformed if self._scanner else 0

    @property
    def thoughts(self) -> Sequence[Span]:
        return (self._reasoning.span,) if self._reasoning else ()

    def feed(self, text: str) -> ParsedDelta:
        reasoning, reply = self._reasoning.feed(text) if self._reasoning else ("", text)
        content, calls = self._reply(reply)
        return ParsedDelta(content, reasoning, tuple(calls))

    def finish(self) -> ParsedDelta:
        reasoning, reply = self._reasoning.finish() if self._reasoning else ("", "")
        content, calls = self._reply(reply)
        last, more = self._scanner.finish() if self._scanner else ("", list[ToolCall]())
        return ParsedDelta(content + last, reasoning, (*calls, *more))

    def _reply(self, text: str) -> tuple[str, list[ToolCall]]:
        return self._scanner.feed(text) if self._scanner and text else (text, [])


class ReplyParser:
    """The StreamParser of `ChatTemplate`."""

    def __init__(self, codec: Codec, stop_ids: frozenset[int], reader: Reader, stop: Sequence[str]) -> None:
        self._codec = codec
        self._text = _Text(codec, stop_ids)
        self._stops = _Stops(stop)
        self._reader = reader
        self._ids = array("i")
        self._cut = 0

    @property
    def malformed(self) -> int:
        """How often something in what was fed began like a tool call (or a channel) and was none. It is text of the
        message. What only ends because the sample was cut is none of them."""
        return self._reader.malformed - self._cut

    @property
    def thought_tokens(self) -> int:
        """How many of the ids begin inside reasoning or one of its tags."""
        ids = self._ids[:-1] if self._text.ended else self._ids
        begun = self._codec.begun(
            ids, [place for start, end in self._reader.thoughts if end > start for place in (start, end)]
        )
        return sum(begun[1::2]) - sum(begun[::2])

    def feed(self, token_ids: array[int]) -> ParsedDelta:
        """What may be shown now."""
        self._ids.extend(token_ids)
        return self._reader.feed(self._stops.feed(self._text.feed(token_ids)))

    def finish(self, finish: FinishReason, stop_string: str | None = None) -> ParsedDelta:
        """The rest. What ended the sample is seen from its last token and ``stop_string``."""
        text = self._stops.feed(self._text.finish())
        rest = self._reader.feed(text + self._stops.finish(stop_string))
        malformed = self._reader.malformed
        rest = joined(rest, self._reader.finish())
        self._cut = self._reader.malformed - malformed if finish is FinishReason.LENGTH else 0
        return rest


def joined(first: ParsedDelta, last: ParsedDelta) -> ParsedDelta:
    """Two deltas in a row as one."""
    return ParsedDelta(
        first.content + last.content, first.reasoning + last.reasoning, (*first.tool_calls, *last.tool_calls)
    )
