"""Keeps what people and tools wrote from being read as the template's own control tokens.

Pure string work. A control token's text inside a message gets a private character after its first character, which
`Codec.encode` takes out again once the control tokens are found. Private characters of the message's own are quoted, so
no input can forge an escape or a marker.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from agentlightning.nouns import Json

ESCAPE = "\U0010f8f0"
"""Breaks a control token's text. Followed by itself it stands for itself, followed by QUOTE for MARK."""
MARK = "\U0010f8f1"
"""Encloses a marker. In a rendering it is never the user's."""
QUOTE = "\U0010f8f2"

_ESCAPED = re.compile(f"{ESCAPE}([{ESCAPE}{QUOTE}]?)")
_MEANT = {"": "", ESCAPE: ESCAPE, QUOTE: MARK}

MARKER = re.compile(f"{MARK}([cre])([0-9]+){MARK}")


def marker(kind: str, number: int) -> str:
    """What stands for a recorded sample while the template renders: ``c`` for its content (or the start of its first
    call), ``r`` for its reasoning, ``e`` for the end of each call."""
    return f"{MARK}{kind}{number}{MARK}"


def unescape(text: str) -> str:
    """The text that was given to ``Escaper.escape``."""
    return _ESCAPED.sub(lambda found: _MEANT[found[1]], text) if ESCAPE in text else text


class Escaper:
    """Knows the control tokens of one tokenizer. ``pattern`` finds those in a text that are not escaped, the longest
    first."""

    def __init__(self, control: Collection[str]) -> None:
        longest_first = sorted(control, key=lambda token: (-len(token), token))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._firsts = tuple({token[0] for token in control})

    def escape(self, text: str) -> str:
        """The text with nothing in it that the tokenizer or ``MARKER`` would take for more than text."""
        if not text.isascii():
            text = text.replace(ESCAPE, ESCAPE + ESCAPE).replace(MARK, ESCAPE + QUOTE)
        return self.broken(text)

    def broken(self, text: str) -> str:
        """The same for a text whose parts are escaped already, so that only what they form together is left to
        break."""
        # Most texts have no character that a control token starts with; that is found much faster than the tokens.
        for first in self._firsts:
            if first in text:
                break
        else:
            return text
        # Breaking one token can leave another that overlapped it.
        while self.pattern.search(text):
            text = self.pattern.sub(_broken, text)
        return text

    def escape_json(self, value: Json) -> Json:
        """The value with every string in it escaped, keys included."""
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {
                self.escape(str(key)): self.escape_json(item)
                for key, item in cast("Mapping[object, Json]", value).items()
            }
        if isinstance(value, Sequence):
            return [self.escape_json(item) for item in cast("Sequence[Json]", value)]
        return value


def _broken(found: re.Match[str]) -> str:
    return found[0][0] + ESCAPE + found[0][1:]
