"""The ledger adds up, or says so."""

from __future__ import annotations

import pytest

from agentlightning.nouns import Failure, Mode, Reason, Rollout, Status
from agentlightning.records.ledger import (
    Ledger,
    LedgerError,
    count_outcomes,
    describe_off_record,
    describe_rows,
    total,
)


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


def test_tokens_given_as_targets_are_trained_or_masked_by_an_account_of_their_own():
    ledger = Ledger(sampled=10, trained=10, off_record=5, off_record_trained=3, off_record_masked={"row_limit": 2})
    assert ledger.check() is ledger and Ledger.from_json(ledger.to_json()) == ledger
    with pytest.raises(LedgerError, match="5 tokens off the record, 3 trained, 1 masked"):
        Ledger(off_record=5, off_record_trained=3, off_record_masked={"row_limit": 1}).check()
    with pytest.raises(LedgerError, match="10 tokens sampled"):
        Ledger(sampled=10, trained=8, off_record=2).check()
    summed = total([ledger, ledger, Ledger()]).check()
    assert (summed.off_record, summed.off_record_trained, summed.off_record_masked) == (10, 6, {"row_limit": 4})
    said = describe_off_record(summed.off_record, summed.off_record_trained, summed.off_record_masked)
    assert said == "10 tokens given as targets = 6 trained + 4 masked (row_limit 4)" and not describe_off_record(
        0, 0, {}
    )


def test_rows_under_limits_add_up_over_steps_and_are_said():
    steps = [Ledger(rows={"made": 300, "kept": 64, "row_length": 0, "row_limit": 236})] * 2 + [Ledger()]
    assert total(steps).rows == {"made": 600, "kept": 128, "row_length": 0, "row_limit": 472}
    assert describe_rows(total(steps).rows) == "600 made = 128 kept + 472 row_limit" and not describe_rows({})
