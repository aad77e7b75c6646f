"""The model families: what each is recognised by, its documented output in every cut, and histories that go on token
for token."""

from __future__ import annotations

import json
import logging
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentlightning.errors import ConfigError
from agentlightning.nouns import FinishReason, Message, Tool, ToolCall
from agentlightning.templates import load_template
from agentlightning.templates.base import ParsedDelta, SampledTurn
from agentlightning.templates.chat import ChatTemplate
from agentlightning.templates.escaping import unescape
from agentlightning.templates.formats import FORMATS, read_whole
from tests.templates.fixtures import (
    CALC,
    CHANNELS,
    CHATML,
    DEEPSEEK,
    FAMILIES,
    GEMMA,
    HEADERS,
    PHI,
    R1,
    SMOL,
    SPECIAL,
    TAGS,
    byte_level,
    special,
    template_of,
    wrap,
)
from tests.templates.more_templates import DEEPSEEK_ODD, DEEPSEEK_V3, HARMONY

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH

EDIT = Tool(
    "edit",
    "Edits.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "line": {"type": "integer"},
            "size": {"type": "number"},
            "all": {"type": "boolean"},
            "more": {"type": "object"},
            "list": {"type": "array"},
            "who": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "kind": {"enum": ["a", 1]},
        },
    },
)
TOOLS = (CALC, EDIT)


def made(name: str) -> ChatTemplate:
    return special(name) if name in SPECIAL else template_of(name)


# --------------------------------------------------------------------------- documented outputs

A1, A2 = '{"expression": "17 * 23 🙂"}', '{"expression": "é"}'
ONE, TWO = ("calc", A1), ("calc", A2)
D_ONE = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>calc\n```json\n{A1}\n```<｜tool▁call▁end｜>"
D_TWO = f"<｜tool▁call▁begin｜>calc<｜tool▁sep｜>{A2}<｜tool▁call▁end｜>"

# family, output, (content, calls, reasoning)
DOCUMENTED: list[tuple[str, str, tuple[str, list[tuple[str, str]], str | None]]] = [
    ("qwen3_coder", "Hi 🙂.<|im_end|>", ("Hi 🙂.", [], None)),
    ("qwen3_coder", "I look.\n<tool_call>\n<function=calc>\n<parameter=expression>\n17 * 23 "
                    "🙂\n</parameter>\n</function>\n</tool_call><|im_end|>", ("I look.", [ONE], None)),
    ("qwen3_coder",
    "<tool_call>\n<function=calc>\n<parameter=expression>\né\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=edit>\n</function>\n</tool_call>", ("", [TWO, ("edit", "{}")], None)),
    ("mistral", f'[TOOL_CALLS] [{{"name": "calc", "arguments": {A1}}}, {{"name": "calc", '
                f'"arguments": {A2}}}]</s>', ("", [ONE, TWO], None)),
    ("mistral_v7", f'Sure.[TOOL_CALLS][{{"name": "calc", "arguments": {A1}, "id": '
                   f'"a1B2c3D4e"}}]</s>', ("Sure.", [ONE], None)),
    ("mistral_v13", f"Sure.[TOOL_CALLS]calc[ARGS]{A1}[TOOL_CALLS]calc[ARGS]{A2}</s>", ("Sure.", [ONE, TWO], None)),
    ("mistral_v13", f"[TOOL_CALLS]calc[CALL_ID]a1B2c3D4e[ARGS]{A1}</s>", ("", [ONE], None)),
    ("mistral_v13", f"[TOOL_CALLS]calc{A1}</s>", ("", [ONE], None)),
    ("deepseek_v3", f"I look.<｜tool▁calls▁begin｜>{D_ONE}\n{D_ONE}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", ("I look.",
    [ONE, ONE], None)),
    ("deepseek_v3", f"<think>Hmm 🙂</think>Yes<｜tool▁calls▁begin｜>{D_ONE}<｜tool▁calls▁end｜>", ("Yes", [ONE], "Hmm 🙂")),
    ("deepseek_v31", f"<｜tool▁calls▁begin｜>{D_TWO}{D_TWO}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", ("", [TWO, TWO],
    None)),
    ("phi4", f'<|tool_call|>[{{"name": "calc", "arguments": {A1}}}, {{"name": "calc", "arguments": '
             f'{A2}}}]<|/tool_call|><|end|>', ("", [ONE, TWO], None)),
    ("function_gemma", "<start_function_call>call:calc{expression:<escape>17 * 23 "
                       "🙂<escape>}<end_function_call><start_function_response>", ("", [ONE], None)),
    ("gemma4", 'I look.<|tool_call>call:calc{expression:<|"|>17 * 23 '
               '🙂<|"|>}<tool_call|><|tool_response>', ("I look.", [ONE], None)),
    ("gemma4", "<|channel>thought\nHmm.\n<channel|>Yes.<turn|>", ("Yes.", [], "Hmm.")),
    ("gemma4", '<|tool_call>call:edit{line:3,all:true,more:{a:[1,<|"|>x,}<|"|>],b:null},list:[]}<tool_call|>', ("",
    [("edit", '{"line": 3, "all": true, "more": {"a": [1, "x,}"], "b": null}, "list": []}')], None)),
    ("glm", "\n<think>Hmm.</think>\nI look.\n<tool_call>calc\n<arg_key>expression</arg_key>\n<arg_value>17 * 23 "
            "🙂</arg_value>\n</tool_call><|observation|>", ("I look.", [ONE], "Hmm.")),
    ("glm",
    "<tool_call>calc<arg_key>expression</arg_key><arg_value>é</arg_value></tool_call><tool_call>edit</tool_call>", ("",
    [TWO, ("edit", "{}")], None)),
    ("glm", "\n<think></think>\nYes.<|user|>", ("Yes.", [], None)),
    ("harmony", "<|channel|>analysis<|message|>Hmm 🙂.<|end|><|start|>assistant<|channel|>final<|message|>Yes "
                "🙂.<|return|>", ("Yes 🙂.", [], "Hmm 🙂.")),
    ("harmony", "<|channel|>analysis<|message|>Hmm.<|end|><|start|>assistant<|channel|>commentary to=functions.calc "
                f"<|constrain|>json<|message|>{A1}<|call|>", ("", [ONE], "Hmm.")),
    ("harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant "
                f"to=functions.calc<|channel|>commentary json<|message|>{A1}<|call|>", ("I look.", [ONE], None)),
    ("harmony",
    "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|><|start|>assistant<|channel|>commentary<|message|>C<|end|><|start|>assistant<|channel|>final<|message|>D", ("C\n\nD", [], "A\n\nB")),
]  # fmt: skip

# family, output that is malformed once, what of it is shown
MALFORMED: list[tuple[str, str, str]] = [
    ("hermes", "<tool_call>\n{broken}\n</tool_call>", "<tool_call>\n{broken}\n</tool_call>"),
    ("hermes", '<tool_call>{"name": "calc", "arguments": {}', '<tool_call>{"name": "calc", "arguments": {}'),
    ("llama3", '{"name": "calc", "parameters": [1]}', '{"name": "calc", "parameters": [1]}'),
    ("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    ("llama3", '{"name": "calc", "param', '{"name": "calc", "param'),
    ("qwen3_coder", "<tool_call>\n<function=calc>\n<parameter=x>\n1\n</function>\n</tool_call>",
    "<tool_call>\n<function=calc>\n<parameter=x>\n1\n</function>\n</tool_call>"),
    ("qwen3_coder", '<tool_call>{"name": "calc", '
                    '"arguments": {}}</tool_call>', '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'),
    ("mistral", '[TOOL_CALLS] [{"name": "calc"}] x', '[TOOL_CALLS] [{"name": "calc"}] x'),
    ("mistral", '[TOOL_CALLS] [{"name": "calc", "arguments": {}}', '[TOOL_CALLS] [{"name": "calc", "arguments": {}}'),
    ("mistral_v13", "[TOOL_CALLS]I call it {}", "[TOOL_CALLS]I call it {}"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>calc<｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜>calc<｜tool▁calls▁end｜>"),
    ("deepseek_v31", f"<｜tool▁calls▁begin｜>{D_TWO}", f"<｜tool▁calls▁begin｜>{D_TWO}"),
    ("phi4", "<|tool_call|>[]<|/tool_call|>", "<|tool_call|>[]<|/tool_call|>"),
    ("function_gemma", "<start_function_call>call:calc{x}<end_function_call>",
    "<start_function_call>call:calc{x}<end_function_call>"),
    ("gemma4", '<|tool_call>call:calc{x:<|"|>1}<tool_call|>', '<|tool_call>call:calc{x:<|"|>1}<tool_call|>'),
    ("glm", "<tool_call>calc<arg_key>x</arg_key></tool_call>", "<tool_call>calc<arg_key>x</arg_key></tool_call>"),
    ("harmony", "Hello there", "Hello there"),
    ("harmony", "<|channel|>commentary "
                "to=functions.calc<|message|>{broken<|call|>", "<|channel|>commentary "
                                                               "to=functions.calc<|message|>{broken"),
    ("harmony", "<|channel|>commentary "
                "to=browser.search<|message|>{}<|end|>", "<|channel|>commentary to=browser.search<|message|>{}<|end|>"),
    ("harmony", "<|channel|>fina", "<|channel|>fina"),
]  # fmt: skip


def ids_of(template: ChatTemplate, text: str) -> list[int]:
    return list(template.encode(text, start=False))


def said(message: Message) -> tuple[str, list[tuple[str, str]], str | None]:
    return message.content, [(call.name, call.arguments) for call in message.tool_calls], message.reasoning


def streamed(
    template: ChatTemplate, chunks: Sequence[Sequence[int]], tools: Sequence[Tool] = TOOLS, finish: FinishReason = STOP
) -> tuple[list[ParsedDelta], int]:
    parser = template.stream(tools)
    deltas = [parser.feed(array("i", chunk)) for chunk in chunks] + [parser.finish(finish)]
    return deltas, parser.malformed


def put_together(deltas: Sequence[ParsedDelta]) -> tuple[str, list[tuple[str, str]], str | None]:
    calls = [(call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
    return "".join(d.content for d in deltas), calls, "".join(d.reasoning for d in deltas) or None


@pytest.mark.parametrize(("name", "text", "expected"), DOCUMENTED)
def test_documented_output_is_read(
    name: str, text: str, expected: tuple[str, list[tuple[str, str]], str | None]
) -> None:
    read = made(name).read(ids_of(made(name), text), TOOLS, STOP)
    assert (said(read.message), read.malformed) == (expected, 0)


@pytest.mark.parametrize(("name", "text", "shown"), MALFORMED)
def test_malformed_output_is_text_and_is_flagged(name: str, text: str, shown: str) -> None:
    template = made(name)
    read = template.read(ids_of(template, text), TOOLS, STOP)
    assert said(read.message) == (shown, [], None)
    assert read.malformed == 1
    parser = template.stream(TOOLS)
    parser.feed(array("i", ids_of(template, text)))
    parser.finish(STOP)
    assert parser.malformed == 1


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _ in DOCUMENTED])
def test_a_call_that_the_end_of_a_sample_cuts_is_cut_and_not_malformed(name: str, text: str) -> None:
    template = made(name)
    ids = ids_of(template, text)
    for cut in range(len(ids)):
        assert template.read(ids[:cut], TOOLS, LENGTH).malformed == 0
        parser = template.stream(TOOLS)
        parser.feed(array("i", ids[:cut]))
        parser.finish(LENGTH)
        assert parser.malformed == 0


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _ in [*DOCUMENTED, *MALFORMED]])
def test_every_cut_of_an_output_streams_as_it_parses_and_takes_nothing_back(name: str, text: str) -> None:
    """Each token on its own is the finest cut there is: in these vocabularies a character may be four tokens."""
    template = made(name)
    ids = ids_of(template, text)
    whole = template.read(ids, TOOLS, STOP)
    for cut in range(len(ids) + 1):
        deltas, malformed = streamed(template, [ids[:cut], ids[cut:]])
        assert (put_together(deltas), malformed) == (said(whole.message), whole.malformed)
        start = template.read(ids[:cut], TOOLS, LENGTH)
        deltas, malformed = streamed(template, [[i] for i in ids[:cut]], finish=LENGTH)
        assert (put_together(deltas), malformed) == (said(start.message), start.malformed)
        shown = put_together(deltas[:-1])
        assert whole.message.content.startswith(shown[0])
        assert (whole.message.reasoning or "").startswith(shown[2] or "")
        assert said(whole.message)[1][: len(shown[1])] == shown[1]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, _ in [*DOCUMENTED, *MALFORMED]])
def test_a_tag_that_arrives_letter_by_letter_is_never_shown_in_part(name: str, text: str) -> None:
    """As where a model spells a tag out of ordinary tokens."""
    template = made(name)

    def read(pieces: Sequence[str]) -> tuple[list[ParsedDelta], int]:
        reader = template._reader(TOOLS)  # pyright: ignore[reportPrivateUsage]
        return [*map(reader.feed, pieces), reader.finish()], reader.malformed

    whole, malformed = read([text])
    deltas, counted = read(list(text))
    assert (put_together(deltas), counted) == (put_together(whole), malformed)
    for cut in range(len(text) + 1):
        assert put_together(read([text[:cut], text[cut:]])[0]) == put_together(whole)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral_v13", "[TOOL_CALLS]I call it nothing"),
        ("llama3", '{"answer": 42} is the answer'),
        ("harmony", "Hello there"),
        ("hermes", "<tool_call>{broken}</tool_call> it is"),
    ],
)
def test_what_can_no_longer_be_a_call_is_shown_at_once(name: str, text: str) -> None:
    assert made(name)._reader(TOOLS).feed(text).content == text  # pyright: ignore[reportPrivateUsage]


OUTPUTS: dict[str, list[str]] = {}
for _name, _text, _ in [*DOCUMENTED, *MALFORMED]:
    OUTPUTS.setdefault(_name, []).append(_text)


@pytest.mark.parametrize("name", OUTPUTS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_damaged_output_never_raises_and_streams_as_it_parses(name: str, seed: int, count: int) -> None:
    """Outputs cut, spliced, repeated and with noise in them, down to single ids, fed in random pieces."""
    template = made(name)
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(count):
        part = ids_of(template, rng.choice(OUTPUTS[name]))
        start, end = sorted((rng.randrange(len(part) + 1), rng.randrange(len(part) + 1)))
        ids += part[start:end] + part[:start] if rng.random() < 0.5 else part[start:]
        ids += rng.choices(part, k=rng.randrange(3))
        ids += [rng.randrange(400) for _ in range(rng.randrange(3))]
    tools = rng.choice([TOOLS, ()])
    whole = template.read(ids, tools, STOP)
    cuts = sorted(rng.randrange(len(ids) + 1) for _ in range(rng.randrange(8)))
    deltas, malformed = streamed(
        template, [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)], tools
    )
    assert (put_together(deltas), malformed) == (said(whole.message), whole.malformed)
    assert put_together(streamed(template, [[i] for i in ids], tools)[0]) == said(whole.message)
    for call in whole.message.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.name


_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab <>{}[]\"',:é🙂\\\n=/", max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("abc", min_size=1, max_size=3), inner,
    max_size=3)),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"text"}))
@settings(max_examples=40, deadline=None)
@given(calls=st.lists(st.dictionaries(st.sampled_from(list("abcd")), _values, max_size=4), min_size=1, max_size=3))
def test_what_a_format_writes_it_reads_back(name: str, calls: list[dict[str, object]]) -> None:
    written = [(f"tool_{k}", json.dumps(arguments, ensure_ascii=False)) for k, arguments in enumerate(calls)]
    types = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    tools = [
        Tool(f"tool_{k}", "", {"properties": {key: {"type": types[type(value)]} for key, value in arguments.items()}})
        for k, arguments in enumerate(calls)
    ]
    form = FORMATS[name]
    content, found = read_whole(form, tools, form.write_reply("", written))
    assert content == ""
    assert [(call.name, json.loads(call.arguments)) for call in found] == [
        (n, json.loads(arguments)) for n, arguments in written
    ]


# --------------------------------------------------------------------------- bare values


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "17", "17"), ("text", "true", "true"), ("text", '{"a": 1}', '{"a": 1}'), ("text", " two \n lines ",
        " two \n lines "),
        ("line", "17", 17), ("line", "17.5", "17.5"), ("line", "many", "many"), ("size", "17", 17), ("size", "1e3",
        1000.0),
        ("all", "true", True), ("all", "True", True), ("all", "yes", "yes"), ("more", '{"a": [1, 2]}', {"a": [1, 2]}),
        ("more", "{broken", "{broken"),
        ("list", "[1]", [1]), ("who", "null", None), ("who", "None", None), ("who", "17", "17"), ("kind", "1", 1),
        ("kind", "a", "a"),
        ("text", '"quoted"', '"quoted"'), ("unknown", "17", 17), ("unknown", "a 17", "a 17"), ("unknown", "NaN", "NaN"),
        ("line", "[" * 5000, "[" * 5000),
    ],
)  # fmt: skip
def test_bare_arguments_have_the_types_of_the_schema(key: str, text: str, value: object) -> None:
    qwen = f"<tool_call>\n<function=edit>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>edit\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    for form, written in (("qwen3_coder", qwen), ("glm", glm)):
        content, (call,) = read_whole(FORMATS[form], TOOLS, written)
        assert content == ""
        assert json.loads(call.arguments) == {key: value}


def test_json_arguments_stay_as_they_were_written() -> None:
    raw = '{ "more" : {"a":1.50,  "b":"\\u00e9"} }'
    for name in ("hermes", "llama3_json", "mistral", "mistral_v11", "deepseek_v3", "deepseek_v31", "phi4", "harmony"):
        _, (call,) = read_whole(FORMATS[name], TOOLS, FORMATS[name].write_reply("", [("edit", raw)]))
        assert call.arguments == raw
    for name in ("qwen3_coder", "glm"):
        _, (call,) = read_whole(
            FORMATS[name], TOOLS, FORMATS[name].write_reply("", [("edit", raw)]).replace('{"a": 1.5', '{"a":1.50')
        )
        assert '{"a":1.50' in call.arguments


def test_a_closing_tag_inside_a_value_is_part_of_it() -> None:
    value = "a</tool_call>b <tool_call>"
    for name in ("qwen3_coder", "glm", "hermes"):
        form = FORMATS[name]
        _, (call,) = read_whole(form, TOOLS, form.write_reply("", [("edit", json.dumps({"text": value}))]))
        assert json.loads(call.arguments) == {"text": value}


def test_the_models_own_call_id_ends_ours_and_comes_back_to_it() -> None:
    template = made("mistral_v13")
    message = template.read(ids_of(template, f"[TOOL_CALLS]calc[CALL_ID]a1B2c3D4e[ARGS]{A1}</s>"), TOOLS, STOP).message
    assert message.tool_calls[0].id.endswith("a1B2c3D4e")
    assert len(message.tool_calls[0].id) == len("call_") + 24
    text = template.render(
        [Message("user", "Hi"), message, Message("tool", "391", tool_call_id=message.tool_calls[0].id)], TOOLS, {}
    ).texts[0]
    assert "[TOOL_RESULTS]a1B2c3D4e[TOOL_CONTENT]391" in text


# --------------------------------------------------------------------------- choosing


def test_a_template_that_writes_calls_is_sure_proof() -> None:
    for name in [*FAMILIES, *SPECIAL]:
        template = made(name)
        chosen = template.tool_rendering.choice
        assert chosen.name == template.tool_format
        assert chosen.sure is (template.probe.call_format is not None)
        assert "\n" not in chosen.why
    assert template_of("hermes").tool_rendering.choice.why == "the chat template writes calls in this form"


@pytest.mark.parametrize(
    ("tokens", "plain", "template", "expected", "sign"),
    [
        (HEADERS, (), SMOL, "llama3_json", "<|python_tag|>"),
        ((*CHATML, "[TOOL_CALLS]"), (), SMOL, "mistral", "[TOOL_CALLS]"),
        ((*CHATML, "[TOOL_CALLS]", "[ARGS]"), (), SMOL, "mistral_v11", "[TOOL_CALLS]"),
        (CHATML, TAGS, SMOL, "hermes", "<tool_call>"),
        (CHATML, (*TAGS, "<arg_key>"), SMOL, "glm", "<tool_call>"),
        (DEEPSEEK, TAGS, R1, "deepseek_v3", "<｜tool▁calls▁begin｜>"),
        (PHI, (), SMOL, "phi4", "<|tool_call|>"),
        (CHATML, (), SMOL, "text", ""),
    ],
)
def test_a_template_without_calls_is_guessed_from_the_tokens(
    tokens: Sequence[str], plain: Sequence[str], template: str, expected: str, sign: str
) -> None:
    end = tokens[-1]
    found = load_template(wrap(byte_level(tokens, plain), template, eos=end, bos=tokens[0]))
    assert isinstance(found, ChatTemplate)
    assert found.tool_rendering.choice.name == found.tool_format == expected
    assert not found.tool_rendering.choice.sure
    assert sign in found.tool_rendering.choice.why
    assert not found.tool_rendering.native_list
    messages = [
        Message("user", "Hi"),
        Message("assistant", "", (ToolCall("c", "calc", A2),)),
        Message("tool", "391", tool_call_id="c"),
    ]
    text = unescape(found.render(messages, (CALC,), {}).texts[0])
    assert FORMATS[expected].write_reply("", [("calc", A2)]) in text
    assert FORMATS[expected].example in text
    assert "<tool_response>\n391\n</tool_response>" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda: wrap(
            byte_level(DEEPSEEK, TAGS),
            DEEPSEEK_V3.replace("for tool in tools or []", "for tool in []"),
            eos=DEEPSEEK[1],
            bos=DEEPSEEK[0],
        ),
        lambda: wrap(
            byte_level(CHANNELS), HARMONY.replace("for tool in tools or []", "for tool in []"), eos="<|return|>"
        ),
        lambda: FAMILIES["mistral"].make(),
    ],
    ids=["deepseek", "harmony", "mistral, whose tools move"],
)
def test_a_template_that_lacks_only_the_tool_list_gets_it_as_text_and_keeps_its_own_calls_and_results(
    make: Callable[[], PreTrainedTokenizerFast], caplog: pytest.LogCaptureFixture
) -> None:
    template = ChatTemplate(make())
    assert (
        template.tool_rendering.choice.sure,
        template.tool_rendering.native_list,
        template.tool_rendering.native_calls,
    ) == (True, False, True)
    messages = [
        Message("user", "Hi"),
        Message("assistant", "", (ToolCall("c", "calc", A2),)),
        Message("tool", "391", tool_call_id="c"),
    ]
    with caplog.at_level(logging.WARNING, logger="agentlightning"):
        texts = [template.render(messages[:end], (CALC,), {}).texts[0] for end in (1, 3)]
    assert [record.getMessage() for record in caplog.records] == [template.tool_rendering.fallback]
    assert "does not render the tool list" in template.tool_rendering.fallback
    for text in texts:
        assert text.count("You can use tools.") == 1
        assert '"description": "Calculates."' in text
        assert "tool_response" not in text
    assert "391" in texts[1]
    assert not ChatTemplate(make()).render(messages, (), {}).texts[0].count("You can use tools.")


def test_gemma_3_has_no_tools_and_gets_them_as_text() -> None:
    assert (template_of("gemma").tool_rendering.choice.name, template_of("gemma").tool_rendering.native_list) == (
        "text",
        False,
    )
    assert "<start_function_call>" not in GEMMA


def test_harmony_cannot_be_written_into_another_template() -> None:
    with pytest.raises(ConfigError, match="tool_format 'harmony' needs a chat template that renders calls and results"):
        load_template(
            wrap(byte_level(CHANNELS), SMOL.replace("im_start", "start").replace("im_end", "end"), eos="<|end|>"),
            tool_format="harmony",
        )


def test_tools_that_a_template_takes_from_the_system_message_are_there() -> None:
    for messages in ([Message("user", "Hi")], [Message("system", "Be brief."), Message("user", "Hi")]):
        text = template_of("phi4").render(messages, (CALC,), {}).texts[0]
        assert '<|tool|>[{"type": "function", "function": {"name": "calc"' in text
        assert text.count("<|system|>") == 1
    assert "<|tool|>" not in template_of("phi4").render([Message("user", "Hi")], (), {}).texts[0]


# --------------------------------------------------------------------------- histories

REPLIES = {
    "harmony": [
        '<|channel|>analysis<|message|>Hmm<|end|><|start|>assistant<|channel|>commentary to=functions.calc '
        '<|constrain|>json<|message|>{"expression":"1"}<|call|>',
        '<|channel|>commentary<|message|>Again.<|end|><|start|>assistant<|channel|>commentary '
        'to=functions.calc<|message|>{"expression":"2"}<|call|>',
        "<|channel|>final<|message|>It is 3.<|return|>",
    ],
    "glm": [
        "\n<think>Hmm</think>\n<tool_call>calc\n<arg_key>expression</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|observation|>",
        "\n<think></think>\nAgain.\n<tool_call>calc<arg_key>expression</arg_key><arg_value>2</arg_value></tool_call><|observation|>",
        "\n<think></think>\nIt is 3.<|user|>",
    ],
    "gemma4": [
        '<|tool_call>call:calc{expression:<|"|>1<|"|>}<tool_call|><|tool_response>',
        'Again. <|tool_call>call:calc{ expression:<|"|>2<|"|>}<tool_call|><|tool_response>',
        "It is 3.<turn|>",
    ],
    "deepseek_v3": [f"<｜tool▁calls▁begin｜>{D_ONE}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"] * 2 + ["It is 3.<｜end▁of▁sentence｜>"],
    "deepseek_odd": [f"<｜tool▁calls▁begin｜>{D_ONE}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"] * 2 + ["It is 3.<｜end▁of▁sentence｜>"],
    "mistral_v7": ['[TOOL_CALLS][{"name":"calc","arguments":{"expression":"1"},"id":"a1B2c3D4e"}]</s>'] * 2 + ["It is 3.</s>"],
    "mistral_v13": [f"Sure.[TOOL_CALLS]calc[ARGS]{A1}[TOOL_CALLS]calc[ARGS]{A2}</s>"] * 2 + ["It is 3.</s>"],
}  # fmt: skip


GLUE = {
    "harmony": "<|start|>functions.calc to=assistant<|channel|>commentary<|message|>391 0<|end|><|start|>assistant",
    "glm": "\n<tool_response>\n391 0\n</tool_response><|assistant|>",
    "gemma4": 'response:calc{value:<|"|>391 0<|"|>}<tool_response|>',
    "deepseek_v3": "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>391 0<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    "deepseek_odd": "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>391 0<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    "mistral_v7": "[TOOL_RESULTS]391 0[/TOOL_RESULTS]",
    "mistral_v13": None,
}
"""What lies between the first two samples; the second has ids where it is None."""


def deepseek_odd() -> ChatTemplate:
    return ChatTemplate(wrap(byte_level(DEEPSEEK, TAGS), DEEPSEEK_ODD, eos=DEEPSEEK[1], bos=DEEPSEEK[0]))


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("cut", [False, True], ids=["", "cut"])
def test_a_conversation_goes_on_token_for_token(name: str, cut: bool) -> None:
    """As the gateway has it: what was parsed stands in the history, and the text before each sample is what its own
    call was prompted with."""
    template = deepseek_odd() if name == "deepseek_odd" else made(name)
    messages = [Message("system", "Be brief."), Message("user", "What is 17 * 23?")]
    samples: dict[int, SampledTurn] = {}
    prompts: list[str] = []
    for text in REPLIES[name]:
        rendering = template.render(messages, (CALC,), samples)
        assert rendering.rewrote is None
        assert rendering.texts[:-1] == tuple(prompts)
        prompts.append(rendering.texts[-1])
        ids = ids_of(template, text)
        message = template.read(ids, (CALC,), STOP).message
        turn = template.sampled_turn(ids)
        samples[len(messages)] = replace(turn, ended_with="") if cut else turn
        messages += [
            message,
            *[Message("tool", f"391 {k}", tool_call_id=call.id) for k, call in enumerate(message.tool_calls)],
        ]
    if GLUE[name] is not None and not cut:
        assert prompts[1] == GLUE[name]
    whole = "".join(
        prompt + turn.text + turn.ended_with for prompt, turn in zip(prompts, samples.values(), strict=True)
    )
    assert "391 0" in whole
    end = template.stop_token_ids[0]
    assert template.encode(whole, start=True).count(end) <= whole.count(template.decode([end]))


@pytest.mark.parametrize("name", ["harmony", "glm"])
def test_reasoning_since_the_last_user_turn_stays_and_earlier_reasoning_is_a_rewrite(name: str) -> None:
    template = made(name)
    message = template.read(ids_of(template, REPLIES[name][0]), (CALC,), STOP).message
    assert message.reasoning == "Hmm"
    turn = template.sampled_turn(ids_of(template, REPLIES[name][0]))
    messages = [Message("user", "Hi"), message, Message("tool", "1", tool_call_id=message.tool_calls[0].id)]
    assert template.render(messages, (CALC,), {1: turn}).rewrote is None
    assert "Hmm" in template.render(messages, (CALC,), {}).texts[0], (
        "it goes back in where the turn was not sampled here"
    )
    later = [*messages, Message("assistant", "It is 1."), Message("user", "Sure?")]
    rendering = template.render(later, (CALC,), {1: turn})
    assert rendering.rewrote == "the chat template drops the reasoning of message 1"
    assert rendering.rewritten == (1,)
    assert "Hmm" not in template.render(later, (CALC,), {}).texts[0]


@pytest.mark.parametrize("name", ["harmony", "glm", "thinking"])
def test_one_setting_keeps_reasoning_as_it_was_sampled(name: str) -> None:
    kept = (
        special(name, keep_reasoning=True)
        if name in SPECIAL
        else ChatTemplate(FAMILIES[name].make(), keep_reasoning=True)
    )
    text = (
        REPLIES[name][0]
        if name in REPLIES
        else '<think>\nHmm\n</think>\n\n<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call><|im_end|>'
    )
    ids = ids_of(kept, text)
    message = kept.read(ids, (CALC,), STOP).message
    start = [Message("user", "Hi")]
    first = [*start, message, Message("tool", "1", tool_call_id=message.tool_calls[0].id)]
    reply = {"harmony": "<|channel|>analysis<|message|>So<|end|><|start|>assistant<|channel|>final<|message|>It is 1.<|return|>", "glm": "\n<think>So</think>\nIt is 1.<|user|>"}.get(name, "<think>\nSo\n</think>\n\nIt is 1.<|im_end|>")  # fmt: skip
    second = kept.read(ids_of(kept, reply), (CALC,), STOP).message
    assert (second.content, second.reasoning) == ("It is 1.", "So")
    later = [*first, second, Message("user", "Sure?")]
    sampled = {1: kept.sampled_turn(ids), 3: kept.sampled_turn(ids_of(kept, reply))}
    rendering = kept.render(later, (CALC,), sampled)
    assert rendering.rewrote is None
    assert rendering.texts[0] == kept.render(start, (CALC,), {}).texts[0]
    assert rendering.texts[1] == kept.render(first, (CALC,), {1: sampled[1]}).texts[1]
    assert kept.render(later, (CALC,), {3: sampled[3]}).rewrote is None


def test_a_result_whose_call_was_cut_away_is_not_lost() -> None:
    for name in [*FAMILIES, *SPECIAL]:
        messages = [Message("user", "Hi"), Message("tool", "391 apples", tool_call_id="gone"), Message("user", "Well?")]
        assert "391 apples" in made(name).render(messages, (CALC,), {}).texts[0]


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("content", ["", "Let me see."])
def test_no_call_or_result_is_lost_whose_turns_have_no_end_of_their_own(name: str, count: int, content: str) -> None:
    calls = tuple(ToolCall(f"c{k}", "calc", f'{{"expression": "expression-{k}"}}') for k in range(count))
    results = [Message("tool", f"result-{k}", tool_call_id=f"c{k}") for k in range(count)]
    messages = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", content, calls), *results]
    for more in ((), (Message("assistant", "So."), Message("user", "And?"))):
        text = made(name).render([*messages, *more], (CALC,), {}).texts[0]
        expected = [
            "Be brief.",
            "Hi",
            *filter(None, [content]),
            *(f"expression-{k}" for k in range(count)),
            *(r.content for r in results),
        ]
        places = [text.find(part) for part in [*expected, *(m.content for m in more)]]
        assert -1 not in places
        assert places == sorted(places)


def test_harmonys_message_end_is_no_end_of_turn() -> None:
    template = special("harmony")
    assert [template.decode([i]) for i in template.stop_token_ids] == ["<|return|>", "<|call|>"]
    ended_by_model = template.render([Message("user", "Hi"), Message("assistant", "Yes"), Message("user", "Ok")], (),
    {1: SampledTurn("<|channel|>final<|message|>Yes", "<|return|>")})  # fmt: skip
    assert ended_by_model.texts[1] == "<|start|>user<|message|>Ok<|end|><|start|>assistant"
    assert "<|end|>" in HARMONY


def test_the_next_roles_token_that_glm_ends_with_is_not_written_twice() -> None:
    template = special("glm")
    messages = [Message("user", "Hi"), Message("assistant", "Yes"), Message("user", "Ok")]
    for ended_with, glue in (
        ("<|user|>", "\nOk<|assistant|>"),
        ("", "<|user|>\nOk<|assistant|>"),
        ("<|endoftext|>", "<|user|>\nOk<|assistant|>"),
    ):
        assert template.render(messages, (), {1: SampledTurn("\n<think></think>\nYes", ended_with)}).texts[1] == glue
