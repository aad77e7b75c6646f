"""The ledger adds up, or says so."""

from __future__ import annotations

import pytest

from agentlightning.nouns import Failure, Mode, Reason, Rollout, Status
from agentlightning.records.ledger import Ledger, LedgerError, count_outcomes, total


def test_a_token_that_is_neither_trained_nor_masked_is_an_error():
    Ledger(sampled=10, trained=7, masked={"abandoned": 3}).check()
    with pytest.raises(LedgerError, match="10 tokens sampled, 7 trained, 2 masked"):
        Ledger(sampled=10, trained=7, masked={"abandoned": 2}).check()


def test_totals_are_sums_and_the_worst_seen():
    a = Ledger(
        {"succeeded": 3},
        {"trained": 1},
        {"complete": 5},
        {"root": 3},
        10,
        8,
        {"x": 2},
        1,
        1e-5,
        1e-9,
        {"sampling": 1.5},
    )
    b = Ledger(
        {"succeeded": 1, "failed: timeout": 1},
        {},
        {"complete": 1},
        {},
        4,
        4,
        {},
        0,
        2e-5,
        0.0,
        {"sampling": 0.25, "training": 1.0},
    )
    summed = total([a, b]).check()
    assert summed.rollouts == {"succeeded": 4, "failed: timeout": 1}
    assert (summed.sampled, summed.trained, summed.masked) == (14, 12, {"x": 2})
    assert (summed.staleness_max, summed.parity_max, summed.seconds) == (1, 2e-5, {"sampling": 1.75, "training": 1.0})
    assert Ledger.from_json(summed.to_json()) == summed


def test_what_rewards_were_compared_with_adds_up_over_steps():
    steps = [Ledger(compared={"rollouts of a task": 8}), Ledger(compared={"rollouts of the batch": 4}), Ledger()]
    assert total(steps).compared == {"rollouts of a task": 8, "rollouts of the batch": 4}


def test_outcomes_name_the_reason_of_a_failure():
    rollout = Rollout(
        "r", "run", {}, Mode.TRAIN, 0, 0, 0, 1, status=Status.FAILED, failure=Failure(Reason.TIMEOUT, "late")
    )
    assert count_outcomes([rollout, rollout]) == {"failed: timeout": 2}
