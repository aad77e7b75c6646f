"""Arguments: tool arguments that a model writes in another form than JSON, turned into JSON text and back. Pure.

Formats with a tag for each argument (Qwen3-Coder, GLM) write strings bare, so that only the tool's own schema tells
``17`` the number from ``17`` the text. Gemma's formats have a grammar of their own. JSON that the model wrote is kept
as it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from agentlightning.nouns import Json, Tool
from agentlightning.templates.call_scanner import read_value

# --------------------------------------------------------------------------- bare values


Types = Mapping[str, frozenset[str]]
"""JSON types by parameter. A parameter that is not there, or has none, may be anything."""

_LITERALS = {"True": "true", "False": "false", "None": "null"}
_STRING = frozenset(("string",))


def kinds_of(value: Json) -> tuple[str, ...]:
    """The JSON types of a value: an integer is a number too."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("integer", "number")
    for kind, name in ((str, "string"), (float, "number"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return (name,)
    return ("null",)


def types_of(tools: Sequence[Tool]) -> dict[str, Types]:
    """The types of each tool's parameters."""
    found: dict[str, Types] = {}
    for tool in tools:
        properties = local_reference(tool.parameters, tool.parameters).get("properties")
        if isinstance(properties, Mapping):
            found[tool.name] = {
                str(key): _types(schema, tool.parameters)
                for key, schema in cast("Mapping[str, Json]", properties).items()
            }
    return found


def local_reference(schema: Mapping[str, Json], root: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a schema that is a reference within ``root`` refers to; itself where it is none, or leads nowhere."""
    target = schema
    for _ in range(_LONGEST_CHAIN):
        name = target.get("$ref")
        if not isinstance(name, str) or not name.startswith("#"):
            return target
        found: Json = root
        for part in name.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = cast("Mapping[str, Json]", found).get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return schema
        target = cast("Mapping[str, Json]", found)
    return schema


_LONGEST_CHAIN = 8
"""References to references that are followed."""


def _types(schema: Json, root: Mapping[str, Json], depth: int = 8) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not depth:
        return frozenset()
    known = local_reference(cast("Mapping[str, Json]", schema), root)
    given = known.get("type")
    if isinstance(given, str):
        return frozenset((given,))
    if isinstance(given, Sequence):
        return frozenset(str(name) for name in cast("Sequence[Json]", given))
    for key in ("anyOf", "oneOf"):
        options = known.get(key)
        if isinstance(options, Sequence) and not isinstance(options, str):
            parts = [_types(option, root, depth - 1) for option in cast("Sequence[Json]", options)]
            return frozenset[str]().union(*parts) if all(parts) else frozenset()
    whole = known.get("allOf")
    if isinstance(whole, Sequence) and not isinstance(whole, str) and len(cast("Sequence[Json]", whole)) == 1:
        return _types(whole[0], root, depth - 1)
    values = [known["const"]] if "const" in known else known.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        return frozenset(name for value in cast("Sequence[Json]", values) for name in kinds_of(value))
    return frozenset()


def as_json(text: str, types: frozenset[str]) -> str:
    """A bare value as JSON text: itself where it is JSON of a type that the schema allows, else a string."""
    if types != _STRING:
        bare = text.strip()
        bare = _LITERALS.get(bare, bare)
        try:
            value, end = read_value(bare, 0)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        if end == len(bare) and (not types or types.intersection(kinds_of(value))):
            return bare
    return json.dumps(text, ensure_ascii=False)


def bare(arguments: str) -> list[tuple[str, str]] | None:
    """The members of a JSON object as names and bare values: strings as they are, other values as JSON. None where it
    is no object."""
    try:
        value = json.loads(arguments)
        if not isinstance(value, dict):
            return None
        members = cast("dict[str, Json]", value)
        return [
            (key, item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))
            for key, item in members.items()
        ]
    except (ValueError, RecursionError):
        return None


def join(members: Sequence[tuple[str, str]]) -> str:
    """A JSON object out of names and JSON texts."""
    return "{" + ", ".join([f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members]) + "}"


# --------------------------------------------------------------------------- Gemma's grammar

_KEY = re.compile(r"[^:{}\[\],]+")
_SCALAR = re.compile(r"[^{}\[\],]+")
_DEEPEST = 100


def from_gemma(text: str, quote: str) -> str | None:
    """``{key:value,...}`` with strings between two ``quote`` tokens, as JSON text; None where it is malformed."""
    try:
        written, end = _gemma_object(text, 0, quote, 0)
    except ValueError:
        return None
    return written if not text[end:].strip() else None


def _gemma_object(text: str, at: int, quote: str, depth: int) -> tuple[str, int]:
    def member(at: int) -> tuple[str, int]:
        if text.startswith(quote, at):
            key, at = _quoted(text, at, quote)
        elif found := _KEY.match(text, at):
            key, at = found[0].strip(), found.end()
        else:
            raise ValueError("no key")
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        value, at = _gemma_value(text, at + 1, quote, depth)
        return f"{json.dumps(key, ensure_ascii=False)}: {value}", at

    return _listed(text, at, "{}", member, depth)


def _gemma_value(text: str, at: int, quote: str, depth: int) -> tuple[str, int]:
    while text[at : at + 1] == " ":
        at += 1
    if text.startswith(quote, at):
        value, at = _quoted(text, at, quote)
        return json.dumps(value, ensure_ascii=False), at
    if text[at : at + 1] == '"':
        _, end = read_value(text, at)
        return text[at:end], end
    if text[at : at + 1] == "{":
        return _gemma_object(text, at, quote, depth + 1)
    if text[at : at + 1] == "[":
        return _listed(text, at, "[]", lambda at: _gemma_value(text, at, quote, depth + 1), depth)
    found = _SCALAR.match(text, at)
    if not found:
        raise ValueError("no value")
    scalar = found[0].strip()
    _, end = read_value(scalar, 0)
    if end != len(scalar):
        raise ValueError("more than a value")
    return scalar, found.end()


def _listed(text: str, at: int, ends: str, item: Callable[[int], tuple[str, int]], depth: int) -> tuple[str, int]:
    if depth > _DEEPEST or text[at : at + 1] != ends[0]:
        raise ValueError(f"no {ends[0]!r}")
    at += 1
    items: list[str] = []
    while text[at : at + 1] != ends[1]:
        if items:
            if text[at : at + 1] != ",":
                raise ValueError("no comma")
            at += 1
            while text[at : at + 1] == " ":
                at += 1
        value, at = item(at)
        items.append(value)
    return f"{ends[0]}{', '.join(items)}{ends[1]}", at + 1


def _quoted(text: str, at: int, quote: str) -> tuple[str, int]:
    start = at + len(quote)
    end = text.find(quote, start)
    if end < 0:
        raise ValueError("a string without an end")
    return text[start:end], end + len(quote)


def to_gemma(arguments: str, quote: str) -> str:
    """A JSON object in Gemma's grammar; text that is no JSON object as it is, between braces."""
    try:
        value = json.loads(arguments)
        return _as_gemma(cast("Json", value), quote) if isinstance(value, dict) else "{" + arguments + "}"
    except (ValueError, RecursionError):
        return "{" + arguments + "}"


def _as_gemma(value: Json, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join([f"{key}:{_as_gemma(item, quote)}" for key, item in cast("Mapping[str, Json]", value).items()])
            + "}"
        )
    if isinstance(value, Sequence):
        return "[" + ",".join([_as_gemma(item, quote) for item in cast("Sequence[Json]", value)]) + "]"
    return json.dumps(value)
