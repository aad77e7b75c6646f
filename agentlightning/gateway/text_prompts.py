"""Prompts without messages: which recorded completion one goes on from, and how it becomes tokens.

Pure. What a chat template does for messages is done here for a text that is taken as it is: none of it becomes a
control token.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import Generic, TypeVar

from agentlightning.errors import TemplateError
from agentlightning.nouns import Message
from agentlightning.templates.base import Template

T = TypeVar("T")

DIGEST = 16
"""Bytes of a digest: two texts of one attempt never share one."""


class PromptError(TemplateError):
    """A prompt that cannot be sampled from: it has no tokens, or ids that the model does not have."""


class Prefixes(Generic[T]):
    """Finds the longest of many remembered beginnings of some bytes. It remembers lengths and digests, never the
    bytes."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._found: dict[tuple[int, bytes], list[T]] = {}

    def add(self, begun: Prefix, value: T) -> None:
        at = bisect_right(self._lengths, begun.length)
        if at == 0 or self._lengths[at - 1] != begun.length:
            insort(self._lengths, begun.length)
        self._found.setdefault((begun.length, begun.digest()), []).append(value)

    def longest(self, data: bytes) -> tuple[int, Sequence[T]]:
        """The length of the longest remembered beginning of ``data`` and what was added under it, oldest first; 0 and
        nothing where there is none.

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
"""Stands on both sides of the text. It begins with a character that it has only once, so that two of them cannot
overlap."""

_EDGES = re.compile(r"@text ([0-9]+):", re.ASCII)


def encode_text(text: str, template: Template, *, start: bool) -> array[int]:
    """The tokens of a text with nothing in it read as a control token. ``start``: it begins the prompt. Raises
    PromptError.

    The template is asked to escape it as it escapes a user's message, between two edges that say where the message is.
    """
    edge = _edge_for(text)
    rendered = "".join(template.render([Message("user", edge + text + edge)], (), {}).texts)
    parts = rendered.split(edge)
    if len(parts) != 3:
        raise PromptError("the model's chat template changes the text it is given: send the prompt as token ids")
    return template.encode(parts[1], start=start)


def _edge_for(text: str) -> str:
    """An edge that is not in a text. It is looked through once, however many are."""
    taken = set(_EDGES.findall(text))
    return _EDGE.format(next(number for number in count() if str(number) not in taken))


def check_ids(ids: array[int], template: Template) -> None:
    """Raises PromptError where the model has no such token. Ids are counted from 0, so the largest one tells."""
    if ids and not template.decode([max(ids)]):
        raise PromptError(f"the prompt holds token id {max(ids)}, which is not in the model's vocabulary")
