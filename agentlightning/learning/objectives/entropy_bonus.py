"""The clipped policy gradient with an entropy bonus.

    loss = policy_gradient.py's - entropy_weight * sum over tokens of c * H

H is the entropy in nats of the distribution that the token was drawn from (its temperature, its support), c the
coefficient of the aggregation. Williams and Peng (1991); Mnih et al., arXiv:1602.01783, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentlightning.learning.objective import Columns, Outputs, Statistics, TokenSum, mean_of
from agentlightning.learning.objectives import policy_gradient
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss, token_coefficients

if TYPE_CHECKING:
    from torch import Tensor


class EntropyBonusLoss(PolicyGradientLoss):
    entropy_weight: float = Field(default=0.01, ge=0)
    """What the entropy is multiplied with before it is taken from the loss."""


def objective(settings: EntropyBonusLoss) -> TokenSum:
    gradient = policy_gradient.objective(settings)

    def coefficients(columns_N: Columns) -> Tensor:
        return token_coefficients(columns_N["unit"], settings)

    def losses(columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        losses_N, statistics = gradient.losses(columns_N, outputs_N)
        entropy_N = outputs_N["entropy"]
        return losses_N - settings.entropy_weight * entropy_N, {**statistics, "policy_entropy": mean_of(entropy_N)}

    return TokenSum(gradient.columns, coefficients, losses, ("logprob", "entropy"))
