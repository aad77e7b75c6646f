"""Losses: pure functions of tensors over the trained tokens. Nothing here knows models, rows or devices.

``_E`` is one entry per trained token of a minibatch, whatever rows the tokens were forwarded in. A loss is a sum of
token losses times coefficients that are known before the first forward; a minibatch can therefore be cut into any rows
without changing its loss (invariant 7).
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentlightning.learning.loss_config import LossConfig

MAX_LOG_RATIO = 20.0
"""|log ratio| beyond this is held there: exp() would overflow, and an infinite ratio under a zero gradient is NaN."""


def log_ratio(logprobs_E: Tensor, old_E: Tensor) -> Tensor:
    """log(new / old) per token, held within +-20."""
    return (logprobs_E - old_E).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_policy_loss(
    logprobs_E: Tensor, old_E: Tensor, advantages_E: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's clipped surrogate per token: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(new - old).

    Schulman et al., arXiv:1707.06347, equation 7; separate bounds after DAPO, arXiv:2503.14476. ``old_E`` carries no
    gradient.
    """
    ratio_E = log_ratio(logprobs_E, old_E).exp()
    clipped_E = ratio_E.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantages_E * ratio_E, -advantages_E * clipped_E)


def clipped(logprobs_E: Tensor, old_E: Tensor, advantages_E: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Which tokens the clip took the gradient from, as bools."""
    ratio_E = log_ratio(logprobs_E, old_E).exp()
    return ((advantages_E > 0) & (ratio_E > 1 + clip_high)) | ((advantages_E < 0) & (ratio_E < 1 - clip_low))


def coefficients(units_E: Tensor, loss: LossConfig) -> Tensor:
    """What each token loss is multiplied with, so that the sum is the loss of the minibatch. float64.

    With N tokens in U units, n_u of them in unit u: ``token_mean`` 1/N; ``sequence_mean`` 1/(U n_u); ``dr_grpo`` 1/(U
    fixed_length). ``units_E`` numbers each token's unit from 0, in any order, gaps allowed.
    """
    if loss.aggregation == "token_mean":
        return torch.full(units_E.shape, 1.0 / max(1, units_E.numel()), dtype=torch.float64, device=units_E.device)
    count_U = torch.bincount(units_E)
    units = max(1, int((count_U > 0).sum()))
    if loss.aggregation == "sequence_mean":
        return 1.0 / (units * count_U[units_E].double())
    assert loss.fixed_length is not None
    return torch.full(units_E.shape, 1.0 / (units * loss.fixed_length), dtype=torch.float64, device=units_E.device)


def k3(logprobs_E: Tensor, behaviour_E: Tensor) -> Tensor:
    """The k3 estimate per token of KL(behaviour || new) from tokens that the behaviour drew: r - 1 - log r with r = new
    / behaviour.

    Schulman, "Approximating KL divergence" (2020). Never negative; its mean is unbiased.
    """
    log_ratio_E = log_ratio(logprobs_E, behaviour_E)
    return log_ratio_E.expm1() - log_ratio_E


def truncated_importance(old_E: Tensor, behaviour_E: Tensor, cap: float) -> Tensor:
    """min(old / behaviour, cap) per token: corrects for a sampler whose numerics differ from the learner's. Carries no
    gradient."""
    return log_ratio(old_E, behaviour_E).exp().clamp(max=cap).detach()
