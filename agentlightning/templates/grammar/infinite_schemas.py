"""Whether a JSON schema refers to itself so that no value of it could ever be finished. Pure.

A grammar of such a schema has nothing to begin with, or no way to an end; the library that compiles it finds out in the
middle of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from agentlightning.nouns import Json

_ROUNDS = 50
"""Rounds of the search. A chain of references that needs more is left to the library."""


def is_infinite(schema: Json) -> bool:
    """Whether every value of a schema would hold another value of it: ``{"$ref": "#"}``, or an object that requires a
    member like itself.

    The least fixed point over the schemas that a value has to follow: those that can be finished without any other
    first, then those that need only them.
    """
    nodes: dict[int, Mapping[str, Json]] = {}
    todo: list[Json] = [schema]
    while todo:
        found = todo.pop()
        if not isinstance(found, Mapping):
            continue
        node = cast("Mapping[str, Json]", found)
        if id(node) not in nodes:
            nodes[id(node)] = node
            todo += [inner for group, _ in _needs(node, schema) for inner in group]
    # Those that were reached last are needed by those before them.
    order = list(reversed(nodes.values()))
    finite: set[int] = set()
    for _ in range(_ROUNDS):
        before = len(finite)
        for node in order:
            if id(node) not in finite and all(
                enough(id(inner) in finite or id(inner) not in nodes for inner in group)
                for group, enough in _needs(node, schema)
            ):
                finite.add(id(node))
        if len(finite) == before:
            return bool(nodes) and id(schema) not in finite
    return False


def _needs(node: Mapping[str, Json], root: Json) -> Iterator[tuple[list[Json], Callable[[Iterable[bool]], bool]]]:
    """Groups of schemas of which all, or any, have to be finished before a value of this one is."""
    if isinstance(found := node.get("$ref"), str):
        yield [_target(found, root)], all
    for key in ("anyOf", "oneOf"):
        if isinstance(some := node.get(key), list) and some:
            yield cast("list[Json]", some), any
    if isinstance(every := node.get("allOf"), list):
        yield cast("list[Json]", every), all
    members, required = node.get("properties"), node.get("required")
    if isinstance(members, Mapping) and isinstance(required, list) and _has_to_be(node, "object"):
        known = cast("Mapping[str, Json]", members)
        yield [known[name] for name in cast("list[Json]", required) if isinstance(name, str) and name in known], all
    least = node.get("minItems")
    if isinstance(least, int) and least > 0 and _has_to_be(node, "array"):
        first = node.get("prefixItems")
        listed = cast("list[Json]", first)[:least] if isinstance(first, list) else []
        yield listed + ([node["items"]] if "items" in node and least > len(listed) else []), all


def _has_to_be(node: Mapping[str, Json], kind: str) -> bool:
    """Whether a value of the schema has to be of this type."""
    return node.get("type") in (kind, [kind])


def _target(reference: str, root: Json) -> Json:
    """What a reference within the document leads to; None, which asks for nothing, where it leads elsewhere."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Json]", found).get(part)
        elif isinstance(found, list) and part.isdigit() and len(part) < 9:
            found = dict(enumerate(cast("list[Json]", found))).get(int(part))
        else:
            return None
    return found
