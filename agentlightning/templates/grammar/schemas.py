"""A JSON schema as the compilers of grammars can keep to it exactly, or the reason why not.

Pure. Alternatives of ``oneOf`` that a member tells apart, as `discriminator` or constants say, exclude each other: they
are written as ``anyOf``, so that each is an object of its own, which can be closed. References to anchors are refused,
since those who compile the schema would take them for something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from agentlightning.errors import GrammarError
from agentlightning.nouns import Json
from agentlightning.templates.arguments import local_reference

NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values hold schemas by name."""
VALUES = ("const", "enum", "default", "examples", "example", "required", "title", "description")
"""Keywords whose values hold no schemas."""

_DYNAMIC = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")


def exact(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """The schema with alternatives that are told apart written as such. Raises GrammarError for references that cannot
    be followed."""
    return cast("Mapping[str, Json]", _exact(schema, schema))


def _exact(schema: Json, root: Mapping[str, Json]) -> Json:
    if isinstance(schema, list):
        return [_exact(each, root) for each in cast("list[Json]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    known = cast("Mapping[str, Json]", schema)
    for key in _DYNAMIC:
        if key in known:
            raise GrammarError(
                f"{key!r} makes a reference that depends on where it is reached from, which no grammar has: write "
                "$ref='#/$defs/NAME'"
            )
    name = known.get("$ref")
    if isinstance(name, str) and name.startswith("#") and name != "#" and not name.startswith("#/"):
        raise GrammarError(
            f"$ref={name!r} refers to an $anchor, which is not looked up: write the place itself, as '#/$defs/NAME'"
        )
    result: dict[str, Json] = {}
    for key, value in known.items():
        if key in NAMED and isinstance(value, Mapping):
            result[key] = {name: _exact(each, root) for name, each in cast("Mapping[str, Json]", value).items()}
        elif key in VALUES:
            result[key] = value
        elif key != "$anchor":
            result[key] = _exact(value, root)
    apart = _told_apart(known, root) if "anyOf" not in known else None
    if apart is not None:
        del result["oneOf"]
        result.pop("discriminator", None)
        result["anyOf"] = [_exact(each, root) for each in apart]
    return result


def _told_apart(schema: Mapping[str, Json], root: Mapping[str, Json]) -> list[Json] | None:
    """The alternatives of ``oneOf``, each with the member that tells it from the others; None where none does."""
    ways = schema.get("oneOf")
    if not isinstance(ways, list) or len(cast("list[Json]", ways)) < 2:
        return None
    each = cast("list[Json]", ways)
    resolved = [local_reference(cast("Mapping[str, Json]", way), root) for way in each if isinstance(way, Mapping)]
    if len(resolved) < len(each) or any(
        "properties" not in way or not isinstance(way["properties"], Mapping) for way in resolved
    ):
        return None
    members = [cast("Mapping[str, Json]", way["properties"]) for way in resolved]
    discriminator = schema.get("discriminator")
    named = (
        cast("Mapping[str, Json]", discriminator).get("propertyName") if isinstance(discriminator, Mapping) else None
    )
    for member in [named] if isinstance(named, str) else list(members[0]):
        needed = [
            isinstance(way.get("required"), list) and member in cast("list[Json]", way["required"]) for way in resolved
        ]
        values = [_constants(of.get(member)) for of in members]
        # The API's word is enough for the member to be there; without it the schemas have to say so.
        if all(values) and sum(map(len, values)) == len(set[str]().union(*values)) and (all(needed) or member == named):
            return [
                way if there else {**of, "required": [*cast("list[Json]", of.get("required") or []), member]}
                for way, of, there in zip(each, resolved, needed, strict=True)
            ]
    return None


def _constants(schema: Json) -> set[str]:
    """The only values of a schema, as JSON; none where it has others."""
    if not isinstance(schema, Mapping):
        return set()
    known = cast("Mapping[str, Json]", schema)
    listed: Sequence[Json] = (
        [known["const"]]
        if "const" in known
        else cast("list[Json]", known.get("enum"))
        if isinstance(known.get("enum"), list)
        else []
    )
    return {json.dumps(value) for value in listed}
