"""A display that fails is one line; the run goes on with plain lines and ends as it would have."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentlightning.records.progress import Progress, SilentView
from agentlightning.views.live.guarded import guarded
from agentlightning.views.live.terminal import LiveView
from tests.cli.test_training import AGENTS, QUICK, invoke
from tests.terminals import AGL, environment, in_terminal
from tests.tiny import letter_tasks, save_letters
from tests.views.test_views import a_whole_run

METHODS = [name for name in vars(Progress) if not name.startswith("_")]


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "sampling"])
def test_a_view_of_the_users_that_raises_is_one_line_and_plain_lines_after_it(
    method: str, kind: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    class Mine(SilentView):
        """Raises in one of its methods."""

    def broken(*_: Any, **__: Any) -> None:
        raise kind("no\nsuch \x1bwidget")

    setattr(Mine, method, broken)
    a_whole_run(guarded(Mine()))
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "failed" in line and "Mine" in line]
    assert said == [rf"Mine.{method} failed ({kind.__name__}: no↵such \x1bwidget): the run goes on with plain lines"]
    if method not in ("finished", "close"):
        assert "run:        stopped: interrupted, 2 steps in 1:31" in lines, "what comes after it is shown"


def test_a_view_that_was_written_before_a_method_came_is_not_told_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Old:
        def phase(self, name: str, *, total: int = 0, step: int | None = None) -> None:
            print(name)

    view: Any = guarded(Old())  # pyright: ignore[reportArgumentType]
    view.sampling(1.0, 1, 0)
    view.phase("sampling")
    assert capsys.readouterr().out == "sampling\n"


def test_a_panel_that_cannot_be_drawn_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = threading.Event()

    def broken(*_: Any) -> None:
        drawn.set()
        raise RuntimeError("cannot draw")

    out = io.StringIO()
    view = LiveView(console=Console(file=out, width=80, force_terminal=True, color_system=None))
    monkeypatch.setattr(view, "render", broken)
    behind = guarded(view)
    behind.phase("loading the model")
    assert drawn.wait(30), "rich draws it in a thread of its own"
    a_whole_run(behind)
    assert (
        out.getvalue().count(
            "LiveView.run_started failed (RuntimeError: cannot draw): the run goes on with plain lines"
        )
        == 1
    )
    assert "step 2/2  reward 0.500" in out.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "agent.py").write_text(AGENTS)
    (folder / "tasks.jsonl").write_text("".join(f'{{"letter": "{task["letter"]}"}}\n' for task in letter_tasks(4)))
    save_letters(folder / "model")
    return folder


def training(output: Path, steps: int) -> list[str]:
    task = ["agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--output-dir", str(output), *QUICK]
    return [*AGL, "train", *task, "--steps", str(steps), "--group-size", "2"]


def status(output: Path) -> str:
    with sqlite3.connect(output / "record.db") as record:
        ((found,),) = record.execute("select status from runs")
    return found


def test_a_terminal_that_is_closed_does_not_end_a_run(place: Path, tmp_path: Path) -> None:
    """Closing it sends SIGHUP to the program, and whatever it writes after that is an error."""
    ran = in_terminal(
        training(tmp_path, 4), cwd=place, until=lambda raw: b"loading the model" in raw or b"sampling" in raw
    )
    assert ran.code == 0
    assert status(tmp_path) == "finished"


def test_the_live_view_of_a_terminal_that_lacks_a_folders_character_ends_with_the_run(
    place: Path, tmp_path: Path
) -> None:
    output = tmp_path / "中 [red]"
    ran = in_terminal(training(output, 2), cwd=place, encoding="latin-1")
    assert ran.code == 0, ran.text
    assert r"\u4e2d [red]" in ran.text and "finished, 2 steps" in ran.text and "Traceback" not in ran.text
    assert status(output) == "finished"


@pytest.mark.parametrize("kind", [AttributeError, SystemExit])
def test_a_curve_that_cannot_be_drawn_is_one_line(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise kind("module 'numpy' has no attribute\n'x'")

    monkeypatch.chdir(place)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    shown = invoke(*training(tmp_path, 1)[3:]).stdout
    assert f"no learning curve: {kind.__name__}: module 'numpy' has no attribute↵'x'\n" in shown
    assert "\ncurve:" not in shown, "a file that is not there is not named"
    assert status(tmp_path) == "finished"


def test_a_run_that_trains_nothing_says_why_and_its_parity_is_null(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "same.py").write_text(AGENTS + "\ndef same(task, llm):\n    ask(llm, task['letter'])\n    return 1.0\n")
    command = training(tmp_path, 1)[3:]
    shown = invoke("train", "same.py:same", *command[2:]).stdout
    assert re.search(r"parity -  nothing trained \(\d degenerate_group\)", shown)
    (line,) = [json.loads(line) for path in tmp_path.glob("*/metrics.jsonl") for line in path.read_text().splitlines()]
    assert (line["parity_max"], line["ledger"]["parity_max"], line["trained_tokens"]) == (None, None, 0)
    run = json.loads(invoke("show", "latest", "--output-dir", str(tmp_path), "--json").stdout)
    assert run["ledger"]["parity_max"] is None and run["history"][0]["metrics"]["parity_k3"] is None
    assert "max |delta logprob| -, k3 -" in invoke("show", "latest", "--output-dir", str(tmp_path)).stdout


def test_a_script_whose_stdout_is_ascii_ends_like_any_other(place: Path, tmp_path: Path) -> None:
    script = (
        "import agentlightning as agl\n"
        f"trainer = agl.Trainer(model='model', name='中[red]', output_dir={str(tmp_path / '中 [b]')!r}, steps=1, "
        f"runner={{'isolation': 'thread'}},\n"
        "    sampling={'max_tokens': 2}, algorithm=agl.GRPO(group_size=2, tasks_per_step=2))\n"
        "result = trainer.fit('agent.py:agent', 'tasks.jsonl')\n"
        "trainer.dev('agent.py:agent', 'tasks.jsonl', 1)\n"
        "assert result.status == 'finished'\n"
    )
    for env in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            cwd=place,
            env=environment(**env),
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()
        assert (rb"run \u4e2d[red] (" if "PYTHONIOENCODING" in env else "run 中[red] (".encode()) in ran.stdout
