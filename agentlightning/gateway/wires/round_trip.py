"""What a reply gives out in another form and later requests bring back: reasoning that the client is not to read, and
arguments that are no object.

Pure. Each pair undoes itself, so that a turn which comes back is the turn that was sampled. Neither form is a secret or
a proof.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.fields import arguments_text
from agentlightning.nouns import Json

INVALID_JSON = "INVALID_JSON"
"""The only key of an object that stands for arguments which are none; its value is their text."""

# Six bytes, which are eight characters whatever follows: what others signed is told apart without decoding it.
_MARK = b"agl/1 "
_MARK_TEXT = base64.b64encode(_MARK).decode()


def sealed(reasoning: str) -> str:
    """Reasoning as a signature or as encrypted content: base64, which every API takes there."""
    return base64.b64encode(_MARK + reasoning.encode("utf-8", "replace")).decode()


def unsealed(value: Any) -> str:
    """The reasoning in what `sealed` made, also where base64's other alphabet came back; "" for anything else."""
    if not isinstance(value, str) or not value.startswith(_MARK_TEXT):
        return ""
    try:
        text = base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)[len(_MARK) :].decode()
    except ValueError:
        return ""
    # What is refused in a body must not come in through the back: NUL here, half a character above.
    return "" if "\0" in text else text


def as_object(arguments: str) -> str:
    """A call's arguments as the JSON text of an object, as they were written wherever they are one. `from_object`
    undoes it."""
    try:
        value = orjson.loads(arguments)
    except ValueError:
        value = None
    # An object that looks like a wrapped text is wrapped itself, or it would come back as what it holds.
    return (
        arguments
        if isinstance(value, dict) and _wrapped(value) is None
        else orjson.dumps({INVALID_JSON: arguments}).decode()
    )


def from_object(value: Mapping[str, Json], where: str) -> str:
    """The text of arguments that came as an object. Raises CallError."""
    text = _wrapped(value)
    return arguments_text(value, where) if text is None else text


def _wrapped(value: Any) -> str | None:
    fields = cast("Mapping[str, Json]", value)
    text = fields.get(INVALID_JSON)
    return text if len(fields) == 1 and isinstance(text, str) else None
