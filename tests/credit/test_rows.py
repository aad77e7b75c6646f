"""Limits on rows: what is too long and what is too many is masked, chosen by the rollout's seed and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.credit import CreditSettings, StepCredit, credit_step, train_tree
from agentlightning.errors import ConfigError
from agentlightning.nouns import Call, Node
from agentlightning.records.traces import AttemptTrace

from .test_schemes import Less
from .traces import TWO_TURNS, attempt, call, given_node, group, sampled_node, trace


def seats(count: int, *, id: str = "a", tokens: int = 3) -> AttemptTrace:
    """An attempt of as many conversations, each of a prompt of 2 tokens and a sample."""
    nodes: list[Node] = []
    for index in range(count):
        nodes += [given_node(2 * index, None, 2, index), sampled_node(2 * index + 1, 2 * index, tokens, index)]
    return attempt(nodes, [call(i, 2 * i, 2 * i + 1) for i in range(count)], id=f"{id}-1")


def credited(*attempts: AttemptTrace, seed: int = 0, **settings: Any) -> StepCredit:
    traces = [trace(str(i), float(i), one) for i, one in enumerate(attempts)]
    traces = [replace(one, rollout=replace(one.rollout, seed=seed + i)) for i, one in enumerate(traces)]
    step = credit_step([group(*traces)], Less(), None, CreditSettings(**settings))
    assert sum(one.sampled for one in step.attempts.values()) == step.trained + sum(step.masked.values())
    return step


def kept(step: StepCredit, attempt_id: str) -> list[int]:
    return [node.node for node in step.attempts[attempt_id].nodes if node.trained]


def test_at_most_so_many_rows_of_an_attempt_are_trained_and_both_counts_are_told():
    step = credited(seats(300), seats(2, id="b"), max_rows=64)
    assert step.rows == {"made": 302, "kept": 66, "row_length": 0, "row_limit": 236}
    assert len(kept(step, "a-1")) == 64 and len(kept(step, "b-1")) == 2
    assert step.masked == {"row_limit": 3 * 236} and step.trained == 3 * 66


def test_which_rows_are_kept_follows_from_the_rollouts_seed():
    once, again, other = (kept(credited(seats(50), seats(1, id="b"), seed=s, max_rows=5), "a-1") for s in (1, 1, 2))
    assert once == again != other


def test_without_limits_nothing_is_said_of_rows():
    assert credited(seats(3), seats(2, id="b")).rows == {}


def test_a_row_that_is_too_long_is_masked_and_a_conversation_is_trained_up_to_the_call_before():
    assert credited(seats(2, tokens=7), seats(1, id="b"), max_row_length=9).masked == {}
    assert credited(seats(2, tokens=8), seats(1, id="b"), max_row_length=9).masked == {"row_length": 16}
    turns = [given_node(0, None, 5), sampled_node(1, 0, 4), given_node(2, 1, 3, 1), sampled_node(3, 2, 2, 1)]
    step = credited(attempt(turns, id="a-1"), seats(1, id="b"), max_row_length=13)
    assert step.masked == {"row_length": 2} and kept(step, "a-1") == [1], "14 tokens in all, 9 up to the first reply"
    assert step.rows == {"made": 2, "kept": 2, "row_length": 0, "row_limit": 0}


def test_a_conversation_is_one_row_however_many_calls_it_has():
    step = credited(attempt(TWO_TURNS, id="a-1"), seats(1, id="b"), max_rows=1)
    assert step.rows == {"made": 2, "kept": 2, "row_length": 0, "row_limit": 0} and step.masked == {}


def test_of_branches_the_shared_part_is_trained_where_any_of_them_is_kept():
    """Two turns that go on from the same first reply: one row is left out, and its own tokens alone."""
    nodes = [*TWO_TURNS, given_node(4, 1, 1, 2), sampled_node(5, 4, 2, 2)]
    recorded = attempt(nodes, [call(0, 0, 1), call(1, 2, 3), call(2, 4, 5)], id="a-1")
    step = credited(recorded, seats(1, id="b"), max_rows=1)
    assert step.rows["row_limit"] == 1 and step.masked == {"row_limit": 2}
    assert kept(step, "a-1") in ([1, 3], [1, 5])


def test_a_sample_cut_by_a_new_version_is_kept_or_left_out_whole():
    nodes = [given_node(0, None, 2), sampled_node(1, 0, 2), sampled_node(2, 1, 2)]
    recorded = attempt(nodes, [call(0, 0, 2)], id="a-1")
    assert credited(recorded, seats(1, id="b"), max_row_length=6).masked == {}
    assert credited(recorded, seats(1, id="b"), max_row_length=5).masked == {"row_length": 4}


def test_what_is_left_out_takes_no_place_in_the_batch():
    recorded = seats(300)
    step = credited(recorded, seats(1, id="b"), max_rows=10)
    assert len(train_tree("a", recorded, step.attempts["a-1"], 0).nodes) == 20


@given(st.data(), st.integers(1, 4), st.integers(2, 30))
def test_limits_mask_whole_calls_and_what_stays_is_within_them(data: st.DataObject, most: int, longest: int):
    """Of any tree: at most so many rows stay, none is longer, and a call is trained whole or not at all."""
    nodes: list[Node] = []
    calls: list[Call] = []
    for index in range(data.draw(st.integers(1, 8))):
        below = data.draw(st.sampled_from([None, *(n.id for n in nodes if n.sampled)]))
        prompt = len(nodes)
        nodes.append(given_node(prompt, below, data.draw(st.integers(1, 6)), index))
        nodes.append(sampled_node(prompt + 1, prompt, data.draw(st.integers(1, 6)), index))
        calls.append(call(index, prompt, prompt + 1))
    recorded = attempt(nodes, calls, id="a-1")
    step = credited(recorded, seats(1, id="b"), max_rows=most, max_row_length=longest)
    parents = {node.id: node.parent for node in nodes}
    lengths: dict[int | None, int] = {None: 0}
    for node in nodes:
        lengths[node.id] = lengths[node.parent] + len(node.token_ids)
    trained = set(kept(step, "a-1"))
    above = {parents[parents[end] or 0] for end in trained} - {None}  # a prompt hangs below a sample
    assert len(trained - above) <= most and all(lengths[end] <= longest for end in trained)
    assert all(not node.masked or node.why for one in step.attempts.values() for node in one.nodes)
    assert step.rows["made"] == sum(step.rows[name] for name in ("kept", "row_length", "row_limit"))
    within = {node.id for node in nodes if node.sampled and lengths[node.id] <= longest}
    if len(within) <= most:
        assert trained == within, "nothing is left out but for a limit"


@pytest.mark.parametrize("settings", [{"max_rows": 0}, {"max_row_length": 1}])
def test_a_limit_that_leaves_nothing_is_refused(settings: dict[str, int]):
    with pytest.raises(ConfigError, match="a whole number >= "):
        CreditSettings(**settings)  # pyright: ignore[reportArgumentType]
