"""Arguments that are not written as one JSON object: whatever their grammar allows is read back as arguments that the
tool's schema allows."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentlightning.errors import GrammarError
from agentlightning.nouns import Json, Tool
from agentlightning.templates.formats import FORMATS, read_whole
from tests.gateway.schemas import valid
from tests.templates.grammar.test_reply import BY_ITSELF, TOKENS, Family

CASES = [(name, tokens) for name in BY_ITSELF for tokens in (TOKENS[name], ())]


@cache
def family_of(case: tuple[str, tuple[str, ...]]) -> Family:
    return Family(*case)


def tool_of(properties: dict[str, Json], required: list[str] | None = None, **more: Json) -> Tool:
    return Tool(
        "f",
        "",
        {
            "type": "object",
            "properties": properties,
            "required": [*properties] if required is None else required,
            **more,
        },
    )


def one(schema: Json, **more: Json) -> Tool:
    return tool_of({"x": schema}, **more)


# --------------------------------------------------------------------------- any schema, any sample

NASTY = ["null", "None", "true", "1", "-0.5", "1e5", '"a"', '"', "{", "[]", '{"a": 1}', "", " ", "\n", " null ", "a\nb",
"</tool_call>", "<arg_value>", "é🙂", "\\", "x,y:z", "call:f{}"]  # fmt: skip
"""Strings that could be read as something else."""
BREAKING = [
    "</parameter>",
    "</arg_value>",
    "<escape>",
    '<|"|>',
    "\n</parameter>\n</function>\n</tool_call>",
    "</arg_value>\n</tool_call>",
]
"""Strings that could end a value."""

texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 2), "maxLength": st.integers(2, 6), "title": st.just("t")},
) | st.sampled_from(
    [
        {"type": "string", "pattern": "^[a-c<]{1,3}$"},
        {"type": "string", "pattern": "b\\.?c"},
        {"type": "string", "pattern": "^(?:null|[0-9]+|\"x\")$"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "file-path"},
    ]
)  # fmt: skip
numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={"minimum": st.integers(-3, 0), "maximum": st.integers(1, 30)},
)
enums = st.lists(
    st.sampled_from([*NASTY, *BREAKING]) | st.sampled_from([None, True, False, 0, 1, 2.5, 1.0]), min_size=1, max_size=4
).map(lambda values: {"enum": values})
simple = (
    texts
    | numbers
    | enums
    | st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {}, {"const": "1"}, {"$ref": "#/$defs/Color"}, {"$ref": "#/$defs/Node"}]
    )
    | st.sampled_from(
        [{"type": ["string", "null"]}, {"type": ["integer", "string"]}, {"type": "object"}, {"type": "array"}]
    )
)


def combined(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    names = st.sampled_from(["a", "b c", "é", "with:colon", "k"])
    return (
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3))
        | st.builds(lambda items: {"type": "array", "items": items, "minItems": 2}, inner)
        | st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
        | inner.map(lambda each: {"allOf": [each], "title": "t"})
        | inner.map(lambda each: {"type": "object", "additionalProperties": each})
        | st.builds(
            lambda members, closed: {
                "type": "object",
                "properties": members,
                "required": [*members][::2],
                "additionalProperties": closed,
            },
            st.dictionaries(names, inner, max_size=3),
            st.booleans(),
        )
    )


schemas = st.recursive(simple, combined, max_leaves=5)
DEFS = {
    "Color": {"enum": ["red", "1", "null"]},
    "Node": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 3},
            "below": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.sampled_from(CASES),
    st.dictionaries(st.sampled_from(["x", "key", "a b"]), schemas, min_size=1, max_size=3),
    st.integers(0, 10**6),
)
def test_whatever_the_grammar_allows_is_read_as_calls_whose_arguments_are_valid(
    case: Any, members: dict[str, Json], seed: int
) -> None:
    family, tool, rng = family_of(case), tool_of(members, [*members][1:], **{"$defs": DEFS}), random.Random(seed)
    try:
        grammar = family.grammar((tool,), required=True)
    except GrammarError as error:
        assert "'f'" in str(error) and any(
            word in str(error) for word in ("'x'", "'key'", "'a b'", "a token of its own")
        ), error
        return
    family.grammars.check(grammar)
    for _ in range(3):
        text = spelled(family, grammar, rng)
        if text is None:
            continue
        content, calls = read_whole(FORMATS[family.tool_format], (tool,), text)
        assert calls and not content.strip(), text
        for call in calls:
            valid(json.loads(call.arguments), tool.parameters)  # type: ignore[arg-type]


SNIPPETS = ["\n</parameter>", "</parameter", "</arg_value>", "</function>\n</tool_call>", "<escape>", '<|"|>', '"', "}",
"]", ",", "null", "true", "1", "{", "[", " ", "\n", '"a', "</", "<", "\\u0000", "\\n", "a", "é"]  # fmt: skip


def spelled(family: Family, grammar: str, rng: random.Random, longest: int = 250) -> str | None:
    """A random reply that follows the grammar and is full of what could end a value; None where it became too long."""
    matcher = family.grammars.matcher(grammar, family.ends)
    ids: list[int] = []
    wished: list[int] = []
    while len(ids) < longest:
        words = matcher.allowed()
        allowed = [i for i in range(32 * len(words)) if int(words[i >> 5]) >> (i & 31) & 1]
        ends = [i for i in allowed if i in family.ends]
        if ends and rng.random() < 0.7:
            return family.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not wished and rng.random() < 0.8:
            wished = list(family.encode(rng.choice(SNIPPETS), start=False))
        token = wished.pop(0) if wished else rng.choice(allowed)
        if token not in allowed:
            wished = []
            continue
        if token in family.ends:
            return family.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        matcher.accept(token)
        ids.append(token)
    return None


# --------------------------------------------------------------------------- what has to be possible

WRITTEN: list[tuple[Json, Json]] = [
    ({"type": "string"}, 'two\nlines, <b>bold</b> and "quotes"'),
    ({"type": "string"}, ""),
    ({"type": "string"}, "17"),
    ({"type": "string", "maxLength": 3}, "é🙂x"),
    ({"type": "string", "format": "date"}, "2026-11-30"),
    ({"type": "string", "format": "path"}, "/any/thing"),
    ({"type": ["string", "null"]}, "text"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3}, 5),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5 apples"),
    ({"enum": ["red", "green"]}, "green"),
    ({"type": "string", "enum": ["1", "2"]}, "2"),
    ({"$ref": "#/$defs/Color"}, "red"),
    ({"allOf": [{"$ref": "#/$defs/Color"}], "description": "d"}, "1"),
    ({"type": "integer", "minimum": 3}, 17),
    ({"type": "number"}, -2.5e-7),
    ({"type": "boolean"}, False),
    ({"oneOf": [{"$ref": "#/$defs/Color"}, {"$ref": "#/$defs/Node"}, {"type": "integer"}]}, {"name": "a"}),
    ({}, "anything"),
    ({}, {"a": [1, None, {"b": True}]}),
    (True, 3),
    ({"type": "object"}, {"a": [1]}),
    ({"type": "array", "items": {"type": "string"}}, ["a", "b, c", ""]),
    ({"type": "array"}, []),
    ({"$ref": "#/$defs/Node"}, {"name": "a", "below": [{"name": "b", "below": []}, {"name": "c"}]}),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
            "required": ["b"],
        },
        {"b": "x", "c": 1},
    ),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, {}),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"one": 1, "two": 2}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {'tokens' if case[1] else 'text'}")
def test_what_the_format_writes_is_allowed(case: Any) -> None:
    family = family_of(case)
    for schema, value in WRITTEN:
        tool = one(schema, **{"$defs": DEFS})
        text = family.written(("f", json.dumps({"x": value}, ensure_ascii=False)))
        assert family.follows(family.grammar((tool,), required=True), text), (schema, text)
        [call] = read_whole(FORMATS[family.tool_format], (tool,), text)[1]
        assert json.loads(call.arguments) == {"x": value}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {'tokens' if case[1] else 'text'}")
def test_members_may_be_left_out_but_not_invented(case: Any) -> None:
    family = family_of(case)
    tool = tool_of({"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, ["b"])
    grammar = family.grammar((tool,), required=True)
    for arguments, right in (
        ({"b": 1}, True), ({"a": 1, "b": 2}, True), ({"b": 1, "c": 2}, True), ({"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "c": 2}, False), ({}, False), ({"b": 1, "z": 2}, False), ({"b": "x"}, False),
    ):  # fmt: skip
        assert family.follows(grammar, family.written(("f", json.dumps(arguments)))) == right, arguments
    assert family.follows(family.grammar((Tool("f"),), required=True), family.written(("f", "{}")))
    assert not family.follows(family.grammar((Tool("f"),), required=True), family.written(("f", '{"z": 1}')))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {'tokens' if case[1] else 'text'}")
@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (one({"type": "array", "uniqueItems": True}), "'x'.*'uniqueItems'"),
        (one({"not": {}}), "'x'.*'not'"),
        (
            one({"type": "object", "properties": {"y": {"minProperties": 2, "type": "object"}}}),
            "'x'.*'y'.*'minProperties'",
        ),
        (one({"$ref": "#/$defs/None"}), "'x'.*'#/\\$defs/None'"),
        (one({"type": "string", "format": "uri"}), "'x'.*'uri'"),
        (one({"type": "string", "pattern": "^a|b$"}), "'x'.*pattern"),
        (one({"type": "string", "pattern": "a("}), "'x'.*pattern"),
        (one({"type": "string", "minLength": 3, "maxLength": 2}), "'x'.*maxLength=2"),
        (one({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "'x'.*'oneOf'"),
        (one({"allOf": [{"type": "string"}, {"maxLength": 2}]}), "'x'.*'allOf'"),
        (one({"anyOf": [{"type": "string"}], "maxLength": 2}), "'x'.*'anyOf' beside 'maxLength'"),
        (one({"enum": [{"a": 1}]}), "'x'.*a"),
        (one({"enum": []}), "'x'.*no value"),
        (one({"type": "text"}), "'x'.*'text'"),
        (one({"type": [3]}), "'x'.*type"),
        (one({"type": "object", "properties": []}), "'x'.*properties"),
        (one({"type": "object", "required": "x"}), "'x'.*required"),
        (one({"type": "string", "minLength": "3"}), "'x'.*minLength"),
        (one({"type": "string", "format": {}}), "'x'.*format"),
        (one({"enum": "ab"}), "'x'.*enum"),
        (one({"anyOf": {}}), "'x'.*anyOf"),
        (one(3), "'x'.*3"),
        (Tool("f", "", {"type": "object", "properties": 3}), "properties"),
        (tool_of({"x": {}}, minProperties=1), "'minProperties'"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(case: Any, tool: Tool, says: str) -> None:
    with pytest.raises(GrammarError, match=f"'f'.*{says}"):
        family_of(case).grammar((tool,), required=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {'tokens' if case[1] else 'text'}")
def test_names_that_the_format_cannot_write_are_refused(case: Any) -> None:
    family = family_of(case)
    with pytest.raises(GrammarError, match="'f<g>'"):
        family.grammar((Tool("f<g>"),), required=True)
    if not family.tool_format.endswith(("gemma", "gemma4")):
        for name in ("a>b", " a", "", "a\nb"):
            with pytest.raises(GrammarError, match="cannot be written as a tag"):
                family.grammar((tool_of({name: {}}),), required=True)


def test_a_text_or_a_number_within_limits_needs_quotes() -> None:
    tool = one({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]})
    with pytest.raises(GrammarError, match="'f'.*'x'.*told apart"):
        family_of(CASES[0]).grammar((tool,), required=True)
    assert family_of(("gemma4", ())).grammar((tool,), required=True)


@pytest.mark.parametrize(
    ("schema", "bare", "value"),
    [
        ({"type": ["string", "null"], "minLength": 3}, '"a"', None),
        ({"type": ["string", "null"], "minLength": 3}, "null", "null"),
        ({"type": ["string", "array"], "maxItems": 0}, "[1]", None),
        ({"type": ["string", "array"], "maxItems": 0}, " [1] ", None),
        ({"type": ["string", "array"], "maxItems": 0}, "[]", "[]"),
        (
            {"type": ["string", "object"], "properties": {"a": {"type": "null"}}, "additionalProperties": False},
            '{"a": 1}',
            None,
        ),
        ({"anyOf": [{"type": "string"}, {"enum": [True]}]}, "False", None),
        ({"anyOf": [{"type": "string"}, {"enum": [True]}]}, "true", "true"),
        ({"anyOf": [{"type": "string"}, {"enum": [True]}]}, "falsehood", '"falsehood"'),
        ({"enum": ["1", 2]}, "1", None),
        ({"enum": ["1", 2]}, '"1"', '"1"'),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"enum": ["1", "2"]}, "2", '"2"'),
        ({"type": "string"}, '"1"', '"\\"1\\""'),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm"])
def test_no_text_is_allowed_that_would_be_read_as_a_value_which_is_not(
    name: str, schema: Json, bare: str, value: str | None
) -> None:
    """``value``: what it is read as, None where the grammar does not allow it."""
    family, tool = family_of((name, ())), one(schema)
    text = family.written(("f", json.dumps({"x": "%"}))).replace("%", bare)
    assert family.follows(family.grammar((tool,), required=True), text) == (value is not None)
    if value is not None:
        [call] = read_whole(FORMATS[name], (tool,), text)[1]
        assert call.arguments == f'{{"x": {value}}}'
