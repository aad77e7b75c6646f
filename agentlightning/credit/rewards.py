"""Which of an attempt's rewards is whose: its rollout's, an agent's, a call's. Pure.

A reward that counts has the name ``reward``; others are recorded beside it. One that names a tool call is that of the
call which made the tool call.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.nouns import Reward
from agentlightning.records.traces import AttemptTrace, Trace

NAME = "reward"


def last_reward(emitted: Sequence[Reward]) -> Reward | None:
    """Of what an agent emitted the last ``reward`` for the whole rollout; where there is none, the last one for a part
    of it. Rules never score a rollout."""
    named = [reward for reward in emitted if reward.name == NAME and reward.source == "emit"]
    return ([reward for reward in named if not names_a_part(reward)] or named or [None])[-1]


def final_reward(trace: Trace) -> float:
    """The reward of a rollout that has one."""
    assert trace.rollout.reward is not None
    return trace.rollout.reward


def whole_reward(trace: Trace, agent: str | None = None) -> float:
    """The reward of the whole episode; for an ``agent`` the last one that names it, where there is one."""
    named = [reward.value for reward in _counting(trace) if reward.agent == agent is not None and not of_call(reward)]
    return named[-1] if named else final_reward(trace)


def stands_for_itself(trace: Trace) -> bool:
    """Whether the rollout's reward is its own, and not one of a part that stands in for it: to add both would count
    that twice."""
    named = _counting(trace)
    return not named or any(not names_a_part(reward) for reward in named)


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


def names_a_part(reward: Reward) -> bool:
    """Whether it is for a call or an agent, and not for the whole rollout."""
    return of_call(reward) or reward.agent is not None


def _counting(trace: Trace) -> list[Reward]:
    """Those of the attempt that counts."""
    rewards = trace.attempts[-1].rewards if trace.attempts else ()
    return [reward for reward in rewards if reward.name == NAME]
