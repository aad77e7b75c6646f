"""`agl train`, `agl eval`, `agl dev`, `agl chat`: real processes on the 79k-parameter model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from agentlightning.cli.app import _optional_value, app
from tests.cli.conftest import ROOT, Agl
from tests.tiny import letter_tasks, letters_tokenizer, save_letters
from tests.tiny import letters_model as letters_model_in_memory

AGENTS = """
import json, sys, urllib.request

def ask(llm, text):
    body = json.dumps({"model": "gpt-4o", "max_tokens": 2, "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(llm.endpoint + "/chat/completions", body, {"Content-Type": "application/json", "Authorization": "Bearer x"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"] or ""

def agent(task, llm):
    print("printed by the agent")
    return float(ask(llm, task["letter"]).startswith(task["letter"]))

def unscored(task, llm):
    ask(llm, task["letter"])
    return None

def never_calls(task, llm):
    return 1.0

def grade(task, output, attempt):
    return 0.25
"""
QUICK = (
    "--isolation", "thread", "--set", "sampling.max_tokens=2", "--set", "evaluation.max_tokens=2", "--set", "threads=1",
    "--set", "algorithm.tasks_per_step=2",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, letters_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an agent, tasks and a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENTS)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in letter_tasks(4)))
    (tmp_path / "model").symlink_to(letters_model)
    return tmp_path


def invoke(*arguments: str, code: int = 0, stdin: str = "") -> Result:
    """The same program inside this process, which has torch loaded already."""
    result = CliRunner().invoke(app, [*arguments], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(scope="session")
def letters_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_letters(tmp_path_factory.mktemp("letters"))


def test_a_run_is_trained_shown_and_its_result_is_json_on_stdout_alone(place: Path, agl: Agl) -> None:
    ran = agl(
        "train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--val", "tasks.jsonl", "--name", "calc",
        "--steps", "2", "--group-size", "3", "--n-runners", "2", "--seed", "5", *QUICK, "--json",
        env={"AGL_STEPS": "9", "AGL_LEARNER__LR": "1e-3"},
    )  # fmt: skip
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert result["status"] == "finished" and result["steps"] == 2
    assert result["validation_before"]["scored"] == result["validation_after"]["scored"] == 4
    assert "step 2/2" in ran.err and "validation before training" in ran.err
    folder = Path(result["folder"])
    config = json.loads((folder / "config.json").read_text())
    assert config["config"]["steps"] == 2 and config["config"]["seed"] == 5 and config["algorithm"]["group_size"] == 3
    assert config["sources"]["steps"] == "flag --steps", "a flag wins over the environment, also behind the Trainer"
    assert config["sources"]["learner.lr"] == "environment AGL_LEARNER__LR"
    assert config["sources"]["algorithm.group_size"] == "flag --group-size"
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").iterdir())

    shown = json.loads(invoke("show", "calc", "--json").stdout)
    assert [step["step"] for step in shown["history"]] == [1, 2]
    assert [validation["step"] for validation in shown["validations"]] == [0, 2]
    one = json.loads(invoke("show", str(folder), "train1-0-0", "--json").stdout)
    assert one["attempts"][0]["calls"][0]["status"] == "complete" and one["attempts"][0]["nodes"][0]["text"].startswith("<|im_start|>")


def test_an_agent_is_scored_with_a_grader(place: Path) -> None:
    scored = invoke(
        "eval", "agent.py:unscored", "--model", "model", "--tasks", "tasks.jsonl", "--grader", "agent.py:grade", *QUICK, "--json"
    )
    assert json.loads(scored.stdout)["mean"] == 0.25
    listed = json.loads(invoke("runs", "--json").stdout)
    assert listed[0]["mode"] == "val" and listed[0]["last_reward"] == 0.25


def test_an_agent_that_cannot_be_trained_is_told_why_and_the_exit_code_says_so(place: Path) -> None:
    bad = invoke("dev", "agent.py:never_calls", "--model", "model", "--tasks", "tasks.jsonl", *QUICK[:2], code=1)
    assert "No call reached the endpoint" in bad.stdout
    good = invoke("dev", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "-n", "1", *QUICK, "--json")
    report = json.loads(good.stdout)
    assert report["trainable"] and len(report["attempts"]) == 1
    for result in (bad, good):  # how it is getting on is no part of the report
        assert result.stderr.startswith("run run (") and "run run (" not in result.stdout


def test_ctrl_c_once_saves_and_ends_with_the_summary_and_resume_goes_on(place: Path) -> None:
    command = [
        sys.executable, "-c", "from agentlightning.cli import main; main()",
        "train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--group-size", "2", *QUICK,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--steps", "1000"], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped: interrupted" in out and "checkpoint:" in out
    (folder,) = [path for path in (place / "runs").iterdir() if path.is_dir()]
    steps = json.loads((folder / "result.json").read_text())["steps"]
    done = invoke(*command[3:], "--steps", str(steps + 1), "--resume")
    assert f"step {steps + 1}/{steps + 1}" in done.stdout
    written = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert written == list(range(1, steps + 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "agent.py:agent", "--model", "model"), "agl train needs --tasks"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "none.jsonl"), "none.jsonl cannot be read"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "bad.jsonl"), "bad.jsonl, line 2: not JSON"),
        (("train", "agent.py:agent", "--model", "nowhere/at/all", "--tasks", "tasks.jsonl"), "nowhere/at/all"),
        (("train", "agent.py:agent", "--tasks", "tasks.jsonl"), "no model"),
        (("train", "agent.py:agnt", "--model", "model", "--tasks", "tasks.jsonl"), "agnt"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--group-size", "1"), "group_size=1"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--set", "sampling.temperature=0"), "temperature=0"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--resume"), "nothing to resume"),
        (
            ("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--isolation", "vm"),
            "allowed is one of auto, thread, process",
        ),
        (("eval", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--grader", "agent.py:grad"), "did you mean 'grade'"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(place: Path, arguments: tuple[str, ...], words: str) -> None:
    (place / "bad.jsonl").write_text('{"letter": "a"}\n{letter: a}\n')
    errors = [line for line in invoke(*arguments, code=2).stderr.splitlines() if line.startswith("agl: ")]
    assert len(errors) == 1 and words in errors[0]


def test_resume_takes_a_run_or_none() -> None:
    def given(*arguments: str) -> list[str]:
        return _optional_value(list(arguments), "--resume", "latest")

    assert given("train", "--resume") == ["train", "--resume=latest"]
    assert given("train", "--resume", "a.py:agent") == ["train", "--resume=latest", "a.py:agent"]
    assert given("train", "--resume", "--steps", "3") == ["train", "--resume=latest", "--steps", "3"]
    assert given("train", "--resume", "run-1", "--steps", "3") == ["train", "--resume", "run-1", "--steps", "3"]
    assert given("train", "--resume=run-1") == ["train", "--resume=run-1"]


def test_a_chat_streams_replies_forgets_on_reset_and_ends_on_quit(letters_model: Path) -> None:
    chat = ("chat", "--model", str(letters_model), "--temperature", "0", "--max-tokens", "6")
    ran = invoke(*chat, stdin="a\n/what\na\n/reset\na\n/quit\nb\n")
    first, refused, _, reset, third = ran.stdout.splitlines()
    assert first == third and reset == "the conversation begins anew", "also where the lines come from a pipe"
    assert refused.startswith("/what is no command")


def test_a_chat_says_when_the_conversation_no_longer_fits(letters_model: Path) -> None:
    ran = invoke("chat", "--model", str(letters_model), "--max-tokens", "2", stdin=f"{'a' * 3000}\na\n")
    assert "/reset begins anew" in ran.stdout
    assert len(ran.stdout.splitlines()) == 3, "the refused turn left no trace; the next one was answered"


def endless(folder: Path) -> Path:
    """A model that never ends its turn when it is sampled greedily: some logit is always above the 0 of its end-of-turn token."""
    model, tokenizer = letters_model_in_memory(), letters_tokenizer()
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id].zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_ctrl_c_stops_a_reply_and_the_conversation_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from agentlightning.cli import main; main()",
        "chat",
        "--model",
        str(endless(tmp_path)),
        "--max-tokens",
        "1500",
        "--temperature",
        "0",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    process.stdout.read(20)  # it is being sampled
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    out, err = process.communicate(b"/quit\n", timeout=60)
    assert process.returncode == 0, err.decode()
    assert b"[stopped]" in out


@pytest.mark.parametrize("command", ["dev", "eval"])
def test_ctrl_c_ends_a_short_command_in_one_line(place: Path, command: str) -> None:
    """Nothing was lost that could be told: dev reports what had ended, and both say that they were interrupted."""
    slow = "import time\n" + AGENTS + "\ndef slow(task, llm):\n    if task == first:\n        return agent(task, llm)\n    time.sleep(60)\n"
    (place / "slow.py").write_text(slow + f"first = {letter_tasks(4)[0]!r}\n")
    arguments = [command, "slow.py:slow", "--model", "model", "--tasks", "tasks.jsonl", *QUICK, "--set", "runner.n_runners=4"]
    program = [sys.executable, "-c", "from agentlightning.cli import main; main()", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(program, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list((place / "runs").glob("*/config.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err.decode()
    assert "Traceback" not in err.decode() and "saving a checkpoint" not in (out + err).decode()
    assert (b"Interrupted" in out) if command == "dev" else (b"agl: interrupted" in err)
    assert invoke("runs", "--json").stdout and json.loads(invoke("runs", "--json").stdout)[0]["status"] == "stopped"
