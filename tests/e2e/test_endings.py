"""How runs end: what a run that died, or was stopped, between two of its last acts still gets, and what is said of a
validation that is not whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, Trainer
from agentlightning.errors import AgentLightningError
from agentlightning.nouns import Mode, Rollout, RunStatus
from agentlightning.records.progress import SilentView
from agentlightning.views.live.state import summary
from agentlightning.views.result import FitResult
from tests.e2e import letters_agent
from tests.e2e.test_training import _open
from tests.tiny import letter_tasks

ROOT = Path(__file__).parents[2]

DYING = """
import os, sys
from agentlightning.records.progress import SilentView
from tests.e2e import letters_agent
from tests.e2e.test_endings import fit

class Dying(SilentView):
    def checkpoint_saved(self, path):
        if path.name == sys.argv[3]:
            os.kill(os.getpid(), 9)

fit(sys.argv[1], sys.argv[2], letters_agent.agent, Dying(), **eval(sys.argv[4]))
"""


class Listening(SilentView):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def fit(out: Any, letters: Any, agent: Any, progress: Any, *, resume: bool | str = False, **settings: Any) -> FitResult:
    trainer = Trainer(
        algorithm=GRPO(group_size=2, tasks_per_step=2), model=letters, output_dir=out, progress=progress, threads=1,
        n_runners=4,
        sampling={"max_tokens": 2}, evaluation={"max_tokens": 2, **settings.pop("evaluation", {})}, **settings,
    )  # fmt: skip
    return trainer.fit(agent, letter_tasks(4), letter_tasks(4), resume=resume)


def die_after(checkpoint: str, out: Path, letters: Path, **settings: Any) -> Path:
    """The folder of a run that was killed when it had saved this checkpoint."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", DYING, str(out), str(letters), checkpoint, repr(settings)]
    died = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    assert not (folder / "result.json").exists()
    return folder


async def rollouts_of(out: Path) -> list[Rollout]:
    store = _open(out)
    try:
        return await store.rollouts((await store.runs())[0].id)
    finally:
        await store.close()


async def attempts_of(out: Path) -> list[int]:
    store = _open(out)
    try:
        return [len(await store.attempts(rollout.id)) for rollout in await store.rollouts((await store.runs())[0].id)]
    finally:
        await store.close()


def test_a_run_that_died_between_its_last_step_and_its_summary_gets_both_and_its_validation(
    letters: Path, tmp_path: Path
) -> None:
    folder = die_after("step-000002", tmp_path, letters, steps=2)
    assert {r.group for r in asyncio.run(rollouts_of(tmp_path)) if r.mode is Mode.VAL} <= set(range(4)), (
        "there is no validation but the first"
    )
    progress = Listening()
    result = fit(tmp_path, letters, letters_agent.agent, progress, steps=2, resume=True)
    assert any(text.endswith("all of its 2 steps were done, none was left to make") for text in progress.messages)
    assert result.status is RunStatus.FINISHED and result.after is not None and result.after.scored == 4
    assert json.loads((folder / "result.json").read_text())["validation_after"]["scored"] == 4
    assert (folder / "curve.png").is_file()
    assert (
        json.loads((folder / "checkpoints" / "step-000002" / "checkpoint.json").read_text())["score"]
        == result.after.mean
    )
    before = len(asyncio.run(rollouts_of(tmp_path)))
    again = fit(tmp_path, letters, letters_agent.agent, progress, steps=2, resume=True)
    assert (again.status, again.after and again.after.mean) == (RunStatus.FINISHED, result.after.mean)
    assert len(asyncio.run(rollouts_of(tmp_path))) == before, "a finished run makes nothing new"


def test_resuming_a_run_that_lives_is_refused_and_takes_nothing_from_it(letters: Path, tmp_path: Path) -> None:
    called, going_on = threading.Event(), threading.Event()
    told: list[str] = []

    def agent(task: dict[str, str], llm: Any) -> float:
        called.set()
        going_on.wait()
        return letters_agent.agent(task, llm)

    def disturb() -> None:
        called.wait()
        try:
            fit(tmp_path, letters, agent, Listening(), steps=1, resume=True)
        except AgentLightningError as error:
            told.append(str(error))
        going_on.set()

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    result = fit(tmp_path, letters, agent, Listening(), steps=1)
    disturbing.join()
    assert [text.startswith(f"run {result.run_id} is in use by another process") for text in told] == [True]
    assert result.status is RunStatus.FINISHED and result.ledger.rollouts == {"succeeded": 4}
    assert all(attempts == 1 for attempts in asyncio.run(attempts_of(tmp_path))), "no attempt was taken from it"


def test_a_run_that_had_reached_its_goal_when_it_died_makes_no_further_step(letters: Path, tmp_path: Path) -> None:
    die_after("step-000001", tmp_path, letters, steps=3, stop_at=-1.0)
    result = fit(tmp_path, letters, letters_agent.agent, Listening(), steps=3, stop_at=-1.0, resume=True)
    assert [line["step"] for line in result.history] == [1] and result.after is not None


def test_a_validation_in_which_the_run_was_stopped_says_how_many_of_how_many_and_a_resume_makes_it_whole(
    letters: Path, tmp_path: Path
) -> None:
    going_on = threading.Event()
    first = letter_tasks(4)[0]["letter"], letter_tasks(4)[1]["letter"]

    def agent(task: dict[str, str], llm: Any) -> float:
        if task["letter"] not in first:
            going_on.wait()
        return letters_agent.agent(task, llm)

    class Stopping(Listening):
        ended = 0

        def rollout_done(self, rollout: Rollout) -> None:
            self.ended += 1
            if self.ended == 2:
                os.kill(os.getpid(), signal.SIGINT)

    result = fit(tmp_path, letters, agent, Stopping(), steps=1)
    assert result.status is RunStatus.STOPPED and result.before is not None
    assert (result.before.scored, result.before.rollouts) == (2, 4)
    assert "on 2 of 4 rollouts" in str(result.before)
    assert any("(2 of 4) before" in text for _, text in summary(result.to_json()))
    assert result.resume is not None and f"resume={result.run_id!r}" in result.resume
    assert summary(result.to_json())[-1] == ("to go on", result.resume)
    going_on.set()
    whole = fit(tmp_path, letters, agent, Listening(), steps=1, resume=True)
    assert whole.before is not None and (whole.before.scored, whole.before.rollouts) == (4, 4)
    assert whole.resume is None


def test_a_validation_with_failures_says_how_many_of_how_many_in_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    from agentlightning.views.curve import plot

    drawn: list[str] = []
    monkeypatch.setattr(Axes, "annotate", lambda self, text, *_, **__: drawn.append(text))
    whole = {"step": 0, "mean": 0.5, "low": None, "high": None, "scored": 16, "failed": {}}
    plot(
        [],
        tmp_path / "curve.png",
        validations=[whole, {**whole, "step": 2, "scored": 12, "failed": {"failed: timeout": 4}}],
    )
    assert drawn == ["12 of 16"]
