"""Choosing a format, refusing what cannot work, and saying what was found."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agentlightning.errors import ConfigError, ModelError
from agentlightning.nouns import FinishReason, Message, ToolCall
from agentlightning.templates import describe, load_template
from agentlightning.templates.base import SampledTurn
from tests.templates.fixtures import (
    CALC,
    FAMILIES,
    HERMES,
    LLAMA3,
    SMOL,
    byte_level,
    r1,
    template_of,
    thinks_first,
    tokenizer_of,
    wrap,
)
from tests.tiny import letters_tokenizer, tiny_tokenizer

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@every_family
def test_the_format_is_found_in_what_the_template_writes(family) -> None:
    template = template_of(family.name)
    assert (template.tool_format, template.tool_rendering.native_list) == (family.tool_format, family.native)
    assert bool(template.tool_rendering.fallback) is not family.native


@every_family
def test_the_end_of_turn_is_found(family) -> None:
    template = template_of(family.name)
    assert template.probe.end_of_turn == family.end
    tokenizer = tokenizer_of(family.name)
    assert template.stop_token_ids[0] == tokenizer.convert_tokens_to_ids(family.end)
    assert tokenizer.eos_token_id in template.stop_token_ids


def test_more_stop_tokens_can_be_given() -> None:
    template = load_template(
        tokenizer_of("llama3"), stop_token_ids=[tokenizer_of("llama3").convert_tokens_to_ids("<|eom_id|>"), 3]
    )
    assert [template.decode([token]) for token in template.stop_token_ids][:2] == ["<|eot_id|>", "<|eom_id|>"]
    assert template.stop_token_ids[2] == 3
    assert template.sampled_turn(template.encode("Hi<|eom_id|>", start=False)) == SampledTurn("Hi", "<|eom_id|>")


def test_what_a_template_does_is_found_and_told() -> None:
    gemma = template_of("gemma").probe
    assert (gemma.system, gemma.later_system, gemma.repeated_users, gemma.results) == (True, False, False, False)
    assert not template_of("no_system").probe.system
    assert template_of("mistral").probe.after_user.heads == (" ",)
    assert template_of("smol").probe.lacks == ("the tool list", "tool calls in a form that can be read back")
    thinking = template_of("thinking").probe
    assert (thinking.reasoning, thinking.reasoning_field, thinking.keeps_reasoning, thinking.thinks_first) == (
        True,
        True,
        False,
        False,
    )
    assert thinks_first().probe.thinks_first
    assert (r1().probe.reasoning_field, r1().probe.keeps_reasoning) == (False, False)


def test_describe_is_plain_json_that_names_the_choice() -> None:
    told = json.loads(json.dumps(describe(template_of("smol"))))
    assert told["tool_format"] == "text"
    assert told["chosen"] == {
        "name": "text",
        "sure": False,
        "why": "neither the chat template nor the tokenizer shows a form of its own",
    }
    assert "does not render the tool list" in told["fallback"]
    assert told["stop_tokens"] == ["<|im_end|>"]
    assert told["probe"]["tools"] is False
    assert describe(template_of("hermes"))["chosen"]["sure"] is True


def test_a_format_can_be_chosen_by_name() -> None:
    call = ToolCall("c", "calc", '{"expression": "1"}')
    messages = [Message("user", "Hi"), Message("assistant", "", (call,)), Message("tool", "1", tool_call_id="c")]
    for name in FAMILIES:
        for tool_format in ("hermes", "llama3_json", "text"):
            template = template_of(name, tool_format)
            assert template.tool_format == tool_format
            assert describe(template)["chosen"]["why"] == "asked for"
            text = template.render(messages, (CALC,), {}).texts[0]
            assert ('"parameters": {"expression": "1"}' in text) is (tool_format == "llama3_json")
            if not template.tool_rendering.native_list:
                assert "You can use tools." in text
                assert ("<tool_response>\n1\n</tool_response>" in text) is not template.tool_rendering.native_calls
                assert (
                    "tool_format" in template.tool_rendering.fallback
                    or "does not render" in template.tool_rendering.fallback
                )
            written = (
                '{"name": "calc", "parameters": {}}'
                if tool_format == "llama3_json"
                else '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'
            )
            assert (
                len(template.read(template.encode(written, start=False), (CALC,), FinishReason.STOP).message.tool_calls)
                == 1
            )
    assert not template_of("hermes", "text").tool_rendering.native_list
    assert template_of("hermes", "hermes").tool_rendering.native_list


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"tool_format 'xml' is not known: use one of deepseek_v3, .*, hermes, llama3_json, .*text"
    ):
        load_template(tokenizer_of("smol"), tool_format="xml")


def test_a_tokenizer_without_a_chat_template_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match="no chat template: put a chat_template") as caught:
        load_template(wrap(byte_level(("<|im_end|>",)), None, eos="<|im_end|>"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{% for", "constant", "{{ messages[0].nothing.there }}"]
)
def test_a_chat_template_that_cannot_render_is_refused_in_one_line(source: str) -> None:
    with pytest.raises(ModelError, match="chat template cannot be used") as caught:
        load_template(wrap(byte_level(("<|im_end|>",)), source, eos="<|im_end|>"))
    assert "\n" not in str(caught.value)


def test_a_slow_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="object is not a fast tokenizer"):
        load_template(object())  # pyright: ignore[reportArgumentType]


def test_named_templates_are_used_as_transformers_does() -> None:
    tokenizer = wrap(byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>")), None, eos="<|im_end|>")
    tokenizer.chat_template = {"default": SMOL, "tool_use": HERMES}  # pyright: ignore[reportAttributeAccessIssue]
    template = load_template(tokenizer)
    assert template.tool_format == "hermes"
    assert "You are small." in template.render([Message("user", "Hi")], (), {}).texts[0]
    assert "<tools>" in template.render([Message("user", "Hi")], (CALC,), {}).texts[0]


def test_a_template_that_moves_the_system_text_about_is_not_trusted_with_it() -> None:
    moving = LLAMA3.replace("+ system + '<|eot_id|>'", "+ '<|eot_id|>'").replace(
        "{%- if add_generation_prompt %}", "{{- system }}{%- if add_generation_prompt %}"
    )
    tokenizer = wrap(byte_level(("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    moving, eos="<|eot_id|>", bos="<|begin_of_text|>")  # fmt: skip
    messages = [
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "Go on"),
    ]
    text = load_template(tokenizer).render(messages, (), {}).texts[0]
    assert text.index("Be brief.") < text.index("Hi")


def test_the_tokenizers_of_other_tests_load() -> None:
    assert load_template(tiny_tokenizer()).tool_format == "hermes"
    letters = load_template(letters_tokenizer())
    text = letters.render([Message("user", "abc")], (), {}).texts[0]
    assert letters.decode(letters.encode(text, start=True)) == text
    assert letters.read(range(60), (CALC,), FinishReason.LENGTH).message.role == "assistant"


def test_importing_templates_loads_neither_torch_nor_transformers() -> None:
    script = "import sys, agentlightning.templates.chat; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
