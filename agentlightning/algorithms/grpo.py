"""GRPO: group relative policy optimisation.

For each task a group of G rollouts is sampled. A rollout's advantage is its reward relative to its group,

    A_i = (r_i - mean(r_1..r_G)) / (std(r_1..r_G) + 1e-6),

and every token the rollout sampled gets it as weight. The loss is the clipped policy gradient of PPO with that weight
and no value function.

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
from agentlightning.errors import ConfigError
from agentlightning.settings.fields import RunConfig


class GRPO(PolicyGradient):
    """Group relative policy optimisation (arXiv:2402.03300)."""

    name: ClassVar[str] = "grpo"

    group_size: int = Field(default=8, ge=1)
    """Rollouts per task; their rewards are compared with each other."""
    std: Literal["sample", "population", "none"] = "sample"
    """What an advantage is divided by: the standard deviation with n-1 or n in its denominator, or nothing."""

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if self.group_size < 2:
            raise ConfigError(
                "GRPO with group_size=1 has nothing to compare a rollout with: use a group_size of at least 2 (8 is "
                "usual)"
            )

    def rollouts_per_task(self) -> int:
        return self.group_size

    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        return group_advantages(rewards_G, std=self.std)
