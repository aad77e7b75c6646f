"""Advantages against golden values, and what holds for all groups."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.credit.advantages import Std, group_advantages, leave_one_out
from agentlightning.nouns import MAX_REWARD
from agentlightning.records.intervals import mean_interval

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=12)
any_rewards = st.lists(st.floats(-MAX_REWARD, MAX_REWARD), min_size=2, max_size=12)


@pytest.mark.parametrize(("std", "value"), [("sample", 0.866024), ("population", 0.999998), ("none", 0.5)])
def test_group_advantages_have_their_golden_values(std: Std, value: float) -> None:
    assert group_advantages([1, 0, 0, 1], std=std) == pytest.approx([value, -value, -value, value], abs=5e-7)


def test_leave_one_out_has_its_golden_values() -> None:
    assert leave_one_out([1, 0, 0, 1]) == pytest.approx([0.666667, -0.666667, -0.666667, 0.666667], abs=5e-7)


@settings(deadline=None)
@given(rewards, st.sampled_from(["sample", "population", "none"]))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(rewards_G: list[float], std: Std) -> None:
    advantages_G = group_advantages(rewards_G, std=std)
    assert sum(advantages_G) == pytest.approx(0, abs=1e-6)
    by_reward = sorted(zip(rewards_G, advantages_G, strict=True))
    assert [a for _, a in by_reward] == sorted(advantages_G)


@settings(deadline=None)
@given(any_rewards)
def test_whatever_a_group_was_rewarded_nothing_that_is_made_of_it_overflows(rewards_G: list[float]) -> None:
    for std in ("sample", "population", "none"):
        assert all(math.isfinite(value) for value in group_advantages(rewards_G, std=std))
    assert all(math.isfinite(value) for value in (*leave_one_out(rewards_G), *mean_interval(rewards_G)))


@settings(deadline=None)
@given(rewards)
def test_leave_one_out_is_centring_times_n_over_n_minus_one(rewards_G: list[float]) -> None:
    count = len(rewards_G)
    centred_G = group_advantages(rewards_G, std="none")
    assert leave_one_out(rewards_G) == pytest.approx([c * count / (count - 1) for c in centred_G], abs=1e-9)


def test_equal_rewards_and_a_group_of_one_give_zeros() -> None:
    assert group_advantages([0.1] * 3) == [0.0] * 3
    assert group_advantages([5.0]) == [0.0]


@pytest.mark.parametrize("rewards_G", [[], [1.0, float("nan")], [float("inf")], [1e308, 0.0], [-1.1e9, 0.0]])
def test_no_rewards_or_ones_that_are_no_rewards_are_refused(rewards_G: list[float]) -> None:
    with pytest.raises(ValueError):
        group_advantages(rewards_G)
    with pytest.raises(ValueError):
        leave_one_out(rewards_G)


def test_leave_one_out_refuses_a_single_reward() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        leave_one_out([1.0])


def test_what_the_algorithms_import_does_without_torch() -> None:
    code = (
        "import sys; import agentlightning.records.batch, agentlightning.credit.advantages, "
        "agentlightning.learning.objectives;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
