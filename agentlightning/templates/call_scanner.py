"""What the readers of tool-call formats have in common. Pure.

A scanner takes a reply apart while it grows. Its result depends on the whole text alone, never on how it was cut into
pieces; what is no well-formed call is text, and counted.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from agentlightning.nouns import Json, ToolCall

Found = tuple[str, list[ToolCall]]
"""Text to show, and whole calls."""

MOST_TAGS = 32
"""How often a format's own tag may stand inside a value of a call. A model that repeats broken calls without end would
be read over and over again."""


class Scanner(Protocol):
    """Splits a growing reply into text and whole tool calls."""

    @property
    def malformed(self) -> int:
        """How often something began like a call and was none."""
        ...

    def feed(self, text: str) -> Found: ...

    def finish(self) -> Found: ...


class Content:
    """The text around calls: white space next to a call goes, unless text on both sides needs it; without a call all of
    it stays."""

    def __init__(self) -> None:
        self._waiting = ""
        self._shown = False
        self._text = ""
        self._calls: list[ToolCall] = []
        self.called = False

    def add(self, text: str) -> None:
        text = self._waiting + text
        body = text.rstrip()
        self._waiting = text[len(body) :]
        if body:
            self._text += body.lstrip() if self.called and not self._shown else body
            self._shown = True

    def call(self, *calls: ToolCall) -> None:
        self._calls += calls
        self.called = self.called or bool(calls)

    def take(self) -> Found:
        taken = self._text, self._calls
        self._text, self._calls = "", []
        return taken

    def finish(self) -> Found:
        if not self.called:
            self._text += self._waiting
        self._waiting = ""
        return self.take()


class TagScanner(ABC):
    """A scanner whose calls begin with an opening tag. What was a tag may turn out to be text; what follows it is then
    looked at again."""

    def __init__(self, opening: str) -> None:
        self._opening = opening
        self._content = Content()
        self._buffer = ""
        self._inside = False
        self._over = False
        self.malformed = 0

    def feed(self, text: str) -> Found:
        self._buffer += text
        while self._enter() if not self._inside else self._read_on():
            pass
        return self._content.take()

    def finish(self) -> Found:
        self._over = True
        while self._inside:
            self._give_up()
            while self._enter() if not self._inside else self._read_on():
                pass
        self._content.add(self._buffer)
        self._buffer = ""
        return self._content.finish()

    def _enter(self) -> bool:
        """Looks for the opening tag; False where more text is needed."""
        start = self._buffer.find(self._opening)
        self._inside = start >= 0
        if start < 0:
            start = len(self._buffer) - overlap(self._buffer, (self._opening,))
        self._content.add(self._buffer[:start])
        self._buffer = self._buffer[start:]
        return self._inside

    @abstractmethod
    def _read_on(self) -> bool:
        """One decision about a text that starts with the opening tag; False where more text is needed."""

    def _give_up(self) -> None:
        """The opening tag was only text."""
        self.malformed += 1
        self._content.add(self._opening)
        self._leave(self._buffer[len(self._opening) :])

    def _leave(self, rest: str) -> None:
        """Goes on behind a call, or behind a tag that was only text."""
        self._buffer = rest
        self._inside = False


class BlockScanner(TagScanner):
    """Calls between an opening and a closing tag, any number of blocks, anywhere in the text.

    ``read`` makes the calls of a block's body, None where it is malformed; ``goes_on`` says of a body that could not be
    read whether the closing tag behind it was only text inside a value, so that the block ends later (``MOST_TAGS``
    times at most). A tag that never closes is text, and so is a malformed block; what follows its opening tag is looked
    at again.
    """

    def __init__(
        self, opening: str, closing: str, read: Callable[[str], list[ToolCall] | None], goes_on: Callable[[str], bool]
    ) -> None:
        super().__init__(opening)
        self._closing, self._read, self._goes_on = closing, read, goes_on
        self._searched = len(opening)
        self._passed = 0
        self._closes = True

    def _read_on(self) -> bool:
        end = self._buffer.find(self._closing, self._searched) if self._closes else -1
        if end < 0:
            self._closes = not self._over
            self._searched = max(self._searched, len(self._buffer) - len(self._closing) + 1)
            return False
        body = self._buffer[len(self._opening) : end]
        if calls := self._read(body):
            self._content.call(*calls)
            self._leave(self._buffer[end + len(self._closing) :])
        elif self._passed < MOST_TAGS and self._goes_on(body):
            self._passed += 1
            self._searched = end + len(self._closing)
        else:
            self._give_up()
        return True

    def _leave(self, rest: str) -> None:
        super()._leave(rest)
        self._searched = len(self._opening)
        self._passed = 0


def overlap(text: str, words: Sequence[str]) -> int:
    """The length of the longest end of ``text`` that may become one of ``words``."""
    return max(
        (n for word in words for n in range(1, min(len(word), len(text) + 1)) if text.endswith(word[:n])), default=0
    )


# --------------------------------------------------------------------------- JSON


WHITE = " \t\r\n"
_SPACE = re.compile(r"[ \t\n\r]*")
_STRUCTURE = re.compile(r'[{}\[\]"]')
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_IN_STRING = re.compile(r'\\.|"', re.DOTALL)

Members = dict[str, tuple[Json, str]]
"""The members of a JSON object: each key's value, and its text as it was written."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def past_space(text: str, at: int) -> int:
    """The first position from ``at`` on that is not JSON's white space."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def read_value(text: str, at: int) -> tuple[Json, int]:
    """The JSON value that starts at ``at``, and the position behind it. Raises ValueError or RecursionError."""
    return _DECODER.raw_decode(text, at)


def read_object(text: str, start: int = 0) -> tuple[Members, int]:
    """Reads the JSON object at ``start``; returns its members and the position behind it. Raises ValueError or
    RecursionError."""

    def past(at: int, expected: str) -> int:
        if text[at : at + 1] != expected:
            raise ValueError(f"no {expected!r} at {at}")
        return past_space(text, at + 1)

    members: Members = {}
    at = past(past_space(text, start), "{")
    while text[at : at + 1] != "}":
        key, at = read_value(text, at)
        if not isinstance(key, str):
            raise ValueError("a key that is no string")
        begin = past(past_space(text, at), ":")
        value, at = read_value(text, begin)
        members[key] = value, text[begin:at]
        at = past_space(text, at)
        if text[at : at + 1] != "}":
            at = past(at, ",")
            if text[at : at + 1] == "}":
                raise ValueError("a comma before the end")
    return members, at + 1


class Span:
    """Finds where the JSON object or array at ``start`` ends while its text grows, looking at each character once. It
    knows brackets and strings, nothing else."""

    def __init__(self, start: int = 0) -> None:
        self._depth = 0
        self._in_string = False
        self._at: int = start

    def end(self, text: str, stop: int | None = None) -> int | None:
        """The position behind the value; None where it is not whole (before ``stop``). ``text`` only grows between
        calls."""
        last = len(text) if stop is None else stop
        while True:
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(text, self._at, last)
            if found is None:
                # A lone backslash at the end belongs to what comes next.
                tail = 0
                while self._in_string and last - tail > self._at and text[last - tail - 1] == "\\":
                    tail += 1
                self._at = max(self._at, last - tail)
                return None
            self._at = found.end()
            if self._in_string:
                self._in_string = found[0] != '"'
            elif found[0] == '"':
                self._in_string = True
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth <= 0:
                    return self._at


def ends_in_string(text: str) -> bool:
    """Whether JSON text breaks off inside a string."""
    if "\\" in text:
        text = _ESCAPE.sub("", text)
    return text.count('"') % 2 == 1


# --------------------------------------------------------------------------- one call


def new_call_id(given: str | None = None) -> str:
    """A globally unique tool-call id. It ends in ``given``, an id of the model's own that the template may show
    again."""
    return (
        f"call_{secrets.token_hex(12)}" if given is None else f"call_{secrets.token_hex(12)[: 24 - len(given)]}{given}"
    )


_MODELS_ID = re.compile("[a-zA-Z0-9]{9}")


def make_call(name: str, arguments: str, given_id: Json = None) -> ToolCall | None:
    """A call under a fresh id; None for a name that is empty or has no UTF-8 form (half a surrogate pair)."""
    if not name or any("\ud800" <= character <= "\udfff" for character in name):
        return None
    return ToolCall(
        new_call_id(given_id if isinstance(given_id, str) and _MODELS_ID.fullmatch(given_id) else None), name, arguments
    )


def as_call(members: Members) -> ToolCall | None:
    """The call that a JSON object stands for, its arguments as they were written; None where it stands for none."""
    name = members.get("name", (None, ""))[0]
    given = [members[key] for key in ("arguments", "parameters") if key in members]
    if not isinstance(name, str) or len(given) != 1 or not isinstance(given[0][0], dict):
        return None
    return make_call(name, given[0][1], members.get("id", (None, ""))[0])


def only_call(text: str) -> list[ToolCall] | None:
    """The one call in a text that holds nothing else."""
    try:
        members, end = read_object(text)
    except (ValueError, RecursionError):
        return None
    call = as_call(members)
    return [call] if call and not text[end:].strip(WHITE) else None


def all_calls(text: str) -> list[ToolCall] | None:
    """The calls in a text that is one JSON array of calls, or one call, and nothing else."""
    at = past_space(text, 0)
    if text[at : at + 1] != "[":
        return only_call(text)
    calls: list[ToolCall] = []
    try:
        at = past_space(text, at + 1)
        while True:
            members, at = read_object(text, at)
            if (call := as_call(members)) is None:
                return None
            calls.append(call)
            at = past_space(text, at)
            if text[at : at + 1] != ",":
                break
            at = past_space(text, at + 1)
    except (ValueError, RecursionError):
        return None
    return calls if text[at : at + 1] == "]" and not text[at + 1 :].strip(WHITE) else None
