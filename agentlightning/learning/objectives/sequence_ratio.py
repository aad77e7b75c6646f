"""GSPO: the clipped policy gradient with one importance ratio for each sequence.

    s_u = exp(mean over the tokens of unit u of (new - old))
    loss = mean over units of w_u * -min(s_u A_u, clip(s_u, 1 - clip_low, 1 + clip_high) A_u)

with A_u the unit's advantage and w_u the mean importance of its tokens (1 unless old logprobs are recomputed). Zheng et
al., Group Sequence Policy Optimization, arXiv:2507.18071, equations 5 to 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentlightning.learning.objective import Columns, ObjectiveSettings, Outputs, Statistics, Whole, mean_of
from agentlightning.learning.objectives.policy_gradient import clipped, clipped_policy_loss
from agentlightning.learning.objectives.ratios import log_ratio
from agentlightning.learning.objectives.units import means, numbered

if TYPE_CHECKING:
    from torch import Tensor


class SequenceRatioLoss(ObjectiveSettings):
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low. A sequence's ratio moves far less than a token's."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The ratio is clipped above at 1 + clip_high."""


def objective(settings: SequenceRatioLoss) -> Whole:
    def loss(columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        unit = numbered(columns_N["unit"])
        new_U, old_U = means(outputs_N["logprob"], *unit), means(columns_N["old"], *unit)
        advantages_U, bounds = means(columns_N["advantage"], *unit), (settings.clip_low, settings.clip_high)
        losses_U = clipped_policy_loss(new_U, old_U, advantages_U, *bounds) * means(columns_N["importance"], *unit)
        return losses_U.sum() / max(1, len(losses_U)), {
            "ratio_mean": mean_of(log_ratio(new_U, old_U).exp(), empty=1.0),
            "clip_fraction": mean_of(clipped(new_U.detach(), old_U, advantages_U, *bounds)),
        }

    return Whole(("advantage", "old", "importance", "unit"), loss)
