"""Checkpoints are whole or not there, whatever kills the writer, and a resumed learner goes on bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentlightning.errors import ConfigError, StoreError
from agentlightning.learning import checkpoints
from agentlightning.learning.checkpoints import complete, latest, load_state, prune, save
from agentlightning.learning.learner import Learner
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.settings.fields import LearnerConfig
from tests.tiny import tiny_model, tiny_tokenizer

from .trees import grpo_batch, with_logprobs

ROOT = Path(__file__).parents[2]


def make(dtype: torch.dtype = torch.float32, seed: int = 0) -> Learner:
    config = LearnerConfig(lr=1e-3, schedule="cosine", minibatches=2)
    return Learner(tiny_model(seed, dtype), config, PolicyGradientLoss(), seed=0, total_steps=8)


def keep(folder: Path, learner: Learner, step: int = 1, **more: Any) -> checkpoints.Checkpoint:
    return save(folder, learner, tiny_tokenizer(), step=step, version=step, **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_learner_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    batches = [with_logprobs(tiny_model(), grpo_batch(groups=3, seed=s), noise=0.1) for s in range(4)]
    whole = make(dtype)
    for batch in batches[:2]:
        whole.step(batch)
    checkpoint = keep(tmp_path, whole, 2)
    drawn = torch.rand(3)
    stats = [whole.step(batch) for batch in batches[2:]]
    resumed = make(dtype, seed=7)  # weights come from the checkpoint
    load_state(checkpoint, resumed)
    assert torch.equal(torch.rand(3), drawn)
    again = [resumed.step(batch) for batch in batches[2:]]
    assert [(s.loss, s.grad_norm, s.lr, s.parity) for s in again] == [
        (s.loss, s.grad_norm, s.lr, s.parity) for s in stats
    ]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))


def test_a_checkpoint_is_a_folder_that_transformers_loads(tmp_path: Path) -> None:
    learner = make()
    checkpoint = keep(tmp_path, learner, 3, score=0.5, extra={"cursor": 12})
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), learner.model.parameters(), strict=True))
    chat = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == tiny_tokenizer().apply_chat_template(
        chat, tokenize=False
    )
    content = json.loads((checkpoint.path / "checkpoint.json").read_text())
    assert (content["step"], content["version"], content["score"], content["complete"]) == (3, 3, 0.5, True)
    assert latest(tmp_path) == checkpoint and checkpoint.extra == {"cursor": 12}


def test_steps_are_ordered_by_number_and_an_existing_one_is_never_overwritten(tmp_path: Path) -> None:
    learner = make()
    paths = [keep(tmp_path, learner, step).path.name for step in (9, 10, 9)]
    assert paths == ["step-000009", "step-000010", "step-000009-2"]
    assert [c.path.name for c in complete(tmp_path)] == ["step-000009", "step-000009-2", "step-000010"]
    assert latest(tmp_path / "nothing") is None


def test_prune_keeps_the_latest_and_the_best(tmp_path: Path) -> None:
    learner = make()
    for step, score in ((1, 0.2), (2, 0.9), (3, None), (4, 0.5), (5, 0.1)):
        keep(tmp_path, learner, step, score=score)
    (tmp_path / ".partial-step-000006-1").mkdir()
    best = checkpoints.best(tmp_path)
    assert best is not None and best.step == 2
    removed = prune(tmp_path, keep=2, best=True)
    assert sorted(path.name for path in removed) == ["step-000001", "step-000003"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000004", "step-000005"]
    prune(tmp_path, keep=1, best=False)
    assert [c.step for c in complete(tmp_path)] == [5]
    with pytest.raises(ValueError, match="at least the latest"):
        prune(tmp_path, keep=0, best=True)


def test_a_score_can_be_noted_later_and_nothing_else_changes(tmp_path: Path) -> None:
    checkpoint = keep(tmp_path, make(), 1, extra={"cursor": 3})
    checkpoints.set_score(checkpoint, 0.75)
    assert latest(tmp_path) == replace(checkpoint, score=0.75) == checkpoints.best(tmp_path)


def test_saving_and_loading_leave_the_terminal_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_state(keep(tmp_path, make()), make())
    assert capfd.readouterr() == ("", "")


def test_of_equal_scores_the_later_is_the_best(tmp_path: Path) -> None:
    learner = make()
    for step in (1, 2):
        keep(tmp_path, learner, step, score=1.0)
    best = checkpoints.best(tmp_path)
    assert best is not None and best.step == 2


@pytest.mark.parametrize("damage", ["no manifest", "manifest cut", "file missing", "file cut", "not marked"])
def test_a_half_written_folder_is_never_picked_up(tmp_path: Path, damage: str) -> None:
    learner = make()
    first = keep(tmp_path, learner, 1)
    second = keep(tmp_path, learner, 2).path
    manifest, weights = second / "checkpoint.json", second / "model.safetensors"
    match damage:
        case "no manifest":
            manifest.unlink()
        case "manifest cut":
            manifest.write_bytes(manifest.read_bytes()[:50])
        case "file missing":
            weights.unlink()
        case "file cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        case _:
            manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    assert latest(tmp_path) == first


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    checkpoint = keep(tmp_path, make())
    other = Learner(tiny_model(vocab_size=300), LearnerConfig(), PolicyGradientLoss(), seed=0, total_steps=1)
    with pytest.raises(ConfigError, match="belongs to another model"):
        load_state(checkpoint, other)


def test_a_damaged_training_state_is_named(tmp_path: Path) -> None:
    checkpoint = keep(tmp_path, make())
    (checkpoint.path / "training_state.pt").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match="cannot be read"):
        load_state(checkpoint, make())


# --------------------------------------------------------------------------- a full disk, an unwritable folder, kill -9


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, of which one checkpoint of the tiny model takes 1.2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    made = (
        mount
        and subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not made:
        pytest.skip("making a small file system takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_previous_checkpoint_usable_and_says_so(small_disk: Path) -> None:
    learner = make()
    learner.step(with_logprobs(tiny_model(), grpo_batch()))
    first = keep(small_disk, learner, 1)
    filler = small_disk / "filler"
    for room in (0, 100_000, 300_000, 700_000, 1_000_000):
        filler.unlink(missing_ok=True)
        filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - room))
        with pytest.raises(
            StoreError, match=r"step 2 could not be written to .*MB free.*earlier checkpoints are untouched"
        ):
            keep(small_disk, learner, 2)
        assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "step-000001"]
        assert latest(small_disk) == first
    load_state(first, make())
    filler.unlink()
    assert keep(small_disk, learner, 2) == latest(small_disk)


@pytest.mark.parametrize("at", ["weights", "state", "flush", "rename"])
def test_a_write_that_fails_anywhere_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    learner = make()
    first = keep(tmp_path, learner, 1)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    target = {
        "weights": (learner.model, "save_pretrained"),
        "state": (torch, "save"),
        "flush": (os, "fsync"),
        "rename": (Path, "rename"),
    }[at]
    monkeypatch.setattr(*target, fail)
    with pytest.raises(StoreError, match="No space left on device"):
        keep(tmp_path, learner, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"] and latest(tmp_path) == first


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/checkpoints"):
        keep(tmp_path / "file" / "checkpoints", make())


WRITER = """
    import itertools, pathlib, sys
    from tests.learning.test_checkpoints import make, keep
    from agentlightning.learning.checkpoints import prune
    folder, learner = pathlib.Path(sys.argv[1]), make()
    for step in itertools.count(1):
        keep(folder, learner, step)
        prune(folder, keep=1, best=False)
        print(step, flush=True)
"""


def test_kill_minus_9_at_any_moment_of_a_save_or_prune_leaves_the_latest_usable(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    acknowledged = int(child.stdout.readline())
    seen = 0
    try:
        # Between any two looks the writer may be anywhere: what it said was saved, or something later, is there.
        for moment in range(60):
            time.sleep(0.003 * (moment % 7))
            os.kill(child.pid, signal.SIGSTOP)
            found = latest(tmp_path)
            assert found is not None and found.step >= max(acknowledged, seen)
            seen = found.step
            os.kill(child.pid, signal.SIGCONT)
    finally:
        child.kill()
        child.wait()
    found = latest(tmp_path)
    assert found is not None and found.step >= seen > acknowledged
    learner = make(seed=3)
    load_state(found, learner)
    assert keep(tmp_path, learner, found.step + 1) == latest(tmp_path)
    prune(tmp_path, keep=1, best=False)
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{found.step + 1:06d}"]
