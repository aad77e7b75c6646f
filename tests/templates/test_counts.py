"""What is counted of a sample: the tokens that are reasoning, by a second way of counting them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.nouns import FinishReason
from agentlightning.templates.chat import ChatTemplate
from tests.templates.fixtures import CALC, FAMILIES, special, template_of, thinks_first

STOP = FinishReason.STOP

# family, (a piece of the sample, whether it is reasoning)
SAMPLES: list[tuple[str, list[tuple[str, bool]]]] = [
    ("thinking", [("<think>\nI think 🙂.\n</think>", True), ("\n\nYes é.<|im_end|>", False)]),
    ("thinking", [("<think>\nI never 🙂", True)]),
    ("thinking", [("\n<think></think>", True), ("Yes.<|im_end|>", False)]),
    ("thinking", [("No thought: <think> </think>.<|im_end|>", False)]),
    ("opened", [("I think 🙂.\n</think>", True), ("\n\nYes.<|im_end|>", False)]),
    ("metaspace", [("Plain 🙂.</s>", False)]),
    ("gemma4", [("<|channel>thought\nHmm 🙂🙂🙂🙂🙂<channel|>", True), ("Yes.<turn|>", False)]),
    (
        "harmony",
        [
            ("<|channel|>analysis<|message|>Hmm 🙂.<|end|>", True),
            ("<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>", False),
            ("<|start|>assistant<|channel|>analysis<|message|>So.<|end|>", True),
            ("<|start|>assistant<|channel|>final<|message|>Yes.<|return|>", False),
        ],
    ),
    (
        "harmony",
        [
            ("<|channel|>analysis<|message|>A", True),
            ("<|start|>assistant<|channel|>final<|message|>B<|return|>", False),
        ],
    ),
    ("harmony", [("<|channel|>analysis<|message|>never ends", True)]),
    ("harmony", [("no header", False)]),
]


def made(name: str) -> ChatTemplate:
    if name == "opened":
        return thinks_first()
    if name == "metaspace":
        return template_of("mistral")
    return special(name) if name not in FAMILIES else template_of(name)


@pytest.mark.parametrize(("name", "pieces"), SAMPLES)
def test_thought_tokens_are_those_of_the_reasoning_and_its_tags(name: str, pieces: Sequence[tuple[str, bool]]) -> None:
    template = made(name)
    ids = [template.encode(text, start=False) for text, _ in pieces]
    expected = sum(len(each) for each, (_, thought) in zip(ids, pieces, strict=True) if thought)
    whole = array("i", [token for each in ids for token in each])
    assert template.read(whole, (CALC,), STOP).thought_tokens == expected
    assert template.read(whole, (), STOP).thought_tokens == expected
    assert template.read(whole, (), STOP, plain=True).thought_tokens == 0
    for cut in range(len(whole) + 1):
        parser = template.stream((CALC,))
        parser.feed(whole[:cut])
        parser.feed(whole[cut:])
        parser.finish(STOP)
        assert parser.thought_tokens == expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_thought_tokens_are_those_that_begin_before_the_end_of_reasoning_whatever_the_tokens(
    data: st.DataObject,
) -> None:
    """Tokens that straddle the tags, parts of characters and stray bytes among them."""
    template = made(data.draw(st.sampled_from(["thinking", "opened"])))
    text = data.draw(
        st.lists(
            st.sampled_from(["<think>", "</think>", "<", "think>", "\n", " ", "a", "é", "🙂", "hello", "<|im_end|>"]),
            max_size=12,
        )
    )
    ids = [token for piece in text for token in template.encode(piece, start=False)]
    ids += data.draw(st.lists(st.integers(0, 300), max_size=6))
    ids = data.draw(st.permutations(ids)) if data.draw(st.booleans()) else ids
    read = template.read(ids, (), STOP)
    assert read.thought_tokens == counted(template, ids)


def counted(template: ChatTemplate, ids: Sequence[int]) -> int:
    """Decodes every beginning of the sample and looks where the reasoning ends in it."""
    tags = template.reasoning_tags
    assert tags is not None
    if ids and ids[-1] in template.stop_token_ids:
        ids = ids[:-1]
    text = template.decode(ids)
    start = text.lstrip()
    if not template.probe.thinks_first and not start.startswith(tags[0]):
        return 0
    begin = len(text) - len(start) + len(tags[0]) if start.startswith(tags[0]) else 0
    end = text.find(tags[1], begin)
    if end < 0:
        return len(ids)
    # The tag is ASCII: a beginning that holds all of it holds it whole.
    return next(k for k in range(len(ids) + 1) if tags[1] in template.decode(ids[:k])[begin:])
