"""An agent returns triplets that it built itself: what is recorded, in both isolations, over a real store and a real
gateway."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.nouns import GIVEN, Mode, Reason, Status

from . import agents

OFF = [[[1, 2, 3], [4, 5], -1.0]]


async def test_a_returned_triplet_scores_its_own_call_and_others_are_given(world: Any, isolation: str) -> None:
    (rollout,) = await world.run(agents.returns_triplets, [{"rewards": [0.25, None], "off": OFF}], isolation=isolation)
    assert rollout.status is Status.SUCCEEDED and rollout.reward == pytest.approx((0.25 - 1.0) / 2)
    one, two, off = await world.store.calls(rollout.attempt_id)
    assert [call.wire for call in (one, two, off)] == ["chat", "chat", GIVEN]
    rewards = await world.store.rewards(rollout.id)
    assert [(each.call_id, each.value, each.source) for each in rewards] == [
        (one.id, 0.25, "return"),
        (off.id, -1.0, "return"),
        (None, rollout.reward, "return"),
    ]
    nodes = await world.store.nodes(rollout.attempt_id)
    given = {node.id: node for node in nodes if node.call_index == off.index}
    assert [(list(node.token_ids), node.sampled) for node in given.values()] == [([1, 2, 3], False), ([4, 5], False)]
    assert len([node for node in nodes if node.sampled]) == 2, "a matched triplet's copy of the tokens is not recorded"
    attempt = await world.store.get_attempt(rollout.attempt_id)
    assert attempt.output[0] | {"prompt_tokens": 0} == {
        "prompt_tokens": 0, "response_tokens": 3, "reward": 0.25, "metadata": {"turn": 0}
    }  # fmt: skip


async def test_an_agent_without_any_call_may_give_what_is_trained(world: Any) -> None:
    task = {"ask": False, "off": OFF}
    (rollout,) = await world.run(agents.returns_triplets, [task], isolation="thread")
    assert rollout.status is Status.SUCCEEDED and rollout.reward == -1.0
    assert [call.policy for call in await world.store.calls(rollout.attempt_id)] == ["main"]


async def test_triplets_without_rewards_leave_the_reward_to_the_grader(world: Any) -> None:
    task = {"rewards": [None, None], "off": []}
    rollout, _ = await world.one(agents.returns_triplets, tasks=[task], isolation="thread", grader=lambda t, o: len(o))
    assert rollout.reward == 2.0
    rewards = await world.store.rewards(rollout.id)
    assert [(each.source, each.call_id) for each in rewards] == [("grader", None)]


@pytest.mark.parametrize(
    ("task", "reason", "says"),
    [
        ({"ask": False, "off": []}, Reason.EMPTY, "no call reached the endpoint"),
        ({"off": []}, Reason.EMPTY, "returned an empty list and no triplet"),
        ({"off": [[[1], [2], None]]}, Reason.EMPTY, "none of the 1 triplets that the agent returned has a reward"),
        ({"off": [[[1], [], 1.0]]}, Reason.AGENT_ERROR, "has no tokens in its response"),
        ({"off": [[[1], [999], 1.0]]}, Reason.AGENT_ERROR, "token id 999, which is not in the model's vocabulary"),
        ({"off": [[[1], [2], 1e12]]}, Reason.BAD_REWARD, "its reward is 1e+12 (float)"),
    ],
)
async def test_a_bad_list_fails_its_attempt_and_the_calls_stay_recorded(
    world: Any, task: Any, reason: Reason, says: str
) -> None:
    rollout, _ = await world.one(agents.returns_triplets, tasks=[task], isolation="thread")
    assert rollout.status is Status.FAILED and rollout.failure.reason is reason and says in rollout.failure.message
    calls = await world.store.calls(rollout.attempt_id)
    assert [call.wire for call in calls] == (["chat"] * 2 if task.get("ask", True) else [])
    assert await world.store.rewards(rollout.id) == []


async def test_a_validation_may_return_triplets_too(world: Any) -> None:
    (rollout,) = await world.run(
        agents.returns_triplets, [{"rewards": [1.0, 0.0], "off": []}], Mode.VAL, isolation="thread"
    )
    assert rollout.reward == 0.5
