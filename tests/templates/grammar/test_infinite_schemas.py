"""Schemas of which no value could ever be finished are told before anything is sampled; those that only may go on are
not."""

from __future__ import annotations

import pytest

from agentlightning.errors import GrammarError
from agentlightning.nouns import Tool
from agentlightning.templates.grammar.infinite_schemas import is_infinite
from agentlightning.templates.grammar.reply import reply_grammar
from tests.templates.fixtures import template_of

SELF = {"$ref": "#"}
ENDLESS = [
    SELF,
    {"anyOf": [SELF]},
    {"oneOf": [SELF, {"allOf": [SELF, {"type": "string"}]}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "array", "items": SELF, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "string"}, SELF], "minItems": 2},
    {"type": "object", "properties": {"a": SELF}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "array", "items": SELF, "minItems": 2}}, "required": ["a"]},
]
FINITE = [
    {},
    {"type": "object", "properties": {"a": SELF}},
    {"type": "array", "items": SELF},
    {"type": "array", "prefixItems": [{"type": "string"}, SELF], "minItems": 1},
    {"anyOf": [SELF, {"type": "null"}]},
    {"type": "object", "properties": {"left": {"anyOf": [SELF, {"type": "null"}]}}, "required": ["left"]},
    {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
    {"$ref": "https://example.org/other.json"},
    {"$ref": "#/nothing/there"},
]


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_a_schema_without_end_is_refused_by_name(schema) -> None:
    assert is_infinite(schema)
    template = template_of("hermes_tags")
    with pytest.raises(GrammarError, match="refers to itself"):
        reply_grammar(template, (), required=False, parallel=True, output=schema)
    if schema.get("type", "object") == "object":
        with pytest.raises(GrammarError, match="tool 'f': the schema refers to itself"):
            reply_grammar(template, (Tool("f", "", schema),), required=True, parallel=True, output=None)


@pytest.mark.parametrize("schema", FINITE, ids=str)
def test_a_schema_that_can_end_is_not(schema) -> None:
    assert not is_infinite(schema)


def test_a_long_chain_of_references_is_read_in_no_time() -> None:
    names = [f"d{i}" for i in range(5_000)]
    defs = {name: {"$ref": f"#/$defs/{after}"} for name, after in zip(names, [*names[1:], "last"], strict=True)}
    assert not is_infinite({"$ref": "#/$defs/d0", "$defs": {**defs, "last": {"type": "string"}}})
    assert is_infinite({"$ref": "#/$defs/d0", "$defs": {**defs, "last": {"$ref": "#/$defs/d17"}}})
