"""Schemes of credit: what each call is worth, what it is compared with, and that rows change nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.credit import CreditSettings, StepCredit, credit_step
from agentlightning.credit.advantages import group_advantages, whitened
from agentlightning.credit.schemes import SCHEMES
from agentlightning.errors import ConfigError
from agentlightning.nouns import Call, CallStatus, Message, Node, Reason, Reward, ToolCall
from agentlightning.records.traces import AttemptTrace, Group, Trace

from .traces import TWO_CALLS, TWO_TURNS, attempt, call, given_node, group, sampled_node, trace


class Less:
    """A reward less the mean of those that it is compared with."""

    def __init__(self) -> None:
        self.compared: list[list[float]] = []
        self.batches: list[list[float]] = []

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        self.compared.append(list(rewards_G))
        return group_advantages(rewards_G, std="none")

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        self.batches.append(list(advantages_N))
        return advantages_N


class Whitened(Less):
    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        return whitened(advantages_N)


def reward(value: float, call_id: str | None = None, **more: Any) -> Reward:
    return Reward("r", "a", value, call_id=call_id, **more)


def rollout(id: str, final: float | None, *rewards: Reward, agents: Sequence[str | None] = (None, None)) -> Trace:
    """Two turns, of 4 and 2 sampled tokens."""
    calls = [replace(one, agent=agent) for one, agent in zip(TWO_CALLS, agents, strict=True)]
    return trace(id, final, attempt(TWO_TURNS, calls, rewards, id=f"{id}-1"))


def credited(
    *groups: Group, rule: Less | None = None, trained_agents: str | None = None, **settings: Any
) -> StepCredit:
    step = credit_step(groups, rule or Less(), trained_agents, CreditSettings(**settings))
    sampled = sum(credit.sampled for credit in step.attempts.values())
    assert sampled == step.trained + sum(step.masked.values())
    return step


def weights(step: StepCredit, rollout_id: str) -> list[float | str]:
    """For each call what its tokens weigh, or why they are masked."""
    nodes = step.attempts[f"{rollout_id}-1"].nodes
    return [node.weights[0] if node.trained else node.why or "?" for node in nodes]


def test_by_default_the_whole_episodes_reward_goes_to_every_call_and_those_of_calls_change_nothing():
    plain = credited(group(rollout("a", 1.0), rollout("b", 0.0)))
    named = credited(group(rollout("a", 1.0, reward(9.0, "c0"), reward(1.0)), rollout("b", 0.0)))
    assert weights(plain, "a") == weights(named, "a") == [0.5, 0.5] and weights(plain, "b") == [-0.5, -0.5]
    assert named.advantages == {"a": 0.5, "b": -0.5} and named.compared == {"rollouts of a task": 2}


def test_a_calls_own_reward_is_compared_with_those_of_all_calls_of_the_task():
    rule = Less()
    step = credited(
        group(rollout("a", 1.0, reward(3.0, "c0"), reward(1.0, "c1")), rollout("b", 0.0, reward(2.0, "c1"))),
        rule=rule, scheme="call",
    )  # fmt: skip
    assert rule.compared == [[3.0, 1.0, 2.0]] and step.compared == {"calls of a task": 3}
    assert weights(step, "a") == [1.0, -1.0] and weights(step, "b") == ["call_without_reward", 0.0]
    assert step.advantages == {"a": {0: 1.0, 1: -1.0}, "b": {1: 0.0}}


def test_emitting_a_reward_for_a_call_changes_that_calls_weight_and_no_others_reward():
    def weigh(value: float) -> list[float | str]:
        first = rollout("a", 1.0, reward(value, "c0"), reward(1.0, "c1"))
        return weights(credited(group(first, rollout("b", 0.0, reward(0.0, "c0"))), scheme="call"), "a")

    assert weigh(2.0) == [1.0, 0.0] and weigh(5.0) == [3.0, -1.0]


def test_a_calls_rewards_add_up_and_one_that_names_a_tool_call_is_that_calls_which_made_it():
    tools = Message("assistant", tool_calls=(ToolCall("t1", "add", "{}"), ToolCall("t2", "add", "{}")))
    asked = replace(TWO_CALLS[0], samples=(replace(TWO_CALLS[0].samples[0], message=tools),))
    rewards = [reward(1.0, "c0"), reward(-0.5, tool_call_id="t2", source="rule"), reward(4.0, "c0", name="format")]
    one = trace("a", 1.0, attempt(TWO_TURNS, [asked, TWO_CALLS[1]], [*rewards, reward(0.0, "c1")], id="a-1"))
    assert weights(credited(group(one), scheme="call"), "a") == [0.25, -0.25]


def test_both_are_compared_with_their_like_weighed_and_added():
    rule = Less()
    first, second = rollout("a", 1.0, reward(1.0), reward(2.0, "c0")), rollout("b", 0.0, reward(0.0), reward(1.0, "c1"))
    step = credited(group(first, second), rule=rule, scheme="mixed", episode_weight=2.0, call_weight=0.5)
    assert rule.compared == [[1.0, 0.0], [2.0, 1.0]]
    assert weights(step, "a") == [2 * 0.5 + 0.5 * 0.5, 2 * 0.5] and weights(step, "b") == [-1.0, -1.0 - 0.25]
    assert step.compared == {"rollouts of a task": 2, "calls of a task": 2}
    assert rule.batches == [[0.5, -0.5], [0.5, -0.5]]


def test_mixed_without_rewards_of_calls_is_the_whole_episodes():
    groups = [group(rollout("a", 1.0), rollout("b", 0.0)), group(rollout("c", 3.0), rollout("d", 1.0))]
    mixed, whole = (credited(*groups, rule=Whitened(), scheme=scheme) for scheme in ("mixed", "episode"))
    assert mixed.attempts == whole.attempts and mixed.advantages == whole.advantages
    assert mixed.compared == whole.compared and mixed.groups == whole.groups


def test_an_episode_whose_reward_is_made_of_its_calls_is_not_counted_twice():
    """The last emitted reward names a call; or the agent returned triplets, whose mean is the rollout's. What no call's
    own reward says, the episode's does."""
    triplets = [reward(3.0, "c0", source="return"), reward(3.0, source="return")]
    other = rollout("b", 0.0, reward(1.0, "c0"), reward(0.0, source="return"))
    for made in (rollout("a", 3.0, reward(3.0, "c0")), rollout("a", 3.0, *triplets)):
        rule = Less()
        step = credited(group(made, other), rule=rule, scheme="mixed")
        assert rule.compared == [[3.0, 0.0], [3.0, 1.0]]
        assert weights(step, "a") == [1.0, 1.5] and weights(step, "b") == [-1.5 - 1.0, -1.5]
    rule = Less()
    both = [reward(3.0, "c0", source="return"), reward(1.0, "c1", source="return"), reward(2.0, source="return")]
    credited(group(rollout("a", 2.0, *both)), rule=rule, scheme="discounted", discount=0.5)
    assert rule.compared == [[3.5, 1.0]]


def test_what_comes_later_counts_for_the_calls_before_it_discounted():
    """G_t = r_t + discount * G_{t+1}, and the episode's reward at the last call."""
    rule = Less()
    one = rollout("a", 1.0, reward(2.0, "c0"), reward(4.0, "c1"), reward(1.0, source="return"))
    step = credited(group(one, rollout("b", 0.0)), rule=rule, scheme="discounted", discount=0.5)
    assert rule.compared == [[2.0 + 0.5 * 5.0, 5.0, 0.0, 0.0]]
    assert step.compared == {"calls of a task": 4} and weights(step, "b") == [-2.375, -2.375]


def test_a_task_tried_once_has_all_its_calls_as_a_group_where_calls_have_rewards():
    rule = Less()
    groups = [
        group(rollout("a", 1.0, reward(1.0, "c0"), reward(0.0, "c1"))),
        group(rollout("b", 1.0, reward(5.0, "c0"), reward(1.0, "c1"))),
    ]
    step = credited(*groups, rule=rule, scheme="call")
    assert rule.compared == [[1.0, 0.0], [5.0, 1.0]] and step.compared == {"calls of a task": 4}
    assert weights(step, "a") == [0.5, -0.5] and weights(step, "b") == [2.0, -2.0]
    assert step.groups == {"trained": 2}


@pytest.mark.parametrize(
    ("scheme", "compared"),
    [("episode", {"rollouts of the batch": 2}), ("mixed", {"rollouts of the batch": 2}),
     ("discounted", {"calls of the batch": 4})],
)  # fmt: skip
def test_a_task_tried_once_without_rewards_of_calls_has_the_batchs_mean_for_a_baseline(
    scheme: str, compared: dict[str, int]
):
    step = credited(group(rollout("a", 1.0)), group(rollout("b", 0.0)), scheme=scheme, **_no_discount(scheme))
    assert step.compared == compared and step.groups == {"trained": 2}
    assert weights(step, "a") == [0.5, 0.5] and weights(step, "b") == [-0.5, -0.5]


def _no_discount(scheme: str) -> dict[str, Any]:
    return {"discount": 1.0} if scheme == "discounted" else {}


def test_agents_are_compared_with_their_like_where_asked():
    rule = Less()
    agents = ("planner", "critic")
    first = rollout("a", 1.0, reward(3.0, agent="critic"), reward(1.0, source="return"), agents=agents)
    second = rollout("b", 0.0, reward(0.0, source="return"), agents=agents)
    third = rollout("c", 9.0, reward(9.0, source="return"), agents=("planner", "planner"))
    step = credited(group(first, second, third), rule=rule, by_agent=True)
    assert rule.compared == [[1.0, 0.0, 9.0], [3.0, 0.0]], "the third had no critic, so none is compared with it"
    assert weights(step, "a") == pytest.approx([1 - 10 / 3, 1.5]) and weights(step, "b") == pytest.approx(
        [-10 / 3, -1.5]
    )
    assert step.compared == {"rollouts of a task, by agent": 5}


def test_an_agent_that_is_not_trained_is_compared_with_nobody_where_agents_are_told_apart():
    rule = Less()
    groups = [group(*(rollout(id, value, agents=("planner", "critic")) for id, value in (("a", 1.0), ("b", 0.0))))]
    step = credited(*groups, rule=rule, by_agent=True, trained_agents="planner")
    assert rule.compared == [[1.0, 0.0]] and weights(step, "a") == [0.5, "other_agent"]


def test_only_calls_that_may_be_trained_are_compared():
    rule = Less()
    calls = [replace(TWO_CALLS[0], status=CallStatus.ABANDONED), TWO_CALLS[1]]
    left = trace("a", 1.0, attempt(TWO_TURNS, calls, [reward(9.0, "c0"), reward(1.0, "c1")], id="a-1"))
    step = credited(group(left, rollout("b", 0.0, reward(0.0, "c0"))), rule=rule, scheme="call")
    assert rule.compared == [[1.0, 0.0]] and weights(step, "a") == ["abandoned", 0.5]


def test_a_failure_is_masked_whatever_its_calls_were_given():
    """Invariant 4."""
    failed = trace("c", None, attempt(TWO_TURNS, TWO_CALLS, [reward(9.0, "c0")], id="c-1"), failure=Reason.TIMEOUT)
    for scheme in SCHEMES:
        rule = Less()
        first = rollout("a", 1.0, reward(1.0), reward(1.0, "c0"), reward(0.5, "c1"))
        step = credited(
            group(first, rollout("b", 0.0, reward(0.0), reward(0.0, "c0")), failed), rule=rule, scheme=scheme
        )
        assert set(weights(step, "c")) == {"failed: timeout"} and not any(9.0 in rewards for rewards in rule.compared)


def test_equal_rewards_of_calls_tell_nothing_and_a_single_one_has_nothing_to_be_compared_with():
    equal = credited(group(rollout("a", 1.0, reward(1.0, "c0"), reward(1.0, "c1"))), scheme="call")
    assert equal.masked == {"degenerate_group": 6} and equal.groups == {"degenerate": 1} and equal.advantages == {}
    single = credited(group(rollout("a", 1.0, reward(1.0, "c0"))), scheme="call")
    assert single.masked == {"too_few_in_group": 4, "call_without_reward": 2} and single.groups == {"too_few": 1}


def test_a_setting_that_its_scheme_does_not_read_is_refused():
    with pytest.raises(ConfigError, match="discount=0.5 is read only by scheme='discounted', and it is 'episode'"):
        CreditSettings(discount=0.5)
    with pytest.raises(ConfigError, match="call_weight=2 is read only by scheme='mixed', and it is 'call'"):
        CreditSettings(scheme="call", call_weight=2.0)
    with pytest.raises(ConfigError, match="step"):
        CreditSettings(scheme="step")


# --------------------------------------------------------------------------- rows

CUTS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3)
"""For each call the tokens of the nodes that its sample is cut into."""


def cut(id: str, cuts: Sequence[Sequence[int]], rewards: Mapping[int, float], *, apart: bool = False) -> AttemptTrace:
    """A call for each; every call in a conversation, and so a row, of its own where they are ``apart``."""
    nodes: list[Node] = []
    calls: list[Call] = []
    end: int | None = None
    for index, tokens in enumerate(cuts):
        prompt = len(nodes)
        nodes.append(given_node(prompt, None if apart else end, 2, index))
        for count in tokens:
            nodes.append(sampled_node(len(nodes), len(nodes) - 1, count, index))
        end = len(nodes) - 1
        calls.append(call(index, prompt, end))
    return attempt(nodes, calls, [reward(value, f"c{index}") for index, value in rewards.items()], id=f"{id}-1")


@given(st.lists(CUTS, min_size=1, max_size=3), st.sampled_from(sorted(SCHEMES)), st.booleans(), st.data())
def test_advantages_of_calls_do_not_change_when_they_are_cut_into_more_or_fewer_rows(
    rollouts: list[list[list[int]]], scheme: str, limited: bool, data: st.DataObject
):
    """Invariant 7: neither when a call's sample is cut, nor when calls share a row, nor when rows are limited."""
    values = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    finals = [data.draw(values) for _ in rollouts]
    own = [{i: data.draw(values) for i in range(len(cuts)) if data.draw(st.booleans())} for cuts in rollouts]

    def advantages(*, whole: bool, apart: bool, **limits: Any) -> tuple[Any, list[list[float]]]:
        traces = [
            trace(str(i), finals[i], cut(str(i), [[sum(t)] if whole else t for t in cuts], own[i], apart=apart))
            for i, cuts in enumerate(rollouts)
        ]
        step = credited(group(*traces), rule=Whitened(), scheme=scheme, **limits)
        flat = [[w for node in step.attempts[f"{i}-1"].nodes for w in node.per_token()] for i in range(len(rollouts))]
        return step.advantages, [[w for w in row if w == w] for row in flat]

    once = advantages(whole=True, apart=False)
    assert advantages(whole=False, apart=False) == once == advantages(whole=True, apart=True)
    if limited:
        assert advantages(whole=False, apart=True, max_rows=1)[0] == once[0]
