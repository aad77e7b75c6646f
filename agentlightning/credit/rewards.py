"""Which of an attempt's rewards is whose: its rollout's, an agent's, a call's. Pure.

A reward that counts has the name ``reward``; others are recorded beside it. One that names a tool call is that of the
call which made the tool call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentlightning.nouns import Reward
from agentlightning.records.traces import AttemptTrace, Trace

NAME = "reward"


def last_reward(emitted: Sequence[Reward]) -> Reward | None:
    """Of what an agent emitted the last ``reward`` for the whole rollout; where there is none, the last one for a part
    of it. Rules never score a rollout."""
    named = [reward for reward in emitted if reward.name == NAME and reward.source == "emit"]
    whole = [reward for reward in named if not of_call(reward) and reward.agent is None]
    return (whole or named or [None])[-1]


def decided(rewards: Iterable[Reward]) -> Reward | None:
    """The one that makes what was emitted beside the point: returned, graded, or that of a failure."""
    final = ("return", "grader", "failure_reward")
    return next((reward for reward in rewards if reward.source in final and not of_call(reward)), None)


def final_reward(trace: Trace) -> float:
    """The reward of a rollout that has one."""
    assert trace.rollout.reward is not None
    return trace.rollout.reward


def whole_reward(trace: Trace, agent: str | None = None) -> float:
    """The reward of the whole episode; for an ``agent`` the last one that names it, where there is one."""
    own = None if agent is None else agent_rewards(_rewards(trace)).get(agent)
    return final_reward(trace) if own is None else own.value


def own_reward(trace: Trace, agent: str | None = None) -> float | None:
    """The same; None where the rollout's is made of those of its calls: the last one where none is the whole rollout's,
    or the mean of those that returned triplets have. To add both would count them twice."""
    rewards = _rewards(trace)
    if agent is not None and agent in agent_rewards(rewards):
        return whole_reward(trace, agent)
    if (made := decided(rewards)) is not None:
        of_calls = made.source == "return" and any(of_call(r) and r.source == "return" for r in rewards)
    else:
        last = last_reward(rewards)
        of_calls = last is not None and of_call(last)
    return None if of_calls else final_reward(trace)


def agent_rewards(rewards: Sequence[Reward]) -> dict[str, Reward]:
    """By agent the last reward that names it for the whole episode. None where the attempt failed and that has a
    reward: then the whole of it is worth that."""
    if (made := decided(rewards)) is not None and made.source == "failure_reward":
        return {}
    return {reward.agent: reward for reward in rewards if reward.name == NAME and reward.agent and not of_call(reward)}


def call_rewards(attempt: AttemptTrace) -> dict[int, float]:
    """What calls have of their own, by index: the sum of the rewards that name the call, or a tool call of it."""
    place = {call.id: call.index for call in attempt.calls}
    tools = {
        tool.id: call.index for call in attempt.calls for sample in call.samples for tool in sample.message.tool_calls
    }
    own: dict[int, float] = {}
    for reward in attempt.rewards:
        index = place.get(reward.call_id or "", tools.get(reward.tool_call_id or ""))
        if reward.name == NAME and index is not None:
            own[index] = own.get(index, 0.0) + reward.value
    return own


def of_call(reward: Reward) -> bool:
    return reward.call_id is not None or reward.tool_call_id is not None


def _rewards(trace: Trace) -> Sequence[Reward]:
    """Those of the attempt that counts."""
    return trace.attempts[-1].rewards if trace.attempts else ()
