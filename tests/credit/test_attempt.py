"""Credit of one attempt, from its record to weights: what is trained, what is masked, and that both are counted."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentlightning.agent.trained_agents import as_search
from agentlightning.credit import TrainedAgents, credit_attempt, together, train_tree
from agentlightning.nouns import Call, CallStatus, KeptIds, Node
from agentlightning.records.credit import AttemptCredit

from .traces import TWO_CALLS, TWO_TURNS, attempt, call, cut_into, given_node, sampled_node


def credit(
    nodes: Sequence[Node], calls: Sequence[Call], worth: Any, *, marked: Sequence[str] = (), **more: Any
) -> AttemptCredit:
    return credit_attempt(attempt(nodes, calls, marked=marked), worth, **more)


def weights(credited: AttemptCredit) -> list[list[float]]:
    return [list(node.per_token()) for node in credited.nodes]


def test_every_sampled_token_of_a_rollout_gets_its_advantage():
    credited = credit(TWO_TURNS, TWO_CALLS, 0.5)
    assert weights(credited) == [[0.5] * 4, [0.5] * 2]
    assert (credited.sampled, credited.trained, credited.masked) == (6, 6, {})


def test_only_sampled_tokens_are_trained_whatever_role_the_text_has():
    credited = credit(TWO_TURNS, TWO_CALLS, 1.0)
    assert [node.node for node in credited.nodes] == [1, 3]
    tree = train_tree("r", attempt(), credited, unit=0)
    assert [bool(node.columns) for node in tree.nodes] == [False, True, False, True]


def test_a_rollout_without_advantage_is_masked_under_the_reason_given():
    credited = credit(TWO_TURNS, TWO_CALLS, None, mask="failed: timeout")
    assert credited.trained == 0 and credited.masked == {"failed: timeout": 6}


def test_an_abandoned_call_is_masked_and_the_rest_of_its_attempt_trained():
    calls = [replace(TWO_CALLS[0], status=CallStatus.ABANDONED), TWO_CALLS[1]]
    credited = credit(TWO_TURNS, calls, 1.0)
    assert credited.trained == 2 and credited.masked == {"abandoned": 4}


def test_best_of_n_samples_the_agent_did_not_continue_are_masked():
    nodes = [
        given_node(0, None, 5),
        sampled_node(1, 0, 4),
        sampled_node(2, 0, 6),
        given_node(3, 2, 1, 1),
        sampled_node(4, 3, 2, 1),
    ]
    credited = credit(nodes, [call(0, 0, 1, 2), call(1, 3, 4)], 1.0)
    assert credited.masked == {"unused_sample": 4} and credited.trained == 8


def test_a_sample_cut_in_two_nodes_by_a_new_version_is_masked_whole():
    nodes = [given_node(0, None, 5), sampled_node(1, 0, 4), sampled_node(2, 1, 3)]
    credited = credit(nodes, [call(0, 0, 2, status=CallStatus.ABANDONED)], 1.0)
    assert credited.masked == {"abandoned": 7} and credited.trained == 0


def test_a_token_that_was_the_only_choice_is_masked_as_forced():
    kept = KeptIds(array("i", [1, 2, 3, 4]), array("i", [0, 2, 3, 4]))
    nodes = [given_node(0, None, 2), sampled_node(1, 0, 3, kept=kept)]
    credited = credit(nodes, [call(0, 0, 1)], 1.0)
    first, *forced = credited.nodes[0].per_token()
    assert first == 1.0 and all(map(math.isnan, forced))
    assert credited.trained == 1 and credited.masked == {"forced": 2}


def test_under_a_grammar_a_token_that_took_the_whole_kept_mass_is_masked_as_forced():
    kept = array("f", [-1.0, -0.5, -1.0])
    nodes = [given_node(0, None, 2), replace(sampled_node(1, 0, 3), log_kept=kept)]
    credited = credit(nodes, [call(0, 0, 1)], 1.0)
    assert [math.isnan(weight) for weight in credited.nodes[0].per_token()] == [True, False, True]
    assert credited.masked == {"forced": 2}


def test_greedy_samples_are_never_trained():
    credited = credit(TWO_TURNS, [call(0, 0, 1, temperature=0.0), TWO_CALLS[1]], 1.0)
    assert credited.masked == {"greedy": 4} and credited.trained == 2


@given(
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    statuses=st.lists(st.sampled_from([CallStatus.COMPLETE, CallStatus.ABANDONED]), min_size=5, max_size=5),
    advantage=st.one_of(st.none(), st.floats(-3, 3)),
)
def test_nothing_is_lost_trained_and_masked_add_up(
    cuts: list[int], statuses: list[CallStatus], advantage: float | None
):
    made = cut_into(cuts)
    calls = [replace(one, status=status) for one, status in zip(made.calls, statuses, strict=False)]
    credited = credit(made.nodes, calls, advantage)
    assert credited.sampled == sum(cuts) == credited.trained + sum(credited.masked.values())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(-2, 2))
def test_credit_belongs_to_the_rollout_however_it_is_cut_into_rows(cuts: list[int], advantage: float):
    """Invariant 7: the weight of a token does not depend on how many calls its rollout made."""
    whole = credit([given_node(0, None, 3), sampled_node(1, 0, sum(cuts))], [call(0, 0, 1)], advantage)
    cut = credit_attempt(cut_into(cuts), advantage)
    assert [w for row in weights(cut) for w in row] == [w for row in weights(whole) for w in row]


def test_samples_without_a_recorded_call_are_never_trained():
    credited = credit(TWO_TURNS, TWO_CALLS[:1], 1.0)
    assert credited.trained == 4 and credited.masked == {"unrecorded_call": 2}


def test_each_call_may_be_worth_something_of_its_own_and_one_that_is_not_named_is_masked():
    assert weights(credit(TWO_TURNS, TWO_CALLS, {0: 0.5, 1: -2.0})) == [[0.5] * 4, [-2.0] * 2]
    one = credit(TWO_TURNS, TWO_CALLS, {1: -2.0})
    assert (one.trained, one.masked) == (2, {"call_without_reward": 4})


def test_only_the_chosen_agents_samples_are_trained_and_the_others_are_counted():
    calls = [replace(TWO_CALLS[0], agent="planner"), replace(TWO_CALLS[1], agent="planner 2")]
    credited = credit(TWO_TURNS, calls, 1.0, trained_agents="planner")
    assert (credited.sampled, credited.trained, credited.masked) == (6, 4, {"other_agent": 2})
    both = credit(TWO_TURNS, calls, 1.0, trained_agents="planner.*")
    assert (both.trained, both.masked) == (6, {})
    nobody = credit(TWO_TURNS, TWO_CALLS, 1.0, trained_agents="planner")
    assert (nobody.trained, nobody.masked) == (0, {"other_agent": 6})


def test_a_mark_trains_an_agent_besides_those_that_the_run_chose_and_leaves_out_the_others():
    calls = [replace(TWO_CALLS[0], agent="planner"), replace(TWO_CALLS[1], agent="critic")]

    def trained(**chosen: Any) -> tuple[int, dict[str, int]]:
        credited = credit(TWO_TURNS, calls, 1.0, **chosen)
        return credited.trained, dict(credited.masked)

    assert trained(marked=["critic"]) == (2, {"other_agent": 4})
    assert trained(marked=["critic"], trained_agents="plan.*") == (6, {})
    assert trained(marked=["nobody"]) == (0, {"other_agent": 6})
    assert trained(marked=["crit.*"]) == (0, {"other_agent": 6}), "a mark is a name, not a pattern"
    assert trained(marked=[]) == trained() == (6, {})


def test_a_name_may_be_chosen_as_it_is_also_where_it_reads_as_another_pattern():
    assert TrainedAgents("planner (v2)").trains("planner (v2)") and TrainedAgents("planner (v2)").trains("planner v2")
    assert not TrainedAgents("planner").trains(None)
    assert TrainedAgents().trains(None) and TrainedAgents().everyone and not TrainedAgents(marked=("a",)).everyone


def test_a_name_that_an_agent_has_is_that_agent_alone_and_any_other_pattern_is_searched():
    calls = [replace(TWO_CALLS[0], agent="write_query"), replace(TWO_CALLS[1], agent="rewrite_query")]
    both = credit(TWO_TURNS, calls, 1.0, trained_agents="write")
    assert (both.trained, both.masked) == (6, {})
    calls[0] = replace(calls[0], agent="write")
    alone = credit(TWO_TURNS, calls, 1.0, trained_agents="write")
    assert (alone.trained, alone.masked) == (4, {"other_agent": 2})
    named = TrainedAgents("write").among(["write", "rewrite"])
    assert named.trains("write") and not named.trains("rewrite")
    assert TrainedAgents("write").among(["rewrite", None]).trains("rewrite")
    met = {"write", "rewrite_query"}
    elsewhere = credit(TWO_TURNS, [calls[1]] * 2, 1.0, trained_agents=as_search("write", met))
    assert elsewhere.trained == 0, "another attempt has the agent of that name"
    assert as_search("writ", met) == "writ" and as_search(None, met) is None


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=2),
    st.none() | st.sampled_from(["a", "b|c", "x"]),
    st.lists(st.sampled_from(["a", "b", "x"]), max_size=2),
)
def test_the_ledger_adds_up_whichever_agents_are_chosen(agents: list[str], pattern: str | None, marked: list[str]):
    """Invariant 3."""
    calls = [replace(one, agent=agent) for one, agent in zip(TWO_CALLS, agents, strict=True)]
    credited = credit(TWO_TURNS, calls, 1.0, trained_agents=pattern, marked=marked)
    chosen = TrainedAgents(pattern, tuple(marked)).among(agents)
    assert credited.sampled == 6 == credited.trained + sum(credited.masked.values())
    assert credited.trained == sum(tokens for tokens, agent in zip((4, 2), agents, strict=True) if chosen.trains(agent))


def test_what_several_attempts_chose_is_said_once():
    chosen = together([TrainedAgents("w.*", ("a",)), TrainedAgents("w.*", ("b", "a")), TrainedAgents("w.*")])
    assert chosen == TrainedAgents("w.*", ("a", "b")) and str(chosen) == "trained_agents='w.*' and marked: a, b"
    assert str(together([])) == "all agents"
