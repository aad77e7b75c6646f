"""What every example keeps to, and that its recorded result is of the files as they are. `make test-examples` runs the
programs themselves."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples import recorded
from tests.examples import __main__ as runner
from tests.imports import ROOT

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/train.py"))
LONGEST = 200
"""Lines of one file of an example."""
OPTIONS = {"--model", "--seed", "--output-dir", "--debug", "--small", "--record"}

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)


@each_example
def test_the_recorded_result_is_of_the_example_as_it_is(example: Path) -> None:
    result = example / "result.json"
    again = f"record it again: python examples/{example.name}/train.py --record"
    assert result.is_file(), f"{example.name} has no result.json: {again}"
    told = json.loads(result.read_text())
    assert told["fingerprint"] == recorded.fingerprint(example), f"{example.name} has changed since: {again}"
    for run in told["runs"]:
        assert run["curve"] and run["tokens"]["sampled"] > 0, run
        assert run["machine"]["cores"] and run["versions"]["agentlightning"] and run["versions"]["torch"], run
    assert len({run["seed"] for run in told["runs"]}) == len(told["runs"]) > 0


@each_example
def test_every_example_has_its_options_its_requirements_and_a_line(example: Path) -> None:
    assert (example / "requirements.txt").is_file()
    taken = re.findall(r'"(--[a-z-]+)"', (example / "train.py").read_text())
    assert set(taken) >= OPTIONS
    assert f"| [{example.name}]({example.name}) |" in (ROOT / "examples" / "README.md").read_text()
    long = {path.name: n for path in example.rglob("*.py") if (n := len(path.read_text().splitlines())) > LONGEST}
    assert not long, f"{example.name}: files of more than {LONGEST} lines: {long}"


def test_a_result_goes_stale_with_any_file_of_its_example_and_with_nothing_that_running_it_leaves(
    tmp_path: Path,
) -> None:
    example = tmp_path / "copy"
    shutil.copytree(EXAMPLES[0], example, ignore=shutil.ignore_patterns("__pycache__"))
    mark = recorded.fingerprint(example)
    (example / "result.json").write_text("{}")
    (example / "runs" / "a").mkdir(parents=True)
    (example / "runs" / "a" / "record.db").write_bytes(b"x")
    (example / "__pycache__").mkdir()
    (example / "__pycache__" / "train.pyc").write_bytes(b"x")
    assert recorded.fingerprint(example) == mark
    (example / "train.py").write_text((example / "train.py").read_text() + "\n")
    assert recorded.fingerprint(example) != mark
    other = recorded.fingerprint(example)
    (example / "more").mkdir()
    (example / "more" / "tasks.jsonl").write_text("{}")
    assert recorded.fingerprint(example) != other


def _result(curve: list[float], mean: float) -> Any:
    ledger = SimpleNamespace(sampled=10, trained=8)
    ledger.check = lambda: ledger
    score = SimpleNamespace(mean=mean, low=mean - 0.1, high=mean + 0.1, rollouts=20)
    return SimpleNamespace(
        ledger=ledger, before=score, after=score, history=[{"reward": reward} for reward in curve], seconds={"a": 1.2}
    )


def test_a_record_keeps_other_seeds_of_the_same_files_and_drops_those_of_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text("x = 1\n")
    path = recorded.record(tmp_path, _result([0.1, 0.2], 0.5), seed=1)
    recorded.record(tmp_path, _result([0.3], 0.6), seed=0)
    recorded.record(tmp_path, _result([0.4], 0.7), seed=1)
    assert [(run["seed"], run["curve"]) for run in json.loads(path.read_text())["runs"]] == [(0, [0.3]), (1, [0.4])]
    (tmp_path / "train.py").write_text("x = 2\n")
    recorded.record(tmp_path, _result([0.5], 0.7), seed=1)
    assert [run["curve"] for run in json.loads(path.read_text())["runs"]] == [[0.5]]


def test_a_record_holds_no_path_of_the_machine() -> None:
    words = ["--model", "/home/me/smollm2", "--seed", "1", "--output-dir", "/tmp/out", "--record"]
    assert recorded._arguments(words) == ["--model", "smollm2", "--seed", "1"]


def test_a_run_without_whole_calls_or_with_a_ledger_that_does_not_add_up_is_seen() -> None:
    from agentlightning.records.ledger import Ledger

    good = Ledger(sampled=5, trained=3, masked={"equal": 2}, calls={"complete": 4})
    result = {"status": "finished", "steps": 1, "ledger": good.to_json()}
    assert runner.wrong_with(result) == []
    for change, said in (
        ({"status": "stopped"}, "not finished"),
        ({"steps": 0}, "no step"),
        ({"ledger": {**good.to_json(), "trained": 4}}, "does not add up"),
        ({"ledger": {**good.to_json(), "calls": {"incomplete": 1}}}, "no whole call"),
    ):
        assert said in "; ".join(runner.wrong_with({**result, **change}))


def test_an_example_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.asked_for(["calculator", "chess"])
    assert "there is no example chess here: they are" in capsys.readouterr().err


@each_example
def test_what_an_example_needs_is_pinned_to_a_release_or_a_range(example: Path) -> None:
    for line in runner.requirements(example / "requirements.txt"):
        assert re.fullmatch(r"[\w.-]+(\[[\w,.-]+\])?\s*(==|>=|~=)\s*[\w.,<>=! ]+", line), line
