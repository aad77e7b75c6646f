"""Whole runs of programs that say in their own code which of their agents are trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, Trainer
from agentlightning.credit import credit_attempt
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.records.traces import AttemptTrace
from agentlightning.store import open_store
from agentlightning.types import Attempt, Call, Node, StepRecord
from agentlightning.views.result import FitResult
from tests.e2e import letters_agent
from tests.e2e.test_training import TASKS, train


async def _recorded(out: Path, run_id: str) -> tuple[StepRecord, list[tuple[Attempt, list[Call], list[Node]]]]:
    store = open_store(f"sqlite:///{out / 'record.db'}")
    try:
        attempts = [attempt for rollout in await store.rollouts(run_id) for attempt in await store.attempts(rollout.id)]
        (step,) = await store.steps(run_id)
        return step, [(attempt, await store.calls(attempt.id), await store.nodes(attempt.id)) for attempt in attempts]
    finally:
        await store.close()


def only_the_listener_was_trained(out: Path, result: FitResult, trained_agents: str | None) -> list[Attempt]:
    """That the ledger is what credit makes of the record alone, and that it leaves out the other agent. Returns the
    attempts."""
    step, recorded = asyncio.run(_recorded(out, result.run_id))
    advantages: Any = step.metrics["advantages"]
    trained = {"listener": 0, "other": 0}
    for attempt, calls, nodes in recorded:
        advantage = advantages.get(attempt.rollout_id)
        trace = AttemptTrace(attempt, tuple(calls), tuple(nodes))
        credit = credit_attempt(trace, advantage, trained_agents=trained_agents)
        call_of = {node.id: node.call_index for node in nodes}
        for node in credit.nodes:
            agent = "listener" if calls[call_of[node.node]].agent == "listener" else "other"
            trained[agent] += node.trained
    ledger = result.ledger.check()
    assert trained == {"listener": ledger.trained, "other": 0} and ledger.trained > 0
    assert ledger.masked["other_agent"] > 0
    return [attempt for attempt, _, _ in recorded]


def test_the_agents_that_rollouts_mark_are_trained_and_no_others_also_from_processes(letters: Path, tmp_path: Path):
    result = train(letters, tmp_path, f"{letters_agent.__file__}:marks_listener", steps=1, n_runners=4)
    attempts = only_the_listener_was_trained(tmp_path, result, None)
    assert {attempt.marked for attempt in attempts} == {("listener",)}


def test_what_an_agent_says_of_its_program_is_a_setting_of_the_run(letters: Path, tmp_path: Path):
    result = train(letters, tmp_path, letters_agent.listens, steps=1)
    only_the_listener_was_trained(tmp_path, result, "listen.*")
    description = json.loads((result.folder / "config.json").read_text())
    assert (
        description["config"]["trained_agents"] == "listen.*"
        and description["sources"]["trained_agents"] == "agent Listens"
    )
    settings = {key: value for key, value in description["config"].items() if key != "trained_agents"}
    again = Trainer(algorithm=GRPO(group_size=4, tasks_per_step=8), config=settings, progress=False)
    with pytest.raises(
        ConfigError, match=r'cannot be resumed with other settings: trained_agents \("listen\.\*" then, null now\)\.'
    ):
        again.fit(letters_agent.two_agents, TASKS, resume=result.run_id)
    with pytest.raises(
        ConfigError,
        match=r"trained_agents is given twice: 'writer' \(argument.*\) and 'listen\.\*' \(agent 'Listens'\)",
    ):
        train(letters, tmp_path, letters_agent.listens, steps=1, trained_agents="writer")


def test_marks_that_no_call_is_of_stop_the_run_with_the_names_of_those_that_called(letters: Path, tmp_path: Path):
    with pytest.raises(
        RunFailed,
        match=r"^step 1: no call is of an agent .*\(marked: lisener\); calls came from agent-[0-9a-f]{6}, listener$",
    ):
        train(letters, tmp_path, letters_agent.marks_nobody, steps=1)
