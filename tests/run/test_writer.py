"""metrics.jsonl and TensorBoard files: one line per step, replaced on a resume, whatever the process before left."""

from __future__ import annotations

import errno
import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.run import writer
from agentlightning.run.writer import MetricsWriter

ROOT = Path(__file__).parents[2]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def line(step: int, reward: float = 0.5) -> dict[str, Any]:
    return {"step": step, "reward": reward, "rewards": [0.0, 1.0], "advantages": {"r-1": 0.5}}


def test_each_step_is_one_line_with_its_ledger_and_without_per_rollout_weights(tmp_path: Path) -> None:
    out = MetricsWriter(tmp_path, tensorboard=False)
    for step in (1, 2):
        out.write(line(step), {"sampled": 3, "seconds": {"sampling": 1.5}})
    assert lines(tmp_path) == out.history()
    assert lines(tmp_path)[1] == {
        "step": 2,
        "reward": 0.5,
        "rewards": [0.0, 1.0],
        "ledger": {"sampled": 3, "seconds": {"sampling": 1.5}},
    }
    out.close()
    out.close()


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib; from agentlightning.run.writer import MetricsWriter; w = "
        "MetricsWriter(pathlib.Path(sys.argv[1]));"
        "w.write({'step': 1, 'reward': 0.25}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert lines(tmp_path) == [{"step": 1, "reward": 0.25}]
    assert scalars(tmp_path)["reward"] == [(1, 0.25)]


def test_steps_that_are_made_again_replace_their_lines(tmp_path: Path) -> None:
    first = MetricsWriter(tmp_path, tensorboard=False)
    for step in range(1, 6):
        first.write(line(step, 0.1))
    first.close()
    second = MetricsWriter(tmp_path, tensorboard=False)
    assert [entry["step"] for entry in second.history()] == [1, 2, 3, 4, 5]
    second.write(line(4, 0.9))
    assert [(entry["step"], entry["reward"]) for entry in lines(tmp_path)] == [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.9)]
    second.write(line(5, 0.9))
    assert [entry["step"] for entry in lines(tmp_path)] == [1, 2, 3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), step=st.integers(1, 7))
def test_a_file_cut_anywhere_is_gone_on_with(tmp_path_factory: pytest.TempPathFactory, cut: int, step: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    out = MetricsWriter(folder, tensorboard=False)
    for number in range(1, 6):
        out.write(line(number))
    out.close()
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    out = MetricsWriter(folder, tensorboard=False)
    out.write(line(step))
    assert [entry["step"] for entry in lines(folder)] == [*range(1, min(kept, step - 1) + 1), step]


def test_a_line_that_is_no_json_is_overwritten_with_what_follows_it(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\x00\x00garbage\n{"step": 3}\n')
    out = MetricsWriter(tmp_path, tensorboard=False)
    out.write(line(2))
    assert [entry["step"] for entry in lines(tmp_path)] == [1, 2]


def test_a_validation_joins_the_line_of_its_step(tmp_path: Path) -> None:
    out = MetricsWriter(tmp_path, tensorboard=False)
    validation = {
        "step": 0,
        "mean": 0.2,
        "low": 0.1,
        "high": math.nan,
        "scored": 10,
        "failed": {},
        "rollout_ids": ["a"],
    }
    out.validated(validation)
    out.write(line(1))
    out.validated({**validation, "step": 1, "mean": 0.4})
    assert lines(tmp_path)[0] == {
        "step": 0,
        "validation": {"step": 0, "mean": 0.2, "low": 0.1, "high": None, "scored": 10, "failed": {}},
    }
    assert lines(tmp_path)[1]["reward"] == 0.5 and lines(tmp_path)[1]["validation"]["mean"] == 0.4
    assert len(lines(tmp_path)) == 2


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    out = MetricsWriter(tmp_path)
    out.write({"step": 1, "loss": math.nan, "nested": {"x": [math.inf, 1.0]}})
    assert lines(tmp_path) == [{"step": 1, "loss": None, "nested": {"x": [None, 1.0]}}]


def test_a_file_that_cannot_be_written_is_one_line_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    (tmp_path / "metrics.jsonl").mkdir()
    out = MetricsWriter(tmp_path, tensorboard=False, say=said.append)
    out.write(line(1))
    assert [text.partition(" is not")[2] for text in said] == [
        " written any more: Is a directory; the run goes on, and its record has the same numbers"
    ]
    assert [values["step"] for values in out.history()] == [1]
    out = MetricsWriter(tmp_path / "..", tensorboard=False, say=said.append)
    monkeypatch.setattr(os, "pwrite", lambda *_: 3)  # a disk that takes three bytes more
    for step in (1, 2):
        out.write(line(step))
    out.close()
    assert len(said) == 2 and os.strerror(errno.ENOSPC) in said[1]


# --------------------------------------------------------------------------- TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads back."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_reads_every_number_under_its_path(tmp_path: Path) -> None:
    out = MetricsWriter(tmp_path)
    out.write(line(1, 0.25), {"masked": {"forced": 4}, "sampled": 10})
    out.validated({"step": 1, "mean": 0.5})
    out.write(line(2, 0.5), {"masked": {}, "sampled": 11})
    out.close()
    found = scalars(tmp_path)
    assert found["reward"] == [(1, 0.25), (2, 0.5)]
    assert found["ledger/masked/forced"] == [(1, 4.0)]
    assert found["ledger/sampled"] == [(1, 10.0), (2, 11.0)]
    assert found["validation/mean"] == [(1, 0.5)]
    assert not any("advantages" in tag or tag in ("step", "rewards") for tag in found)


def test_tensorboard_forgets_the_steps_that_a_resumed_run_makes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = MetricsWriter(tmp_path)
    for step in (1, 2, 3):
        out.write(line(step, 0.25))
    out.close()
    monkeypatch.setattr(
        writer.time, "time", lambda base=writer.time.time: base() + 10
    )  # a later process: its file sorts behind
    out = MetricsWriter(tmp_path)
    for step in (2, 3):
        out.write(line(step, 0.75))
    out.close()
    assert scalars(tmp_path)["reward"] == [(1, 0.25), (2, 0.75), (3, 0.75)]


def test_without_tensorboard_one_line_says_so_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "find_spec", lambda _: None)
    out = MetricsWriter(tmp_path)
    assert len(out.notes) == 1 and "pip install" in out.notes[0]
    out.write(line(1))
    assert not (tmp_path / "tensorboard").exists()
    assert MetricsWriter(tmp_path, tensorboard=False).notes == ()


@pytest.mark.parametrize("kind", [TypeError, SystemExit])
@pytest.mark.parametrize("broken", ["record_writer", "event_pb2"])
def test_tensorboard_beside_a_library_it_does_not_work_with_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, kind: type[BaseException]
) -> None:
    """As with an older protobuf: TypeError ("Descriptors cannot be created directly") or ImportError when its modules
    are imported."""
    said: list[str] = []

    def load(name: str) -> object:
        if name.endswith(broken):
            raise kind("Descriptors cannot be created directly.\nIf this call came from a _pb2.py file ...")
        return importlib.import_module(name)

    monkeypatch.setattr(writer, "import_module", load)
    out = MetricsWriter(tmp_path, say=said.append)
    for step in (1, 2):
        out.write(line(step))
    out.close()
    assert said == [
        f"TensorBoard's files are not written any more: {kind.__name__}: Descriptors cannot be created directly.; "
        "the run goes on, metrics.jsonl has the same numbers"
    ]
    assert [entry["step"] for entry in lines(tmp_path)] == [1, 2]


def test_a_disk_that_is_full_for_tensorboard_is_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    out = MetricsWriter(tmp_path, say=said.append)
    (tmp_path / "tensorboard").write_text("a file where its folder should be")
    for step in (1, 2):
        out.write(line(step))
    out.close()
    assert len(said) == 1 and "File exists" in said[0] and len(lines(tmp_path)) == 2


def test_writing_metrics_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from agentlightning.run.writer import MetricsWriter; w = "
        "MetricsWriter(pathlib.Path(sys.argv[1]));"
        "w.write({'step': 1, 'reward': 0.25}); print([m for m in ('torch', 'tensorflow', 'matplotlib', 'rich') if m in "
        "sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == "[]"
