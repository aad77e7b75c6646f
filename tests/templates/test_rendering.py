"""What lies between recorded samples: equal to the whole rendering in text always, and in ids where the samples are
canonical."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.errors import TemplateError
from agentlightning.nouns import Message, Tool, ToolCall
from agentlightning.templates import describe
from agentlightning.templates.base import SampledTurn
from agentlightning.templates.chat import ChatTemplate
from agentlightning.templates.escaping import MARK, unescape
from tests.templates.conversations import Conversation, conversations, harmless_text, nasty_text
from tests.templates.fixtures import (
    CALC,
    CLOCK,
    FAMILIES,
    GEMMA,
    TURNS,
    Family,
    byte_level,
    r1,
    template_of,
    thinks_first,
    tokenizer_of,
    whole,
    wrap,
)

REFUSES = "{%- if messages[-1].content == 'coffee' %}{{- raise_exception('no coffee here') }}{%- endif %}"

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def samples_of(
    family: Family, messages: Sequence[Message], which: Sequence[int], *, cut: Sequence[int] = ()
) -> dict[int, SampledTurn]:
    """Canonical samples for the messages at ``which``; those in ``cut`` lack their end-of-turn."""
    return {i: SampledTurn(family.samples(messages[i]), "" if i in cut else family.end) for i in which}


def spliced(texts: Sequence[str], samples: dict[int, SampledTurn]) -> str:
    parts = [unescape(text) for text in texts]
    turns = [samples[i].text + samples[i].ended_with for i in sorted(samples)]
    return parts[0] + "".join(turn + part for turn, part in zip(turns, parts[1:], strict=True))


# --------------------------------------------------------------------------- equality with the whole


@every_family
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_spliced_samples_and_glue_equal_the_whole_rendering_in_text(family: Family, data: st.DataObject) -> None:
    template = template_of(family.name)
    conversation: Conversation = data.draw(conversations(nasty_text, one_call=family.name == "llama3"))
    messages = conversation.messages
    tools = data.draw(st.sampled_from([(), (CALC,), (CALC, CLOCK)]))
    which = data.draw(st.sets(st.sampled_from(conversation.replies))) if conversation.replies else set()
    cut = {i for i in which if data.draw(st.booleans())}
    samples = samples_of(family, messages, sorted(which), cut=sorted(cut))
    rendering = template.render(messages, tools, samples)
    assert rendering.rewrote is None
    assert rendering.rewritten == ()
    assert len(rendering.texts) == len(samples) + 1
    assert not any(MARK in text for text in rendering.texts)
    assert spliced(rendering.texts, samples) == unescape(template.render(messages, tools, {}).texts[0])


@pytest.mark.parametrize("family", [f for f in FAMILIES.values() if f.native and f.exact], ids=lambda f: f.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_where_the_template_renders_tools_the_whole_is_what_transformers_renders(
    family: Family, data: st.DataObject
) -> None:
    conversation: Conversation = data.draw(conversations(one_call=family.name == "llama3", bare=family.bare))
    tools = data.draw(st.sampled_from([(), (CALC, CLOCK)]))
    samples = samples_of(family, conversation.messages, conversation.replies)
    rendering = template_of(family.name).render(conversation.messages, tools, samples)
    expected = whole(tokenizer_of(family.name), conversation.messages, tools, text_arguments=family.text_arguments)
    assert spliced(rendering.texts, samples) == expected


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES.values() if not f.native and f.name != "no_system"], ids=lambda f: f.name
)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_without_tools_the_whole_is_what_transformers_renders(family: Family, data: st.DataObject) -> None:
    conversation: Conversation = data.draw(conversations(tools=False))
    samples = samples_of(family, conversation.messages, conversation.replies)
    rendering = template_of(family.name).render(conversation.messages, (), samples)
    assert spliced(rendering.texts, samples) == whole(tokenizer_of(family.name), conversation.messages)


@every_family
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_canonical_samples_give_the_ids_of_the_whole(family: Family, data: st.DataObject) -> None:
    template = template_of(family.name)
    conversation: Conversation = data.draw(conversations(harmless_text, one_call=family.name == "llama3"))
    messages = conversation.messages
    samples = samples_of(family, messages, conversation.replies)
    tools = data.draw(st.sampled_from([(), (CALC, CLOCK)]))
    rendering = template.render(messages, tools, samples)
    ids = template.encode(rendering.texts[0], start=True)
    for i, text in zip(conversation.replies, rendering.texts[1:], strict=True):
        ids += template.encode(samples[i].text + samples[i].ended_with, start=False)
        ids += template.encode(text, start=False)
    assert ids == template.encode(template.render(messages, tools, {}).texts[0], start=True)


@every_family
def test_a_next_turn_only_appends(family: Family) -> None:
    """Turn after turn, the text in front of each sample is what its own call was prompted with."""
    template = template_of(family.name)
    messages = [Message("system", "Be brief."), Message("user", "What is 17 * 23?")]
    samples: dict[int, SampledTurn] = {}
    prompts: list[str] = []
    for turn in range(4):
        prompts.append(template.render(messages, (CALC,), samples).texts[-1])
        reply = Message("assistant", "", (ToolCall(f"c{turn}", "calc",
        '{"expression": "17*23"}'),)) if turn % 2 == 0 else Message("assistant", "391")  # fmt: skip
        samples[len(messages)] = samples_of(family, [reply], [0], cut=[0] if turn == 1 else [])[0]
        messages += [
            reply,
            Message("tool", "391", tool_call_id=f"c{turn}") if turn % 2 == 0 else Message("user", "Sure?"),
        ]
    assert template.render(messages, (CALC,), samples).texts[:-1] == tuple(prompts)


@every_family
def test_a_sample_keeps_its_white_space_and_its_own_json(family: Family) -> None:
    template = template_of(family.name)
    messages = [Message("user", "Hi"), Message("assistant", "", (ToolCall("c", "calc", '{"expression":"1"}'),)),
    Message("tool", "1", tool_call_id="c")]  # fmt: skip
    sample = SampledTurn('  <tool_call>{ "name":"calc",  "arguments":{"expression":"1"} }</tool_call> \n', family.end)
    rendering = template.render(messages, (CALC,), {1: sample})
    assert rendering.rewrote is None
    assert rendering.texts == template.render(messages, (CALC,), samples_of(family, messages, [1])).texts


@every_family
def test_a_cut_sample_gets_its_end_of_turn_from_the_template(family: Family) -> None:
    template = template_of(family.name)
    messages = [Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Go on")]
    cut = template.render(messages, (), {1: SampledTurn("Hello", "")}).texts[1]
    ended = template.render(messages, (), {1: SampledTurn("Hello", family.end)}).texts[1]
    assert cut == family.end + ended
    assert family.end not in ended.split("Go on")[0]


def test_another_stop_token_than_the_templates_ends_the_turn_too() -> None:
    template = template_of("gemma")
    messages = [Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Go on")]
    assert (
        template.render(messages, (), {1: SampledTurn("Hello", "<eos>")}).texts[1].startswith("\n<start_of_turn>user")
    )


# --------------------------------------------------------------------------- rewrites


def _thought(text: str = "Hmm.", reply: str = "Yes.") -> tuple[Message, SampledTurn]:
    return Message("assistant", reply, reasoning=text), SampledTurn(
        f"<think>\n{text}\n</think>\n\n{reply}", "<|im_end|>"
    )


def test_dropped_reasoning_of_an_earlier_turn_is_a_rewrite() -> None:
    message, sample = _thought()
    messages = [Message("user", "Hi"), message, Message("user", "Sure?")]
    rendering = template_of("thinking").render(messages, (), {1: sample})
    assert rendering.rewrote == "the chat template drops the reasoning of message 1"
    assert rendering.rewritten == (1,)
    assert len(rendering.texts) == 2
    assert "Hmm" not in template_of("thinking").render(messages, (), {}).texts[0]


def test_reasoning_since_the_last_user_turn_is_no_rewrite() -> None:
    template = template_of("thinking")
    message, sample = _thought(reply="")
    message = replace(message, tool_calls=(ToolCall("c", "calc", '{"expression": "1"}'),))
    sample = replace(
        sample, text=sample.text + '<tool_call>\n{"name": "calc", "arguments": {"expression": "1"}}\n</tool_call>'
    )
    start = [Message("user", "Hi")]
    history = [*start, message, Message("tool", "1", tool_call_id="c")]
    rendering = template.render(history, (CALC,), {1: sample})
    assert rendering.rewrote is None
    assert rendering.texts[0] == template.render(start, (CALC,), {}).texts[0]
    assert spliced(rendering.texts, {1: sample}) == whole(tokenizer_of("thinking"), history, (CALC,))


def test_only_the_rewritten_samples_are_given_up() -> None:
    template = template_of("thinking")
    (first, one), (second, two) = _thought(), _thought("Well.", "")
    second = replace(second, tool_calls=(ToolCall("c", "calc", "{}"),))
    messages = [Message("user", "Hi"), first, Message("user", "Sure?"), second, Message("tool", "1", tool_call_id="c")]
    rendering = template.render(messages, (CALC,), {1: one, 3: two})
    assert rendering.rewritten == (1,)
    again = template.render(messages, (CALC,), {3: two})
    assert again.rewrote is None
    assert again.texts[0] == template.render(messages[:3], (CALC,), {}).texts[0]


def test_a_sample_without_reasoning_is_no_rewrite_under_a_reasoning_template() -> None:
    messages = [
        Message("user", "Hi"),
        Message("assistant", "Yes."),
        Message("user", "Sure?"),
        Message("assistant", "No."),
    ]
    sampled = {1: SampledTurn("Yes.", "<|im_end|>"), 3: SampledTurn("No.", "<|im_end|>")}
    rendering = template_of("thinking").render(messages, (), sampled)
    assert rendering.rewrote is None
    assert all(text.endswith("<|im_start|>assistant\n") for text in rendering.texts)


def test_reasoning_that_the_prompt_opens_is_kept_where_the_template_keeps_it() -> None:
    template = thinks_first()
    start = [Message("user", "Hi")]
    message = Message("assistant", "", (ToolCall("c", "calc", "{}"),), reasoning="Hmm.")
    sample = SampledTurn('Hmm.\n</think>\n\n<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call>', "<|im_end|>")
    history = [*start, message, Message("tool", "1", tool_call_id="c")]
    prompt = template.render(start, (CALC,), {}).texts[0]
    assert prompt.endswith("<think>\n")
    rendering = template.render(history, (CALC,), {1: sample})
    assert rendering.rewrote is None
    assert rendering.texts[0] == prompt
    later = template.render(
        [*history, Message("assistant", "Done", reasoning="Ok"), Message("user", "Bye")], (CALC,), {1: sample}
    )
    assert later.rewritten == (1,)


def test_a_template_that_splits_contents_at_the_tag_drops_reasoning() -> None:
    messages = [Message("user", "Hi"), Message("assistant", "Yes.", reasoning="Hmm."), Message("user", "Sure?")]
    rendering = r1().render(messages, (), {1: SampledTurn("Hmm.\n</think>\n\nYes.", "<|end|>")})
    assert rendering.rewritten == (1,)
    plain = r1().render(messages, (), {}).texts[0]
    assert "Hmm" not in plain
    assert "Yes." in plain


def test_think_tags_that_the_template_does_not_know_stay_as_sampled() -> None:
    message, sample = _thought()
    messages = [Message("user", "Hi"), message, Message("user", "Sure?")]
    template = template_of("hermes_tags")
    rendering = template.render(messages, (), {1: sample})
    assert rendering.rewrote is None
    assert spliced(rendering.texts, {1: sample}) == unescape(template.render(messages, (), {}).texts[0])


def test_samples_in_a_row_stay_apart_where_roles_must_alternate() -> None:
    messages = [
        Message("user", "Hi"),
        Message("assistant", "One."),
        Message("assistant", "Two."),
        Message("user", "Three?"),
    ]
    rendering = template_of("gemma").render(
        messages, (), {1: SampledTurn("One.", "<end_of_turn>"), 2: SampledTurn("Two.", "<end_of_turn>")}
    )
    assert rendering.rewrote is None
    text = template_of("gemma").render(messages, (), {}).texts[0]
    assert "One.<end_of_turn>\n<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\nTwo." in text


# --------------------------------------------------------------------------- what templates cannot show


@pytest.mark.parametrize(
    "template", [*map(template_of, FAMILIES), r1(), thinks_first()], ids=[*FAMILIES, "r1", "thinks_first"]
)
@pytest.mark.parametrize("content", ["", "Let me see."])
@pytest.mark.parametrize("count", [1, 2])
def test_no_tool_call_or_result_is_lost(template: ChatTemplate, content: str, count: int) -> None:
    calls = tuple(ToolCall(f"c{k}", "calc", f'{{"expression": "expression-{k}"}}') for k in range(count))
    results = [Message("tool", f"result-{k}", tool_call_id=f"c{k}") for k in range(count)]
    messages = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", content, calls), *results]
    for tools in ((), (CALC,)):
        for more in ((), (Message("user", "And?"),)):
            text = template.render([*messages, *more], tools, {}).texts[0]
            expected = [
                "Be brief.",
                "Hi",
                *filter(None, [content]),
                *(f"expression-{k}" for k in range(count)),
                *(r.content for r in results),
                *(m.content for m in more),
            ]
            places = [text.find(part) for part in expected]
            assert -1 not in places
            assert places == sorted(places)
            assert all(word in text for tool in tools for word in (tool.name, tool.description, "expression"))


@every_family
@pytest.mark.parametrize("arguments", ["{broken", "", "[1]", "12", '{"a": NaN', "17 * 23\n"])
def test_arguments_that_are_no_json_object_are_rendered_as_they_are(family: Family, arguments: str) -> None:
    messages = [
        Message("user", "Hi"),
        Message("assistant", "", (ToolCall("c", "calc", arguments),)),
        Message("tool", "1", tool_call_id="c"),
    ]
    assert (arguments or "calc") in template_of(family.name).render(messages, (CALC,), {}).texts[0]


def test_tools_join_the_system_message_that_is_there() -> None:
    text = template_of("smol").render([Message("system", "Be brief."), Message("user", "Hi")], (CALC,), {}).texts[0]
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can use tools.")
    assert text.count("<|im_start|>system") == 1
    assert "You are small." in template_of("smol").render([Message("user", "Hi")], (), {}).texts[0]


def test_a_system_message_that_is_refused_becomes_part_of_the_first_user_turn() -> None:
    text = template_of("no_system").render([Message("system", "Be brief."), Message("user", "Hi")], (), {}).texts[0]
    assert text == "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"


def test_a_system_message_alone_is_not_lost() -> None:
    for name in FAMILIES:
        assert "Be brief." in template_of(name).render([Message("system", "Be brief.")], (), {}).texts[0]


def test_a_later_system_message_is_shown_where_it_was_said() -> None:
    messages = [
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("system", "Hurry."),
        Message("user", "Go on"),
    ]
    for name in FAMILIES:
        text = template_of(name).render(messages, (), {}).texts[0]
        assert text.index("Hello") < text.index("Hurry.") < text.index("Go on")


def test_roles_in_a_row_are_joined_where_they_must_alternate() -> None:
    messages = [Message("user", "One"), Message("user", "Two"), Message("assistant", "Three"), Message("user", "Four")]
    assert "One\n\nTwo" in template_of("gemma").render(messages, (), {}).texts[0]
    assert "One\n\nTwo" not in template_of("hermes").render(messages, (), {}).texts[0]


def test_a_refusal_carries_the_templates_words() -> None:
    template = ChatTemplate(
        wrap(
            byte_level(TURNS, bos="<bos>"),
            GEMMA.replace("roles must alternate", "no tea") + REFUSES,
            eos="<eos>",
            bos="<bos>",
        )
    )
    with pytest.raises(TemplateError, match="no coffee here"):
        template.render([Message("user", "coffee")], (), {})


def test_what_was_made_fit_is_told() -> None:
    template = ChatTemplate(FAMILIES["mistral"].make())
    assert describe(template)["made_fit"] == []
    template.render([Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Well?")], (), {})
    assert describe(template)["made_fit"] == []
    for _ in range(2):
        template.render([Message("assistant", "Hello"), Message("user", "Hi")], (), {})
    assert describe(template)["made_fit"] == [
        "a conversation that the user does not open begins with an empty turn of the user's"
    ]


def test_no_messages_and_unknown_roles_are_refused_by_name() -> None:
    with pytest.raises(TemplateError, match="no messages"):
        template_of("hermes").render([], (), {})
    with pytest.raises(TemplateError, match="'im_end'"):
        template_of("hermes").render([Message("im_end", "Hi")], (), {})


def test_the_fallback_is_told_once_and_only_when_tools_are_used(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(FAMILIES["smol"].make())
    messages = [Message("user", "Hi")]
    with caplog.at_level(logging.WARNING, logger="agentlightning"):
        template.render(messages, (), {})
        assert not caplog.records
        template.render(messages, (CALC,), {})
        template.render(messages, (CALC,), {})
    assert [record.getMessage() for record in caplog.records] == [template.tool_rendering.fallback]


def test_a_rendering_is_the_same_every_time() -> None:
    tool = Tool("t", "", {"b": 1, "a": [True, None, 1.5]})
    messages = [Message("user", "Hi"), Message("assistant", "Yes"), Message("user", "Ok")]
    sampled = {1: SampledTurn("Yes", "<|im_end|>")}
    assert template_of("hermes").render(messages, (tool,), sampled) == template_of("hermes").render(
        messages, (tool,), sampled
    )


def test_an_empty_sample_keeps_its_place() -> None:
    messages = [Message("user", "Hi"), Message("assistant", ""), Message("user", "Hello?")]
    for family in FAMILIES.values():
        rendering = template_of(family.name).render(messages, (), {1: SampledTurn("", family.end)})
        assert rendering.rewrote is None
        assert template_of(family.name).encode("", start=False) == array("i")
        assert rendering.texts[0] == template_of(family.name).render(messages[:1], (), {}).texts[0]
