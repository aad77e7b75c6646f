"""Fonts of a PNG: which of those that are installed have the characters of its texts, and how what none has is written
so that it can be read.

An SVG needs none of this: whoever views it has fonts of their own. Loads matplotlib, and looks through the system's
fonts only where the usual one lacks something.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from agentlightning.errors import ConfigError, MissingExtra

MONOSPACED = "DejaVu Sans Mono"
"""Comes with matplotlib."""

_UNFIT = re.compile(r"Last ?Resort|Color|Adobe Blank|^cm(b|ex|mi|r|ss|sy|ti|tt)\d+$|^STIX(Size|NonUnicode)")
"""Fonts that have every character as an empty frame, or coloured pictures that matplotlib cannot draw, or signs in
places that are not theirs."""

_VARIANTS = range(0xFE00, 0xFE10)
"""Variation selectors: they choose between two looks of the sign before them, and are nothing by themselves."""


@dataclass(frozen=True, slots=True)
class Fonts:
    """``families`` in the order matplotlib is to try them, the characters that none of them has, and those that only
    others than the first have."""

    families: tuple[str, ...]
    missing: frozenset[str]
    borrowed: frozenset[str] = frozenset()

    def of(self, text: str) -> tuple[list[str], bool]:
        """The families for a text, and whether each may be taken to have a bold face."""
        borrows = not self.borrowed.isdisjoint(text)
        return list(self.families if borrows else self.families[:1]), not borrows


@contextmanager
def needs_matplotlib(what: str, otherwise: str = "") -> Generator[None]:
    """Around imports of it. Raises MissingExtra where it is not installed, ConfigError where it is and cannot be
    loaded."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "matplotlib":
            raise MissingExtra(f"{what} needs matplotlib: pip install matplotlib{otherwise}") from None
        raise ConfigError(
            f"{what} needs matplotlib, which is here and cannot be loaded ({type(error).__name__}: {error}){otherwise}"
        ) from error


def fonts_for(texts: Iterable[str]) -> Fonts:
    """The fonts for these texts, few of them. Needs matplotlib."""
    manager: Any = import_module("matplotlib.font_manager")
    codes = {ord(c) for text in texts for c in text if not c.isascii()}.difference(_VARIANTS)
    families = [MONOSPACED]
    wanted = lacking = codes - _characters(str(manager.findfont(MONOSPACED)))[1]
    if wanted:
        for file in _files(manager):
            family, known = _characters(file)
            if wanted & known and not _UNFIT.search(family):
                wanted = wanted - known
                # A font that was installed after matplotlib made its list is not in it.
                if all(entry.fname != file for entry in manager.fontManager.ttflist):
                    manager.fontManager.addfont(file)
                families.append(family)
            if not wanted:
                break
    return Fonts(tuple(dict.fromkeys(families)), frozenset(map(chr, wanted)), frozenset(map(chr, lacking - wanted)))


def spell(text: str, missing: frozenset[str]) -> str:
    """The text with ``U+4F60`` in place of each character that is ``missing``."""
    if missing.isdisjoint(text):
        return text
    return re.sub(
        "".join(("[", *map(re.escape, sorted(missing)), "]+")),
        lambda found: " ".join(f"U+{ord(c):04X}" for c in found[0]),
        text,
    )


def drawn(text: str) -> str:
    """The text without the characters that have no look of their own."""
    return text if text.isascii() else "".join(c for c in text if ord(c) not in _VARIANTS)


def _files(manager: Any) -> Sequence[str]:
    """Font files: upright and regular ones first, then those whose characters are of one width."""
    files: set[str] = {
        *(str(entry.fname) for entry in manager.fontManager.ttflist),
        *map(str, manager.findSystemFonts()),
    }
    styled = re.compile(r"bold|italic|oblique|light|thin|black|condensed|medium|serif|math", re.IGNORECASE)
    return sorted(
        files, key=lambda file: (bool(styled.search(file.rpartition("/")[2])), "mono" not in file.lower(), file)
    )


@cache
def _characters(file: str) -> tuple[str, frozenset[int]]:
    """A font's family and its characters; none where it cannot be read, or has pictures in place of outlines."""
    from matplotlib.ft2font import FT2Font

    try:
        font: Any = FT2Font(file)
        return str(font.family_name), frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return "", frozenset()
