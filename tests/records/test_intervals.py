"""Intervals of validation scores: values known from tables, and coverage by simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.records.intervals import mean_interval, student_t, wilson_interval


def test_the_wilson_interval_has_the_published_values() -> None:
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.27753, abs=1e-5))
    assert wilson_interval(10, 10) == (pytest.approx(0.72247, abs=1e-5), 1.0)
    assert wilson_interval(15, 20) == (pytest.approx(0.53130, abs=1e-5), pytest.approx(0.88814, abs=1e-5))


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_proportion_lies_in_its_interval_and_the_interval_in_0_to_1(pair: tuple[int, int]) -> None:
    low, high = wilson_interval(*pair)
    assert 0 <= low <= pair[0] / pair[1] <= high <= 1
    assert low < high


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_what_is_no_proportion_is_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        wilson_interval(successes, n)


@pytest.mark.parametrize(
    ("df", "value"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (30, 2.04227), (1000, 1.96234)],
)
def test_students_t_agrees_with_the_tables(df: int, value: float) -> None:
    assert student_t(df) == pytest.approx(value, rel=2e-3)


def test_scores_of_0_and_1_get_the_wilson_interval_and_others_students() -> None:
    assert mean_interval([1, 0, 1, 1]) == wilson_interval(3, 4)
    low, high = mean_interval([0.5, 0.7, 0.9])
    assert (low + high) / 2 == pytest.approx(0.7)
    assert (high - low) / 2 == pytest.approx(4.30265 * 0.2 / math.sqrt(3), rel=1e-5)


def test_one_score_says_nothing_about_its_spread() -> None:
    assert all(math.isnan(bound) for bound in mean_interval([0.5]))
    assert mean_interval([1.0]) == wilson_interval(1, 1)
    with pytest.raises(ValueError, match="no scores"):
        mean_interval([])


def test_95_percent_intervals_cover_the_truth_about_95_times_of_100() -> None:
    rng = random.Random(0)

    def covers(draw: list[float], truth: float) -> bool:
        low, high = mean_interval(draw)
        return low <= truth <= high

    gaussian = sum(covers([rng.gauss(1, 2) for _ in range(8)], 1.0) for _ in range(2000)) / 2000
    binary = sum(covers([float(rng.random() < 0.3) for _ in range(40)], 0.3) for _ in range(2000)) / 2000
    assert 0.93 <= gaussian <= 0.97
    assert 0.92 <= binary <= 0.98
