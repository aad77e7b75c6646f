"""Text: what is made of words and numbers before anybody sees them: printable, clipped, in a stream's encoding,
plurals, durations, paths; and the seed that a text stands for.

Names, folders, replies and errors come from users and models. Whatever shows one, on a terminal, in a pipe, through
rich, in a log or in a picture, takes it through ``printable`` or ``one_line`` first; whatever writes to a stream that
it did not open takes ``encodable`` last. Standard library alone until something is clipped.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SHORT = 320
"""Characters of a text that `shorten` leaves."""

_STAND_INS = {"↵": r"\n", "⇥": r"\t", "…": "~", "Δ": "delta"}
"""Signs of our own, and what stands for them in an encoding that lacks them."""


def derive_seed(*parts: object) -> int:
    """A stable seed of 63 bits from what it is for: the same parts give the same seed, in any process."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def printable(text: str) -> str:
    """Control characters as escapes, those that turn the direction of writing too, so that no text can move the cursor
    or change the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """``printable`` without line breaks: those and tabs become signs."""
    return printable(text).replace("\n", "↵").replace("\t", "⇥")


def encodable(text: str, encoding: str | None) -> str:
    """The text as a stream of that encoding can hold it: what it lacks is a backslash escape. None, and an unknown
    name, are taken for ASCII."""
    if text.isascii():
        return text
    try:
        text.encode(encoding or "ascii")
    except LookupError:
        return encodable(text, "ascii")
    except UnicodeEncodeError:
        return "".join(_spelled(c, encoding or "ascii") for c in text)
    return text


def _spelled(c: str, encoding: str) -> str:
    try:
        c.encode(encoding)
    except UnicodeEncodeError:
        return _STAND_INS.get(c) or c.encode("ascii", "backslashreplace").decode()
    return c


# --------------------------------------------------------------------------- lengths


def clip(text: str, columns: int) -> str:
    """The beginning of a text that is wider than ``columns`` of a terminal (wide characters take two), and a sign that
    it goes on."""
    return text if width(text) <= columns else text[: fitting(text, columns - 1)].rstrip() + "…"


def clip_start(text: str, columns: int) -> str:
    """The end of a text that is wider than ``columns``, behind a sign that something comes before it."""
    return text if width(text) <= columns else "…" + text[::-1][: fitting(text[::-1], columns - 1)][::-1].lstrip()


def fitting(text: str, columns: int) -> int:
    """How many characters of the beginning of a text fit into ``columns``."""
    used = count = 0
    for c in text:
        used += width(c)
        if used > columns:
            break
        count += 1
    # A sign that follows a character may make it wider.
    while width(text[:count]) > columns:
        count -= 1
    return count


def width(text: str) -> int:
    """Columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, limit: int = SHORT) -> str:
    """The beginning and the end of a long text, with how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


# --------------------------------------------------------------------------- numbers and paths


def duration(seconds: float) -> str:
    """``4.2 s``, ``1:20``, ``2:03:00``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plural(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """A score with three decimals, or four significant digits where it is large."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def small(value: float | None) -> str:
    """``3.2e-06``; a dash for what was not measured."""
    return "-" if value is None else f"{value:.1e}"


def at_home(path: str | Path) -> Path:
    """The path with ``~`` as its user's home folder; as it stands where there is no such user (`Path.expanduser` would
    raise)."""
    return Path(os.path.expanduser(path))


def short_path(path: str | Path) -> str:
    """A path relative to the working directory where it lies below it."""
    path = Path(path)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError, RuntimeError):  # elsewhere; or the working directory is gone; or links that go round
        return str(path)


LONGEST_NAME = 200
"""Characters of an agent's name."""


def clean_name(name: str) -> str | None:
    """A name as it is recorded: one line, no slash, not empty, bounded. None where nothing is left."""
    kept = "".join(letter for letter in name.strip() if letter.isprintable() and letter != "/")[:LONGEST_NAME].strip()
    return kept or None
