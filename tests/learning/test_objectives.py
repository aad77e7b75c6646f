"""Objectives as functions: golden values (float64, eight digits) that public implementations agree on, or that the
formula gives by hand, and statistics that add up."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from agentlightning.learning.objective import (
    OWN_COLUMNS,
    ObjectiveSettings,
    Statistics,
    Totals,
    maximum_of,
    mean_of,
)
from agentlightning.learning.objectives import OBJECTIVES, objective_of
from agentlightning.learning.objectives.cross_entropy import CrossEntropyLoss
from agentlightning.learning.objectives.entropy_bonus import EntropyBonusLoss
from agentlightning.learning.objectives.policy_gradient import (
    PolicyGradientLoss,
    clipped,
    clipped_policy_loss,
    token_coefficients,
)
from agentlightning.learning.objectives.preference import PreferenceLoss
from agentlightning.learning.objectives.ratios import k3, truncated_importance
from agentlightning.learning.objectives.sequence_ratio import SequenceRatioLoss
from agentlightning.learning.objectives.value import ValueLoss

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


def columns(**more: Tensor) -> dict[str, Tensor]:
    _, old_E, advantages_E, units_E = entries()
    ones_E = torch.ones_like(old_E)
    own = {"unit": units_E, "behaviour": old_E, "old": old_E, "importance": ones_E, "advantage": advantages_E}
    return {**own, **more}


def rows(*values: float) -> Tensor:
    """One value for each row, at each of its trained tokens."""
    return torch.tensor(values, dtype=torch.float64)[:, None].expand(3, 4)[torch.tensor(MASK, dtype=torch.bool)]


@pytest.mark.parametrize(
    ("settings", "value", "gradient"),
    [
        (PolicyGradientLoss(), -0.30601701, 0.45088914),
        (PolicyGradientLoss(aggregation="sequence_mean"), -0.22540809, 0.42193268),
        (PolicyGradientLoss(aggregation="dr_grpo", fixed_length=4), -0.25501417, 0.37574095),
        (SequenceRatioLoss(clip_low=0.2, clip_high=0.28), -0.24633541, 0.59096711),
    ],
    ids=["token_mean", "sequence_mean", "dr_grpo", "gspo"],
)
def test_policy_gradients_have_the_golden_values_of_public_implementations(
    settings: ObjectiveSettings, value: float, gradient: float
) -> None:
    new_E, *_ = entries()
    total, _ = objective_of(settings).loss(columns(), {"logprob": new_E})
    (grad_E,) = torch.autograd.grad(total, new_E)
    assert float(total.detach()) == pytest.approx(value, abs=5e-9)
    assert float(grad_E.abs().sum()) == pytest.approx(gradient, abs=5e-9)


def test_cross_entropy_is_the_weighted_mean_of_negative_logprobs() -> None:
    """(1 * 3.8 + 0.5 * 2.0 + 0.25 * 4.7) / (4 + 1.5 + 0.75)."""
    new_E, *_ = entries()
    loss, statistics = objective_of(CrossEntropyLoss()).loss(columns(weight=rows(1, 0.5, 0.25)), {"logprob": new_E})
    (grad_E,) = torch.autograd.grad(loss, new_E)
    assert float(loss.detach()) == pytest.approx(0.956, abs=1e-12)
    torch.testing.assert_close(grad_E, -rows(1, 0.5, 0.25) / 6.25)
    assert numbers(statistics) == {"cross_entropy": pytest.approx(1.05)}


def test_an_entropy_bonus_is_taken_from_the_clipped_loss() -> None:
    new_E, *_ = entries()
    entropy_E = torch.linspace(0.5, 2.3, 10, dtype=torch.float64).requires_grad_()
    settings = EntropyBonusLoss(entropy_weight=0.1)
    loss, statistics = objective_of(settings).loss(columns(), {"logprob": new_E, "entropy": entropy_E})
    grads = torch.autograd.grad(loss, (new_E, entropy_E))
    assert float(loss.detach()) == pytest.approx(-0.30601701 - 0.1 * 1.4, abs=5e-9)
    assert float(grads[0].abs().sum()) == pytest.approx(0.45088914, abs=5e-9)
    torch.testing.assert_close(grads[1], torch.full_like(grads[1], -0.01))
    assert numbers(statistics)["policy_entropy"] == pytest.approx(1.4)


def test_preference_is_the_log_sigmoid_of_the_scaled_difference_of_gains() -> None:
    """Row 0 gained 0.1 + 0.4 - 0.3 + 0 = 0.2 and row 1 0 - 0.4 + 0.5 = 0.1, so the margin is 0.1 * (0.2 - 0.1). Row 2
    has nothing to be compared with."""
    new_E, old_E, *_ = entries()
    filled = columns(pair=rows(7, 7, 2), preference=rows(1, -1, 1), reference=old_E)
    loss, statistics = objective_of(PreferenceLoss(beta=0.1)).loss(filled, {"logprob": new_E})
    (grad_E,) = torch.autograd.grad(loss, new_E)
    assert float(loss.detach()) == pytest.approx(math.log1p(math.exp(-0.01)), abs=1e-12)
    torch.testing.assert_close(grad_E, 0.1 / (1 + math.exp(0.01)) * rows(-1, 1, 0))
    assert numbers(statistics) == {"preference_margin": pytest.approx(0.01), "preference_accuracy": 1.0}


def test_a_value_is_held_to_its_return() -> None:
    """Half the mean square of the advantages that GAE gives over rewards [0, 0, 1] and values [.1, .2, .3] with gamma .99 and lambda .95."""
    value_E = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    advantages_E = torch.tensor([0.808407, 0.75535, 0.7], dtype=torch.float64)
    loss, statistics = objective_of(ValueLoss()).loss({"return": advantages_E + value_E.detach()}, {"value": value_E})
    (grad_E,) = torch.autograd.grad(loss, value_E)
    assert float(loss.detach()) == pytest.approx(0.28567925, abs=5e-9)
    torch.testing.assert_close(grad_E, -advantages_E / 3)
    assert numbers(statistics) == {"value_mean": pytest.approx(0.2), "value_error_max": pytest.approx(0.808407)}


def numbers(statistics: Statistics) -> dict[str, float]:
    totals = Totals()
    totals.add(statistics)
    return totals.values()


@pytest.mark.parametrize("settings", list(OBJECTIVES), ids=lambda settings: settings.__name__)
def test_every_objective_takes_a_mini_batch_without_a_token(settings: type[ObjectiveSettings]) -> None:
    objective = objective_of(settings())
    none = torch.empty(0, dtype=torch.float64)
    empty = dict.fromkeys((*objective.columns, *OWN_COLUMNS), none) | {"unit": none.long()}
    loss, statistics = objective.loss(empty, {name: none.clone().requires_grad_() for name in objective.outputs})
    assert float(loss.detach()) == 0.0 and all(math.isfinite(value) for value in numbers(statistics).values())


@pytest.mark.parametrize("settings", list(OBJECTIVES), ids=lambda settings: settings.__name__)
def test_every_objective_reads_only_the_columns_that_it_names(settings: type[ObjectiveSettings]) -> None:
    objective = objective_of(settings())
    outputs = {name: torch.full((10,), -1.0, dtype=torch.float64, requires_grad=True) for name in objective.outputs}
    every = columns(weight=rows(1, 1, 1), pair=rows(0, 0, 1), preference=rows(1, -1, 1), reference=rows(0, 0, 0))
    every["return"] = rows(1, 2, 3)
    objective.loss({name: every[name] for name in objective.columns}, outputs)
    with pytest.raises(KeyError):
        objective.loss({name: every[name] for name in objective.columns[1:]}, outputs)


# --------------------------------------------------------------------------- statistics


@hypothesis_given(st.lists(st.lists(st.floats(-5, 5), max_size=4), min_size=1, max_size=5))
def test_statistics_add_up_over_blocks_however_the_tokens_are_cut(blocks: list[list[float]]) -> None:
    cut, whole = Totals(), Totals()
    for values in blocks:
        values_E = torch.tensor(values, dtype=torch.float64)
        cut.add({"mean": mean_of(values_E, empty=0.5), "most": maximum_of(values_E, empty=-9.0)})
    every_E = torch.tensor([value for values in blocks for value in values], dtype=torch.float64)
    whole.add({"mean": mean_of(every_E, empty=0.5), "most": maximum_of(every_E, empty=-9.0)})
    assert cut.values() == pytest.approx(whole.values(), abs=1e-12)
    if not len(every_E):
        assert cut.values() == {"mean": 0.5, "most": -9.0}


def test_a_statistic_is_a_mean_or_a_maximum_and_stays_it() -> None:
    totals = Totals()
    totals.add({"ratio": mean_of(torch.ones(2))})
    with pytest.raises(TypeError, match="'ratio' is a mean once and a maximum another time"):
        totals.add({"ratio": maximum_of(torch.ones(2))})


# --------------------------------------------------------------------------- terms


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
