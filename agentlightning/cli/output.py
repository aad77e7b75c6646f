"""What commands write: JSON for programs, rich text for people. Raises StreamError where stdout cannot be written."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import orjson

from agentlightning.errors import StreamError
from agentlightning.nouns import Json
from agentlightning.run.writer import finite
from agentlightning.views.screen import show

if TYPE_CHECKING:
    from rich.console import RenderableType


def write_json(value: Json) -> None:
    """One JSON document on stdout, indented. Numbers JSON cannot hold become null; what the encoding lacks is written
    as JSON's own escapes."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
        text.encode(sys.stdout.encoding or "utf-8")
    except (TypeError, UnicodeEncodeError, LookupError):
        # The TypeError: half a surrogate pair, of a file name that is no UTF-8.
        text = json.dumps(finite(value), indent=2)
    write_text(text + "\n")


def write(renderable: RenderableType) -> None:
    """On stdout, as `screen.show` does."""
    error = show(renderable)
    if error is not None:
        raise StreamError(f"stdout cannot be written: {error}")


def write_text(text: str) -> None:
    """A page or a document on stdout, as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise StreamError(f"stdout cannot be written: {error}") from error
