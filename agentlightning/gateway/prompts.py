"""Prompts without messages: which recorded completion one goes on from, how it becomes tokens, and how its sample is read.

Pure. What a chat template does for messages is done here for a text that is taken as it is: none of it becomes a control token, and nothing in a
sample is a tool call or reasoning.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

from agentlightning.errors import TemplateError
from agentlightning.templates.base import ParsedDelta, Template
from agentlightning.types import FinishReason, Message

T = TypeVar("T")

DIGEST = 16
"""Bytes of a digest: two texts of one attempt never share one."""


class PromptError(TemplateError):
    """A prompt that cannot be sampled from: it has no tokens, or ids that the model does not have."""


class Prefixes(Generic[T]):
    """Finds the longest of many remembered beginnings of some bytes. It remembers lengths and digests, never the bytes."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._found: dict[tuple[int, bytes], list[T]] = {}

    def add(self, begun: Prefix, value: T) -> None:
        at = bisect_right(self._lengths, begun.length)
        if at == 0 or self._lengths[at - 1] != begun.length:
            insort(self._lengths, begun.length)
        self._found.setdefault((begun.length, begun.digest()), []).append(value)

    def longest(self, data: bytes) -> tuple[int, Sequence[T]]:
        """The length of the longest remembered beginning of ``data`` and what was added under it, oldest first; 0 and nothing where there is none.

        One pass over ``data``, however many beginnings are remembered.
        """
        state = blake2b(digest_size=DIGEST)
        view = memoryview(data)
        best: tuple[int, Sequence[T]] = (0, ())
        hashed = 0
        for length in self._lengths[: bisect_right(self._lengths, len(data))]:
            state.update(view[hashed:length])
            hashed = length
            if found := self._found.get((length, state.digest())):
                best = (length, found)
        return best


class Prefix:
    """Some bytes as their length and digest, and what they become when more follow."""

    __slots__ = ("_state", "length")

    def __init__(self, data: bytes = b"") -> None:
        self.length = len(data)
        self._state = blake2b(data, digest_size=DIGEST)

    def and_then(self, data: bytes) -> Prefix:
        longer = Prefix()
        longer.length = self.length + len(data)
        longer._state = self._state.copy()
        longer._state.update(data)
        return longer

    def digest(self) -> bytes:
        return self._state.digest()


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --------------------------------------------------------------------------- text to tokens

_EDGE = "@text {}:"
"""Stands on both sides of the text. It begins with a character that it has only once, so that two of them cannot overlap."""


def encode_text(text: str, template: Template, *, start: bool) -> array[int]:
    """The tokens of a text with nothing in it read as a control token. ``start``: it begins the prompt. Raises PromptError.

    The template is asked to escape it as it escapes a user's message, between two edges that say where the message is.
    """
    number = 0
    while (edge := _EDGE.format(number)) in text:
        number += 1
    rendered = "".join(template.render([Message("user", edge + text + edge)], (), {}).texts)
    parts = rendered.split(edge)
    if len(parts) != 3:
        raise PromptError("the model's chat template changes the text it is given: send the prompt as token ids")
    return template.encode(parts[1], start=start)


def check_ids(ids: array[int], template: Template) -> None:
    """Raises PromptError where the model has no such token. Ids are counted from 0, so the largest one tells."""
    if ids and not template.decode([max(ids)]):
        raise PromptError(f"the prompt holds token id {max(ids)}, which is not in the model's vocabulary")


# --------------------------------------------------------------------------- a sample as text


class PlainText:
    """A sample read as nothing but text: its end-of-turn token and a final stop string cut off. Satisfies `StreamParser`."""

    malformed = 0
    """Nothing in a plain text can fail to be a tool call."""

    def __init__(self, template: Template, stop: Sequence[str] = ()) -> None:
        self._template = template
        self._stop = tuple(stop)
        self._pending = array("i")
        self._held = ""

    def feed(self, token_ids: array[int]) -> ParsedDelta:
        self._pending.extend(token_ids)
        whole = len(self._pending) - (len(self._pending) > 0 and self._pending[-1] in self._template.stop_token_ids)
        text = self._template.decode(self._pending[:whole]) if whole else ""
        if not text or text.endswith("\ufffd"):  # part of a character
            return ParsedDelta()
        del self._pending[:whole]
        return ParsedDelta(self._shown(text))

    def finish(self, finish: FinishReason, stop_string: str | None = None) -> ParsedDelta:
        if self._pending and self._pending[-1] in self._template.stop_token_ids:
            self._pending.pop()
        shown = self._shown(self._template.decode(self._pending) if self._pending else "")
        at = self._held.find(stop_string) if stop_string else -1
        return ParsedDelta(shown + (self._held[:at] if at >= 0 else self._held))

    def _shown(self, text: str) -> str:
        """What no stop string can cut any more; the rest is held back."""
        self._held += text
        found = [at for word in self._stop if (at := self._held.find(word)) >= 0]
        keep = min([*found, len(self._held) - max([_begun(self._held, word) for word in self._stop], default=0)])
        shown, self._held = self._held[:keep], self._held[keep:]
        return shown


def _begun(text: str, word: str) -> int:
    """How many characters at the end of ``text`` are the beginning of ``word``."""
    return next((size for size in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:size])), 0)


def plain_message(ids: array[int], template: Template, finish: FinishReason, stop_string: str | None) -> Message:
    """A whole sample as the assistant's message."""
    parser = PlainText(template, (stop_string,) if stop_string else ())
    return Message("assistant", parser.feed(ids).content + parser.finish(finish, stop_string).content)
