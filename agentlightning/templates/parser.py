"""Parser: one sample's tokens to the message a client gets, all at once or while they arrive.

Each stage is a transducer whose whole output depends on its whole input alone: ids to text (whole characters, end-of-turn cut), stop strings,
reasoning, tool calls. Parsing a finished sample is feeding it once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from agentlightning.templates.base import ParsedDelta
from agentlightning.templates.codec import Codec
from agentlightning.templates.formats import Scanner, overlap
from agentlightning.types import FinishReason, ToolCall

THINK = "<think>"
END_THINK = "</think>"


class _Text:
    """Ids to text. Holds back what the next token can still change: part of a character, a last end-of-turn token."""

    def __init__(self, codec: Codec, stop_ids: frozenset[int]) -> None:
        self._codec = codec
        self._stop_ids = stop_ids
        self._pending: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        self._pending += token_ids
        held = self._pending[-1:] if self._pending and self._pending[-1] in self._stop_ids else []
        text = self._codec.decode_whole(self._pending[: len(self._pending) - len(held)])
        if text is None:
            return ""
        self._pending = held
        return text

    def finish(self) -> str:
        if self._pending and self._pending[-1] in self._stop_ids:
            self._pending.pop()
        return self._codec.decode(self._pending) if self._pending else ""


class _Stops:
    """Lets text through up to the first stop string, and never part of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(word for word in stop if word)
        self._held = ""
        self._frozen = False

    def feed(self, text: str) -> str:
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
    """Parts a leading ``<think>...</think>`` from the reply. White space around the tags goes. ``inside``: the prompt opened the tag already."""

    def __init__(self, *, expected: bool, inside: bool) -> None:
        self._state = "inside" if expected and inside else "start" if expected else "reply"
        self._buffer = ""
        self._shown = False

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, reply)"""
        self._buffer += text
        reasoning = ""
        if self._state == "start":
            rest = self._buffer.lstrip()
            if rest.startswith(THINK):
                self._state, self._buffer = "inside", rest[len(THINK) :]
            elif THINK.startswith(rest):
                return "", ""
            else:
                self._state = "reply"
        if self._state == "inside":
            at = self._buffer.find(END_THINK)
            ready = self._buffer[: at if at >= 0 else len(self._buffer) - overlap(self._buffer, (END_THINK,))].rstrip()
            rest = self._buffer[at + len(END_THINK) :] if at >= 0 else self._buffer[len(ready) :]
            reasoning = ready if self._shown else ready.lstrip()
            self._shown = self._shown or bool(reasoning)
            self._buffer = rest
            if at < 0:
                return reasoning, ""
            self._state = "after"
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


class ReplyParser:
    """The StreamParser of `ChatTemplate`. ``scanner`` None: tools were not offered, so everything is text."""

    def __init__(
        self,
        codec: Codec,
        stop_ids: frozenset[int],
        scanner: Scanner | None,
        stop: Sequence[str],
        *,
        reasoning: bool,
        inside: bool,
    ) -> None:
        self._text = _Text(codec, stop_ids)
        self._stops = _Stops(stop)
        self._reasoning = _Reasoning(expected=reasoning, inside=inside)
        self._scanner = scanner

    def feed(self, token_ids: array[int]) -> ParsedDelta:
        """What may be shown now."""
        return self._through(self._stops.feed(self._text.feed(token_ids)))

    def finish(self, finish: FinishReason, stop_string: str | None = None) -> ParsedDelta:
        """The rest. What ended the sample is seen from its last token and ``stop_string``."""
        text = self._stops.feed(self._text.finish())
        given = self._through(text + self._stops.finish(stop_string))
        reasoning, reply = self._reasoning.finish()
        content, calls = self._reply(reply)
        last, more = self._scanner.finish() if self._scanner else ("", list[ToolCall]())
        return ParsedDelta(given.content + content + last, given.reasoning + reasoning, (*given.tool_calls, *calls, *more))

    def _through(self, text: str) -> ParsedDelta:
        reasoning, reply = self._reasoning.feed(text)
        content, calls = self._reply(reply)
        return ParsedDelta(content, reasoning, tuple(calls))

    def _reply(self, text: str) -> tuple[str, list[ToolCall]]:
        return self._scanner.feed(text) if self._scanner else (text, [])
