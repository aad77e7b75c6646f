"""Runs that are started where there is no file: a notebook's cell in a real kernel, IPython, the prompt on a terminal,
``python -c``, a pipe."""

from __future__ import annotations

import base64
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import WAIT, Cell, Kernel

ROOT = Path(__file__).parents[2]

SETUP = """\
import json, random, signal, threading, time, urllib.request
from agentlightning import GRPO, Trainer

def call(llm, letter):
    body = json.dumps({{"model": llm.model, "messages": [{{"role": "user", "content": letter}}], "max_tokens": 2}}).encode()
    headers = {{"Authorization": "Bearer " + llm.api_key, "Content-Type": "application/json"}}
    reply = urllib.request.urlopen(urllib.request.Request(llm.endpoint + "/chat/completions", body, headers))
    return json.load(reply)["choices"][0]["message"]["content"]

def agent(task, llm):
    return call(llm, task["letter"])

def grade(task, output, attempt):
    return random.random()

tasks = [{{"letter": "a"}}, {{"letter": "b"}}]

def trainer(**settings):
    algorithm = GRPO(group_size=2, tasks_per_step=2)
    return Trainer(algorithm=algorithm, model={model!r}, output_dir={runs!r}, n_runners=2, grader=grade, **settings)

"""
FIT = """\
result = trainer(steps=1).fit(agent, tasks)
print("ended", str(result.status), result.ledger.rollouts)
"""
ENDED = "ended finished {'succeeded': 4}"


@pytest.fixture
def setup(letters: Path, tmp_path: Path) -> str:
    return SETUP.format(model=str(letters), runs=str(tmp_path / "runs"))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "dumb"}


# --------------------------------------------------------------------------- without a notebook


@pytest.mark.parametrize("way", ["-c", "pipe", "ipython", "exec"])
def test_functions_without_a_file_are_trained_and_their_grader_is_used(setup: str, tmp_path: Path, way: str) -> None:
    program = setup + FIT
    if way == "exec":
        (tmp_path / "outer.py").write_text(f"exec(compile({program!r}, '<doctest>', 'exec'), {{'__name__': 'json'}})")
    command = {
        "-c": [sys.executable, "-c", program],
        "pipe": [sys.executable],
        "ipython": [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "-c", program],
        "exec": [sys.executable, "outer.py"],
    }[way]
    given = program if way == "pipe" else ""
    done = subprocess.run(
        command, input=given, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert ENDED in done.stdout, done.stderr


class Prompt:
    """``python -i`` on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-q", "-i", *arguments], cwd=folder, env=environment(), stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, words: str) -> str:
        """Reads until ``words`` are there, and returns what came since the last call."""
        while words not in self.text:
            assert select.select([self.terminal], [], [], WAIT)[0], f"{words!r} did not come: {self.text}"
            self.text += os.read(self.terminal, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        shown, _, self.text = self.text.partition(words)
        return shown + words

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def prompt(setup: str, tmp_path: Path) -> Iterator[Prompt]:
    """A prompt whose script has set everything up but the agent."""
    (tmp_path / "setup.py").write_text(setup)
    prompt = Prompt(tmp_path, "setup.py")
    prompt.wait_for(">>> ")
    yield prompt
    prompt.close()


def test_the_prompt_trains_what_was_typed_shows_a_short_result_and_ends_on_ctrl_c(prompt: Prompt) -> None:
    prompt.type("def typed(task, llm):\n    return call(llm, task['letter'])\n\n")
    prompt.type("trainer(steps=1, progress=False).fit(typed, tasks)\n")
    assert len(prompt.wait_for("in the last>").splitlines()[-1]) < 200
    prompt.type("result = trainer(steps=1000).fit(typed, tasks); print('ended', result.status, result.stopped_by)\n")
    prompt.wait_for("step 2/1000")
    prompt.type("\x03")
    shown = prompt.wait_for("ended stopped interrupted")
    assert "SIGINT: saving a checkpoint and ending" in shown and "Traceback" not in shown


def test_an_error_at_the_prompt_is_the_line_that_was_typed_and_the_sentence(prompt: Prompt) -> None:
    prompt.type("trainer().fit(agent, [])\n")
    shown = prompt.wait_for("\n>>> ")
    frames = [line for line in shown.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1 and "<" in frames[0], shown
    assert "Error: " in shown.splitlines()[-2] and "During handling" not in shown


# --------------------------------------------------------------------------- in a notebook


@pytest.fixture(scope="module")
def kernel(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("notebook")
    kernel = Kernel(folder)
    cell = kernel.run(SETUP.format(model=str(letters), runs=str(folder / "runs")))
    assert not cell.error, cell.traceback
    yield kernel
    kernel.close()


LEFT = (
    "[thread.name for thread in threading.enumerate() if thread.name.startswith(('agentlightning', 'engine', "
    "'agent-'))]"
)
"""What still runs of a run."""


def panel(cell: Cell) -> str:
    return "".join(display["text/plain"] for display in cell.displays.values())


def test_a_cell_trains_its_functions_and_shows_one_panel_and_a_card_with_the_curve(kernel: Kernel) -> None:
    cell = kernel.run("trainer(steps=3).fit(agent, tasks, val_dataset=tasks)")
    assert not cell.error, cell.traceback
    assert len(cell.displays) == 1 and cell.updates, "updated in place"
    assert "finished, 3 steps" in panel(cell) and "\x1b" not in panel(cell) + cell.printed
    assert len(cell.value["text/plain"]) < 300 and "finished, 3 steps" in cell.value["text/plain"]
    html = cell.value["text/html"]
    picture = base64.b64decode(html.partition("data:image/png;base64,")[2].partition('"')[0])
    assert picture.startswith(b"\x89PNG") and "0 steps" not in html and "<th" in html


def test_evaluate_and_dev_show_themselves_too(kernel: Kernel) -> None:
    evaluation = kernel.run("trainer().evaluate(agent, tasks)")
    assert "on 2 rollouts" in evaluation.value["text/html"] and len(evaluation.value["text/plain"]) < 100, (
        evaluation.traceback
    )
    report = kernel.run("trainer().dev(agent, tasks, 2)")
    assert "reward" in report.value["text/html"] and len(report.value["text/plain"]) < 300, report.traceback
    printed = re.sub(r"\x1b\[[0-9;]*m", "", report.printed)  # colours, which a notebook shows
    assert "isolation thread" in printed and "\x1b" not in printed, "the whole report is printed"
    assert len(report.displays) == 1, "besides the panel"


def test_interrupting_the_kernel_saves_and_fit_returns(kernel: Kernel) -> None:
    cell = kernel.run(
        "result = trainer(steps=1000).fit(agent, tasks); result.checkpoint.is_dir(), result", interrupt_at=in_step_2
    )
    assert not cell.error, cell.traceback
    assert cell.interrupted and "SIGINT: saving a checkpoint and ending" in cell.printed
    assert cell.value["text/plain"].startswith("(True,") and "stopped: interrupted" in cell.value["text/plain"]
    assert kernel.run(LEFT).value["text/plain"] == "[]", "nothing trains on"
    assert kernel.run("signal.getsignal(signal.SIGINT) is signal.default_int_handler").value["text/plain"] == "True"


def test_interrupting_an_awaited_run_saves_too(kernel: Kernel) -> None:
    cell = kernel.run("await trainer(steps=1000, train_dataset=tasks).train(agent)", interrupt_at=in_step_2)
    assert "stopped: interrupted" in cell.value["text/plain"], cell.traceback
    assert kernel.run(LEFT).value["text/plain"] == "[]"


def test_interrupting_a_run_in_a_thread_of_the_cells_own_saves_too(kernel: Kernel) -> None:
    kernel.run("import asyncio; results = []")
    code = "await asyncio.to_thread(lambda: results.append(trainer(steps=1000).fit(agent, tasks)))"
    kernel.run(code, interrupt_at=in_step_2)
    ended = kernel.run("while not results: time.sleep(0.01)\nresults[0]").value["text/plain"]
    assert "stopped: interrupted" in ended
    assert kernel.run(LEFT).value["text/plain"] == "[]"


@pytest.mark.parametrize("what", ["evaluate(hanging, tasks)", "dev(hanging, tasks)"])
def test_interrupting_what_has_no_result_yet_is_a_keyboard_interrupt_of_the_cell(kernel: Kernel, what: str) -> None:
    kernel.run("freed = threading.Event()\ndef hanging(task, llm):\n    call(llm, 'a')\n    freed.wait(60)")
    cell = kernel.run(f"trainer().{what}", interrupt_at=lambda cell: "0/" in panel(cell))
    assert cell.error.startswith("KeyboardInterrupt"), cell
    assert "asyncio" not in cell.traceback and "During handling" not in cell.traceback
    assert kernel.run(f"freed.set()\nwhile {LEFT}: time.sleep(0.01)\n'nothing'").value["text/plain"] == "'nothing'"


def in_step_2(cell: Cell) -> bool:
    return re.search("step [2-9]", panel(cell)) is not None


def test_an_error_in_a_cell_is_the_cells_line_and_the_sentence(kernel: Kernel) -> None:
    cell = kernel.run("trainer(runner={'isolation': 'process'}).fit(agent, tasks)")
    assert "cannot run with isolation='process'" in cell.error and "a notebook cell" in cell.error
    assert "asyncio" not in cell.traceback and cell.traceback.count("Error") == 2, (
        "its name above and below the cell's line"
    )
    kernel.run(
        "open('broken.py', 'w').write('def helper():\\n    return 1 / 0\\nhelper()\\ndef agent(task, llm): ...\\n')"
    )
    cell = kernel.run("trainer(runner={'isolation': 'thread'}).fit('broken.py:agent', tasks)")
    assert "division by zero (broken.py:2)" in cell.error
    assert "return 1 / 0" in cell.traceback and "importlib" not in cell.traceback, "the user's own lines, and no others"
