"""Which of the names that are valid in a place a misspelt one most likely stands for, over all of them at once.

Pure: it is handed the names with how each is written in that place. Whoever asks has asked absent.py first, for a
name that is looked for often has a sentence there.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentlightning.spellings.absent import ABSENT, plain, why

MOST = 3
"""Names that are offered where several are equally near."""


def nearest(name: str, written: Mapping[str, str]) -> list[str]:
    """How the names nearest to ``name`` are written, the best first; empty where none is near.

    ``written`` has each valid name (``learner.lr`` for a setting in a section) and how it is written in this place. A
    name without a section is compared with the last part of each, one with a section with the whole. Case, ``-`` and
    ``_`` make no difference.
    """
    scored = [(_distance(name, key), how) for key, how in written.items()]
    best = min((score for score, _ in scored if score is not None), default=None)
    return [] if best is None else list(dict.fromkeys(how for score, how in scored if score == best))[:MOST]


def did_you_mean(name: str, written: Mapping[str, str]) -> str:
    """``; did you mean A?``, or nothing."""
    near = nearest(name, written)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def misspelt_absent(name: str) -> str | None:
    """What to do today for a misspelt name of what is not here, with the name that was meant; None where none is near.

    Asked last: a valid name that is near comes before it. Short names are near to too many.
    """
    last = plain(name.partition("=")[0].rpartition(".")[2])
    most = 0 if len(last) < 5 else 1 if len(last) < 8 else 2
    far = {
        each: edits(last, plain(each))
        for entry in ABSENT
        for each in entry.names.split()
        if abs(len(plain(each)) - len(last)) <= most
    }
    meant = min(far, key=far.__getitem__, default=None)
    return f"did you mean {meant}? {why(meant)}" if meant is not None and far[meant] <= most else None


def _distance(name: str, key: str) -> float | None:
    """How far two names are apart in mistakes of typing; None where they are too far for one to be meant by the
    other.
    """
    whole = _apart(plain(name), plain(key)) if ("." in name) == ("." in key) else None
    last = _apart(plain(name.rpartition(".")[2]), plain(key.rpartition(".")[2])) if "." in name or "." in key else None
    # A last part that agrees is worth a little less than a whole name that does.
    return min((score for score in (whole, None if last is None else last + 0.25) if score is not None), default=None)


def _apart(a: str, b: str) -> float | None:
    if a == b:
        return 0.0
    if min(len(a), len(b)) < 2:
        return None
    if len(a) >= 4 and b.startswith(a):  # an abbreviation: what one leaves off one does not mistype
        return 0.5
    mistakes = edits(a, b)
    return float(mistakes) if mistakes <= max(1, max(len(a), len(b)) // 4) else None


def edits(a: str, b: str) -> int:
    """The least number of letters to insert, drop, replace, or swap with their neighbour, that turns one text into
    the other.
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, above, row = row, before, [i]
        for j, other in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                row[j] = min(row[j], above[j - 2] + 1)
    return row[-1]
