"""Credit of a step: what is compared, what is masked and why, and what a batch-level rule may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.credit import credit_rows, credit_step
from agentlightning.credit.advantages import group_advantages, whitened
from agentlightning.credit.step import Advantage
from agentlightning.nouns import Reason, Status
from agentlightning.records.credit import AttemptCredit, join
from agentlightning.records.traces import AttemptTrace

from .traces import TWO_CALLS, TWO_TURNS, attempt, call, cut_into, group, trace


class Less:
    """A reward less the mean of those that it is compared with."""

    def __init__(self) -> None:
        self.compared: list[list[float]] = []

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        self.compared.append(list(rewards_G))
        return group_advantages(rewards_G, std="none")

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        return advantages_N


class Whitened(Less):
    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        return whitened(advantages_N)


class RunningBaseline(Less):
    """What a step's advantages are less a mean that is carried from step to step."""

    baseline = 0.0

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        return list(rewards_G)

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        before, self.baseline = self.baseline, sum(advantages_N) / len(advantages_N)
        return [value - before for value in advantages_N]


def test_the_rewards_of_a_task_are_compared_with_each_other_and_with_no_other_tasks():
    rule = Less()
    groups = [group(trace("a", 1.0), trace("b", 0.0)), group(trace("c", 5.0), trace("d", 1.0))]
    credited = credit_step(groups, rule)
    assert rule.compared == [[1.0, 0.0], [5.0, 1.0]]
    assert credited.advantages == {"a": 0.5, "b": -0.5, "c": 2.0, "d": -2.0}
    assert credited.groups == {"trained": 2} and credited.compared == {"rollouts of a task": 4}
    assert [node.weights[0] for node in credited.attempts["d-1"].nodes] == [-2.0, -2.0]


def test_where_every_task_is_tried_once_the_batchs_mean_is_the_baseline_and_the_credit_says_so():
    groups = [group(trace("a", 1.0)), group(trace("b", 0.0)), group(trace("c", None, failure=Reason.TIMEOUT))]
    credited = credit_step(groups, Less())
    assert credited.advantages == {"a": 0.5, "b": -0.5}
    assert credited.compared == {"rollouts of the batch": 2} and credited.groups == {"trained": 3}
    assert credited.masked == {"failed: timeout": 6}


def test_a_group_that_failures_left_with_one_is_not_compared_with_other_tasks():
    rule = Less()
    groups = [group(trace("a", 1.0), trace("b", None, failure=Reason.LOST)), group(trace("c", 0.0), trace("d", 1.0))]
    credited = credit_step(groups, rule)
    assert rule.compared == [[0.0, 1.0]] and credited.groups == {"too_few": 1, "trained": 1}
    assert credited.masked == {"too_few_in_group": 6, "failed: lost": 6}


def test_every_reason_why_a_rollout_has_no_advantage_is_named():
    retried = (attempt(id="c-1"), attempt(id="c-2"))
    groups = [
        group(trace("a", 1.0), trace("b", 1.0)),
        group(trace("c", 1.0, *retried), trace("d", 0.0), trace("e", None, status=Status.CANCELLED)),
        group(trace("f", 1.0), trace("g", None, failure=Reason.AGENT_ERROR)),
    ]
    credited = credit_step(groups, Less())
    assert credited.masked == {
        "degenerate_group": 12, "retried": 6, "cancelled": 6, "too_few_in_group": 6, "failed: agent_error": 6,
    }  # fmt: skip
    assert credited.trained == 12 and set(credited.advantages) == {"c", "d"}
    assert credited.attempts["c-1"].trained == 0 and credited.attempts["c-2"].trained == 6


def test_a_failure_that_was_given_a_reward_is_compared_like_any_other():
    groups = [group(trace("a", 1.0), trace("b", -1.0, failure=Reason.AGENT_ERROR))]
    assert credit_step(groups, Less()).advantages == {"a": 1.0, "b": -1.0}


def test_a_batch_level_rule_sees_the_advantages_of_all_groups_together():
    groups = [group(trace("a", 1.0), trace("b", 0.0)), group(trace("c", 5.0), trace("d", 1.0))]
    values = [value for value in credit_step(groups, Whitened()).advantages.values() if isinstance(value, float)]
    assert sum(values) == pytest.approx(0) and sum(value * value for value in values) / 4 == pytest.approx(1, abs=1e-5)
    assert credit_step([group(trace("a", 1.0), trace("b", 1.0))], Whitened()).advantages == {}


def test_a_baseline_may_run_from_step_to_step():
    rule = RunningBaseline()
    groups = [group(trace("a", 1.0), trace("b", 0.0))]
    assert [credit_step(groups, rule).advantages for _ in range(2)] == [{"a": 1.0, "b": 0.0}, {"a": 0.5, "b": -0.5}]


def test_a_rule_that_gives_too_few_advantages_is_refused_by_name():
    class Short(Less):
        def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
            return advantages_N[1:]

    with pytest.raises(ValueError, match="over_batch was given 2 numbers and returned 1"):
        credit_step([group(trace("a", 1.0), trace("b", 0.0))], Short())


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=2, max_size=4), st.data())
def test_advantages_do_not_change_when_a_rollout_is_cut_into_more_or_fewer_rows(
    cuts: list[list[int]], data: st.DataObject
):
    """Invariant 7."""
    rewards = data.draw(st.lists(st.floats(-5, 5, width=16), min_size=len(cuts), max_size=len(cuts)))

    def credited(rows: list[list[int]]) -> tuple[dict[str, Advantage], list[list[float]]]:
        traces = [trace(str(i), rewards[i], cut_into(row, id=f"{i}-1")) for i, row in enumerate(rows)]
        step = credit_step([group(*traces)], Whitened())
        flat = [[w for node in step.attempts[f"{i}-1"].nodes for w in node.per_token()] for i in range(len(rows))]
        return dict(step.advantages), [[w for w in row if w == w] for row in flat]

    assert credited(cuts) == credited([[sum(row)] for row in cuts])


def test_what_is_stored_of_a_step_is_the_credit_of_every_attempt_by_the_policy_that_sampled():
    recorded = attempt(TWO_TURNS, [call(0, 0, 1), call(1, 2, 3, policy="judge")])
    groups = [group(trace("a", 1.0, attempt(id="a-1"), recorded), trace("b", 0.0, attempt(TWO_TURNS, (), id="b-1")))]
    groups.append(group(trace("c", None, attempt((), (), id="c-1"), failure=Reason.LOST)))
    credits = credit_step(groups, Less()).attempts
    rows = credit_rows(groups, credits, "main")
    assert [(row.attempt_id, row.policy) for row in rows] == [
        ("a-1", "main"), ("a", "main"), ("a", "judge"), ("b-1", "main"),
    ]  # fmt: skip
    parts = [AttemptCredit.decode(row.blob) for row in rows]
    assert [[node.node for node in part.nodes] for part in parts] == [[1, 3], [1], [3], [1, 3]]
    assert join(parts[1:3]) == credits["a"] and parts[0] == credits["a-1"]
    assert sum(part.trained for part in parts) == sum(credit.trained for credit in credits.values())


def test_a_name_that_an_agent_of_any_group_has_is_that_agent_alone_in_all_of_them():
    def named(id: str, *agents: str) -> AttemptTrace:
        return attempt(calls=[replace(one, agent=agent) for one, agent in zip(TWO_CALLS, agents, strict=True)], id=id)

    first = group(trace("a", 1.0, named("a-1", "rewrite", "x")), trace("b", 0.0, named("b-1", "rewrite", "x")))
    other = group(trace("c", 1.0, named("c-1", "write", "x")), trace("d", 0.0, named("d-1", "write", "x")))
    searched = credit_step([first], Less(), "write")
    assert searched.attempts["a-1"].trained == 4 and searched.attempts["a-1"].masked == {"other_agent": 2}
    both = credit_step([first, other], Less(), "write")
    assert [both.attempts[id].trained for id in ("a-1", "b-1", "c-1", "d-1")] == [0, 0, 4, 4]
