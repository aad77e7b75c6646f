"""A JSON schema validator, as far as the schemas of these tests go: written by the specification, so that it shares no mistake with what is tested."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),)
}  # fmt: skip


def valid(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> None:
    """Fails where ``value`` is not after ``schema``, or the schema has a keyword that is not known here."""
    root = root or schema
    for keyword, wanted in schema.items():
        if keyword == "type":
            assert isinstance(value, _TYPES[wanted]) and not (isinstance(value, bool) and wanted != "boolean"), (value, wanted)
        elif keyword == "properties":
            for name, inner in wanted.items():
                if name in value:
                    valid(value[name], inner, root)
        elif keyword == "required":
            assert set(wanted) <= value.keys(), (value, wanted)
        elif keyword == "additionalProperties":
            assert wanted is False and value.keys() <= schema["properties"].keys(), value
        elif keyword == "items":
            for item in value:
                valid(item, wanted, root)
        elif keyword == "anyOf":
            assert any(_is(value, inner, root) for inner in wanted), (value, wanted)
        elif keyword == "$ref":
            target: Any = root
            for part in wanted.removeprefix("#/").split("/"):
                target = target[part]
            valid(value, target, root)
        elif keyword == "enum":
            assert value in wanted, (value, wanted)
        elif keyword in ("maxLength", "maxItems"):
            assert len(value) <= wanted, (value, wanted)
        elif keyword == "minimum":
            assert value >= wanted, (value, wanted)
        elif keyword == "maximum":
            assert value <= wanted, (value, wanted)
        else:
            assert keyword in ("$defs", "format"), f"{keyword} is not known to this validator"


def _is(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    try:
        valid(value, schema, root)
    except AssertionError:
        return False
    return True
