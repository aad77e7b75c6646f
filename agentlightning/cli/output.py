"""What commands write: JSON for programs, rich text for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import orjson

from agentlightning.types import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 20_000
"""Columns of a pipe: a longer line is folded."""


def write_json(value: Json) -> None:
    """One JSON document on stdout, indented. Numbers JSON cannot hold become null."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode() + "\n")
    sys.stdout.flush()


def write(renderable: RenderableType) -> None:
    """On stdout, in colour where it is a terminal. A pipe gets lines as long as they are, not cut to a terminal's width."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(renderable)
        return
    console = Console(highlight=False, width=PIPE_WIDTH, soft_wrap=True)
    with console.capture() as captured:
        console.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    sys.stdout.flush()
