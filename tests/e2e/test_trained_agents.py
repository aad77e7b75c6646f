"""Whole runs of programs that say in their own code which of their agents are trained."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from agentlightning import GRPO, Trainer
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.nouns import Attempt, Call, Node
from agentlightning.records.credit import AttemptCredit
from agentlightning.records.progress import SilentView
from agentlightning.store import open_store
from agentlightning.views.result import FitResult
from tests.e2e import letters_agent
from tests.e2e.test_training import TASKS, train


async def _recorded(out: Path, run_id: str) -> list[tuple[Attempt, list[Call], list[Node], AttemptCredit]]:
    """Every attempt of the run's step, with what the step stored of it."""
    store = open_store(f"sqlite:///{out / 'record.db'}")
    try:
        attempts = [attempt for rollout in await store.rollouts(run_id) for attempt in await store.attempts(rollout.id)]
        (step,) = await store.steps(run_id)
        rows = {row.attempt_id: row for row in await store.credit(run_id, step=step.step)}
        return [
            (
                attempt,
                await store.calls(attempt.id),
                await store.nodes(attempt.id),
                AttemptCredit.decode(rows[attempt.id].blob),
            )
            for attempt in attempts
        ]
    finally:
        await store.close()


def only_the_listener_was_trained(out: Path, result: FitResult) -> list[Attempt]:
    """That the ledger is the sum of the credit that the step stored, and that this leaves out the other agent. Returns
    the attempts."""
    recorded = asyncio.run(_recorded(out, result.run_id))
    trained = {"listener": 0, "other": 0}
    masked: Counter[str] = Counter()
    for _, calls, nodes, credit in recorded:
        assert [node.node for node in credit.nodes] == [node.id for node in nodes if node.sampled]
        masked.update(credit.masked)
        call_of = {node.id: node.call_index for node in nodes}
        for node in credit.nodes:
            agent = "listener" if calls[call_of[node.node]].agent == "listener" else "other"
            trained[agent] += node.trained
    ledger = result.ledger.check()
    assert trained == {"listener": ledger.trained, "other": 0} and ledger.trained > 0
    assert masked == ledger.masked and ledger.masked["other_agent"] > 0
    return [attempt for attempt, *_ in recorded]


def test_the_agents_that_rollouts_mark_are_trained_and_no_others_also_from_processes(letters: Path, tmp_path: Path):
    result = train(letters, tmp_path, f"{letters_agent.__file__}:marks_listener", steps=1, n_runners=4)
    attempts = only_the_listener_was_trained(tmp_path, result)
    assert {attempt.marked for attempt in attempts} == {("listener",)}


def test_what_an_agent_says_of_its_program_is_a_setting_of_the_run(letters: Path, tmp_path: Path):
    result = train(letters, tmp_path, letters_agent.listens, steps=1)
    only_the_listener_was_trained(tmp_path, result)
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


class Said(SilentView):
    """Keeps what a run says in words."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def trainer(letters: Path, out: Path, said: Said, trained_agents: str, steps: int = 1) -> Trainer:
    return Trainer(
        algorithm=GRPO(group_size=4, tasks_per_step=2), model=letters, output_dir=out, steps=steps, progress=said,
        sampling={"max_tokens": 2}, checkpoint={"save_every": 1}, threads=1, trained_agents=trained_agents,
    )  # fmt: skip


def test_a_choice_that_finds_nobody_is_told_at_the_first_rollout_and_ends_the_step(letters: Path, tmp_path: Path):
    said = Said()
    with pytest.raises(RunFailed, match=r"^step 1: no call is of an agent .*\(trained_agents='lisener'\); calls came"):
        trainer(letters, tmp_path, said, "lisener").fit(letters_agent.two_agents, TASKS)
    (line,) = [line for line in said.lines if line.startswith("no call of the first rollout is of an agent")]
    assert re.search(r"\(trained_agents='lisener'\); its calls came from agent-[0-9a-f]{6}, listener$", line)


def test_a_run_that_was_begun_when_whole_names_had_to_match_is_told_so_on_resume(letters: Path, tmp_path: Path):
    first = trainer(letters, tmp_path, Said(), "listen").fit(letters_agent.two_agents, TASKS)
    assert first.ledger.check().trained > 0, "it is searched in names"
    again = Said()
    trainer(letters, tmp_path, again, "listen", steps=2).fit(letters_agent.two_agents, TASKS, resume=first.run_id)
    assert not [line for line in again.lines if "trained_agents" in line]
    with sqlite3.connect(tmp_path / "record.db") as record:  # as an earlier version left it
        record.execute("UPDATE runs SET config = json_remove(config, '$.agents_by')")
    again = Said()
    trainer(letters, tmp_path, again, "listen", steps=3).fit(letters_agent.two_agents, TASKS, resume=first.run_id)
    (line,) = [line for line in again.lines if "trained_agents" in line]
    assert "trained_agents='listen' had to match whole names of agents; now it is searched in them" in line
