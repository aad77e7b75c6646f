"""Objectives: one pure function for each loss, in one file each with the settings that name it.

These modules load no torch, so that algorithms can name an objective by its settings: what they do with tensors are the
tensors' own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentlightning.learning.objective import Objective, ObjectiveSettings
from agentlightning.learning.objectives import (
    cross_entropy,
    entropy_bonus,
    policy_gradient,
    preference,
    sequence_ratio,
    value,
)

OBJECTIVES: Mapping[type[ObjectiveSettings], Callable[[Any], Objective]] = {
    policy_gradient.PolicyGradientLoss: policy_gradient.objective,
    entropy_bonus.EntropyBonusLoss: entropy_bonus.objective,
    sequence_ratio.SequenceRatioLoss: sequence_ratio.objective,
    cross_entropy.CrossEntropyLoss: cross_entropy.objective,
    preference.PreferenceLoss: preference.objective,
    value.ValueLoss: value.objective,
}
"""The function behind each settings record."""


def objective_of(settings: ObjectiveSettings) -> Objective:
    """The objective that a settings record names. Raises TypeError for a record that is not in the table."""
    make = OBJECTIVES.get(type(settings))
    if make is None:
        raise TypeError(f"no objective is registered for {type(settings).__name__}: add it to OBJECTIVES")
    return make(settings)
