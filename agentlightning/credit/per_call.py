"""Credit per call: where rewards name calls, each call has an advantage of its own. Pure.

No setting chooses this yet; an algorithm that wants it gives `credit_attempt` what `call_advantages` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentlightning.records.traces import AttemptTrace

CALLS = "calls of a task"
"""What these advantages are compared with, for the ledger."""


def call_returns(attempt: AttemptTrace, *, discount: float | None = 1.0, name: str = "reward") -> dict[int, float]:
    """What each call of an attempt that sampled something is worth, by its index.

    The return of call t is the sum of the rewards that name it or a later call, each discounted by how many calls lie
    between, G_t = r_t + discount * G_{t+1} (Sutton and Barto, Reinforcement Learning, section 3.3). ``discount`` None
    takes a call's own rewards alone, and leaves out calls that have none. Rewards of other names, and those of the
    whole rollout or of an agent, are not used.
    """
    own: dict[str, float] = {}
    for reward in attempt.rewards:
        if reward.name == name and reward.call_id is not None:
            own[reward.call_id] = own.get(reward.call_id, 0.0) + reward.value
    calls = sorted(attempt.calls, key=lambda call: call.index)
    if discount is None:
        return {call.index: own[call.id] for call in calls if call.samples and call.id in own}
    if not own:
        return {}
    returns: dict[int, float] = {}
    later = 0.0
    for call in reversed(calls):
        later = own.get(call.id, 0.0) + discount * later
        if call.samples:
            returns[call.index] = later
    return dict(reversed(returns.items()))


def call_advantages(
    attempts: Sequence[AttemptTrace],
    advantages: Callable[[Sequence[float]], Sequence[float]],
    *,
    discount: float | None = 1.0,
) -> list[dict[int, float]]:
    """For each attempt the advantages of its calls, by index: all calls of a task's attempts are one group.

    A call counts once, however many nodes its samples are cut into (invariant 7). ``advantages`` is an algorithm's, as
    in `CreditRule`. A group with fewer than two returns, or with equal ones, has none.
    """
    returns = [call_returns(attempt, discount=discount) for attempt in attempts]
    values = [value for by_call in returns for value in by_call.values()]
    if len(values) < 2 or max(values) == min(values):
        return [{} for _ in attempts]
    given = iter(advantages(values))
    return [{index: next(given) for index in by_call} for by_call in returns]
