"""GRPO: group relative policy optimisation.

For each task a group of G rollouts is sampled. A rollout's advantage is its reward relative to its group,

    A_i = (r_i - mean(r_1..r_G)) / (std(r_1..r_G) + 1e-6),

and every token the rollout sampled gets it as weight. (Where calls have rewards of their own the group is all calls of
the task's attempts, and A_i is a call's; with G = 1 and none, it is the batch.) The loss is the clipped policy gradient
of PPO with that weight and no value function.

Source: Shao et al., DeepSeekMath, arXiv:2402.03300, section 4.1. ``std="none"`` leaves out the division (Liu et al.,
Dr. GRPO, arXiv:2503.20783). The separate upper clip and dropping groups of equal rewards follow DAPO (Yu et al.,
arXiv:2503.14476, sections 3.1 and 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from agentlightning.algorithms.policy_gradient import PolicyGradient
from agentlightning.credit.advantages import group_advantages


class GRPO(PolicyGradient):
    """Group relative policy optimisation (arXiv:2402.03300)."""

    name: ClassVar[str] = "grpo"

    group_size: int = Field(default=8, ge=1)
    """Rollouts per task; their rewards are compared with each other. With 1, those of the whole batch are compared, or,
    where calls have rewards (`credit`), all calls of a task."""
    std: Literal["sample", "population", "none"] = "sample"
    """What an advantage is divided by: the standard deviation with n-1 or n in its denominator, or nothing."""

    def rollouts_per_task(self) -> int:
        return self.group_size

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        return group_advantages(rewards_G, std=self.std)
