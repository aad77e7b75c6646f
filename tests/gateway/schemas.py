"""A JSON schema validator, as far as the schemas of these tests go: written by the specification, so that it shares no
mistake with what is tested."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),)
}  # fmt: skip

_FORMATS: dict[str, Callable[[str], Any]] = {
    "date": lambda text: date.fromisoformat(text.replace("0000", "0001", 1)),
    "time": lambda text: time.fromisoformat(_short(text)),
    "date-time": lambda text: datetime.fromisoformat(_short(text.replace("0000", "0001", 1))),
    "uuid": UUID,
}
"""Each raises ValueError for what is not in its form."""


def _reads(name: str, text: str) -> bool:
    try:
        _FORMATS[name](text)
    except ValueError:
        return False
    return True


def _short(text: str) -> str:
    """A time without the digits that Python does not read."""
    return re.sub(r"\.\d+", "", text)


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> None:
    """Fails where ``value`` is not after ``schema``, or the schema has a keyword that is not known here."""
    root = root or schema
    for keyword, wanted in schema.items():
        if keyword == "type":
            assert any(_of_type(value, kind) for kind in ([wanted] if isinstance(wanted, str) else wanted)), (
                value,
                wanted,
            )
        elif keyword == "properties":
            for name, inner in wanted.items():
                if isinstance(value, dict) and name in value:
                    valid(value[name], inner, root)
        elif keyword == "required":
            assert not isinstance(value, dict) or set(wanted) <= value.keys(), (value, wanted)
        elif keyword == "additionalProperties":
            extra = (
                {name: item for name, item in value.items() if name not in schema.get("properties", {})}
                if isinstance(value, dict)
                else {}
            )
            assert wanted is not False or not extra, value
            for item in extra.values() if isinstance(wanted, dict) else ():
                valid(item, wanted, root)
        elif keyword == "items":
            for item in value if isinstance(value, list) else ():
                valid(item, wanted, root)
        elif keyword == "const":
            assert _same(value, wanted), (value, wanted)
        elif keyword == "allOf":
            for inner in wanted:
                valid(value, inner, root)
        elif keyword == "oneOf":
            assert sum(_is(value, inner, root) for inner in wanted) == 1, (value, wanted)
        elif keyword == "anyOf":
            assert any(_is(value, inner, root) for inner in wanted), (value, wanted)
        elif keyword == "$ref":
            target: Any = root
            for part in wanted.removeprefix("#/").split("/"):
                target = target[part]
            valid(value, target, root)
        elif keyword == "enum":
            assert any(_same(value, each) for each in wanted), (value, wanted)
        elif keyword in ("maxLength", "maxItems"):
            assert not isinstance(value, str if keyword == "maxLength" else list) or len(value) <= wanted, (
                value,
                wanted,
            )
        elif keyword in ("minLength", "minItems"):
            assert not isinstance(value, str if keyword == "minLength" else list) or len(value) >= wanted, (
                value,
                wanted,
            )
        elif keyword == "pattern":
            assert not isinstance(value, str) or re.search(wanted, value), (value, wanted)
        elif keyword == "format":
            assert not isinstance(value, str) or wanted not in _FORMATS or _reads(wanted, value), (value, wanted)
        elif keyword == "minimum":
            assert not _of_type(value, "number") or value >= wanted, (value, wanted)
        elif keyword == "maximum":
            assert not _of_type(value, "number") or value <= wanted, (value, wanted)
        else:
            assert keyword in ("$defs", "title"), f"{keyword} is not known to this validator"


def _of_type(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean")


def _same(value: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _is(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    try:
        valid(value, schema, root)
    except AssertionError:
        return False
    return True
