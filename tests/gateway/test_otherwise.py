"""The tree that an attempt's calls would have made under the other value of `keep_reasoning`, and what both cost in tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.dev_reasoning import KeptReasoning, ReasoningCost, cost, reasoning_lines
from agentlightning.engines.base import Sample
from agentlightning.errors import TemplateError
from agentlightning.gateway import Policy
from agentlightning.gateway.otherwise import Otherwise, Placed
from agentlightning.gateway.tree import TraceTree
from agentlightning.gateway.wires.base import WireRequest
from agentlightning.templates import Template, other_reasoning
from agentlightning.types import Call, FinishReason, Message, Node, Segment
from tests.gateway.conftest import Build, Visit
from tests.gateway.scripted import GlassTemplate, ScriptedEngine
from tests.templates.fixtures import FAMILIES, template_of

THOUGHT = "<think>\nLet me think it over for a while.\n</think>\n\n"


QWEN = [name for name in ("thinking", "qwen3") if name in FAMILIES]
"""A template in the manner of Qwen 3, and, where it is here, the real one."""


@cache
def ways(name: str = "thinking") -> tuple[Template, Template]:
    """A template that drops reasoning once a user speaks again, and the same with reasoning kept."""
    drops = template_of(name)
    keeps = other_reasoning(drops)
    assert keeps is not None
    return drops, keeps


async def talk(build: Build, own: Template, other: Template, turns: int = 3, number: int = 0) -> Visit:
    """A conversation of ``turns`` user turns with a client that drops reasoning, then one prompt without messages. ``number`` tells several apart."""
    engine = ScriptedEngine(own, script=[f"{THOUGHT}Answer {i}." for i in range(turns)] + ["plain"])
    house = await build(template=own, policies={"main": Policy("main", engine, own, other=other)})
    house._count = number
    visit = await house.open()
    history: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        history.append({"role": "user", "content": f"Question {turn}?"})
        reply = (await visit.ask(history)).choices[0].message
        assert reply.content == f"Answer {turn}."
        history.append({"role": "assistant", "content": reply.content})
    await visit.client.completions.create(model="m", prompt="Once upon a time")
    return visit


def placed(calls: Sequence[Call]) -> list[Placed]:
    return [
        Placed(call.index, call.prompt_node, tuple(sample.node for sample in call.samples))
        for call in calls
        if call.prompt_node is not None
    ]


async def measured(visit: Visit) -> tuple[ReasoningCost, ReasoningCost]:
    """What was recorded costs, and what the other way would have."""
    calls, nodes = await visit.calls(), await visit.nodes()
    otherwise = (await visit.end()).otherwise
    assert otherwise is not None and otherwise.failed is None
    return cost(nodes, placed(calls)), cost(otherwise.nodes, otherwise.calls)


@pytest.mark.parametrize("name", QWEN)
async def test_a_template_that_drops_reasoning_costs_branches_and_keeping_it_one_path(build: Build, name: str) -> None:
    drops, keeps = ways(name)
    visit = await talk(build, drops, keeps)
    calls, requests = await visit.calls(), [len(await visit.path_ids(call.prompt_node)) for call in await visit.calls()]
    assert [call.branch for call in calls] == ["root", "template", "template", "new"]
    dropped, kept = await measured(visit)
    assert (dropped.paths, kept.paths) == (4, 2)
    assert dropped.prompts == sum(requests) < kept.prompts, "dropped reasoning makes shorter prompts"
    assert dropped.computed > kept.computed, "of which more is new each time"
    thought = len(drops.encode(THOUGHT, start=False))
    assert dropped.forwarded > kept.forwarded and dropped.rows > kept.rows == kept.forwarded, "two paths that share nothing"
    assert kept.prompts - dropped.prompts == (1 + 2) * thought, "turn 2 holds one thought more, turn 3 two"


async def test_either_value_tells_the_same_of_both(build: Build) -> None:
    drops, keeps = ways()
    ran_dropped = await measured(await talk(build, drops, keeps))
    ran_kept = await measured(await talk(build, keeps, drops, number=1))
    assert ran_dropped == (ran_kept[1], ran_kept[0])


async def test_the_same_way_once_more_is_the_recorded_tree(build: Build) -> None:
    """What is compared with the record is made as the record is."""
    for number, template in enumerate(ways()):
        visit = await talk(build, template, template, number=number)
        nodes, calls = await visit.nodes(), await visit.calls()
        otherwise = (await visit.end()).otherwise
        assert otherwise is not None and otherwise.nodes == nodes
        assert otherwise.calls == placed(calls)


async def test_outside_dev_nothing_is_placed_twice(build: Build) -> None:
    house = await build(template=ways()[0])
    visit = await house.open()
    await visit.ask("hi")
    assert (await visit.end()).otherwise is None


def test_a_template_without_reasoning_has_no_other_way() -> None:
    assert other_reasoning(template_of("hermes")) is None and other_reasoning(GlassTemplate()) is None
    drops, keeps = ways()
    back = other_reasoning(keeps)
    assert back is not None and back._keep_reasoning is drops._keep_reasoning is False


# --------------------------------------------------------------------------- any conversation


def sample(template: GlassTemplate, text: str) -> tuple[Sample, Message]:
    ids = array("i", [*template.encode(text, start=False), 2])
    drawn = Sample((Segment(ids, array("f", [-0.1] * len(ids)), 1),), FinishReason.STOP)
    thought, closed, rest = text.removeprefix("<think>").rpartition("</think>")
    return drawn, Message("assistant", rest, reasoning=thought if closed else None)


ACTIONS = st.lists(st.tuples(st.sampled_from(["on", "back", "edit", "again", "twice"]), st.booleans(), st.integers(0, 2)), max_size=7)


@settings(max_examples=60)
@given(ACTIONS, st.booleans(), st.booleans())
def test_any_conversation_is_placed_as_a_session_under_that_way_would_place_it(actions: list[Any], own: bool, other: bool) -> None:
    """Whatever a client does to its history, and whichever way it ran: the other tree is the one that a session under the other way records."""
    templates = {drops: GlassTemplate(drops_reasoning=drops) for drops in (False, True)}
    tree, reference, otherwise = TraceTree(), TraceTree(), Otherwise()
    expected: list[Node] = []
    history: list[Message] = []
    for number, (action, thinks, word) in enumerate(actions):
        if action == "back":
            history = history[: len(history) // 4 * 2]
        elif action == "edit" and history:
            history = [Message(history[0].role, f"{history[0].content}!"), *history[1:]]
        if action != "again" or not history:
            history = [*history, Message("user", f"question {word}")]
        else:
            history = history[:-1]
        samples = [
            sample(templates[own], ("<think>hm</think>" if thinks else "") + f"answer {word}{n}") for n in range(1 + (action == "twice"))
        ]
        plan = tree.plan(history, (), "main", templates[own])
        _, leaves = tree.grow(plan, samples, number)
        tree.publish(plan, leaves)
        plan = reference.plan(history, (), "main", templates[other])
        nodes, leaves = reference.grow(plan, samples, number)
        reference.publish(plan, leaves)
        expected += nodes
        otherwise.add(WireRequest("m", tuple(history)), "main", templates[other], samples, number)
        history = [*history, Message("assistant", samples[0][1].content)]
    assert otherwise.nodes == expected and len(otherwise.calls) == len(actions)


def test_what_the_other_rendering_refuses_ends_the_comparison_and_no_call() -> None:
    class Refuses(GlassTemplate):
        def render(self, *_: Any) -> Any:
            raise TemplateError("roles must alternate")

    otherwise, template = Otherwise(), GlassTemplate()
    request = WireRequest("m", (Message("user", "hi"),))
    otherwise.add(request, "main", Refuses(), [sample(template, "a")], 0)
    otherwise.add(request, "main", template, [sample(template, "a")], 1)
    assert otherwise.failed == "call 0: roles must alternate" and otherwise.calls == []


# --------------------------------------------------------------------------- costs

TREES = st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=1, max_size=10)


def grown(parts: list[tuple[int, bool, list[int]]]) -> list[Node]:
    """A tree in which a sampled node always has a prompt above it."""
    nodes: list[Node] = []
    for number, (above, sampled, ids) in enumerate(parts):
        parent = above % number if number and (sampled or above) else None
        sampled = sampled and parent is not None
        tokens = array("i", ids)
        nodes.append(Node(number, parent, sampled, tokens, number, array("f", [-1.0]) * len(ids) if sampled else None))
    return nodes


def paths(nodes: list[Node]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for node in nodes:
        found.append((*(found[node.parent] if node.parent is not None else ()), *node.token_ids))
    return found


@given(TREES)
def test_what_is_counted_is_what_training_forwards(parts: list[Any]) -> None:
    """By the learner's own packing."""
    pytest.importorskip("torch")
    from agentlightning.learning.batch import Batch, TrainNode, TrainTree
    from agentlightning.learning.packing import Cost, pack

    nodes = grown(parts)
    tree = tuple(
        TrainNode(
            -1 if node.parent is None else node.parent, node.token_ids, node.sampled,
            array("f", [1.0]) * len(node.token_ids) if node.sampled else None, node.logprobs,
        )
        for node in nodes
    )  # fmt: skip
    packed = pack(Batch(((TrainTree(tree, "r"),),)), layout="tree", max_row_tokens=4096, cost=Cost(1.0, 1.0))
    found = cost(nodes, [])
    assert found.forwarded == sum(block.tokens for group in packed.groups for block in group.blocks)
    assert found.rows == sum(group.flat_tokens for group in packed.groups)


@given(TREES)
def test_new_tokens_of_a_prompt_are_those_that_no_earlier_call_had(parts: list[Any]) -> None:
    nodes = grown(parts)
    whole = paths(nodes)
    calls = [Placed(i, node.parent, (node.id,)) for i, node in enumerate(nodes) if node.sampled and node.parent is not None]
    had: set[tuple[int, ...]] = set()
    new = 0
    for call in calls:
        prompt, (leaf,) = call.prompt_node, call.leaves
        starts = {whole[prompt][:end] for end in range(1, len(whole[prompt]) + 1)}
        new += len(starts - had)
        had |= starts | {whole[leaf][:end] for end in range(1, len(whole[leaf]) + 1)}
    found = cost(nodes, calls)
    assert (found.computed, found.prompts) == (new, sum(len(whole[call.prompt_node]) for call in calls))


def test_the_report_has_a_line_for_each_way_and_says_which_ran() -> None:
    found = KeptReasoning(False, ReasoningCost(3, 1200, 900, 1100, 1500), ReasoningCost(1, 1500, 300, 700, 700), 2, 6)
    lines = [text for _, text in reasoning_lines(found)]
    assert lines[1:] == [
        "The chat template drops earlier reasoning. What model.keep_reasoning costs, in tokens, with the same replies:",
        "  false  3 paths  1,200 in prompts  900 of them new  1,100 forwarded in training  (1,500 as a row per path)  (as it ran)",
        "  true    1 path  1,500 in prompts  300 of them new    700 forwarded in training    (700 as a row per path)",
        "  in 6 calls of 2 rollouts; what the model would say to the other prompts is not known",
    ]
    assert list(reasoning_lines(None)) == []
