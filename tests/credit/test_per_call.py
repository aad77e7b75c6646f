"""Credit per call, from rewards that name calls: the form that credit has carries it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentlightning.credit import credit_attempt
from agentlightning.credit.advantages import group_advantages
from agentlightning.credit.per_call import call_advantages, call_returns
from agentlightning.nouns import Reward

from .traces import TWO_CALLS, TWO_TURNS, attempt, call, cut_into, given_node, sampled_node


def reward(value: float, call_id: str | None = None, **more: Any) -> Reward:
    return Reward("r", "a", value, call_id=call_id, **more)


def centred(rewards: Any) -> list[float]:
    return group_advantages(rewards, std="none")


def test_a_calls_return_is_the_sum_of_its_own_and_later_rewards():
    rewards = [reward(1.0, "c0"), reward(2.0, "c1"), reward(0.5, "c1")]
    recorded = attempt(TWO_TURNS, TWO_CALLS, rewards)
    assert call_returns(recorded) == {0: 3.5, 1: 2.5}
    assert call_returns(recorded, discount=0.5) == {0: 2.25, 1: 2.5}


def test_a_call_may_be_worth_its_own_reward_alone():
    recorded = attempt(TWO_TURNS, TWO_CALLS, [reward(2.0, "c1")])
    assert call_returns(recorded, discount=None) == {1: 2.0}
    assert call_returns(recorded) == {0: 2.0, 1: 2.0}


def test_rewards_of_rollouts_and_of_other_names_are_no_calls():
    recorded = attempt(TWO_TURNS, TWO_CALLS, [reward(1.0), reward(1.0, "c0", name="format"), reward(1.0, agent="x")])
    assert call_returns(recorded) == {} == call_returns(recorded, discount=None)


def test_a_call_that_sampled_nothing_has_no_advantage_and_its_reward_counts_for_those_before_it():
    recorded = attempt(TWO_TURNS[:2], [call(0, 0, 1), call(1, 0)], [reward(2.0, "c1")])
    assert call_returns(recorded) == {0: 2.0}


def test_all_calls_of_a_tasks_attempts_are_one_group():
    first = attempt(TWO_TURNS, TWO_CALLS, [reward(3.0, "c0")])
    second = attempt(TWO_TURNS, TWO_CALLS, [reward(1.0, "c1")])
    assert call_advantages([first, second], centred) == [{0: 1.75, 1: -1.25}, {0: -0.25, 1: -0.25}]
    assert call_advantages([attempt(), first], centred, discount=None) == [{}, {}], (
        "a single reward is compared with none"
    )
    credited = credit_attempt(first, call_advantages([first, second], centred)[0])
    assert [list(node.per_token()) for node in credited.nodes] == [[1.75] * 4, [-1.25] * 2]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_call_whose_sample_is_cut_into_nodes_counts_once(cuts: list[int]):
    """Invariant 7."""
    rewards = [reward(2.0, "c0"), reward(1.0, "c1")]
    nodes = [given_node(0, None, 3)]
    for i, tokens in enumerate(cuts):
        nodes.append(sampled_node(i + 1, i, tokens))
    nodes += [given_node(len(nodes), len(nodes) - 1, 2, 1), sampled_node(len(nodes) + 1, len(nodes), 2, 1)]
    cut = attempt(nodes, [call(0, 0, len(cuts)), call(1, len(cuts) + 1, len(cuts) + 2)], rewards)
    whole = attempt(cut_into([sum(cuts), 2]).nodes, cut_into([sum(cuts), 2]).calls, rewards)
    assert call_advantages([cut], centred) == call_advantages([whole], centred)
    by_call = call_advantages([cut], centred)[0]
    weights = [credit_attempt(one, by_call) for one in (cut, whole)]
    flat = [[weight for node in one.nodes for weight in node.per_token()] for one in weights]
    assert flat[0] == flat[1]
