"""Runs that are killed, interrupted or out of disk, and what is left of them. Real processes, real signals."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from agentlightning import GRPO, Trainer
from agentlightning.errors import AgentLightningError, ConfigError, RunFailed
from agentlightning.nouns import Mode, RunStatus, Status
from agentlightning.records.progress import SilentView
from agentlightning.records.steps import StepsOfGroups
from tests.e2e import letters_agent
from tests.e2e.test_training import _open
from tests.tiny import letter_tasks

PROGRAM = Path(__file__).with_name("train_letters.py")
STEPS = 5


def start(out: Path, letters: Path, *extra: str, steps: int = STEPS) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(out), str(letters), str(steps), *extra]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM.parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def end(process: subprocess.Popen[str], *, within: float = 600) -> dict[str, Any]:
    out, err = process.communicate(timeout=within)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def lines_written(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/metrics.jsonl"))


def wait_for_lines(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while lines_written(out) < count:
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline, "no step within 600 s"
        time.sleep(0.01)


def weights(checkpoint: str) -> str:
    tensors = load_file(Path(checkpoint) / "model.safetensors")
    return hashlib.sha256(
        b"".join(name.encode() + tensors[name].numpy().tobytes() for name in sorted(tensors))
    ).hexdigest()


async def groups_of(out: Path) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The groups of each step, as it was intended and as it ended."""
    store = _open(out)
    try:
        run = (await store.runs())[0]
        intended = await store.intents(run.id, mode=Mode.TRAIN)
        return [tuple(sorted(intent.groups)) for intent in intended], [
            step.groups for step in await store.steps(run.id)
        ]
    finally:
        await store.close()


async def counted(out: Path) -> tuple[Any, Counter[int], Counter[str], list[Any]]:
    store = _open(out)
    try:
        run = (await store.runs())[0]
        rollouts = await store.rollouts(run.id)
        rewards = Counter({r.id: len([w for w in await store.rewards(r.id) if w.source == "return"]) for r in rollouts})
        assert all(r.status is Status.SUCCEEDED for r in rollouts)
        steps = await store.steps(run.id)
        places = StepsOfGroups.of(steps, await store.intents(run.id))
        return run, Counter(places.step_of(r) for r in rollouts), rewards, steps
    finally:
        await store.close()


@pytest.fixture(scope="module")
def uninterrupted(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("uninterrupted")
    return weights(end(start(out, letters, "--set", "deterministic=true"))["checkpoint"])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    letters: Path, tmp_path: Path, uninterrupted: str, seed: int
):
    """Invariant 6 and ruling 6, in deterministic mode."""
    rng = random.Random(seed)
    process = start(tmp_path, letters, "--set", "deterministic=true")
    wait_for_lines(tmp_path, seed, process)  # steps made, of which none or three are in a checkpoint
    time.sleep(rng.random() * 0.5)
    process.kill()
    process.communicate()
    process = start(tmp_path, letters, "--resume", "--set", "deterministic=true")
    time.sleep(2.0 + rng.random())
    if process.poll() is None:  # a second death, while it catches up
        process.kill()
        process.communicate()
        process = start(tmp_path, letters, "--resume", "--set", "deterministic=true")
    end(process)
    store_run, per_step, rewards, steps = asyncio.run(counted(tmp_path))
    assert store_run.status is RunStatus.FINISHED
    assert per_step == Counter(dict.fromkeys(range(1, STEPS + 1), 32)), "no rollout is counted twice"
    intended, ended = asyncio.run(groups_of(tmp_path))
    assert intended == ended == [tuple(range(8 * step, 8 * step + 8)) for step in range(STEPS)], (
        "what a step learns from was written before, and each group is in one step"
    )
    assert set(rewards.values()) == {1}, "one accepted final reward per rollout"
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    assert all(step.ledger["staleness_max"] == 0 and (step.ledger["parity_max"] or 0.0) < 1e-4 for step in steps), (
        "each step sampled by its own weights"
    )
    assert lines_written(tmp_path) == STEPS
    checkpoint = json.loads(next(tmp_path.glob("*/result.json")).read_text())["checkpoint"]
    assert weights(checkpoint) == uninterrupted


def test_ctrl_c_once_saves_and_ends_with_the_summary_and_the_run_can_go_on(letters: Path, tmp_path: Path):
    process = start(tmp_path, letters, "--agent", "slow_agent", steps=200)
    wait_for_lines(tmp_path, 2, process)
    process.send_signal(signal.SIGINT)
    result = end(process, within=60)
    assert result["status"] == "stopped" and Path(result["checkpoint"], "model.safetensors").exists()
    done = result["steps"]
    assert 2 <= done < 200
    resumed = end(start(tmp_path, letters, "--resume", "--agent", "slow_agent", steps=done + 2))
    assert resumed["status"] == "finished" and resumed["steps"] == done + 2


def test_a_resume_with_other_settings_is_refused_by_name(letters: Path, tmp_path: Path):
    process = start(tmp_path, letters)
    wait_for_lines(tmp_path, 1, process)
    process.kill()
    process.communicate()
    process = start(tmp_path, letters, "--resume", "--set", "seed=5")
    _, err = process.communicate(timeout=600)
    assert process.returncode != 0 and "seed (0 then, 5 now)" in err


AGENT = """
import json, urllib.request

def agent(task, llm):
    body = json.dumps({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": task["letter"]}]}).encode()
    request = urllib.request.Request(llm.endpoint + "/chat/completions", body, {"Content-Type": "application/json", "Authorization": "Bearer x"})
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"] or ""
    return float(answer.startswith(task["letter"]))
"""


class Said(SilentView):
    """Keeps what a run says in words."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def test_a_resume_with_other_tasks_is_refused_and_with_changed_code_is_said(letters: Path, tmp_path: Path):
    file, tasks = tmp_path / "some_agent.py", letter_tasks(4)
    file.write_text(AGENT)

    def trainer(steps: int, said: Said) -> Trainer:
        return Trainer(
            algorithm=GRPO(group_size=2, tasks_per_step=2), model=letters, output_dir=tmp_path / "out", steps=steps,
            progress=said, threads=1,
            sampling={"max_tokens": 2}, evaluation={"max_tokens": 2}, checkpoint={"save_every": 1},
            runner={"isolation": "thread"},
        )  # fmt: skip

    first = trainer(1, Said()).fit(f"{file}:agent", tasks)
    for others, says in (
        (letter_tasks(8), "there were 4, and there are 8; the first 4 are the same"),
        (tasks[::-1], "the same in another order"),
    ):
        with pytest.raises(ConfigError, match=rf"cannot be resumed with other tasks in train_dataset: .*{says}"):
            trainer(2, Said()).fit(f"{file}:agent", others, resume=first.run_id)
    file.write_text(AGENT + "# and now otherwise\n")
    said = Said()
    second = trainer(2, said).fit(f"{file}:agent", tasks, tasks, resume=first.run_id)
    assert second.run_id == first.run_id and [line["step"] for line in second.history] == [1, 2]
    assert any("some_agent.py (the agent's code) has changed" in line for line in said.lines)
    assert any("had none in its val_dataset and is given 4 tasks" in line for line in said.lines)


def test_a_run_that_ended_because_all_failed_can_go_on_once_the_cause_is_gone(letters: Path, tmp_path: Path):
    broken = True

    def agent(task: dict[str, str], llm: Any) -> float:
        reward = letters_agent.agent(task, llm)
        if broken:
            raise ValueError("the service is down")
        return reward

    def run(resume: bool) -> RunStatus:
        trainer = Trainer(
            algorithm=GRPO(group_size=2, tasks_per_step=2), model=letters, output_dir=tmp_path, steps=1,
            sampling={"max_tokens": 1}, threads=1,
            progress=False,
        )  # fmt: skip
        return trainer.fit(agent, letter_tasks(8), val_dataset=letter_tasks(2), resume=resume).status

    with pytest.raises(
        RunFailed,
        match=r"none of 2 rollouts was scored; the commonest cause, 2 of 2: agent_error: .*the service is down",
    ):
        run(resume=False)
    broken = False
    assert run(resume=True) is RunStatus.FINISHED


def test_a_run_stopped_before_its_first_step_ends_with_a_summary(letters: Path, tmp_path: Path):
    trainer = Trainer(
        model=letters,
        output_dir=tmp_path,
        steps=5,
        sampling={"max_tokens": 1},
        threads=1,
        n_runners=1,
        max_time=0.2,
        progress=False,
    )
    result = trainer.fit(letters_agent.slow_agent, letter_tasks(8))
    assert result.status is RunStatus.STOPPED and result.checkpoint is None and not result.history


def test_validating_without_tasks_is_refused(letters: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"evaluation\.every=1 needs validation tasks"):
        Trainer(model=letters, output_dir=tmp_path, evaluation={"every": 1}, progress=False).fit(
            letters_agent.agent, letter_tasks(8)
        )


def test_resuming_nothing_says_which_runs_there_are(letters: Path, tmp_path: Path):
    trainer = Trainer(model=letters, output_dir=tmp_path, progress=False, steps=1)
    with pytest.raises(ConfigError, match="nothing to resume: no run named 'run'"):
        trainer.fit(letters_agent.agent, letter_tasks(8), resume=True)


def test_an_unwritable_folder_is_refused_at_start(letters: Path, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("not a folder")
    for folder in (file, file / "runs"):
        with pytest.raises(ConfigError) as caught:
            Trainer(model=letters, output_dir=folder, progress=False, steps=1).fit(letters_agent.agent, letter_tasks(8))
        assert (
            str(caught.value)
            == f"the folder {folder} cannot be written: {file} is a file, not a folder; choose another with output_dir"
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_ends_the_run_with_the_cause_and_a_usable_checkpoint(letters: Path, tmp_path: Path):
    out = tmp_path / "small"
    out.mkdir()
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(out)], capture_output=True).returncode
        != 0
    ):
        pytest.skip("this machine does not let root mount a file system")
    try:
        trainer = Trainer(
            algorithm=GRPO(group_size=8, tasks_per_step=8), model=letters, output_dir=out, steps=100_000,
            sampling={"max_tokens": 8},
            checkpoint={"save_every": 3, "keep": 2}, n_runners=16, threads=1, progress=False,
        )  # fmt: skip
        with pytest.raises(AgentLightningError, match=r"(?i)(no space|full)"):
            trainer.fit(letters_agent.agent, letter_tasks(8))
        checkpoints = sorted(out.glob("*/checkpoints/*/checkpoint.json"))
        assert checkpoints, "the last whole checkpoint is kept"
        assert load_file(checkpoints[-1].parent / "model.safetensors")
    finally:
        subprocess.run(["umount", "-l", str(out)], check=True)


def test_a_run_stopped_in_the_middle_of_a_step_takes_the_same_tasks_as_one_that_was_not(letters: Path, tmp_path: Path):
    """The tasks of the step that Ctrl-C cut short are that step's again, and those after it follow."""

    def tasks_by_step(out: Path) -> dict[int, list[str]]:
        async def read() -> dict[int, list[str]]:
            store = _open(out)
            try:
                run_id = (await store.runs())[0].id
                places = StepsOfGroups.of(await store.steps(run_id), await store.intents(run_id))
                letters: dict[int, list[str]] = {}
                for rollout in await store.rollouts(run_id):
                    letters.setdefault(places.step_of(rollout), []).append(rollout.task["letter"])
                return {step: sorted(of_step) for step, of_step in letters.items()}
            finally:
                await store.close()

        return asyncio.run(read())

    def run(out: Path, steps: int, *, agent: Any = letters_agent.agent, resume: bool = False, **settings: Any) -> None:
        trainer = Trainer(
            algorithm=GRPO(group_size=2, tasks_per_step=3), model=letters, output_dir=out, steps=steps,
            sampling={"max_tokens": 1}, threads=1,
            progress=False, **settings,
        )  # fmt: skip
        trainer.fit(agent, letter_tasks(8), resume=resume)

    run(tmp_path / "whole", 6)
    run(tmp_path / "cut", 6, agent=letters_agent.slow_agent, max_time=1.0, n_runners=1)
    run(tmp_path / "cut", 6, resume=True)
    assert tasks_by_step(tmp_path / "cut") == tasks_by_step(tmp_path / "whole")
