"""DPO: the preferred one of two rollouts is to gain on the other, relative to a reference policy.

    m_p = beta * (sum over the preferred's tokens of (new - reference) - sum over the other's of (new - reference))
    loss = mean over pairs of -log sigmoid(m_p)

``pair`` numbers the pairs and ``preference`` is 1 for the tokens of the preferred rollout and -1 for the other's. A
pair of which only one side is trained counts for nothing. Rafailov et al., arXiv:2305.18290, equation 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentlightning.learning.objective import Columns, ObjectiveSettings, Outputs, Statistics, Whole, mean_of
from agentlightning.learning.objectives.units import numbered, sums

if TYPE_CHECKING:
    from torch import Tensor


class PreferenceLoss(ObjectiveSettings):
    beta: float = Field(default=0.1, gt=0)
    """How much a difference of logprobs counts: large values keep the policy near the reference."""


def objective(settings: PreferenceLoss) -> Whole:
    def loss(columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        preference_N, pair = columns_N["preference"], numbered(columns_N["pair"])
        gains_N = preference_N * (outputs_N["logprob"] - columns_N["reference"])
        both_P = (sums(preference_N > 0, *pair) > 0) & (sums(preference_N < 0, *pair) > 0)
        margins_P = settings.beta * sums(gains_N, *pair)[both_P]
        losses_P = (-margins_P).logaddexp(margins_P.new_zeros(()))
        return losses_P.sum() / max(1, len(losses_P)), {
            "preference_margin": mean_of(margins_P),
            "preference_accuracy": mean_of(margins_P > 0),
        }

    return Whole(("pair", "preference", "reference"), loss)
