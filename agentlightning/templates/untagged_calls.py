"""The readers of tool calls that no closing tag ends, so that the JSON itself says where a call is over. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentlightning.nouns import Tool, ToolCall
from agentlightning.templates.call_scanner import (
    MOST_TAGS,
    WHITE,
    Content,
    Found,
    Span,
    TagScanner,
    all_calls,
    as_call,
    make_call,
    overlap,
    read_object,
)


class LlamaScanner:
    """``{"name": ..., "parameters": {...}}`` at the start of the reply or behind ``<|python_tag|>``, several parted by
    ``;`` or white space.

    After Meta's "Llama 3.1 prompt formats", JSON based tool calling; the calls of the built-in tools
    (``brave_search.call(...)``) stay text.
    """

    TAG = "<|python_tag|>"

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._content = Content()
        self._buffer = ""
        self._skipped = ""
        self._span = Span()
        self._open = True
        self.malformed = 0

    def feed(self, text: str) -> Found:
        self._buffer += text
        while self._step():
            pass
        return self._content.take()

    def finish(self) -> Found:
        rest = self._skipped + self._buffer
        if self._open:
            self._count(self._buffer)
        if not self._content.called or rest.strip(_BETWEEN):
            self._content.add(rest)
        self._skipped = self._buffer = ""
        return self._content.finish()

    def _step(self) -> bool:
        """One decision; False where more text is needed."""
        if not self._open:
            start = self._buffer.find(self.TAG)
            self._open = start >= 0
            if start < 0:
                start = len(self._buffer) - overlap(self._buffer, (self.TAG,))
            self._content.add(self._buffer[:start])
            self._buffer = self._buffer[start:]
            return self._open
        between = _BETWEEN if self._content.called else WHITE
        rest = self._buffer.lstrip(between)
        self._skip(len(self._buffer) - len(rest))
        if self._buffer.startswith(self.TAG):
            self._skip(len(self.TAG))
            return True
        if not rest or self.TAG.startswith(rest):
            return False
        if rest[0] == "{":
            end = self._span.end(rest)
            if end is None:
                return False
            self._span = Span()
            if call := _call(rest[:end]):
                self._content.call(call)
                self._skipped, self._buffer = "", rest[end:]
                return True
        self._count(rest)
        self._content.add(self._skipped)
        self._skipped, self._open = "", False
        return True

    def _skip(self, count: int) -> None:
        self._skipped += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _count(self, rest: str) -> None:
        """Text that looks like a call, or was announced as one, counts as malformed."""
        self.malformed += self.TAG in self._skipped or bool(_NAMED.match(rest))


_BETWEEN = WHITE + ";"
_NAMED = re.compile(r'\{\s*"(?:name|type)"\s*:')


def _call(text: str) -> ToolCall | None:
    try:
        return as_call(read_object(text)[0])
    except (ValueError, RecursionError):
        return None


class MistralScanner(TagScanner):
    """``[TOOL_CALLS]`` and what follows it, in all forms that mistral-common's instruct tokenizers write.

    Up to v7 that is a JSON array of calls (with an ``id`` from v3 on), from v11 a name and its arguments:
    ``NAME[CALL_ID]ID[ARGS]{...}``, without the id in v13, one tag for each call.
    """

    TAG = "[TOOL_CALLS]"

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        super().__init__(self.TAG)
        self._span: Span | None = None
        self._tags = (0, len(self.TAG))

    def _read_on(self) -> bool:
        begun = self._buffer[len(self.TAG) : len(self.TAG) + _LONGEST_HEAD]
        rest = begun.lstrip(WHITE)
        opening = 0 if rest[:1] == "[" else rest.find("{")
        if opening < 0:
            if len(begun) < _LONGEST_HEAD and not _TWO_WORDS.search(rest):
                return False
            self._give_up()
            return True
        head = _HEAD.fullmatch(rest, 0, opening)
        if not head and opening:
            self._give_up()
            return True
        start = len(self.TAG) + len(begun) - len(rest) + opening
        self._span = self._span or Span(start)
        stop = self._last_tag()
        end = self._span.end(self._buffer, stop)
        if end is None and stop is None:
            return False
        body = self._buffer[start:end]
        if end is None:
            calls = None
        elif opening == 0 and rest[0] == "[":
            calls = all_calls(body)
        else:
            call = _with(head[1], head[2], body) if head else None
            calls = [call] if call else None
        if calls:
            self._content.call(*calls)
            self._leave(self._buffer[end:])
        else:
            self._give_up()
        return True

    def _last_tag(self) -> int | None:
        """Where the last tag stands that a call may go on to; None while there are fewer."""
        count, at = self._tags
        while count <= MOST_TAGS and (found := self._buffer.find(self.TAG, at)) >= 0:
            count, at = count + 1, found + len(self.TAG)
        self._tags = count, max(at, len(self._buffer) - len(self.TAG) + 1) if count <= MOST_TAGS else at
        return at if count > MOST_TAGS else None

    def _leave(self, rest: str) -> None:
        super()._leave(rest)
        self._span = None
        self._tags = (0, len(self.TAG))


_LONGEST_HEAD = 1024
"""Characters, white space and a call's id among them, in which the arguments of a call have to begin."""
_HEAD = re.compile(r"([^\s\[{]+)\s*(?:\[CALL_ID\]\s*([^\s\[{]*)\s*)?(?:\[ARGS\]\s*)?")
_TWO_WORDS = re.compile(r"[^\s\]]\s+[^\s\[{]")


def _with(name: str, call_id: str | None, arguments: str) -> ToolCall | None:
    try:
        read_object(arguments)
    except (ValueError, RecursionError):
        return None
    return make_call(name, arguments, call_id)
