"""``agl model``: the small models to begin with, where each is, and making one.

Stdout carries a folder's path or the list; how it goes is on stderr.
"""

from __future__ import annotations

import sys

from agentlightning.starters import STARTERS, make


def show(name: str | None) -> None:
    """Lists the starters, or makes the one of that name and prints its folder. Raises ModelError."""
    if name is not None:
        print(make(name, _say))
        return
    for starter in STARTERS.values():
        where = str(starter.folder) if starter.is_made else f"not made yet: agl model {starter.name}"
        print(f"{starter.name}  {starter.title}, {starter.licence}, {starter.disk} MB ({starter.download} MB to fetch)  {where}")


def _say(text: str) -> None:
    print(f"agl model: {text}", file=sys.stderr, flush=True)
