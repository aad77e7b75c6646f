"""Formats: how tool calls are written in a model's text, and how they are found in it again.

Pure. A format writes calls and the instructions for templates that have none, and makes a scanner that takes a reply apart while it grows. A
scanner's result depends on the whole text alone, never on how it was cut into pieces; what is no well-formed call is text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from agentlightning.types import Json, ToolCall

# --------------------------------------------------------------------------- scanners


class Scanner(Protocol):
    """Splits a growing reply into text and whole tool calls."""

    def feed(self, text: str) -> tuple[str, list[ToolCall]]: ...

    def finish(self) -> tuple[str, list[ToolCall]]: ...


class _Content:
    """The text around calls: white space next to a call goes, unless text on both sides needs it; without a call all of it stays."""

    def __init__(self) -> None:
        self._waiting = ""
        self._shown = False
        self.text = ""
        self.calls: list[ToolCall] = []
        self.called = False

    def add(self, text: str) -> None:
        text = self._waiting + text
        body = text.rstrip()
        self._waiting = text[len(body) :]
        if body:
            self.text += body.lstrip() if self.called and not self._shown else body
            self._shown = True

    def call(self, call: ToolCall) -> None:
        self.calls.append(call)
        self.called = True

    def take(self) -> tuple[str, list[ToolCall]]:
        taken = self.text, self.calls
        self.text, self.calls = "", []
        return taken

    def finish(self) -> tuple[str, list[ToolCall]]:
        if not self.called:
            self.text += self._waiting
        self._waiting = ""
        return self.take()


class HermesScanner:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number, anywhere in the text."""

    OPEN = "<tool_call>"
    CLOSE = "</tool_call>"

    def __init__(self) -> None:
        self._content = _Content()
        self._buffer = ""
        self._inside = False
        self._searched = 0

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        self._buffer += text
        while self._step():
            pass
        return self._content.take()

    def finish(self) -> tuple[str, list[ToolCall]]:
        while self._inside:
            self._give_up()
            while self._step():
                pass
        self._content.add(self._buffer)
        self._buffer = ""
        return self._content.finish()

    def _step(self) -> bool:
        """One decision; False where more text is needed."""
        if not self._inside:
            start = self._buffer.find(self.OPEN)
            if start < 0:
                start = len(self._buffer) - overlap(self._buffer, (self.OPEN,))
            else:
                self._inside, self._searched = True, len(self.OPEN)
            self._content.add(self._buffer[:start])
            self._buffer = self._buffer[start:]
            return self._inside
        end = self._buffer.find(self.CLOSE, self._searched)
        if end < 0:
            self._searched = max(self._searched, len(self._buffer) - len(self.CLOSE) + 1)
            return False
        body = self._buffer[len(self.OPEN) : end]
        if call := _only_call(body):
            self._content.call(call)
            self._buffer = self._buffer[end + len(self.CLOSE) :]
            self._inside = False
        elif _ends_in_string(body):
            self._searched = end + len(self.CLOSE)  # the tag's text is part of a string
        else:
            self._give_up()
        return True

    def _give_up(self) -> None:
        """The open tag was only text; what follows it is looked at again."""
        self._content.add(self.OPEN)
        self._buffer = self._buffer[len(self.OPEN) :]
        self._inside = False


class LlamaScanner:
    """``{"name": ..., "parameters": {...}}`` at the start of the reply or behind ``<|python_tag|>``, several parted by ``;`` or white space."""

    TAG = "<|python_tag|>"

    def __init__(self) -> None:
        self._content = _Content()
        self._buffer = ""
        self._skipped = ""
        self._tried = 0
        self._open = True

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        self._buffer += text
        while self._step():
            pass
        return self._content.take()

    def finish(self) -> tuple[str, list[ToolCall]]:
        rest = self._skipped + self._buffer
        if not self._content.called or rest.strip(_BETWEEN):
            self._content.add(rest)
        self._skipped = self._buffer = ""
        return self._content.finish()

    def _step(self) -> bool:
        if not self._open:
            start = self._buffer.find(self.TAG)
            self._open = start >= 0
            if start < 0:
                start = len(self._buffer) - overlap(self._buffer, (self.TAG,))
            self._content.add(self._buffer[:start])
            self._buffer = self._buffer[start:]
            return self._open
        between = _BETWEEN if self._content.called else _WHITE
        rest = self._buffer.lstrip(between)
        self._skip(len(self._buffer) - len(rest))
        if self._buffer.startswith(self.TAG):
            self._skip(len(self.TAG))
            return True
        if not rest or self.TAG.startswith(rest):
            return False
        if rest[0] == "{":
            grown, self._tried = rest[self._tried :], len(rest)
            if "}" not in grown:
                return False
            try:
                members, end = _read_object(rest)
            except (ValueError, RecursionError):
                return False  # not whole yet, or never
            if call := _as_call(members):
                self._content.call(call)
                self._skipped, self._buffer, self._tried = "", rest[end:], 0
                return True
        self._content.add(self._skipped)
        self._skipped, self._open, self._tried = "", False, 0
        return True

    def _skip(self, count: int) -> None:
        self._skipped += self._buffer[:count]
        self._buffer = self._buffer[count:]


_WHITE = " \t\r\n"
_BETWEEN = _WHITE + ";"


def overlap(text: str, words: Sequence[str]) -> int:
    """The length of the longest end of ``text`` that may become one of ``words``."""
    return max((n for word in words for n in range(1, min(len(word), len(text) + 1)) if text.endswith(word[:n])), default=0)


# --------------------------------------------------------------------------- one call


def new_call_id() -> str:
    """A globally unique tool-call id."""
    return f"call_{secrets.token_hex(12)}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_SPACE = re.compile(r"[ \t\n\r]*")

_Members = dict[str, tuple[Json, str]]
"""The members of a JSON object: each key's value, and its text as it was written."""


def _read_object(text: str) -> tuple[_Members, int]:
    """Reads the JSON object at the start of ``text``; returns its members and the position behind it. Raises ValueError or RecursionError."""

    def past(at: int, expected: str) -> int:
        if text[at : at + 1] not in tuple(expected):
            raise ValueError(f"no {expected!r} at {at}")
        return _space(text, at + 1)

    members: _Members = {}
    at = past(_space(text, 0), "{")
    while text[at : at + 1] != "}":
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a key that is no string")
        start = past(_space(text, at), ":")
        value, at = _DECODER.raw_decode(text, start)
        members[key] = value, text[start:at]
        at = _space(text, at)
        if text[at : at + 1] != "}":
            at = past(at, ",")
            if text[at : at + 1] == "}":
                raise ValueError("a comma before the end")
    return members, at + 1


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _as_call(members: _Members) -> ToolCall | None:
    """The call that a JSON object stands for, its arguments as they were written; None where it stands for none."""
    name = members.get("name", (None, ""))[0]
    given = [members[key] for key in ("arguments", "parameters") if key in members]
    if not isinstance(name, str) or not name or len(given) != 1 or not isinstance(given[0][0], dict):
        return None
    if any("\ud800" <= character <= "\udfff" for character in name):
        return None  # half a surrogate pair has no UTF-8 form
    return ToolCall(new_call_id(), name, given[0][1])


def _only_call(text: str) -> ToolCall | None:
    try:
        members, end = _read_object(text)
    except (ValueError, RecursionError):
        return None
    return _as_call(members) if not text[end:].strip(_WHITE) else None


def _ends_in_string(text: str) -> bool:
    return re.sub(r"\\.", "", text, flags=re.DOTALL).count('"') % 2 == 1


# --------------------------------------------------------------------------- formats


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write tool calls. ``pattern`` has places for name and arguments as JSON; calls are joined by a newline."""

    name: str
    scanner: Callable[[], Scanner]
    pattern: str
    how: str

    def write(self, name: str, arguments: str) -> str:
        """One call. ``name`` is plain text, ``arguments`` JSON (or whatever there is instead)."""
        return self.pattern % (json.dumps(name, ensure_ascii=False), arguments)

    def instructions(self, tools: Sequence[Json]) -> str:
        """The system text that offers tools where the chat template has no place for them."""
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        example = self.pattern % ("<name of the tool>", "<its arguments as a JSON object>")
        return (
            f"You can use tools. These are described here, one JSON object a line:\n<tools>\n{listed}\n</tools>\n\n"
            f"{self.how}\n{example}\n\nThe results come back inside <tool_response></tool_response>."
        )


def tool_response(content: str) -> str:
    """A tool's result as text of a user turn."""
    return f"<tool_response>\n{content}\n</tool_response>"


_HERMES = '<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>'
_TAGGED = "To use one, write its name and arguments as JSON between <tool_call> tags, once for each use:"

FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat("hermes", HermesScanner, _HERMES, _TAGGED),
    "llama3_json": ToolFormat(
        "llama3_json",
        LlamaScanner,
        '{"name": %s, "parameters": %s}',
        "To use one, reply with nothing but its name and arguments as JSON, one line for each use:",
    ),
    "text": ToolFormat("text", HermesScanner, _HERMES, _TAGGED),
}
"""By name. ``text`` is Hermes' form under our own instructions, whatever the chat template could do."""
