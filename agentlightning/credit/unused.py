"""Which rewards of an attempt change no weight, and why. Pure: an attempt's rewards in, counts by reason out.

The credit says whose rewards it uses (`[algorithm.credit]`): the rollout's, which is one (ruling 8's order: returned,
graded, the last emitted), those of single calls, those of agents. Whatever else an agent emits or a rule gives is
recorded beside them. Counted are rewards that were meant for something: one that the agent returned, or a grader gave,
stands in the rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agentlightning.credit.rewards import NAME, last_reward, of_call
from agentlightning.credit.schemes.base import ROLLOUT
from agentlightning.credit.settings import CreditSettings
from agentlightning.nouns import Reward

WHY: Mapping[str, str] = {
    "not_last": "only the last one named `reward` counts",
    "beside_return": "the number that the agent returned is final",
    "beside_grader": "the grader's score is final",
    "beside_failure_reward": "the attempt failed, and failure_reward says what that is worth",
    "other_name": "only those named `reward` count, others are recorded beside them",
    "for_a_call": "it names a call, and algorithm.credit gives each call the whole rollout's: set its scheme",
    "for_an_agent": "it names an agent, and algorithm.credit tells none apart: set by_agent",
    "for_the_rollout": "it is the whole rollout's, and algorithm.credit uses those of calls alone: set its scheme",
    "failed": "its attempt failed or was tried again",
    "late": "it came after its attempt had ended",
}
"""Every reason, in words."""


def unused_rewards(rewards: Iterable[Reward], settings: CreditSettings, *, scored: bool) -> Counter[str]:
    """Those that an attempt emitted, or a rule gave it, and that its credit does not use, by reason. ``rewards`` are
    all of the attempt's, in order; ``scored`` says whether it is the attempt that its rollout's reward comes from."""
    rewards = list(rewards)
    emitted = [reward for reward in rewards if reward.source in ("emit", "rule")]
    if not scored:
        return Counter({"failed": len(emitted)} if emitted else {})
    final = next((r for r in rewards if r.source in ("return", "grader", "failure_reward") and not of_call(r)), None)
    last = last_reward(emitted) if final is None else None
    reasons = (_why(reward, settings, final, last) for reward in emitted)
    return Counter(reason for reason in reasons if reason is not None)


def _why(reward: Reward, settings: CreditSettings, final: Reward | None, last: Reward | None) -> str | None:
    """None for one that is used."""
    if reward.name != NAME:
        return "other_name"
    reads_rollout = any(ROLLOUT in term.reads for term in settings.terms)
    if of_call(reward):
        return None if settings.reads_calls or (reward is last and reads_rollout) else "for_a_call"
    if not reads_rollout:
        return "for_the_rollout"
    if reward is last:
        return None
    if reward.agent is not None:
        return None if settings.by_agent else "for_an_agent"
    return "not_last" if final is None else f"beside_{final.source}"
