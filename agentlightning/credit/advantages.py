"""Advantages: from the rewards of a group to one number per member. Pure floats, so that an algorithm needs no torch to
use them.

A group is what was sampled for the same task. Rewards belong to rollouts, never to rows or tokens: however a rollout is
cut, its advantage is the same (invariant 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from agentlightning.nouns import MAX_REWARD

Std = Literal["sample", "population", "none"]

EPSILON = 1e-6
"""Added to the standard deviation, as in the published implementations."""


def group_advantages(rewards_G: Sequence[float], std: Std = "sample") -> list[float]:
    """GRPO's advantages: (r - mean) / (std + 1e-6), Shao et al., arXiv:2402.03300, section 4.1.

    ``sample`` divides the squares by G - 1, ``population`` by G; ``none`` leaves out the division (Dr. GRPO,
    arXiv:2503.20783). A group of one, or of equal rewards, gets zeros. Raises ValueError on an empty group or a reward
    that is not a finite number within ``MAX_REWARD``.
    """
    _check(rewards_G)
    count = len(rewards_G)
    mean = math.fsum(rewards_G) / count
    centred = [reward - mean for reward in rewards_G]
    if max(rewards_G) == min(rewards_G):
        return [0.0] * count
    if std == "none":
        return centred
    spread = math.sqrt(math.fsum(c * c for c in centred) / (count - 1 if std == "sample" else count))
    return [c / (spread + EPSILON) for c in centred]


def leave_one_out(rewards_G: Sequence[float]) -> list[float]:
    """RLOO's advantages: a reward less the mean of the others, Ahmadian et al., arXiv:2402.14740, section 2.3.

    Raises ValueError on fewer than two rewards or one that is not a finite number within ``MAX_REWARD``.
    """
    _check(rewards_G)
    count = len(rewards_G)
    if count < 2:
        raise ValueError("leave-one-out needs a group of at least 2: there is nothing to compare a single reward with")
    total = math.fsum(rewards_G)
    return [reward - (total - reward) / (count - 1) for reward in rewards_G]


def whitened(advantages_N: Sequence[float]) -> list[float]:
    """A step's advantages with mean 0 and standard deviation 1 over the whole batch (``population``), as REINFORCE++
    does: Hu et al., arXiv:2501.03262. Zeros where all are equal."""
    return group_advantages(advantages_N, std="population") if advantages_N else []


def _check(rewards_G: Sequence[float]) -> None:
    if not rewards_G:
        raise ValueError("a group without rewards has no advantages")
    for reward in rewards_G:
        if not abs(reward) <= MAX_REWARD:
            raise ValueError(f"reward {reward:g} is not a finite number within {-MAX_REWARD:g} and {MAX_REWARD:g}")
