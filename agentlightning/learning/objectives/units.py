"""Sums and means over the tokens of a unit (a rollout, a call) or of a pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import Tensor


def numbered(ids_N: Tensor) -> tuple[Tensor, int]:
    """Ids, in any order and with gaps, as places 0..U-1 (int64), and U."""
    unique_U, places_N = cast("tuple[Tensor, Tensor]", cast("Any", ids_N).unique(return_inverse=True))
    return places_N, len(unique_U)


def sums(values_N: Tensor, places_N: Tensor, count: int) -> Tensor:
    """The sum of each unit's values: [U], float64."""
    return values_N.double().new_zeros(count).index_add(0, places_N, values_N.double())


def means(values_N: Tensor, places_N: Tensor, count: int) -> Tensor:
    """The mean of each unit's values: [U], float64. Of a column that belongs to units, that is its value."""
    return sums(values_N, places_N, count) / places_N.bincount(minlength=count)
