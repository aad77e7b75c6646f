"""Whether a run is alive is asked of its folder's lock, and asking never gets in a run's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentlightning.errors import AgentLightningError
from agentlightning.nouns import RunRecord, RunStatus
from agentlightning.store.run_lock import Asked, RunLock, how_to_resume, is_held, standing_of


def record(folder: Path, status: RunStatus = RunStatus.RUNNING, mode: str = "train") -> RunRecord:
    return RunRecord("calc-1", "calc", str(folder / "calc-1"), status, {"mode": mode, "config": {}}, 0.0)


def test_a_lock_is_seen_while_it_is_held_and_not_after(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "gone") and not is_held(tmp_path)
    with RunLock(tmp_path, "calc-1"):
        assert is_held(tmp_path)
        with pytest.raises(AgentLightningError, match="calc-1 is in use by another process"):
            RunLock(tmp_path, "calc-1")
    assert not is_held(tmp_path)


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, time; from agentlightning.store.run_lock import RunLock\n"
        "with RunLock(pathlib.Path(sys.argv[1]), 'x'):\n    print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    assert is_held(tmp_path)
    process.kill()
    process.communicate()
    assert not is_held(tmp_path)


def test_asking_all_the_time_keeps_no_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            is_held(tmp_path)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            with RunLock(tmp_path, "calc-1"):
                pass
    finally:
        over.set()
        asking.join()


def test_what_is_not_running_and_what_trains_nothing_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "calc-1").mkdir()
    assert standing_of(record(tmp_path, RunStatus.FINISHED), tmp_path).resume == ""
    evaluation = standing_of(record(tmp_path, mode="val"), tmp_path)
    assert evaluation.dead and evaluation.resume == ""


def test_a_folder_that_was_copied_is_asked_itself(tmp_path: Path) -> None:
    for place in ("first", "copy"):
        (tmp_path / place / "calc-1").mkdir(parents=True)
    with RunLock(tmp_path / "first" / "calc-1", "calc-1"):
        original = record(tmp_path / "first")
        assert not standing_of(original, tmp_path / "first").dead
        assert standing_of(original, tmp_path / "copy").dead, "the copy is nobody's"


def test_a_run_that_a_program_began_says_what_has_to_be_given_again(tmp_path: Path) -> None:
    (tmp_path / "calc-1").mkdir()
    how = standing_of(record(tmp_path), tmp_path).resume
    assert how == (
        "fit(agent, train, val, resume='calc-1'), with the same settings, tasks and resources, and "
        f"output_dir={str(tmp_path)!r}"
    )


def test_the_command_is_the_one_that_was_given_with_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my agent.py").touch()
    given = ("train", "my agent.py:a", "--model=latest", "--tasks", "t.jsonl", "--resume=latest", "--steps", "3")
    asked = Asked(given, os.getcwd(), {"AGL_NAME": "it's"})
    config = {"model": {"path": "runs/a/checkpoints/step-000001"}, "output_dir": "runs"}
    how = how_to_resume({"asked": asked.to_json(), "config": config}, "calc-1", tmp_path / "runs" / "calc-1")
    assert how == (
        "AGL_NAME='it'\"'\"'s' agl train 'my agent.py:a' --model=runs/a/checkpoints/step-000001 --tasks t.jsonl "
        "--steps 3 --resume calc-1"
        "  # give again what is gone: t.jsonl"
    )
