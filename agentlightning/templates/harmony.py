"""Harmony: the reader of gpt-oss replies, after OpenAI's "harmony response format".

A reply is a run of messages. Each has a header that names its channel and perhaps a recipient, and a body: ``analysis``
is reasoning, ``final`` and ``commentary`` without a recipient are the reply, a recipient ``functions.NAME`` makes the
body that tool's arguments. Pure.
"""

from __future__ import annotations

import re

from agentlightning.nouns import ToolCall
from agentlightning.templates.base import ParsedDelta
from agentlightning.templates.call_scanner import make_call, overlap, read_object

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
TOKENS = (START, CHANNEL, MESSAGE, END)

_BODY_ENDS = (END, CALL, RETURN, START)
_BODY_END = re.compile("|".join(map(re.escape, _BODY_ENDS)))
_LONGEST_HEADER = 1024
"""Characters of a message's header. What goes on for longer is none."""

_HEADER_END = re.compile("|".join(map(re.escape, (MESSAGE, *_BODY_ENDS))))
_HEADER = re.compile(
    r"\s*(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*"
    r"(?:<\|channel\|>\s*(?P<channel>analysis|commentary|final)(?:\s*to=(?P<recipient>[^\s<]+))?)?\s*"
    r"(?:<\|constrain\|>\s*)?(?:\w+)?\s*"
)
_BEGINNINGS = (CHANNEL, CONSTRAIN, MESSAGE, "to=", "assistant", *_BODY_ENDS)


def written(name: str, arguments: str) -> str:
    """One call as the model writes it, from behind ``<|start|>assistant`` up to ``<|call|>``."""
    return f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}{arguments}"


class HarmonyReader:
    """Takes a reply apart while it grows. ``tools``: whether tools were offered; a call is text where none were."""

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._buffer = ""
        self._state = "header"
        self._header = ""
        self._name = ""
        self._searched = 0
        self._shown = {"content": "", "reasoning": ""}
        self._parted = False
        self._out = {"content": "", "reasoning": ""}
        self._calls: list[ToolCall] = []
        self.malformed = 0
        self._fed = 0
        self._began: int = 0
        self._thoughts: list[tuple[int, int]] = []

    @property
    def thoughts(self) -> list[tuple[int, int]]:
        """From which character to which of what was fed a message of reasoning goes, its tokens among it."""
        return [*self._thoughts, (self._began, self._fed)] if self._state == "reasoning" else self._thoughts

    def feed(self, text: str) -> ParsedDelta:
        self._buffer += text
        self._fed += len(text)
        while self._step():
            pass
        return self._take()

    def finish(self) -> ParsedDelta:
        if self._state == "header":
            if self._buffer.strip() or self._header:
                self._broken(self._header + self._buffer)
        elif self._state == "between":
            if self._buffer.strip():
                self._broken(self._buffer)
        elif self._state in ("call", "text"):
            self._close(self._buffer, "")
        elif self._state in ("content", "reasoning"):
            self._show(self._state, self._buffer)
        if self._state == "reasoning":
            self._thoughts.append((self._began, self._fed))
        self._buffer, self._state = "", "over"
        return self._take()

    def _step(self) -> bool:
        """One decision; False where more text is needed."""
        if self._state == "between":
            rest = self._buffer.lstrip()
            if not rest or (len(rest) < len(START) and START.startswith(rest)):
                return False
            if rest.startswith(START):
                self._began = self._fed - len(rest)
                self._buffer, self._header, self._state = rest[len(START) :], START, "header"
            else:
                self.malformed += 1
                self._begin("content")
            return True
        if self._state == "header":
            return self._read_header()
        return self._read_body()

    def _read_header(self) -> bool:
        rest = self._buffer.lstrip()
        if rest and not any(rest.startswith(word) or word.startswith(rest) for word in _BEGINNINGS):
            # No header at all: a model that does not speak harmony is shown as it speaks.
            self._broken(self._header)
            return True
        found = _HEADER_END.search(self._buffer, 0, _LONGEST_HEADER)
        if not found:
            if len(self._buffer) < _LONGEST_HEADER:
                return False
            self._broken(self._header)
            return True
        head, self._buffer = self._buffer[: found.start()], self._buffer[found.end() :]
        if found[0] != MESSAGE:
            self._broken(self._header + head + (found[0] if found[0] != START else ""))
            self._next(found[0])
            return True
        self._header += head + MESSAGE
        parts = _HEADER.fullmatch(" ".join(head.split()))
        recipient = (parts["to"] or parts["recipient"] or "") if parts else ""
        if recipient.startswith("functions.") and self._tools:
            self._name, self._state = recipient.removeprefix("functions."), "call"
        elif parts is None or recipient:
            self.malformed += parts is None or not recipient.startswith("functions.")
            self._state = "text"
        else:
            self._begin("reasoning" if parts["channel"] == "analysis" else "content")
        return True

    def _read_body(self) -> bool:
        held = self._state in ("call", "text")
        found = _BODY_END.search(self._buffer, self._searched if held else 0)
        ready = found.start() if found else len(self._buffer) - overlap(self._buffer, _BODY_ENDS)
        if held and not found:
            self._searched = ready
            return False
        body, self._buffer = self._buffer[:ready], self._buffer[found.end() if found else ready :]
        self._searched = 0
        if held:
            self._close(body, found[0] if found else "")
        else:
            self._show(self._state, body)
        if found:
            after = self._fed - len(self._buffer) - (len(START) if found[0] == START else 0)
            if self._state == "reasoning":
                self._thoughts.append((self._began, after))
            self._began = after
            self._next(found[0])
        return found is not None

    def _begin(self, kind: str) -> None:
        self._state, self._header = kind, ""
        self._parted = bool(self._shown[kind].strip())

    def _next(self, word: str) -> None:
        self._header, self._state = (START, "header") if word == START else ("", "between")

    def _show(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._parted:
            self._out[kind] += "\n\n"
            self._parted = False
        self._out[kind] += text
        self._shown[kind] = (self._shown[kind] or text).strip() and "shown"

    def _close(self, body: str, word: str) -> None:
        """A body that had to be whole: a call, or text that is shown with its header."""
        call = self._call(body) if self._state == "call" else None
        if call:
            self._calls.append(call)
            self._header = ""
        else:
            self.malformed += self._state == "call"
            self._text(self._header + body + (word if word != START else ""))

    def _call(self, body: str) -> ToolCall | None:
        text = body.strip()
        try:
            _, end = read_object(text)
        except (ValueError, RecursionError):
            return None
        return make_call(self._name, text) if end == len(text) else None

    def _broken(self, text: str) -> None:
        self.malformed += 1
        self._text(text)

    def _text(self, text: str) -> None:
        self._begin("content")
        self._show("content", text)

    def _take(self) -> ParsedDelta:
        taken = ParsedDelta(self._out["content"], self._out["reasoning"], tuple(self._calls))
        self._out, self._calls = {"content": "", "reasoning": ""}, []
        return taken
