"""Which emitted rewards change no weight, and why. Pure: an attempt's rewards in, counts by reason out.

One reward is a rollout's, and its advantage is the weight of all its tokens (ruling 8's order: returned, graded, the
last emitted). Whatever else an agent emits is recorded, and no algorithm of this version uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agentlightning.nouns import Reward

WHY: Mapping[str, str] = {
    "not_last": "only the last one named `reward` counts",
    "beside_return": "the number that the agent returned is final",
    "beside_grader": "the grader's score is final",
    "beside_failure_reward": "the attempt failed, and failure_reward says what that is worth",
    "other_name": "only those named `reward` count, others are recorded beside them",
    "for_a_call": "it names a call, and the reward is the whole rollout's",
    "for_an_agent": "it names an agent, and the reward is the whole rollout's",
    "failed": "its attempt failed or was tried again",
    "late": "it came after its attempt had ended",
}
"""Every reason, in words."""


def last_reward(emitted: Sequence[Reward]) -> Reward | None:
    """The last ``reward`` for the whole rollout; where there is none, the last one for a part of it."""
    named = [reward for reward in emitted if reward.name == "reward"]
    whole = [reward for reward in named if reward.call_id is None and reward.agent is None]
    return (whole or named or [None])[-1]


def unused_rewards(rewards: Iterable[Reward], *, scored: bool) -> Counter[str]:
    """Those that an attempt emitted and that are not its rollout's reward, by reason. ``rewards`` are all of the
    attempt's, in order; ``scored`` says whether it is the attempt that its rollout's reward comes from."""
    rewards = list(rewards)
    emitted = [reward for reward in rewards if reward.source == "emit"]
    if not scored:
        return Counter({"failed": len(emitted)} if emitted else {})
    final = next((reward for reward in rewards if reward.source in ("return", "grader", "failure_reward")), None)
    used = last_reward(emitted) if final is None else None
    return Counter(_why(reward, final) for reward in emitted if reward is not used)


def _why(reward: Reward, final: Reward | None) -> str:
    if reward.name != "reward":
        return "other_name"
    if reward.call_id is not None:
        return "for_a_call"
    if reward.agent is not None:
        return "for_an_agent"
    return "not_last" if final is None else f"beside_{final.source}"
