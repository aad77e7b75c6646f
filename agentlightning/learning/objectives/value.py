"""A critic's loss: half the mean squared difference between the value of the state before a token and its return.

Schulman et al., arXiv:1506.02438, equation 28.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.learning.objective import (
    Columns,
    ObjectiveSettings,
    Outputs,
    Statistics,
    TokenSum,
    maximum_of,
    mean_of,
)

if TYPE_CHECKING:
    from torch import Tensor


class ValueLoss(ObjectiveSettings):
    pass


def objective(_settings: ValueLoss) -> TokenSum:
    def coefficients(columns_N: Columns) -> Tensor:
        returns_N = columns_N["return"]
        return returns_N.double().new_full(returns_N.shape, 1.0 / max(1, len(returns_N)))

    def losses(columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        error_N = outputs_N["value"] - columns_N["return"]
        return 0.5 * error_N.square(), {
            "value_mean": mean_of(outputs_N["value"]),
            "value_error_max": maximum_of(error_N.abs()),
        }

    return TokenSum(("return",), coefficients, losses, ("value",))
