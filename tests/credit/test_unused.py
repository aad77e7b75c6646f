"""Of what an agent emits one reward is its rollout's; the others are counted, with why."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.credit import unused_rewards
from agentlightning.credit.unused import WHY
from agentlightning.nouns import Reward


def emitted(value: float = 1.0, **more: Any) -> Reward:
    return Reward("r", "a", value, **more)


RETURNED, GRADED = emitted(source="return"), emitted(source="grader")


@pytest.mark.parametrize(
    ("rewards", "unused"),
    [
        ([emitted()], {}),
        ([RETURNED], {}),
        ([emitted(0.1), emitted(0.2), emitted(0.3)], {"not_last": 2}),
        ([emitted(), RETURNED], {"beside_return": 1}),
        ([emitted(), GRADED], {"beside_grader": 1}),
        ([emitted(), emitted(source="failure_reward")], {"beside_failure_reward": 1}),
        ([emitted(name="format"), emitted()], {"other_name": 1}),
        ([emitted(call_id="c"), emitted()], {"for_a_call": 1}),
        ([emitted(agent="planner"), emitted(), RETURNED], {"for_an_agent": 1, "beside_return": 1}),
        ([emitted(call_id="c"), emitted(call_id="d")], {"for_a_call": 1}),
    ],
)
def test_a_reward_that_changes_no_weight_is_counted_with_why(rewards: list[Reward], unused: dict[str, int]) -> None:
    assert dict(unused_rewards(rewards, scored=True)) == unused
    assert set(unused) <= WHY.keys()


def test_what_a_failed_attempt_emitted_is_unused() -> None:
    assert dict(unused_rewards([emitted(), emitted(name="x")], scored=False)) == {"failed": 2}
    assert dict(unused_rewards([], scored=False)) == {}
