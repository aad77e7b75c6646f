"""The losses against golden values that several public implementations agree on (float64, eight digits)."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from agentlightning.learning.objectives.policy_gradient import (
    PolicyGradientLoss,
    clipped,
    clipped_policy_loss,
    token_coefficients,
)
from agentlightning.learning.objectives.ratios import k3, truncated_importance

NEW = [[-1, -0.5, -2, -0.3], [-0.7, -1.2, -0.1, 0], [-0.2, -3, -0.9, -1.5]]
OLD = [[-1.1, -0.9, -1.7, -0.3], [-0.7, -0.8, -0.6, 0], [-0.5, -2.2, -0.9, -1.4]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 1]]
ADVANTAGES = [1, -0.5, 0.25]


def entries() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = torch.tensor(MASK, dtype=torch.bool)
    new_E = torch.tensor(NEW, dtype=torch.float64)[mask].requires_grad_()
    old_E = torch.tensor(OLD, dtype=torch.float64)[mask]
    advantages_E = torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None].expand(3, 4)[mask]
    units_E = torch.arange(3)[:, None].expand(3, 4)[mask]
    return new_E, old_E, advantages_E, units_E


@pytest.mark.parametrize(
    ("loss", "value", "gradient"),
    [
        (PolicyGradientLoss(), -0.30601701, 0.45088914),
        (PolicyGradientLoss(aggregation="sequence_mean"), -0.22540809, 0.42193268),
        (PolicyGradientLoss(aggregation="dr_grpo", fixed_length=4), -0.25501417, 0.37574095),
    ],
    ids=["token_mean", "sequence_mean", "dr_grpo"],
)
def test_the_clipped_loss_has_its_golden_values(loss: PolicyGradientLoss, value: float, gradient: float) -> None:
    new_E, old_E, advantages_E, units_E = entries()
    token_losses_E = clipped_policy_loss(new_E, old_E, advantages_E, loss.clip_low, loss.clip_high)
    total = (token_losses_E * token_coefficients(units_E, loss)).sum()
    (grad_E,) = torch.autograd.grad(total, new_E)
    assert float(total.detach()) == pytest.approx(value, abs=5e-9)
    assert float(grad_E.abs().sum()) == pytest.approx(gradient, abs=5e-9)


def test_k3_has_its_golden_value() -> None:
    new_E, old_E, _, _ = entries()
    assert float(k3(new_E.detach(), old_E).mean()) == pytest.approx(0.06608803, abs=5e-9)


def test_clipped_says_where_the_clip_took_the_gradient() -> None:
    new_E, old_E, advantages_E, _ = entries()
    loss_E = clipped_policy_loss(new_E, old_E, advantages_E, 0.2, 0.28)
    (grad_E,) = torch.autograd.grad(loss_E.sum(), new_E)
    assert torch.equal(clipped(new_E, old_E, advantages_E, 0.2, 0.28), grad_E == 0)


@pytest.mark.parametrize("gap", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_ratio_that_would_overflow_gives_finite_loss_and_gradient(gap: float, advantage: float) -> None:
    new_E = torch.tensor([gap], requires_grad=True)
    loss = clipped_policy_loss(new_E, torch.zeros(1), torch.tensor([advantage]), 0.2, 0.28).sum()
    (grad_E,) = torch.autograd.grad(loss, new_E)
    assert math.isfinite(float(loss.detach())) and math.isfinite(float(grad_E))


def test_importance_is_truncated_above_and_carries_no_gradient() -> None:
    old_E = torch.tensor([0.0, 0.0, -3.0], requires_grad=True)
    weights_E = truncated_importance(old_E, torch.tensor([-3.0, -0.5, 0.0]), 2.0)
    assert weights_E.tolist() == pytest.approx([2.0, math.exp(0.5), math.exp(-3.0)])
    assert not weights_E.requires_grad


def test_units_may_be_numbered_with_gaps_and_in_any_order() -> None:
    loss = PolicyGradientLoss(aggregation="sequence_mean")
    assert token_coefficients(torch.tensor([7, 0, 7, 7]), loss).tolist() == pytest.approx([1 / 6, 1 / 2, 1 / 6, 1 / 6])


@pytest.mark.parametrize(
    "settings", [{"aggregation": "dr_grpo"}, {"fixed_length": 4}, {"clip_low": 1.5}, {"clip": 0.2}]
)
def test_a_loss_setting_that_cannot_work_or_is_unknown_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PolicyGradientLoss.model_validate(settings)
