"""Sampled tokens to messages: formats, malformed output, reasoning, and streams that equal the whole parse however they
are cut."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.nouns import FinishReason, Message
from agentlightning.templates.base import ParsedDelta, shown
from agentlightning.templates.chat import ChatTemplate
from tests.templates.fixtures import CALC, r1, template_of, thinks_first

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
Reply = tuple[str, list[tuple[str, str]], str | None]


def ids_of(template: ChatTemplate, text: str) -> list[int]:
    return list(template.encode(text, start=False))


def parse(template: ChatTemplate, text: str, *, tools: bool = True, stop: str | None = None) -> Message:
    return template.read(ids_of(template, text), (CALC,) if tools else (), STOP, stop).message


def reply(message: Message) -> Reply:
    return message.content, [(call.name, call.arguments) for call in message.tool_calls], message.reasoning


def streamed(template: ChatTemplate, chunks: Sequence[Sequence[int]], *, tools: bool = True, stop: Sequence[str] = (),
ended_by: str | None = None) -> tuple[Reply, list[ParsedDelta]]:  # fmt: skip
    parser = template.stream((CALC,) if tools else (), stop)
    deltas = [parser.feed(array("i", chunk)) for chunk in chunks] + [parser.finish(STOP, ended_by)]
    calls = [(call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
    return ("".join(d.content for d in deltas), calls, "".join(d.reasoning for d in deltas) or None), deltas


ONE = '<tool_call>\n{"name": "calc", "arguments": {"expression":  "17 * 23"}}\n</tool_call>'
RAW = '{"expression":  "17 * 23"}'

# --------------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello", "Hello", []),
        ("  Hello \n", "  Hello \n", []),
        ("", "", []),
        (ONE, "", [("calc", RAW)]),
        (f"\n{ONE}\n", "", [("calc", RAW)]),
        (f"Let me see.\n{ONE}", "Let me see.", [("calc", RAW)]),
        (f"{ONE}\nDone.", "Done.", [("calc", RAW)]),
        (f"One.\n{ONE}\nTwo.", "One.\n\nTwo.", [("calc", RAW)]),
        (f"{ONE}\n{ONE}", "", [("calc", RAW), ("calc", RAW)]),
        ('<tool_call>{"arguments": {}, "name": "a b", "id": 3}</tool_call>', "", [("a b", "{}")]),
        (
            '<tool_call>{"name": "a", "parameters": {"x": [1, {"y": null}]}}</tool_call>',
            "",
            [("a", '{"x": [1, {"y": null}]}')],
        ),
        (
            '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>"}}</tool_call>',
            "",
            [("a", '{"x": "</tool_call>"}')],
        ),
        (
            '<tool_call>{"name": "a", "arguments": {"x": "<tool_call>"}}</tool_call>',
            "",
            [("a", '{"x": "<tool_call>"}')],
        ),
        ('<tool_call>{"name": "caf\\u00e9", "arguments": {"é": "日"}}</tool_call>', "", [("café", '{"é": "日"}')]),
        (
            '<tool_call>{"name": "a", "name": "b", "arguments": {"x": 1}, "arguments": {"y":2}}</tool_call>',
            "",
            [("b", '{"y":2}')],
        ),
        (f"<tool_call>oops {ONE}", "<tool_call>oops", [("calc", RAW)]),
        (f"<tool_call>{{broken}}</tool_call> {ONE}", "<tool_call>{broken}</tool_call>", [("calc", RAW)]),
        (f'<tool_call>{{"name": "never closed {ONE}', '<tool_call>{"name": "never closed', [("calc", RAW)]),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "hermes_tags", "smol", "gemma"])
def test_hermes_calls_are_found(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert reply(parse(template_of(name), text)) == (content, calls, None)


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "calc", "{", '{"name": "calc"}', '{"arguments": {}}', '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "calc", "arguments": '
        '"{}"}', '{"name": "calc", "arguments": [1]}', '{"name": "calc", "arguments": null}',
        '{"name": "calc", "arguments": {}, "parameters": {}}', '{"name": "calc", "arguments": {}} trailing',
        '{"name": "calc", "arguments": {},}',
        '{"name": "calc", "arguments": {"x": NaN}}', '{"name": "calc", '
                                                     '"arguments": {"x": 1 + 1}}', "{'name': 'calc', 'arguments': {}}",
        '{"name": "calc", "arguments": '
        '{"x": "line\nbreak"}}', '{"name": "\\ud800", "arguments": {}}', '{"name": "calc" "arguments": {}}',
        '{"name": "calc", "arguments": {"x": ' + "[" * 20_000 + "]" * 20_000 + "}}", '{"name": "calc", "arguments": '
                                                                                     '{"x": ' + "1" * 5_000 + "}}",
        '{1: 2, "name": "calc", "arguments": {}}', '{"name": "calc", "arguments": {"x": "open}}',
    ],
)  # fmt: skip
def test_a_malformed_call_stays_text(body: str) -> None:
    template = template_of("hermes")
    text = f"<tool_call>{body}</tool_call>"
    message = parse(template, text)
    if re.search("1{5000}", body) and message.tool_calls:
        assert message.tool_calls[0].arguments in body  # a limit of Python's, which may be lifted
    else:
        assert reply(message) == (text, [], None)


@pytest.mark.parametrize(
    "text",
    ["<tool_call>", ONE[:-1], ONE[: -len("</tool_call>")], "</tool_call>", ONE.replace("</tool_call>", "<tool_call>")],
)
def test_a_call_without_its_closing_tag_stays_text(text: str) -> None:
    assert reply(parse(template_of("hermes"), text)) == (text, [], None)


def test_calls_are_only_read_where_tools_were_offered() -> None:
    assert reply(parse(template_of("hermes"), ONE, tools=False)) == (ONE, [], None)
    text = '{"name": "calc", "parameters": {}}'
    assert reply(parse(template_of("llama3"), text, tools=False)) == (text, [], None)


L1 = '{"name": "calc", "parameters": {"expression":"1"}}'
A1 = ("calc", '{"expression":"1"}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello", "Hello", []),
        (L1, "", [A1]),
        (f"\n {L1} \n", "", [A1]),
        (f"<|python_tag|>{L1}", "", [A1]),
        (f"{L1}; {L1}", "", [A1, A1]),
        (f"{L1}\n{L1};", "", [A1, A1]),
        (f"<|python_tag|>{L1};<|python_tag|>{L1}", "", [A1, A1]),
        (f"Let me see. <|python_tag|>{L1}", "Let me see.", [A1]),
        (f"{L1} and so on", "and so on", [A1]),
        (L1.replace("parameters", "arguments"), "", [A1]),
        ('{"name": "a", "parameters": {"x": "}; {"}}', "", [("a", '{"x": "}; {"}')]),
        ('{"answer": 5}', '{"answer": 5}', []),
        ('{"answer": 5} ' + L1, '{"answer": 5} ' + L1, []),
        (f"Say {L1}", f"Say {L1}", []),
        ("{broken}", "{broken}", []),
        (L1[:-1], L1[:-1], []),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        ("<|python_tag|>", "<|python_tag|>", []),
        (f"{L1}; oops", "; oops", [A1]),
        (" {", " {", []),
        ("  text", "  text", []),
    ],
)
def test_llama_calls_are_found(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert reply(parse(template_of("llama3"), text)) == (content, calls, None)


def test_call_ids_are_fresh_and_of_one_shape() -> None:
    ids = [call.id for _ in range(50) for call in parse(template_of("hermes"), ONE + ONE).tool_calls]
    assert len(set(ids)) == 100
    assert all(re.fullmatch("call_[0-9a-f]{24}", id) for id in ids)


# --------------------------------------------------------------------------- ends


def test_the_end_of_turn_is_cut_once_and_only_at_the_end() -> None:
    template = template_of("hermes")
    assert parse(template, "Hi<|im_end|>").content == "Hi"
    assert parse(template, "Hi<|im_end|> there<|im_end|>").content == "Hi<|im_end|> there"
    assert parse(template, "Hi<|im_end|><|im_end|>").content == "Hi<|im_end|>"
    assert parse(template, "<|im_end|>").content == ""
    turn = template.sampled_turn(ids_of(template, "Hi<|im_end|>"))
    assert (turn.text, turn.ended_with) == ("Hi", "<|im_end|>")
    turn = template.sampled_turn(ids_of(template, "Hi"))
    assert (turn.text, turn.ended_with) == ("Hi", "")


def test_a_stop_string_is_cut_with_what_its_last_token_has_beyond_it() -> None:
    template = template_of("hermes")
    assert parse(template, "One\nTwo\n\n", stop="\nTwo").content == "One"
    assert parse(template, "One. Observation: x", stop="Observation:").content == "One. "
    assert parse(template, "never there", stop="STOP").content == "never there"
    assert reply(parse(template, f"{ONE}STOP", stop="STOP")) == ("", [("calc", RAW)], None)


# --------------------------------------------------------------------------- reasoning


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\nHmm.\n</think>\n\nYes.", "Yes.", "Hmm."),
        ("\n<think>Hmm.</think>Yes.", "Yes.", "Hmm."),
        ("<think>\n\n</think>\n\nYes.", "Yes.", None),
        ("<think>\nHmm. a <think> b", "", "Hmm. a <think> b"),
        ("<think>Hmm.</thin", "", "Hmm.</thin"),
        ("<think>Hmm.</think>", "", "Hmm."),
        ("<think>Hmm.</think>\n", "", "Hmm."),
        ("<think>A</think>B</think>C", "B</think>C", "A"),
        ("Yes <think>no</think>", "Yes <think>no</think>", None),
        ("<thin", "<thin", None),
        (" \n", " \n", None),
        ("<thinking>", "<thinking>", None),
    ],
)
def test_leading_reasoning_is_parted_from_the_reply(text: str, content: str, reasoning: str | None) -> None:
    for tools in (False, True):
        assert reply(parse(template_of("thinking"), text, tools=tools)) == (content, [], reasoning)


def test_a_prompt_that_opens_the_tag_starts_inside() -> None:
    for template in (thinks_first(), r1()):
        assert reply(parse(template, "Hmm.\n</think>\n\nYes.")) == ("Yes.", [], "Hmm.")
        assert reply(parse(template, "Hmm.")) == ("", [], "Hmm.")
        assert reply(parse(template, "</think>Yes.")) == ("Yes.", [], None)


def test_other_templates_leave_the_tags_in_the_text() -> None:
    assert reply(parse(template_of("hermes"), "<think>Hmm.</think>Yes.")) == ("<think>Hmm.</think>Yes.", [], None)


def test_calls_in_reasoning_are_reasoning() -> None:
    assert reply(parse(template_of("thinking"), f"<think>{ONE}</think>\n{ONE}")) == ("", [("calc", RAW)], ONE)


# --------------------------------------------------------------------------- streams

OUTPUTS = {
    "hermes": [
        f"Let me see 🙂.\n{ONE}\n{ONE}<|im_end|>",
        f"a <tool_call> b {ONE} ü <tool_ca</tool_call>",
        '<tool_call>{"name": "a", "arguments": {"x": "</tool_call> 日本"}}</tool_call> tail ',
        f"<tool_call>{{broken</tool_call>{ONE}",
    ],
    "thinking": ["<think>\nHmm 🙂 </thin "
                 f"k>\n</think>\n\nSo:\n{ONE}<|im_end|>", "<think> never closed 🙂  ", " <thi nothing"],
    "llama3": [f"{L1}; {L1}<|eot_id|>", f"Say 🙂 <|python_tag|>{L1} <|pyth", f'{{"answer": {{"a": 1}}}} {L1}',
    f"<|python_tag|> {L1}\n{L1} x;"],
    "mistral": [f" Let me see 🙂.\n{ONE}</s>", "日本語日本語"],
    "gemma": [f"Let me see 🙂☂.\n{ONE}<end_of_turn>"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in OUTPUTS.items() for text in texts])
def test_every_prefix_of_an_output_parses_and_streams_alike_at_every_cut(name: str, text: str) -> None:
    template = template_of(name)
    ids = ids_of(template, text)
    for end in range(len(ids) + 1):
        whole = reply(template.read(ids[:end], (CALC,), LENGTH).message)
        assert streamed(template, [[i] for i in ids[:end]])[0] == whole
    for cut in range(len(ids) + 1):
        assert streamed(template, [ids[:cut], ids[cut:]])[0] == reply(template.read(ids, (CALC,), STOP).message)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in OUTPUTS.items() for text in texts])
def test_a_stream_never_takes_back_what_it_showed(name: str, text: str) -> None:
    """After each token, what was shown is the start of what every continuation shows: so no half tag, half character or
    half call."""
    template = template_of(name)
    ids = ids_of(template, text)
    final = reply(template.read(ids, (CALC,), STOP).message)
    shown = ["", ""]
    for delta in streamed(template, [[i] for i in ids])[1][:-1]:
        shown[0] += delta.content
        shown[1] += delta.reasoning
        assert final[0].startswith(shown[0])
        assert (final[2] or "").startswith(shown[1])
        assert "\ufffd" not in delta.content + delta.reasoning


_pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", ONE, L1, "<|python_tag|>", "<think>", "</think>", "{", "}", '"', ";", "\\", "\n",
    " ", "STOP", "ST", "a", "日", "🙂", '{"name": "x", "arguments": {}}', "<|im_end|>", "<|eot_id|>", "</s>"]
)  # fmt: skip


@pytest.mark.parametrize(
    "template", [*map(template_of, ["hermes", "thinking", "llama3", "mistral", "gemma"]), thinks_first()]
)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_stream_equals_the_whole_parse_for_any_output_and_any_cuts(
    template: ChatTemplate, data: st.DataObject
) -> None:
    text = "".join(data.draw(st.lists(_pieces, max_size=10)))
    noise = data.draw(st.lists(st.integers(0, template._codec._core.get_vocab_size() + 3), max_size=6))  # pyright: ignore[reportPrivateUsage]
    ids = data.draw(st.permutations([ids_of(template, text), noise]))
    tokens = [*ids[0], *ids[1]]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    chunks = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    tools = data.draw(st.booleans())
    stop = data.draw(st.sampled_from([(), ("STOP",), ("\n",), ("STOP", "ST"), ("aSTOP", "TO"), ("<tool_call>",)]))
    decoded = shown(template.sampled_turn(tokens).text)
    hit = [word for word in stop if word in decoded]
    ended_by = data.draw(st.sampled_from([None, *hit]))
    offered = (CALC,) if tools else ()
    whole = reply(template.read(tokens, offered, STOP, ended_by).message)
    assert streamed(template, chunks, tools=tools, stop=stop, ended_by=ended_by)[0] == whole
    if ended_by and not tools and whole[2] is None and not template.probe.reasoning:
        assert whole[0] == decoded[: decoded.index(ended_by)]


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_no_part_of_a_stop_string_is_shown(name: str) -> None:
    template = template_of(name)
    stops = ("Observation:", "vat", "\n\n")
    ids = ids_of(template, "Answer \n Obs and Observation: more")
    seen = ""
    for delta in streamed(template, [[i] for i in ids], tools=False, stop=stops, ended_by="Observation:")[1]:
        seen += delta.content
        assert "Answer \n Obs and ".endswith(seen) or "Answer \n Obs and ".startswith(
            seen.lstrip(" ") if name == "mistral" else seen
        )
    assert seen.strip() == "Answer \n Obs and"


@pytest.mark.parametrize("name", ["hermes", "mistral", "gemma"])
def test_a_character_of_several_tokens_is_shown_whole_and_a_broken_one_as_its_replacement(name: str) -> None:
    template = template_of(name)
    ids = ids_of(template, "a👩a")
    assert len(ids) > 4, "the character is several tokens"
    _, deltas = streamed(template, [[i] for i in ids])
    assert [d.content for d in deltas if d.content] in (["a", "👩", "a"], ["a", "👩a"])
    for end in range(2, len(ids) - 1):
        broken = template.read(ids[:end], (), LENGTH).message.content
        assert broken == template.decode(ids[:end])
        assert broken.startswith("a\ufffd")


def test_a_message_of_a_parse_is_an_assistant_message_that_renders_again() -> None:
    for name in ("hermes", "llama3", "smol"):
        template = template_of(name)
        text = L1 if name == "llama3" else f"Let me see.\n{ONE}"
        message = parse(template, text)
        rendered = template.render(
            [Message("user", "Hi"), message, Message("tool", "1", tool_call_id=message.tool_calls[0].id)], (CALC,), {}
        ).texts[0]
        assert json.dumps(json.loads(message.tool_calls[0].arguments)) in rendered
