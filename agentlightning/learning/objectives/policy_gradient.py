"""The clipped policy gradient of PPO, with an advantage per token and no value function.

    loss = sum over tokens of c * w * -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A),    r = exp(new - old)

with the coefficient c of the aggregation and the importance w of a sampler that is not quite the old policy. Schulman
et al., arXiv:1707.06347, equation 7; separate bounds after DAPO, arXiv:2503.14476; ``dr_grpo`` after arXiv:2503.20783.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from agentlightning.learning.objective import Columns, ObjectiveSettings, Outputs, Statistics, TokenSum, mean_of
from agentlightning.learning.objectives.ratios import log_ratio

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradientLoss(ObjectiveSettings):
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    aggregation: Literal["token_mean", "sequence_mean", "dr_grpo"] = "token_mean"
    """How token losses become one number: mean over all trained tokens, mean over rollouts of their token means, or a
    sum over a fixed length."""
    fixed_length: int | None = Field(default=None, ge=1)
    """With `dr_grpo`: the length each rollout's sum is divided by."""

    @model_validator(mode="after")
    def _length_where_it_counts(self) -> PolicyGradientLoss:
        if self.aggregation == "dr_grpo" and self.fixed_length is None:
            raise ValueError(
                "aggregation='dr_grpo' divides by a fixed length: set fixed_length to it, e.g. sampling.max_tokens"
            )
        if self.aggregation != "dr_grpo" and self.fixed_length is not None:
            raise ValueError(
                f"fixed_length={self.fixed_length} is read only by aggregation='dr_grpo', and it is "
                f"{self.aggregation!r}"
            )
        return self


def objective(settings: PolicyGradientLoss) -> TokenSum:
    def coefficients(columns_N: Columns) -> Tensor:
        # A token without an advantage has no gradient.
        return token_coefficients(columns_N["unit"], settings) * (columns_N["advantage"] != 0)

    def losses(columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        new_N, old_N, advantages_N = outputs_N["logprob"], columns_N["old"], columns_N["advantage"]
        bounds = settings.clip_low, settings.clip_high
        return clipped_policy_loss(new_N, old_N, advantages_N, *bounds) * columns_N["importance"], {
            "ratio_mean": mean_of(log_ratio(new_N.detach(), old_N).exp(), empty=1.0),
            "clip_fraction": mean_of(clipped(new_N.detach(), old_N, advantages_N, *bounds)),
        }

    return TokenSum(("advantage", "old", "importance", "unit"), coefficients, losses)


def clipped_policy_loss(
    logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's clipped surrogate per token. ``old_N`` carries no gradient."""
    ratio_N = log_ratio(logprobs_N, old_N).exp()
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    return (-advantages_N * ratio_N).maximum(-advantages_N * clipped_N)


def clipped(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Which tokens the clip took the gradient from, as bools."""
    ratio_N = log_ratio(logprobs_N, old_N).exp()
    return ((advantages_N > 0) & (ratio_N > 1 + clip_high)) | ((advantages_N < 0) & (ratio_N < 1 - clip_low))


def token_coefficients(units_N: Tensor, settings: PolicyGradientLoss) -> Tensor:
    """What each token loss is multiplied with, so that the sum is the loss of the minibatch. float64.

    With N tokens in U units, n_u of them in unit u: ``token_mean`` 1/N; ``sequence_mean`` 1/(U n_u); ``dr_grpo`` 1/(U
    fixed_length). ``units_N`` numbers each token's unit from 0, in any order, gaps allowed.
    """
    ones_N = units_N.new_ones(units_N.shape).double()
    if settings.aggregation == "token_mean":
        return ones_N * (1.0 / max(1, len(units_N)))
    count_U = units_N.bincount()
    units = max(1, int((count_U > 0).sum()))
    if settings.aggregation == "sequence_mean":
        return 1.0 / (units * count_U[units_N].double())
    assert settings.fixed_length is not None
    return ones_N * (1.0 / (units * settings.fixed_length))
