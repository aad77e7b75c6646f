"""Words of a command line as Hydra has them, ``key=value``: a value is null, true, false, a number, a quoted text, a
list, a table, or else a plain text.

Not here: what chooses among files of settings, and several values for one key; both are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

from agentlightning.errors import ConfigError
from agentlightning.nouns import Json

_WORD = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w$@./-]+)(?:=(?P<value>.*))?", re.DOTALL)
_CONSTANTS: dict[str, Json] = {"null": None, "true": True, "false": False}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{(?:[^${}]|\$\{[^{}]*\})*\}")


def settings_of(words: Sequence[str]) -> dict[str, Json]:
    """The values by dotted key, a later one in place of an earlier. Raises ConfigError for a word that is none."""
    settings: dict[str, Json] = {}
    for word in words:
        match = _WORD.fullmatch(word)
        if word.startswith("-") or match is None or match["value"] is None or match["sign"] == "~":
            raise ConfigError(f"{word}: {_remedy(word)}")
        settings[match["key"]] = _Reader(word, match["value"]).whole()
    return settings


def _remedy(word: str) -> str:
    if word.startswith("~"):
        return "nothing is set that could be taken away: leave it out"
    if word.startswith("-"):
        return (
            "settings are key=value, and no files of them are read: leave it out, and write what it says as key=value"
        )
    return "expected key=value"


class _Reader:
    """Reads one value from left to right."""

    def __init__(self, word: str, text: str) -> None:
        self.word = word
        self.text = text
        self.at = 0

    def whole(self) -> Json:
        value = self.value("")
        if self.at < len(self.text):
            raise self.wrong(
                "a run takes one value for a key; a list is [a,b], and a text with commas is quoted, \"'a,b'\""
            )
        return value

    def value(self, ends: str) -> Json:
        self.skip()
        first = self.text[self.at : self.at + 1]
        if first in ("'", '"'):
            value: Json = self.quoted(first)
        elif first == "[":
            value = self.several("]", lambda: self.value(",]"))
        elif first == "{":
            value = dict(cast("list[tuple[str, Json]]", self.several("}", self.pair)))
        else:
            return self.plain(ends or ",")
        self.skip()
        if self.at < len(self.text) and self.text[self.at] not in (ends or ","):
            raise self.wrong(f"{self.text[self.at :]!r:.40} follows a value: put the whole text in quotes")
        return value

    def quoted(self, mark: str) -> str:
        match = re.compile(rf"{mark}((?:[^{mark}\\]|\\.)*){mark}", re.DOTALL).match(self.text, self.at)
        if match is None:
            raise self.wrong(f"a text that begins with {mark} has to end with it")
        self.at = match.end()
        return _ESCAPED.sub(lambda found: found[1] if found[1] in (mark, "\\") else found[0], match[1])

    def several(self, end: str, read: Callable[[], Json]) -> list[Json]:
        self.at += 1
        items: list[Json] = []
        self.skip()
        while self.text[self.at : self.at + 1] != end:
            items.append(read())
            self.skip()
            if self.text[self.at : self.at + 1] == ",":
                self.at += 1
            elif self.text[self.at : self.at + 1] != end:
                raise self.wrong(f"{end!r} is missing")
            self.skip()
        self.at += 1
        return items

    def pair(self) -> Json:
        match = re.compile(r"\s*(?:'([^']*)'|\"([^\"]*)\"|([\w./-]+))\s*:").match(self.text, self.at)
        if match is None:
            raise self.wrong("a table is {key:value,...}")
        self.at = match.end()
        return next(key for key in match.groups() if key is not None), self.value(",}")

    def plain(self, ends: str) -> Json:
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            reference = _REFERENCE.match(self.text, self.at)
            self.at = reference.end() if reference is not None else self.at + 1
        text = self.text[begin : self.at].strip()
        if text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return text

    def skip(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.word}: {why}")
