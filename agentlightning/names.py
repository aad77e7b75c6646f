"""Names of agents: the one rule for what can be one. Every room that takes a name asks here."""

from __future__ import annotations

LONGEST = 200
"""Characters of an agent's name."""


def clean(name: str) -> str | None:
    """A name as it is recorded: one line, no slash, not empty, bounded. None where nothing is left."""
    kept = "".join(letter for letter in name.strip() if letter.isprintable() and letter != "/")[:LONGEST].strip()
    return kept or None
