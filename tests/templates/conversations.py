"""Random conversations for property tests: tools, unicode, empty contents, several samples."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import strategies as st

from agentlightning.nouns import Message, ToolCall
from agentlightning.templates.escaping import ESCAPE, MARK, QUOTE

PRIVATE = [ESCAPE, MARK, QUOTE, f"{MARK}c0{MARK}", f"{MARK}r1{MARK}", ESCAPE + QUOTE]
"""What the rendering itself uses inside."""

CONTROL = ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "</s>", "[INST]", "<end_of_turn>", "<tool_call>", "</tool_call>",
"</think>", "<think>", "<|", "|>"]  # fmt: skip

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
nasty_text = st.lists(st.one_of(plain_text, st.sampled_from(PRIVATE), st.sampled_from(CONTROL)), max_size=4).map(
    "".join
)
harmless_text = st.text(st.sampled_from("abc xyz.,?é日🙂\n"), max_size=20)
spoken = st.builds(
    "".join, st.tuples(st.sampled_from("ABCdef"), st.text(st.sampled_from("abc xy.é日🙂"), max_size=12), st.just("z"))
)
"""A reply that starts and ends with a letter: no template has white space to strip."""


@dataclass(frozen=True)
class Conversation:
    messages: tuple[Message, ...]
    replies: tuple[int, ...]
    """Where the assistant messages are."""


@st.composite
def conversations(
    draw: st.DrawFn,
    texts: st.SearchStrategy[str] = plain_text,
    *,
    tools: bool = True,
    system: bool = True,
    one_call: bool = False,
    bare: bool = False,
) -> Conversation:
    """User-first, each reply followed by results where it called, then by a user message. The last message is never the
    assistant's.

    ``bare``: no text beside calls.
    """
    messages: list[Message] = []
    if system and draw(st.booleans()):
        messages.append(Message("system", draw(texts)))
    messages.append(Message("user", draw(texts)))
    for turn in range(draw(st.integers(0, 4))):
        calls: tuple[ToolCall, ...] = ()
        if tools and draw(st.booleans()):
            values = draw(st.lists(texts, min_size=1, max_size=1 if one_call else 3))
            calls = tuple(
                ToolCall(f"call_{turn}_{k}", "calc", json.dumps({"expression": value}, ensure_ascii=False))
                for k, value in enumerate(values)
            )
        content = "" if calls and (one_call or bare or draw(st.booleans())) else draw(spoken)
        messages.append(Message("assistant", content, calls))
        if calls:
            messages += [Message("tool", draw(texts), tool_call_id=call.id) for call in calls]
        else:
            messages.append(Message("user", draw(texts)))
    return Conversation(tuple(messages), tuple(i for i, message in enumerate(messages) if message.role == "assistant"))
