"""What an algorithm can do with its ports alone, in whole runs: optimise a prompt without a model, and run ahead."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import web

from agentlightning import GRPO, Trainer
from agentlightning.algorithms.ports import Run
from agentlightning.errors import ConfigError
from agentlightning.records.traces import Group
from agentlightning.store import open_store
from tests.algorithms.better_prompt import BetterPrompt
from tests.e2e.letters_agent import graded
from tests.imports import ROOT
from tests.tiny import letter_tasks, save_letters
from tests.upstream import OtherEndpoint


def test_a_prompt_is_optimised_against_an_external_model_without_torch(tmp_path: Path) -> None:
    async def answer(_: web.Request, given: Any) -> web.StreamResponse:
        text = given["messages"][-1]["content"]
        word = text.split()[1].strip("!.")
        other.say = word.upper() if text.startswith("Shout") else word
        return web.Response(body=other.whole(given), content_type="application/json")

    other = OtherEndpoint(handle=answer)
    try:
        command = [sys.executable, "-m", "tests.algorithms.better_prompt", other.url, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    finally:
        other.close()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["template"] == "Shout {word}!" and found["reward"] == 1.0
    assert (found["scores"], found["best"]) == ([0.0, 1.0, 0.0], 3), "each candidate under a version of its own"
    assert len(other.asked) == 3 * 4 + 2
    assert found["torch"] is False


def test_an_algorithm_without_a_policy_refuses_a_model_and_one_with_a_policy_needs_it(tmp_path: Path) -> None:
    tasks = letter_tasks(2)
    with pytest.raises(ConfigError, match="model='m': better_prompt trains no weights and loads no model"):
        Trainer(algorithm=BetterPrompt(), model="m", output_dir=tmp_path).fit(graded, tasks)
    with pytest.raises(ConfigError, match=r"better_prompt .* nothing to call: pass resources="):
        Trainer(algorithm=BetterPrompt(), output_dir=tmp_path).fit(graded, tasks)
    with pytest.raises(ConfigError, match="no model: pass model="):
        Trainer(algorithm=GRPO(), output_dir=tmp_path).fit(graded, tasks)


class Ahead(GRPO):
    """GRPO that always has two steps' groups more asked for than it learns from."""

    name: ClassVar[str] = "ahead"

    async def sample(self, run: Run) -> list[Group]:
        while run.rollouts.outstanding < 3 * self.tasks_per_step:
            await run.rollouts.ask(run.tasks.take(1), self.group_size)
        return [await run.rollouts.next() for _ in range(self.tasks_per_step)]


def test_a_run_ahead_learns_from_versions_before_its_own_and_says_so(tmp_path: Path) -> None:
    model = save_letters(tmp_path / "model")
    trainer = Trainer(
        algorithm=Ahead(group_size=4, tasks_per_step=2), model=model, output_dir=tmp_path / "out", steps=5,
        progress=False, learner={"lr": 5e-3}, sampling={"max_tokens": 1}, threads=1, n_runners=24,
    )  # fmt: skip
    result = trainer.fit(graded, letter_tasks(8))

    async def record() -> tuple[Any, Any]:
        store = open_store(f"sqlite:///{tmp_path}/out/record.db", create=False)
        try:
            return await store.steps(result.run_id), await store.intents(result.run_id)
        finally:
            await store.close()

    steps, intents = asyncio.run(record())
    groups = [number for step in steps for number in step.groups]
    assert len(groups) == len(set(groups)) == 10, "every group ends in one step"
    assert [sorted(intent.groups) for intent in intents] == [list(step.groups) for step in steps]
    assert steps[0].ledger["staleness_max"] == 0
    assert max(step.ledger["staleness_max"] for step in steps) in (1, 2)
