"""Which rewards of an attempt change no weight, and why. Pure: an attempt's rewards in, counts by reason out.

The credit says whose rewards it uses (`[algorithm.credit]`): the rollout's, which is one (ruling 8's order: returned,
graded, the last emitted), those of single calls, those of agents. Whatever else an agent emits or a rule gives is
recorded beside them. Counted are rewards that were meant for something: one that the agent returned, or a grader gave,
stands in the rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agentlightning.credit.rewards import NAME, agent_rewards, decided, last_reward, of_call
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
    """Those that an attempt emitted, that came with its triplets, or that a rule gave it, and that its credit does not
    use, by reason. ``rewards`` are all of the attempt's, in order; ``scored`` says whether it is the attempt that its
    rollout's reward comes from."""
    rewards = list(rewards)
    emitted = [reward for reward in rewards if reward.source in ("emit", "rule") or _of_a_triplet(reward)]
    if not scored:
        return Counter({"failed": len(emitted)} if emitted else {})
    used = {id(reward) for reward in _used(rewards, settings)}
    return Counter(_why(reward, settings, decided(rewards)) for reward in emitted if id(reward) not in used)


def _of_a_triplet(reward: Reward) -> bool:
    """Whether it came with one that the agent returned. The mean of those is the rollout's."""
    return reward.source == "return" and of_call(reward)


def _used(rewards: Sequence[Reward], settings: CreditSettings) -> Iterable[Reward]:
    if settings.reads_calls:
        yield from (reward for reward in rewards if of_call(reward) and reward.name == NAME)
    if not settings.reads_rollout:
        return
    if settings.by_agent:
        yield from agent_rewards(rewards).values()
    last = last_reward(rewards)
    if last is not None and decided(rewards) is None:
        yield last


def _why(reward: Reward, settings: CreditSettings, final: Reward | None) -> str:
    if reward.name != NAME:
        return "other_name"
    if of_call(reward):
        return "for_a_call"
    if not settings.reads_rollout:
        return "for_the_rollout"
    if reward.agent is not None and not settings.by_agent:
        return "for_an_agent"
    if final is None or (reward.agent is not None and final.source != "failure_reward"):
        return "not_last"
    return f"beside_{final.source}"
