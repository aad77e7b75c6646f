"""A reply's grammar, family by family: it allows what the family's format writes, and what it allows is read back by
the format."""

from __future__ import annotations

import json
import random
import re
from array import array
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from agentlightning.engines.grammar import Grammars, replay
from agentlightning.errors import GrammarError
from agentlightning.nouns import Json, Tool
from agentlightning.templates import harmony
from agentlightning.templates.base import Template
from agentlightning.templates.formats import FORMATS, FUNCTION_GEMMA_QUOTE, GEMMA_QUOTE, read_whole
from agentlightning.templates.grammar.reply import ANY_OBJECT, Reasoning, reasoning_of, reply_grammar
from agentlightning.templates.tagged_calls import CALL, CALL_END, CALLS, CALLS_END, SEPARATOR
from tests.tiny import tiny_tokenizer

TOKENS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "phi4": ("<|tool_call|>", "<|/tool_call|>"),
    "mistral": ("[TOOL_CALLS]",),
    "mistral_v11": ("[TOOL_CALLS]", "[ARGS]"),
    "deepseek_v3": (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR),
    "deepseek_v31": (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR),
    "harmony": (*harmony.TOKENS, harmony.CONSTRAIN, harmony.CALL, harmony.RETURN),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "glm": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", GEMMA_QUOTE),
    "function_gemma": ("<start_function_call>", "<end_function_call>", FUNCTION_GEMMA_QUOTE),
    "text": (),
}
"""What is a token of its own in each family. Of all but harmony the same is tried with none: then the tags are text."""
CASES = [*TOKENS.items(), *((name, ()) for name, tokens in TOKENS.items() if tokens and name != "harmony")]
BY_ITSELF = ("qwen3_coder", "glm", "gemma4", "function_gemma")
"""Formats that do not write the arguments as one JSON object."""
END = 2

ADD = Tool(
    "add",
    "",
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["a"],
        "additionalProperties": False,
    },
)
SAY = Tool(
    "say",
    "",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 5}},
        "required": ["text"],
        "additionalProperties": False,
    },
)
TOOLS = (ADD, SAY)


class Family:
    """As much of a template as a grammar asks of it."""

    def __init__(self, tool_format: str, tokens: Sequence[str]) -> None:
        self.tool_format = tool_format
        self.tokenizer: PreTrainedTokenizerFast = tiny_tokenizer()
        self.tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])  # pyright: ignore
        self.grammars = Grammars(self.tokenizer, len(self.tokenizer))
        ends = [self.tokenizer.convert_tokens_to_ids(end) for end in (harmony.RETURN, harmony.CALL) if end in tokens]
        self.ends = tuple(cast("list[int]", ends)) or (END,)

    def encode(self, text: str, *, start: bool) -> array[int]:
        return array("i", self.tokenizer.encode(text, add_special_tokens=False))

    def grammar(
        self,
        tools: Sequence[Tool] = TOOLS,
        *,
        required: bool = False,
        parallel: bool = True,
        output: Json = None,
        **more: Any,
    ) -> str:
        return reply_grammar(cast("Template", self), tools, required=required, parallel=parallel, output=output, **more)

    def follows(self, grammar: str, text: str) -> bool:
        """Whether a whole reply may read like this."""
        ids = self.encode(text, start=False)
        if not ids or ids[-1] not in self.ends:
            ids.append(self.ends[0])
        try:
            replay(self.grammars.matcher(grammar, self.ends), array("i"), ids)
        except GrammarError as error:
            assert "does not allow" in str(error) or "no token" in str(error), error
            return False
        return True

    def drawn(self, grammar: str, rng: random.Random, longest: int = 400) -> str | None:
        """A random reply that follows the grammar; None where it became too long."""
        matcher = self.grammars.matcher(grammar, self.ends)
        ids: list[int] = []
        while len(ids) < longest:
            words = matcher.allowed()
            ids.append(rng.choice([i for i in range(32 * len(words)) if int(words[i >> 5]) >> (i & 31) & 1]))
            if ids[-1] in self.ends:
                return self.tokenizer.decode(ids[:-1], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            matcher.accept(ids[-1])
        return None

    def written(self, *calls: tuple[str, str], content: str = "") -> str:
        text = FORMATS[self.tool_format].write_reply(content, calls)
        return text + harmony.CALL if self.tool_format == "harmony" else text


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}, {'tokens' if case[1] else 'text'}")
def family(request: pytest.FixtureRequest) -> Family:
    return Family(*request.param)


def test_what_the_format_writes_is_allowed_and_what_it_does_not_write_is_not(family: Family) -> None:
    one, other = family.written(("add", '{"a": 7}')), family.written(("say", '{"text":"é<"}'))
    required = family.grammar(required=True)
    assert family.follows(required, one)
    assert family.follows(required, other)
    assert not family.follows(required, family.written(("add", '{"a": 700}')))
    assert not family.follows(required, family.written(("add", '{"text": "no"}')))
    assert not family.follows(required, family.written(("sub", '{"a": 7}')))
    assert not family.follows(required, "text")
    assert not family.follows(required, "")
    both = family.written(("add", '{"a": 7}'), ("say", '{"text": ""}'))
    assert family.follows(required, both) == (family.tool_format != "harmony")
    assert not family.follows(family.grammar(required=True, parallel=False), both)
    assert family.follows(family.grammar((ADD,), required=True), one)
    assert not family.follows(family.grammar((ADD,), required=True), other)


def test_a_free_choice_is_text_or_calls(family: Family) -> None:
    grammar = family.grammar(parallel=False)
    before = "<|channel|>final<|message|>" if family.tool_format == "harmony" else ""
    call = family.written(("add", '{"a": 7}'))
    assert family.follows(grammar, f"{before}Some text, 1 < 2, [TOOL], <tool>, {{}} and more.\n\n")
    assert family.follows(grammar, call)
    assert not family.follows(grammar, family.written(("add", '{"a": "no"}')))
    assert not family.follows(grammar, call + "text")
    if family.tool_format not in ("llama3_json", "harmony"):
        assert family.follows(grammar, family.written(("add", '{"a": 7}'), content="First this. <"))
        assert not family.follows(grammar, call + call)
    if family.tool_format != "harmony":
        assert family.follows(grammar, "")
        assert family.follows(family.grammar(()), "No tool may be called.")
        assert not family.follows(family.grammar(()), call)


@pytest.mark.parametrize("parallel", [True, False])
def test_every_reply_that_a_grammar_allows_is_read_as_calls_of_the_tools(family: Family, parallel: bool) -> None:
    grammar, rng = family.grammar(required=True, parallel=parallel), random.Random(3)
    counts: set[int] = set()
    for _ in range(12):
        text = family.drawn(grammar, rng)
        if text is None:
            continue
        content, calls = read_whole(FORMATS[family.tool_format], TOOLS, text)
        assert not content.strip(), text
        counts.add(len(calls))
        for call in calls:
            value = json.loads(call.arguments)
            assert (call.name == "add" and 0 <= value["a"] <= 99) or (call.name == "say" and len(value["text"]) <= 5), (
                text
            )
    assert 1 in counts and 0 not in counts
    assert (max(counts) > 1) == (parallel and family.tool_format != "harmony")


def test_text_without_calls_cannot_spell_one(family: Family) -> None:
    form = FORMATS[family.tool_format]
    if family.tool_format == "harmony":
        pytest.skip("its calls begin with control tokens, which no text holds")
    opener = (*form.signs, *([CALLS] if form.before == CALLS else []), "<tool_call>")[0]
    grammar = family.grammar(())
    assert _spells(family, grammar, "a " + opener[:-1])
    assert not _spells(family, grammar, "a " + opener)
    assert _spells(family, grammar, "a { b")


def _spells(family: Family, grammar: str, text: str) -> bool:
    """Whether a text may be written byte by byte."""
    plain = tiny_tokenizer()
    matcher = family.grammars.matcher(grammar, family.ends)
    try:
        for token in plain.encode(text, add_special_tokens=False):
            matcher.accept(token)
    except GrammarError:
        return False
    return True


def test_json_is_the_reply_or_calls_are(family: Family) -> None:
    before = "<|channel|>final<|message|>" if family.tool_format == "harmony" else ""
    only = family.grammar((), output={"type": "array", "items": {"enum": [1, "b"]}})
    assert family.follows(only, before + '[1, "b",1]')
    assert not family.follows(only, before + "[2]")
    assert not family.follows(only, before + "[1] text")
    both = family.grammar(output=ANY_OBJECT)
    assert family.follows(both, before + '{"x": [{}, null, "é"]}')
    assert family.follows(both, family.written(("add", '{"a": 7}')))


def test_reasoning_stays_free_and_comes_first(family: Family) -> None:
    call = family.written(("add", '{"a": 7}'))
    if family.tool_format == "harmony":
        tags = reasoning_of(cast("Template", family))
        assert tags is not None
        thought = "<|channel|>analysis<|message|>Anything { at all.<|end|><|start|>assistant"
        grammar = family.grammar(required=True, reasoning=tags)
        assert family.follows(grammar, thought + call)
        assert family.follows(grammar, call)
        assert not family.follows(grammar, thought)
        return
    for opened in (True, False):
        grammar = family.grammar(required=True, reasoning=Reasoning(("<think>",), ("</think>",), opened))
        start = "" if opened else "<think>"
        assert family.follows(grammar, f"{start}\nAnything {{ <th </thin at all.\n</think>\n\n{call}")
        assert family.follows(grammar, f"{start}</think>{call}")
        assert family.follows(grammar, call) == (not opened)
        assert not family.follows(grammar, f"{start}thoughts</think>text")


def test_reasoning_between_tags_that_are_tokens_stays_free_too() -> None:
    family = Family("hermes", ("<tool_call>", "</tool_call>", "<think>", "</think>"))
    call = family.written(("add", '{"a": 7}'))
    for opened in (True, False):
        start = "" if opened else "<think>"
        tags = Reasoning(("<think>",), ("</think>",), opened)
        grammar = family.grammar(required=True, reasoning=tags)
        assert "<[" in grammar.partition("thought:")[2].partition("\n")[0], "the tag's token, not its letters"
        assert family.follows(grammar, f"{start}\nAny {{ thought.\n</think>\n\n{call}")
        assert family.follows(grammar, f"{start}</think>{call}")
        assert family.follows(grammar, call) == (not opened)
        assert not family.follows(grammar, f"{start}a thought</think>text")
        text = family.grammar(parallel=False, reasoning=tags)
        assert family.follows(text, f"{start}a thought</think>\n\nSome text.")
        assert family.follows(text, f"{start}a thought</think>\n\nSome text.\n{call}")
        assert not family.follows(text, f"{start}a thought</think>\n\nSome text.\n{call}\n{call}")


def test_every_format_has_a_grammar() -> None:
    assert TOKENS.keys() == FORMATS.keys()


A = {"properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object", **A}, True),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", **A}}}, True),
        ({"anyOf": [{"type": "object", **A}, {"type": "null"}]}, True),
        ({"type": "object", **A, "additionalProperties": True}, False),
        ({"type": "object", **A, "additionalProperties": {"type": "integer"}}, False),
        ({"type": "object", **A, "patternProperties": {"^b$": {}}}, False),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {"b": {"type": "integer"}}, "anyOf": [A, {"required": ["b"]}]}, False),
        ({"allOf": [{"type": "object", **A}, {"type": "object", "properties": {"b": {"type": "integer"}}}]}, False),
    ],
)
def test_an_object_has_the_members_it_names_unless_the_schema_speaks_of_others(schema: Json, closed: bool) -> None:
    family = Family("hermes", ())
    for output in (schema, {"type": "array", "items": schema, "$defs": schema.get("$defs", {})}):
        grammar = family.grammar((), output=output)
        start, end = ("[", "]") if output is not schema else ("", "")
        assert family.follows(grammar, f'{start}{{"a": 1}}{end}')
        both = [
            family.follows(grammar, f"{start}{{{members}}}{end}") for members in ('"a": 1, "b": 1', '"b": 1, "a": 1')
        ]
        assert any(both) == (not closed)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "format": "date"}, '"2026-11-28"', '"28 Nov"'),
        ({"type": "string", "format": {"odd": 1}}, '"any"', "1"),
        ({"type": "string", "format": "file-path", "$schema": "x", "x-guidance": {"lenient": True}}, '"any"', "1"),
        (
            {"type": "object", "properties": {"format": {"const": "int64"}}, "required": ["format"]},
            '{"format":"int64"}',
            '{"format": "int32"}',
        ),
        ({"enum": [{"format": "int64"}]}, '{"format": "int64"}', "{}"),
        ({"$ref": "#/$defs/T", "$defs": {"T": {"type": "array", "items": {"$ref": "#/$defs/T"}}}}, "[[], [[]]]", "[1]"),
        ({"anyOf": [{"type": "null"}, {"type": "number", "minimum": 2}]}, "2.5", "1"),
        ({"type": "string", "pattern": "^a+$"}, '"aa"', '"b"'),
        ({"type": ["string", "boolean"]}, "true", "1"),
    ],
)
def test_schemas_mean_what_they_say(schema: Json, right: str, wrong: str) -> None:
    family = Family("hermes", ())
    grammar = family.grammar((), output=schema)
    assert family.follows(grammar, right)
    assert not family.follows(grammar, wrong)


def test_the_text_of_a_control_token_is_refused_in_what_has_to_be_written_as_text(family: Family) -> None:
    tag = next(
        (token for token in TOKENS[family.tool_format] if family.encode(token, start=False).tolist()[1:] == []), None
    )
    for tool in (
        Tool(f"f{tag}"),
        Tool("f", "", {"type": "object", "properties": {f"a{tag}": {}}}),
        Tool("f", "", {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ["b", f"{tag} "]}}}}),
        Tool("f", "", {"type": "object", "properties": {"a": {"anyOf": [{"const": f"{tag}"}]}}}),
    ):
        if tag is not None:
            with pytest.raises(GrammarError, match=f"(?s)'f.*{re.escape(tag)}.*a token of its own"):
                family.grammar((tool,), required=True)
    described = Tool(
        "f",
        f"about {tag}",
        {
            "type": "object",
            "description": f"{tag}",
            "properties": {"a": {"title": f"{tag}", "default": [f"{tag}"], "examples": [f"{tag}"]}},
        },
    )
    assert family.grammar((described,), required=True)


def test_arguments_are_an_object_whatever_else_a_schema_leaves_open() -> None:
    family = Family("hermes", ())
    grammar = family.grammar((Tool("f", "", {"type": "object"}),), required=True)
    assert family.follows(grammar, family.written(("f", '{"any": [1]}')))
    assert not family.follows(grammar, family.written(("f", "[1]")))
    grammar = family.grammar((Tool("f"),), required=True)
    assert family.follows(grammar, family.written(("f", "{}")))
    assert not family.follows(grammar, family.written(("f", '{"any": [1]}'))), (
        "a function without parameters takes none"
    )
    with pytest.raises(GrammarError, match="'f'.*'string'"):
        family.grammar((Tool("f", "", {"type": "string"}),), required=True)
