"""Cross-entropy with a weight per token: supervised learning on tokens that were sampled or given as targets.

    loss = sum over tokens of w * -log p / sum of w

Weights are not negative; where all are 0 there is no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.learning.objective import Columns, ObjectiveSettings, Outputs, Statistics, TokenSum, mean_of

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropyLoss(ObjectiveSettings):
    pass


def objective(_settings: CrossEntropyLoss) -> TokenSum:
    def coefficients(columns_N: Columns) -> Tensor:
        weights_N = columns_N["weight"].double()
        total = weights_N.sum()
        return weights_N / total.where(total > 0, total + 1)

    def losses(_columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        return -outputs_N["logprob"], {"cross_entropy": mean_of(-outputs_N["logprob"])}

    return TokenSum(("weight",), coefficients, losses)
