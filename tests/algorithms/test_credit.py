"""What a step's credit is for GRPO, from scripted traces: the batch that is learned and the accounts agree with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentlightning import GRPO
from agentlightning.algorithms.policy_gradient import PolicyGradient
from agentlightning.credit import train_batch
from agentlightning.credit.advantages import group_advantages, whitened
from agentlightning.errors import ConfigError
from agentlightning.nouns import Reason
from agentlightning.settings.fields import RunConfig
from tests.credit.traces import attempt, group, trace

GROUPS = [
    group(trace("a", 1.0), trace("b", 0.0), trace("c", None, failure=Reason.TIMEOUT), number=0),
    group(trace("d", 2.0, attempt(id="d-1"), attempt(id="d-2")), trace("e", 2.0), number=1),
    group(trace("f", 3.0), trace("g", 0.0), number=2),
]


class Single(PolicyGradient):
    """One rollout for each task."""

    name = "single"

    def rollouts_per_task(self) -> int:
        return 1

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        return group_advantages(rewards_G, std="none")


class Whitened(GRPO):
    """GRPO whose advantages are whitened over the batch."""

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        return whitened(advantages_N)


def test_a_grpo_step_trains_the_tokens_of_groups_that_differ_and_names_why_others_are_masked():
    credited = GRPO(group_size=3).credit_of(GROUPS)
    assert credited.advantages == pytest.approx(
        {"a": 0.5**0.5, "b": -(0.5**0.5), "f": 0.5**0.5, "g": -(0.5**0.5)}, abs=1e-5
    )
    assert credited.groups == {"trained": 2, "degenerate": 1}
    assert credited.masked == {"failed: timeout": 6, "retried": 6, "degenerate_group": 12}
    assert credited.trained == 24


def test_the_batch_has_the_advantages_as_weights_and_nothing_else():
    credited = GRPO(group_size=3).credit_of(GROUPS)
    batch = train_batch(GROUPS, credited.attempts)
    learned = {
        tree.rollout_id: {weight for node in tree.nodes for weight in node.columns.get("advantage", ())}
        for trees in batch.groups
        for tree in trees
    }
    for rollout, weights in learned.items():
        assert list(weights) == pytest.approx([credited.advantages[rollout]], abs=1e-6)
    assert set(learned) == set(credited.advantages)


def test_a_task_that_is_tried_once_is_compared_with_the_batch():
    singles = [group(trace("a", 3.0)), group(trace("b", 1.0)), group(trace("c", 2.0))]
    credited = Single().credit_of(singles)
    assert credited.advantages == {"a": 1.0, "b": -1.0, "c": 0.0}
    assert credited.compared == {"rollouts of the batch": 3}


def test_filtering_tasks_by_their_rewards_needs_more_than_one_rollout_of_each():
    with pytest.raises(ConfigError, match="each task gets a single rollout"):
        Single(dynamic_filtering=True).check(RunConfig())


def test_a_subclass_may_change_a_steps_advantages_over_the_whole_batch():
    plain, white = GRPO(std="none").credit_of(GROUPS), Whitened(std="none").credit_of(GROUPS)
    assert plain.advantages == {"a": 0.5, "b": -0.5, "f": 1.5, "g": -1.5}
    spread = ((0.25 + 0.25 + 2.25 + 2.25) / 4) ** 0.5
    assert white.advantages == pytest.approx({id: value / spread for id, value in plain.advantages.items()}, abs=1e-5)
    assert white.masked == plain.masked
