"""Of what an agent emits one reward is its rollout's, or those of calls and agents count where the credit says so; the
others are counted, with why."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.credit import CreditSettings, unused_rewards
from agentlightning.credit.unused import WHY
from agentlightning.nouns import Reward


def emitted(value: float = 1.0, **more: Any) -> Reward:
    return Reward("r", "a", value, **more)


RETURNED, GRADED = emitted(source="return"), emitted(source="grader")
FAILED = emitted(source="failure_reward")


def counted(rewards: list[Reward], **settings: Any) -> dict[str, int]:
    unused = dict(unused_rewards(rewards, CreditSettings(**settings), scored=True))
    assert set(unused) <= WHY.keys()
    return unused


@pytest.mark.parametrize(
    ("rewards", "unused"),
    [
        ([emitted()], {}),
        ([RETURNED], {}),
        ([emitted(0.1), emitted(0.2), emitted(0.3)], {"not_last": 2}),
        ([emitted(), RETURNED], {"beside_return": 1}),
        ([emitted(), GRADED], {"beside_grader": 1}),
        ([emitted(), FAILED], {"beside_failure_reward": 1}),
        ([emitted(name="format"), emitted()], {"other_name": 1}),
        ([emitted(call_id="c"), emitted()], {"for_a_call": 1}),
        ([emitted(tool_call_id="t", source="rule"), emitted()], {"for_a_call": 1}),
        ([emitted(agent="planner"), emitted(), RETURNED], {"for_an_agent": 1, "beside_return": 1}),
        ([emitted(call_id="c"), emitted(call_id="d")], {"for_a_call": 1}),
    ],
)
def test_a_reward_that_changes_no_weight_is_counted_with_why(rewards: list[Reward], unused: dict[str, int]) -> None:
    assert counted(rewards) == unused


@pytest.mark.parametrize("scheme", ["call", "mixed", "discounted"])
def test_where_credit_uses_rewards_of_calls_none_that_names_one_is_unused(scheme: str) -> None:
    of_calls = [emitted(call_id="c"), emitted(tool_call_id="t", source="rule"), emitted(call_id="c")]
    assert counted(of_calls, scheme=scheme) == {}
    assert counted([*of_calls, emitted(call_id="c", name="format")], scheme=scheme) == {"other_name": 1}
    assert counted([*of_calls, emitted()], scheme=scheme) == ({"for_the_rollout": 1} if scheme == "call" else {})


def test_where_credit_tells_agents_apart_the_last_reward_of_each_is_used() -> None:
    rewards = [emitted(agent="planner"), emitted(agent="critic"), emitted(agent="planner"), RETURNED]
    assert counted(rewards, by_agent=True) == {"not_last": 1}
    assert counted([*rewards[:3], FAILED], by_agent=True) == {"beside_failure_reward": 3}, (
        "a failure is worth what was said of it"
    )
    assert counted(rewards) == {"for_an_agent": 3}


def test_what_a_failed_attempt_emitted_is_unused() -> None:
    settings = CreditSettings()
    assert dict(unused_rewards([emitted(), emitted(name="x")], settings, scored=False)) == {"failed": 2}
    assert dict(unused_rewards([], settings, scored=False)) == {}
