"""Credit from recorded trees to weights: what is trained, what is masked, and that both are counted."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.credit import TrainedAgents, assign, together
from agentlightning.types import Call, CallStatus, FinishReason, KeptIds, Message, Node, SampleRecord, SamplingParams


def given_node(id: int, parent: int | None, tokens: int, call: int = 0) -> Node:
    return Node(id, parent, False, array("i", range(tokens)), call)


def sampled_node(id: int, parent: int, tokens: int, call: int = 0, kept: KeptIds | None = None) -> Node:
    return Node(id, parent, True, array("i", range(tokens)), call, array("f", [-1.0] * tokens), None, kept, 3)


def call(
    index: int, prompt: int, *leaves: int, status: CallStatus = CallStatus.COMPLETE, temperature: float = 1.0
) -> Call:
    samples = tuple(SampleRecord(leaf, FinishReason.STOP, Message("assistant", "x")) for leaf in leaves)
    used = SamplingParams(temperature=temperature)
    return Call(f"c{index}", "a", index, "chat", "m", "main", status, "root", prompt, samples, {}, used)


TWO_TURNS = [given_node(0, None, 5), sampled_node(1, 0, 4), given_node(2, 1, 3, 1), sampled_node(3, 2, 2, 1)]
TWO_CALLS = [call(0, 0, 1), call(1, 2, 3)]


def test_every_sampled_token_of_a_rollout_gets_its_advantage():
    credited = assign("r", TWO_TURNS, TWO_CALLS, 0.5, unit=7)
    assert [list(n.weights) if n.weights else None for n in credited.tree.nodes] == [None, [0.5] * 4, None, [0.5] * 2]
    assert (credited.sampled, credited.trained, credited.masked) == (6, 6, {})
    assert {n.unit for n in credited.tree.nodes} == {7}
    assert [n.version for n in credited.tree.nodes if n.sampled] == [3, 3]


def test_only_sampled_tokens_are_trained_whatever_role_the_text_has():
    credited = assign("r", TWO_TURNS, TWO_CALLS, 1.0, unit=0)
    assert all(n.weights is None for n in credited.tree.nodes if not n.sampled)


def test_a_rollout_without_advantage_is_masked_under_the_reason_given():
    credited = assign("r", TWO_TURNS, TWO_CALLS, None, unit=0, mask="failed: timeout")
    assert credited.trained == 0 and credited.masked == {"failed: timeout": 6}


def test_an_abandoned_call_is_masked_and_the_rest_of_its_attempt_trained():
    calls = [replace(TWO_CALLS[0], status=CallStatus.ABANDONED), TWO_CALLS[1]]
    credited = assign("r", TWO_TURNS, calls, 1.0, unit=0)
    assert credited.trained == 2 and credited.masked == {"abandoned": 4}


def test_best_of_n_samples_the_agent_did_not_continue_are_masked():
    nodes = [
        given_node(0, None, 5),
        sampled_node(1, 0, 4),
        sampled_node(2, 0, 6),
        given_node(3, 2, 1, 1),
        sampled_node(4, 3, 2, 1),
    ]
    credited = assign("r", nodes, [call(0, 0, 1, 2), call(1, 3, 4)], 1.0, unit=0)
    assert credited.masked == {"unused_sample": 4} and credited.trained == 8


def test_a_sample_cut_in_two_nodes_by_a_new_version_is_masked_whole():
    nodes = [given_node(0, None, 5), sampled_node(1, 0, 4), sampled_node(2, 1, 3)]
    credited = assign("r", nodes, [call(0, 0, 2, status=CallStatus.ABANDONED)], 1.0, unit=0)
    assert credited.masked == {"abandoned": 7} and credited.trained == 0


def test_a_token_that_was_the_only_choice_is_masked_as_forced():
    kept = KeptIds(array("i", [1, 2, 3, 4]), array("i", [0, 2, 3, 4]))
    nodes = [given_node(0, None, 2), sampled_node(1, 0, 3, kept=kept)]
    credited = assign("r", nodes, [call(0, 0, 1)], 1.0, unit=0)
    weights = credited.tree.nodes[1].weights
    assert weights is not None and weights[0] == 1.0 and math.isnan(weights[1]) and math.isnan(weights[2])
    assert credited.trained == 1 and credited.masked == {"forced": 2}


def test_greedy_samples_are_never_trained():
    credited = assign("r", TWO_TURNS, [call(0, 0, 1, temperature=0.0), TWO_CALLS[1]], 1.0, unit=0)
    assert credited.masked == {"greedy": 4} and credited.trained == 2


def test_a_tree_with_a_missing_parent_is_refused():
    with pytest.raises(ValueError, match="parent 9"):
        assign("r", [sampled_node(1, 9, 2)], [], 1.0, unit=0)


@given(
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    statuses=st.lists(st.sampled_from([CallStatus.COMPLETE, CallStatus.ABANDONED]), min_size=5, max_size=5),
    advantage=st.one_of(st.none(), st.floats(-3, 3)),
)
def test_nothing_is_lost_trained_and_masked_add_up(
    cuts: list[int], statuses: list[CallStatus], advantage: float | None
):
    nodes: list[Node] = [given_node(0, None, 3)]
    calls: list[Call] = []
    for i, tokens in enumerate(cuts):
        nodes += [given_node(2 * i + 1, nodes[-1].id, 1, i), sampled_node(2 * i + 2, 2 * i + 1, tokens, i)]
        calls.append(call(i, 2 * i + 1, 2 * i + 2, status=statuses[i]))
    credited = assign("r", nodes, calls, advantage, unit=0)
    assert credited.sampled == sum(cuts) == credited.trained + sum(credited.masked.values())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(-2, 2))
def test_credit_belongs_to_the_rollout_however_it_is_cut_into_rows(cuts: list[int], advantage: float):
    """Invariant 7: the weight of a token does not depend on how many calls its rollout made."""
    nodes: list[Node] = [given_node(0, None, 3)]
    calls: list[Call] = []
    for i, tokens in enumerate(cuts):
        nodes += [given_node(2 * i + 1, nodes[-1].id, 1, i), sampled_node(2 * i + 2, 2 * i + 1, tokens, i)]
        calls.append(call(i, 2 * i + 1, 2 * i + 2))
    whole = assign("r", [given_node(0, None, 3), sampled_node(1, 0, sum(cuts))], [call(0, 0, 1)], advantage, unit=0)
    cut = assign("r", nodes, calls, advantage, unit=0)
    flat = [w for n in cut.tree.nodes if n.weights for w in n.weights]
    assert flat == [w for n in whole.tree.nodes if n.weights for w in n.weights]


def test_only_the_chosen_agents_samples_are_trained_and_the_others_are_counted():
    calls = [replace(TWO_CALLS[0], agent="planner"), replace(TWO_CALLS[1], agent="planner 2")]
    credited = assign("r", TWO_TURNS, calls, 1.0, unit=0, trained_agents="planner")
    assert (credited.sampled, credited.trained, credited.masked) == (6, 4, {"other_agent": 2})
    both = assign("r", TWO_TURNS, calls, 1.0, unit=0, trained_agents="planner.*")
    assert (both.trained, both.masked) == (6, {})
    nobody = assign("r", TWO_TURNS, TWO_CALLS, 1.0, unit=0, trained_agents="planner")
    assert (nobody.trained, nobody.masked) == (0, {"other_agent": 6})


def test_a_mark_trains_an_agent_besides_those_that_the_run_chose_and_leaves_out_the_others():
    calls = [replace(TWO_CALLS[0], agent="planner"), replace(TWO_CALLS[1], agent="critic")]

    def trained(**chosen: Any) -> tuple[int, dict[str, int]]:
        credited = assign("r", TWO_TURNS, calls, 1.0, unit=0, **chosen)
        return credited.trained, dict(credited.masked)

    assert trained(marked=["critic"]) == (2, {"other_agent": 4})
    assert trained(marked=["critic"], trained_agents="plan.*") == (6, {})
    assert trained(marked=["nobody"]) == (0, {"other_agent": 6})
    assert trained(marked=["crit.*"]) == (0, {"other_agent": 6}), "a mark is a name, not a pattern"
    assert trained(marked=[]) == trained() == (6, {})


def test_a_name_may_be_chosen_as_it_is_also_where_it_reads_as_another_pattern():
    assert TrainedAgents("planner (v2)").trains("planner (v2)") and TrainedAgents("planner (v2)").trains("planner v2")
    assert not TrainedAgents("planner").trains("planner 2") and not TrainedAgents("planner").trains(None)
    assert TrainedAgents().trains(None) and TrainedAgents().everyone and not TrainedAgents(marked=("a",)).everyone


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=2),
    st.none() | st.sampled_from(["a", "b|c", "x"]),
    st.lists(st.sampled_from(["a", "b", "x"]), max_size=2),
)
def test_the_ledger_adds_up_whichever_agents_are_chosen(agents: list[str], pattern: str | None, marked: list[str]):
    """Invariant 3."""
    calls = [replace(one, agent=agent) for one, agent in zip(TWO_CALLS, agents, strict=True)]
    credited = assign("r", TWO_TURNS, calls, 1.0, unit=0, trained_agents=pattern, marked=marked)
    chosen = TrainedAgents(pattern, tuple(marked))
    assert credited.sampled == 6 == credited.trained + sum(credited.masked.values())
    assert credited.trained == sum(tokens for tokens, agent in zip((4, 2), agents, strict=True) if chosen.trains(agent))


def test_what_several_attempts_chose_is_said_once():
    chosen = together([TrainedAgents("w.*", ("a",)), TrainedAgents("w.*", ("b", "a")), TrainedAgents("w.*")])
    assert chosen == TrainedAgents("w.*", ("a", "b")) and str(chosen) == "trained_agents='w.*' and marked: a, b"
    assert str(together([])) == "all agents"
