"""Schemas that grammars keep to exactly: alternatives that a member tells apart are closed, and references that nobody
follows are refused."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from agentlightning.engines.grammar import Grammars, replay
from agentlightning.errors import GrammarError
from agentlightning.nouns import Tool
from agentlightning.templates import load_template
from agentlightning.templates.grammar.reply import reply_grammar
from tests.tiny import MERGES, tiny_tokenizer

CAT = {
    "type": "object",
    "properties": {
        "kind": {"const": "cat", "default": "cat"},
        "lives": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["lives"],
}
DOG = {
    "type": "object",
    "properties": {"kind": {"enum": ["dog", "puppy"]}, "name": {"enum": ["Rex"]}},
    "required": ["kind", "name"],
}
DISCRIMINATOR = {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}}
REFERENCES: dict[str, Any] = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": DISCRIMINATOR,
}  # fmt: skip
DEFS = {"Cat": CAT, "Dog": DOG}
SAID_SO = {"type": "object", "properties": {"pet": REFERENCES}, "required": ["pet"], "$defs": DEFS}
BY_CONSTANTS = {
    "type": "object",
    "properties": {"pet": {"oneOf": [{**CAT, "required": ["kind", "lives"]}, DOG]}},
    "required": ["pet"],
}
GRAMMARS = Grammars(tiny_tokenizer(MERGES), 400)
TEMPLATE = load_template(tiny_tokenizer(MERGES))


def allows(grammar: str, text: str) -> bool:
    ids = array("i", [*TEMPLATE.encode(text, start=False), TEMPLATE.stop_token_ids[0]])
    try:
        replay(GRAMMARS.matcher(grammar, TEMPLATE.stop_token_ids), array("i"), ids)
    except GrammarError as error:
        assert "does not allow" in str(error)
        return False
    return True


def of_output(schema: dict[str, Any]) -> str:
    return reply_grammar(TEMPLATE, (), required=False, parallel=True, output=schema)


@pytest.mark.parametrize("schema", [SAID_SO, BY_CONSTANTS], ids=["a discriminator", "constants"])
@pytest.mark.parametrize("tool_format", ["json", "tags"])
def test_a_discriminated_union_is_closed_and_each_value_is_of_its_own_branch(
    schema: dict[str, Any], tool_format: str
) -> None:
    if tool_format == "json":
        grammar = of_output(schema)
        text = '{{"pet": {}}}'
    else:
        template = load_template(tiny_tokenizer(MERGES), tool_format="qwen3_coder")
        grammar = reply_grammar(template, [Tool("f", "", schema)], required=True, parallel=False, output=None)
        text = "<tool_call>\n<function=f>\n<parameter=pet>\n{}\n</parameter>\n</function>\n</tool_call>"
    for pet, right in (
        ({"kind": "cat", "lives": 9}, True),
        ({"kind": "puppy", "name": "Rex"}, True),
        ({"kind": "cat", "name": "Rex"}, False),
        ({"kind": "dog", "lives": 9}, False),
        ({"kind": "cat", "lives": 9, "invented": 1}, False),
        ({"kind": "dog", "name": "Rex", "lives": 9}, False),
        ({"lives": 9}, False),
        ({"kind": "cow", "name": "Rex"}, False),
    ):
        assert allows(grammar, text.format(json.dumps(pet))) is right, pet


def test_alternatives_that_nothing_tells_apart_stay_as_they_are() -> None:
    for ways in (
        [{"type": "integer"}, {"type": "string"}],
        [CAT, CAT],
        [{**DOG, "required": []}, {**CAT, "required": []}],
    ):
        assert '"oneOf"' in of_output({"type": "object", "properties": {"x": {"oneOf": ways}}})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#cat"}, "'#cat' refers to an \\$anchor"),
        ({"$dynamicRef": "#cat"}, "'\\$dynamicRef' makes a reference"),
        ({"$dynamicAnchor": "cat", "type": "string"}, "'\\$dynamicAnchor'"),
        ({"$recursiveRef": "#"}, "'\\$recursiveRef'"),
    ],
)
def test_anchors_are_refused_for_what_they_are(schema: dict[str, Any], says: str) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "$defs": {"Cat": {"$anchor": "cat", "type": "string"}}}
    with pytest.raises(GrammarError, match=says):
        of_output(whole)
    with pytest.raises(GrammarError, match=says):
        reply_grammar(TEMPLATE, [Tool("f", "", whole)], required=True, parallel=False, output=None)


def test_an_anchor_that_nothing_refers_to_and_a_member_of_its_name_do_no_harm() -> None:
    grammar = of_output(
        {"$anchor": "top", "type": "object", "properties": {"$anchor": {"enum": ["x"]}}, "required": ["$anchor"]}
    )
    assert allows(grammar, '{"$anchor": "x"}')
