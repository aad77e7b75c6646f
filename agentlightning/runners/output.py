"""Output: what an agent returned, as it is recorded. Pure; it imports none of the libraries whose objects agents
return."""

from __future__ import annotations

import dataclasses
import json
from typing import cast

from agentlightning.agent.loading import describe
from agentlightning.nouns import Json
from agentlightning.records.json_values import is_json

LARGEST_OUTPUT = 64 * 2**20
"""Characters of JSON that an output may have to be recorded as it is."""


def as_json(value: object) -> Json:
    """A value as it is recorded. Tuples, dataclasses and pydantic models become JSON, halves of surrogate pairs are
    escaped; what is no JSON at all, or more than the record takes (see `is_json`), becomes ``{"repr", "type",
    "note"}``."""
    try:
        plain = _plain(value)
        if is_json(plain):
            if (size := len(json.dumps(plain))) <= LARGEST_OUTPUT:
                return plain
            kind = type(value).__qualname__
            return {
                "repr": _text(repr(value)[:10_000]) + "...",
                "type": kind,
                "note": f"too large to be recorded: {size} characters of JSON",
            }
        text = _text(repr(value))
    except Exception as error:  # noqa: BLE001  # user classes may fail in any way when they are read
        return {
            "repr": f"({describe(error)})",
            "type": type(value).__qualname__,
            "note": "not JSON, and cannot be shown",
        }
    return {
        "repr": text if len(text) <= 10_000 else text[:10_000] + "...",
        "type": type(value).__qualname__,
        "note": "not JSON",
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {
            _text(key) if isinstance(key, str) else key: _plain(item)
            for key, item in cast("dict[object, object]", value).items()
        }
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return float(value)  # also numpy's, which is a subclass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({item.name: getattr(value, item.name) for item in dataclasses.fields(value)})
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else value


def _text(value: str) -> str:
    """Text that can be encoded, of the plain type."""
    return str.__str__(value) if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
