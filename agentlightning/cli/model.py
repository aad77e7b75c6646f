"""``agl model``: the small models to begin with, where each is, and making one.

Stdout carries a folder's path or the list; how it goes is on stderr.
"""

from __future__ import annotations

from agentlightning.cli.output import write
from agentlightning.cli.streams import say
from agentlightning.settings.starters import STARTERS, make
from agentlightning.views.screen import Column, Listing


def show(name: str | None) -> None:
    """Lists the starters, or makes the one of that name and prints its folder. Raises ModelError."""
    if name is not None:
        say(str(make(name, _say)))
        return
    columns = (
        Column("name"),
        Column("model", least=12),
        Column("licence", leave=1),
        Column("disk", right=True),
        Column("to fetch", right=True),
        Column("folder", least=20),
    )
    rows = [
        (
            starter.name,
            starter.title,
            starter.licence,
            f"{starter.disk} MB",
            f"{starter.download} MB",
            str(starter.folder) if starter.is_made else f"not made yet: agl model {starter.name}",
        )
        for starter in STARTERS.values()
    ]
    write(Listing(columns, rows))


def _say(text: str) -> None:
    say(f"agl model: {text}", err=True)
