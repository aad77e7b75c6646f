"""Ratios of two policies' probabilities, from logprobs per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""|log ratio| beyond this is held there: exp() would overflow, and an infinite ratio under a zero gradient is NaN."""


def log_ratio(logprobs_N: Tensor, old_N: Tensor) -> Tensor:
    """log(new / old) per token, held within +-20."""
    return (logprobs_N - old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def k3(logprobs_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """The k3 estimate per token of KL(behaviour || new) from tokens that the behaviour drew: r - 1 - log r with r = new
    / behaviour.

    Schulman, "Approximating KL divergence" (2020). Never negative; its mean is unbiased.
    """
    log_ratio_N = log_ratio(logprobs_N, behaviour_N)
    return log_ratio_N.expm1() - log_ratio_N


def truncated_importance(old_N: Tensor, behaviour_N: Tensor, cap: float) -> Tensor:
    """min(old / behaviour, cap) per token: corrects for a sampler whose numerics differ from the learner's. Carries no
    gradient."""
    return log_ratio(old_N, behaviour_N).exp().clamp(max=cap).detach()
