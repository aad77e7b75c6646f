"""Objective: the form of a loss. A pure function of columns and outputs over the trained tokens of a mini-batch.

``_N`` runs over those tokens, whatever rows they were forwarded in. *Columns* are named arrays that are known before or
beside the forward: what credit or a scoring pass filled in (``advantage``, ``return``, ``weight``, ``pair``,
``reference``) and what the learner itself knows:

- ``unit``: the number of a token's rollout (or call), for losses with sequence terms; int64, gaps allowed;
- ``behaviour``: the logprob under the policy that sampled, renormalised over what was kept;
- ``old``: the policy before the step: the behaviour, or, with ``learner.old_logprobs="recompute"``, the learner's own;
- ``importance``: min(old / behaviour, cap) where old is recomputed, else 1.

A target that the user gave was sampled by nobody: its ``old`` and ``behaviour`` are the learner's own before its first
step, and its importance is 1.

What belongs to a unit has one value at all its tokens. *Outputs* are the differentiable arrays that the objective
declares: ``logprob`` and ``entropy`` under the temperature and support that a token was sampled with, and ``value`` at
the state before it. Arrays have the learner's dtype; sums over tokens are float64. An objective also gets mini-batches
without a token.

Imports no torch: an algorithm names its objective by a settings record, and the learner finds the function
(objectives/__init__.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentlightning.errors import ConfigError
from agentlightning.settings.fields import Settings

if TYPE_CHECKING:
    from torch import Tensor

Columns = Mapping[str, "Tensor"]
Outputs = Mapping[str, "Tensor"]

OWN_COLUMNS = ("unit", "behaviour", "old", "importance")
"""Columns that the learner fills itself."""
LATE_COLUMNS = ("behaviour", "old", "importance")
"""Those that may be known only after a token's first forward."""
_WHO_FILLS = {
    "advantage": "credit from rewards",
    "return": "credit with a critic's values",
    "value": "a critic's scoring pass",
    "reference": "a scoring pass of the reference policy",
    "weight": "credit that weighs targets",
    "pair": "credit that pairs the rollouts of a group",
    "preference": "credit that pairs the rollouts of a group",
}


class ObjectiveSettings(Settings):
    """Base of the records that name an objective and hold its settings."""


# --------------------------------------------------------------------------- statistics


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum and what it is divided by, so that parts of a mini-batch add up. ``empty`` is shown where nothing was
    counted."""

    sum: Tensor
    count: int
    empty: float = 0.0


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest value, -inf where there is none; ``empty`` is shown then."""

    value: Tensor
    empty: float = 0.0


Statistic = Mean | Maximum
Statistics = Mapping[str, Statistic]
"""What an objective measured, under the names that metrics show."""


def mean_of(values_N: Tensor, *, empty: float = 0.0) -> Mean:
    """The mean over tokens (or units) of an array."""
    return Mean(values_N.detach().double().sum(), len(values_N), empty)


def maximum_of(values_N: Tensor, *, empty: float = 0.0) -> Maximum:
    """The largest of an array."""
    if not len(values_N):
        return Maximum(values_N.new_full((), -math.inf), empty)
    return Maximum(values_N.detach().max(), empty)


class Totals:
    """Statistics of many blocks, added up. Reads nothing from the device before ``values``."""

    def __init__(self) -> None:
        self._by_name: dict[str, Statistic] = {}

    def add(self, statistics: Statistics) -> None:
        """Raises TypeError where a name is a mean once and a maximum another time."""
        for name, new in statistics.items():
            old = self._by_name.get(name)
            if old is None:
                self._by_name[name] = new
            elif isinstance(old, Mean) and isinstance(new, Mean):
                self._by_name[name] = Mean(old.sum + new.sum, old.count + new.count, new.empty)
            elif isinstance(old, Maximum) and isinstance(new, Maximum):
                self._by_name[name] = Maximum(old.value.maximum(new.value), new.empty)
            else:
                raise TypeError(f"the statistic {name!r} is a mean once and a maximum another time")

    def values(self) -> dict[str, float]:
        """One number for each name."""
        return {name: _number(statistic) for name, statistic in self._by_name.items()}


def _number(statistic: Statistic) -> float:
    if isinstance(statistic, Mean):
        return float(statistic.sum) / statistic.count if statistic.count else statistic.empty
    value = float(statistic.value)
    return statistic.empty if value == -math.inf else value


# --------------------------------------------------------------------------- the two kinds


@dataclass(frozen=True, slots=True)
class TokenSum:
    """A sum over tokens of ``coefficients`` (float64, from columns alone, settled over the whole mini-batch) times
    ``losses`` (of the tokens handed in, with what was measured of them). One forward and backward, block by block.

    ``coefficients`` sees all columns but `LATE_COLUMNS`. A block whose coefficients are all 0 is forwarded and measured
    without a gradient.
    """

    columns: tuple[str, ...]
    coefficients: Callable[[Columns], Tensor]
    losses: Callable[[Columns, Outputs], tuple[Tensor, Statistics]]
    outputs: tuple[str, ...] = ("logprob",)

    def loss(self, columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        """The loss of a whole mini-batch at once, and its statistics."""
        losses_N, statistics = self.losses(columns_N, outputs_N)
        return (losses_N * self.coefficients(columns_N)).sum(), statistics


@dataclass(frozen=True, slots=True)
class Whole:
    """A loss of all tokens of a mini-batch together. Two passes: the outputs without a gradient, then the loss's
    gradient with respect to them goes backward block by block."""

    columns: tuple[str, ...]
    loss: Callable[[Columns, Outputs], tuple[Tensor, Statistics]]
    outputs: tuple[str, ...] = ("logprob",)


Objective = TokenSum | Whole


def check_columns(objective: Objective, name: str, filled: Collection[str]) -> None:
    """Raises ConfigError for a column that the objective names and nobody fills. ``filled``: the names that batches
    carry."""
    there = (*filled, *OWN_COLUMNS)
    for column in objective.columns:
        if column not in there:
            who = _WHO_FILLS.get(column)
            raise ConfigError(
                f"{name} reads the column {column!r}, which nobody fills here (filled are {', '.join(there)})"
                + (f"; {who} would fill it" if who else "")
            )
