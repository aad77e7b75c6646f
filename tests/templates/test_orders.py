"""Orders of roles: whatever a client sends is rendered, nothing of it is lost, and what was sampled stays what the next
prompt begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentlightning.nouns import Message, Tool, ToolCall
from agentlightning.templates.base import SampledTurn
from agentlightning.templates.chat import ChatTemplate
from agentlightning.templates.escaping import unescape
from agentlightning.templates.formats import FORMATS
from tests.templates.fixtures import CALC, FAMILIES, SPECIAL, r1, special, template_of, thinks_first

ENDS = {"glm": "", "gemma4": "<turn|>", "harmony": "<|return|>", "gptoss": "<|return|>"}
"""How a reply ends where that is not the family's end of turn; glm's is the next role's token."""

Step = Literal["system", "user", "reply", "call", "calls", "result", "second result", "orphan"]
STEPS: tuple[Step, ...] = ("system", "user", "reply", "call", "calls", "result", "second result", "orphan")


@dataclass(frozen=True)
class Made:
    """A template, and how its model ends a reply and a call."""

    template: ChatTemplate
    end: str
    call_end: str
    thinks: str = ""

    def sample(self, message: Message) -> SampledTurn:
        form = FORMATS[self.template.tool_format]
        content = message.content
        if self.template.tool_format == "harmony" and (content or not message.tool_calls):
            channel = "commentary" if message.tool_calls else "final"
            content = f"<|channel|>{channel}<|message|>{content}" + (
                "<|end|><|start|>assistant" if message.tool_calls else ""
            )
        text = form.write_reply(content, [(call.name, call.arguments) for call in message.tool_calls])
        # Harmony's and Gemma's calls end with a token that is the format's own.
        if message.tool_calls and text.endswith(self.call_end):
            return SampledTurn(text.removesuffix(self.call_end), self.call_end)
        return SampledTurn(self.thinks + text, self.call_end if message.tool_calls else self.end)


def made(name: str) -> Made:
    if name in FAMILIES:
        return Made(template_of(name), FAMILIES[name].end, FAMILIES[name].end)
    if name == "r1":
        return Made(r1(), "<|end|>", "<|end|>", "</think>\n\n")
    if name == "thinks_first":
        return Made(thinks_first(), "<|im_end|>", "<|im_end|>", "</think>\n\n")
    return Made(
        special(name),
        ENDS[name],
        {"harmony": "<|call|>", "gptoss": "<|call|>", "gemma4": "<|tool_response>"}.get(name, ENDS[name]),
    )


LOOKS_AHEAD = ("thinking", "thinks_first")
"""Templates that show the reasoning of a turn in another form when it is the last one: a given one, gone on from, reads
otherwise later."""

EVERY = [*FAMILIES, *SPECIAL, "r1", "thinks_first"]


def history(steps: Sequence[Step]) -> list[Message]:
    """Messages in this order, each with a text of its own. Results are of the latest call, whether it was answered
    already or not."""
    messages: list[Message] = []
    latest = 0
    for i, step in enumerate(steps):
        if step in ("call", "calls"):
            latest = i
            calls = [
                ToolCall(f"call_{i}_{k}", "calc", f'{{"expression": "zsum{i}k{k}q"}}')
                for k in range(1 + (step == "calls"))
            ]
            messages.append(Message("assistant", "", tuple(calls)))
        elif step == "reply":
            messages.append(Message("assistant", f"zsaid{i}q"))
        elif step in ("result", "second result", "orphan"):
            call = {"result": f"call_{latest}_0", "second result": f"call_{latest}_1", "orphan": "call_gone"}[step]
            messages.append(Message("tool", f"zgave{i}q", tool_call_id=call))
        else:
            messages.append(Message(step, f"zsaid{i}q"))
    return messages


def words(messages: Sequence[Message]) -> list[str]:
    return [word for m in messages for word in (m.content, *(call.arguments[16:-2] for call in m.tool_calls)) if word]


orders = st.lists(st.sampled_from(STEPS), min_size=1, max_size=9)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=60, deadline=None)
@example(steps=["reply", "user"], tools=())
@example(steps=["system", "reply", "user"], tools=(CALC,))
@example(steps=["user", "call", "user"], tools=(CALC,))
@example(steps=["user", "calls", "result", "user", "second result", "reply"], tools=(CALC,))
@given(steps=orders, tools=st.sampled_from([(), (CALC,)]))
def test_no_order_of_roles_is_refused_and_no_text_of_it_is_lost(
    name: str, steps: list[Step], tools: tuple[Tool, ...]
) -> None:
    messages = history(steps)
    text = unescape(made(name).template.render(messages, tools, {}).texts[0])
    places = [text.find(word) for word in words(messages)]
    assert -1 not in places, (words(messages), text)
    assert places == sorted(places), (words(messages), text)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=60, deadline=None)
@example(steps=["reply", "user", "reply", "user"], tools=(), given_turns=set())
@example(steps=["user", "reply", "reply", "call", "result", "reply"], tools=(CALC,), given_turns=set())
@example(steps=["system", "reply", "system", "reply"], tools=(), given_turns=set())
@given(steps=orders, tools=st.sampled_from([(), (CALC,)]), given_turns=st.sets(st.integers(0, 8)))
def test_a_continuation_keeps_what_was_sampled_in_any_order_of_roles(
    name: str, steps: list[Step], tools: tuple[Tool, ...], given_turns: set[int]
) -> None:
    """Turn after turn, the text in front of each sample is what its own call was prompted with."""
    of, messages = made(name), history(steps)
    prompts: list[str] = []
    samples: dict[int, SampledTurn] = {}
    for i, message in enumerate(messages):
        if message.role != "assistant" or not i or (name in LOOKS_AHEAD and messages[i - 1].role == "assistant"):
            continue
        if i not in given_turns:
            prompts.append(of.template.render(messages[:i], tools, samples).texts[-1])
            samples[i] = of.sample(message)
    rendering = of.template.render(messages, tools, samples)
    assert rendering.rewrote is None
    assert rendering.texts[:-1] == tuple(prompts)
