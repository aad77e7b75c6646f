"""Whole runs under each scheme of credit: the weights that a step stored are those of its formula, computed here anew
from the recorded rewards, and the ledger adds up."""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentlightning import GRPO
from agentlightning.cli.app import app
from agentlightning.nouns import GIVEN, Call, Node, Reward, Rollout
from agentlightning.records.credit import AttemptCredit, NodeCredit
from agentlightning.records.ledger import Ledger
from tests.e2e import letters_agent
from tests.e2e.test_resume import end, start, wait_for_lines, weights
from tests.e2e.test_training import _open, train

STEPS = 2


@dataclass(frozen=True)
class Kept:
    """A rollout with what its step stored of it."""

    rollout: Rollout
    calls: list[Call]
    nodes: list[Node]
    rewards: list[Reward]
    credit: AttemptCredit

    @property
    def own(self) -> list[float]:
        """The rewards of its calls, in their order."""
        return [sum(r.value for r in self.rewards if r.call_id == call.id) for call in self.calls]

    def weighed(self, index: int) -> NodeCredit:
        """What the sample of one of its calls weighs."""
        return self.credit.by_node[self.calls[index].samples[0].node]


async def _groups(out: Path, run_id: str) -> tuple[list[list[Kept]], list[Ledger]]:
    store = _open(out)
    try:
        rows = {row.attempt_id: AttemptCredit.decode(row.blob) for row in await store.credit(run_id)}
        groups: dict[int, list[Kept]] = {}
        for rollout in await store.rollouts(run_id):
            assert rollout.attempt_id is not None
            calls, nodes = await store.calls(rollout.attempt_id), await store.nodes(rollout.attempt_id)
            kept = Kept(rollout, calls, nodes, await store.rewards(rollout.id), rows[rollout.attempt_id])
            groups.setdefault(rollout.group, []).append(kept)
        return list(groups.values()), [Ledger.from_json(step.ledger).check() for step in await store.steps(run_id)]
    finally:
        await store.close()


def run(letters: Path, out: Path, agent: Any, **settings: Any) -> tuple[list[list[Kept]], list[Ledger], Any]:
    algorithm = GRPO(**{"group_size": 2, "tasks_per_step": 3, **settings})
    result = train(letters, out, agent, steps=STEPS, algorithm=algorithm)
    groups, ledgers = asyncio.run(_groups(out, result.run_id))
    assert len(ledgers) == STEPS
    every = [kept for group in groups for kept in group]
    assert sum(ledger.trained for ledger in ledgers) == sum(kept.credit.trained for kept in every) > 0
    assert all(ledger.parity_max is not None and ledger.parity_max < 1e-4 for ledger in ledgers)
    return groups, ledgers, result


def advantages(values: list[float]) -> list[float]:
    """Shao et al., arXiv:2402.03300, section 4.1."""
    return [(value - statistics.fmean(values)) / (statistics.stdev(values) + 1e-6) for value in values]


def discounted(kept: Kept, discount: float) -> list[float]:
    one, two, three = kept.own
    final = kept.rollout.reward or 0.0
    return [one + discount * two + discount**2 * (three + final), two + discount * (three + final), three + final]


@pytest.mark.parametrize(
    ("credit", "compared"),
    [
        ({}, {"rollouts of a task"}),
        ({"scheme": "call"}, {"calls of a task"}),
        ({"scheme": "mixed", "call_weight": 0.5}, {"rollouts of a task", "calls of a task"}),
        ({"scheme": "discounted", "discount": 0.5}, {"calls of a task"}),
    ],
)
def test_each_call_has_the_weight_that_its_scheme_says(
    letters: Path, tmp_path: Path, credit: dict[str, Any], compared: set[str]
):
    groups, ledgers, _ = run(letters, tmp_path, letters_agent.three_seats, credit=credit)
    assert set().union(*(ledger.compared for ledger in ledgers)) == compared
    scheme = credit.get("scheme", "episode")
    assert sum(sum(ledger.unused.values()) for ledger in ledgers) == (36 if scheme == "episode" else 0)
    for group in groups:
        finals = [kept.rollout.reward or 0.0 for kept in group]
        by_call = [discounted(kept, 0.5) if scheme == "discounted" else kept.own for kept in group]
        flat = [value for values in by_call for value in values]
        of_calls = advantages(flat) if len(set(flat)) > 1 else None
        of_rollouts = advantages(finals) if len(set(finals)) > 1 else None
        for place, kept in enumerate(group):
            for index in range(3):
                rollout = None if of_rollouts is None else of_rollouts[place]
                call = None if of_calls is None else of_calls[3 * place + index]
                if scheme == "mixed":
                    parts = [part for part in (rollout, call and 0.5 * call) if part is not None]
                    expected = sum(parts) if parts else None
                else:
                    expected = rollout if scheme == "episode" else call
                node = kept.weighed(index)
                if expected is None:
                    assert node.why == "degenerate_group"
                else:
                    assert list(node.weights) == pytest.approx([expected], rel=1e-5, abs=1e-6)


def test_one_rollout_a_task_is_compared_with_the_batch_or_by_its_calls_and_the_ledger_says_which(
    letters: Path, tmp_path: Path
):
    settings = {"group_size": 1, "tasks_per_step": 6}
    _, whole, _ = run(letters, tmp_path / "a", letters_agent.three_seats, **settings)
    assert all(ledger.compared == {"rollouts of the batch": 6} for ledger in whole)
    groups, calls, _ = run(letters, tmp_path / "b", letters_agent.three_seats, credit={"scheme": "call"}, **settings)
    assert all(set(ledger.compared) == {"calls of a task"} for ledger in calls)
    for (kept,) in groups:
        if len(set(kept.own)) > 1:
            assert [kept.weighed(i).weights[0] for i in range(3)] == pytest.approx(advantages(kept.own), rel=1e-5)


def test_a_limit_on_rows_is_held_counted_and_shown(letters: Path, tmp_path: Path):
    credit = {"scheme": "call", "max_rows": 1}
    groups, ledgers, result = run(letters, tmp_path, letters_agent.three_seats, credit=credit)
    for ledger in ledgers:
        assert ledger.rows["made"] == ledger.rows["kept"] + ledger.rows["row_limit"] and ledger.rows["row_length"] == 0
        assert ledger.rows["kept"] <= 6 and ledger.masked["row_limit"] > 0
    assert all(sum(kept.weighed(i).trained > 0 for i in range(3)) <= 1 for group in groups for kept in group)
    shown = CliRunner().invoke(app, ["show", result.run_id, "--output-dir", str(tmp_path)]).output
    assert "call, max_rows 1" in shown and f"{sum(one.rows['made'] for one in ledgers)} made = " in shown
    rollout = next(kept for group in groups for kept in group if kept.credit.masked.get("row_limit"))
    traced = CliRunner().invoke(app, ["trace", result.run_id, rollout.rollout.id, "--output-dir", str(tmp_path)]).output
    assert "call, max_rows 1" in traced and "masked: row limit" in traced


def test_triplets_off_the_record_are_trained_and_counted_apart(letters: Path, tmp_path: Path):
    credit = {"scheme": "call", "max_rows": 2}
    groups, ledgers, result = run(
        letters, tmp_path, letters_agent.triplets, group_size=1, tasks_per_step=3, credit=credit
    )
    for (kept,) in groups:
        assert [call.wire for call in kept.calls] == ["chat", GIVEN, GIVEN]
        trained = [kept.weighed(i) for i in range(3) if kept.weighed(i).trained]
        assert len(trained) == 2, "of three rows two are kept"
        expected = advantages(kept.own)
        for i in range(3):
            assert list(kept.weighed(i).weights) in ([], pytest.approx([expected[i]], rel=1e-5))
    for ledger in ledgers:
        assert ledger.off_record == 3 * 2 * 3 == ledger.off_record_trained + sum(ledger.off_record_masked.values())
        assert ledger.rows == {"made": 9, "kept": 6, "row_length": 0, "row_limit": 3}
        assert ledger.calls == {"complete": 3}, "given ones are nobody's calls"
    given = sum(ledger.off_record for ledger in ledgers)
    shown = CliRunner().invoke(app, ["show", result.run_id, "--output-dir", str(tmp_path)]).output
    assert f"{given} tokens given as targets" in " ".join(shown.split())


def test_a_killed_run_stores_the_same_credit_when_it_is_resumed(letters: Path, tmp_path: Path):
    """Rows are chosen again as they were, and a resumed run ends with the weights of one that was not killed."""
    credit = ["--agent", "three_seats", "--credit", json.dumps({"scheme": "mixed", "max_rows": 2})]
    extra = [*credit, "--set", "deterministic=true"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted = end(start(whole, letters, *extra, steps=3))
    process = start(killed, letters, *extra, steps=3)
    wait_for_lines(killed, 1, process)
    process.kill()
    process.communicate()
    resumed = end(start(killed, letters, *extra, "--resume", steps=3))
    assert weights(resumed["checkpoint"]) == weights(uninterrupted["checkpoint"])
    stored = [asyncio.run(_stored(out)) for out in (whole, killed)]
    assert stored[0] == stored[1] and len(stored[0]) == 3 * 32


async def _stored(out: Path) -> dict[str, bytes]:
    """By rollout without its run, what the steps stored."""
    store = _open(out)
    try:
        (run_,) = await store.runs()
        of = {rollout.attempt_id: rollout.id.removeprefix(run_.id) for rollout in await store.rollouts(run_.id)}
        return {of[row.attempt_id]: row.blob for row in await store.credit(run_.id) if row.attempt_id in of}
    finally:
        await store.close()
