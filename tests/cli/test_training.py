"""`agl train`, `agl eval`, `agl dev`, `agl chat`: real processes on the 79k-parameter model."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
        "train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--val", "tasks.jsonl", "--name",
        "calc",
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
    one = json.loads(invoke("show", str(folder), "train-0-0", "--json").stdout)
    assert one["attempts"][0]["calls"][0]["status"] == "complete" and one["attempts"][0]["nodes"][0]["text"].startswith(
        "<|im_start|>"
    )


def test_an_agent_is_scored_with_a_grader(place: Path) -> None:
    scored = invoke(
        "eval",
        "agent.py:unscored",
        "--model",
        "model",
        "--tasks",
        "tasks.jsonl",
        "--grader",
        "agent.py:grade",
        *QUICK,
        "--json",
    )
    assert json.loads(scored.stdout)["mean"] == 0.25
    listed = json.loads(invoke("runs", "--json").stdout)
    assert listed[0]["mode"] == "val" and listed[0]["last_reward"] == 0.25


def test_an_agent_that_cannot_be_trained_is_told_why_and_the_exit_code_says_so(place: Path) -> None:
    bad = invoke("dev", "agent.py:never_calls", "--model", "model", "--tasks", "tasks.jsonl", *QUICK[:2], code=1)
    assert "No call reached the endpoint" in bad.stdout
    good = invoke("dev", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "-n", "1", *QUICK, "--json")
    report = json.loads(good.stdout)
    assert report["trainable"] and [attempt["repeats"] is None for attempt in report["attempts"]] == [True, False]
    for result in (bad, good):  # how it is getting on is no part of the report
        assert result.stderr.startswith("run run (") and "run run (" not in result.stdout


def test_ctrl_c_once_saves_and_ends_with_the_summary_and_resume_goes_on(place: Path) -> None:
    command = [
        sys.executable, "-c", "from agentlightning.cli import main; main()",
        "train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--group-size", "2", *QUICK,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--steps", "1000"], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "stopped: interrupted" in out and "checkpoint:" in out
    (folder,) = [path for path in (place / "runs").iterdir() if path.is_dir()]
    steps = json.loads((folder / "result.json").read_text())["steps"]
    how = f"agl {shlex.join([*command[3:], '--steps', '1000', '--resume', folder.name])}"
    assert out.splitlines()[-1].split(maxsplit=3)[:3] == ["to", "go", "on:"] and out.splitlines()[-1].endswith(
        f" {how}"
    )
    assert json.loads(invoke("runs", "--json").stdout)[0]["resume"] == how
    done = invoke(*command[3:], "--steps", str(steps + 1), "--resume")
    assert f"step {steps + 1}/{steps + 1}" in done.stdout
    written = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert written == list(range(1, steps + 2))


def killed(place: Path, *arguments: str, env: dict[str, str] | None = None) -> Path:
    """The folder of a run that was killed after its second step."""
    program = [
        sys.executable,
        "-c",
        "from agentlightning.cli import main; main()",
        "train",
        "agent.py:agent",
        *arguments,
        *QUICK,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
    process = subprocess.Popen(
        [*program, "--set", "checkpoint.save_every=1"], cwd=place, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    listed = json.loads(invoke("runs", "--json").stdout)[0]
    assert listed["status"] == "running" and listed["resume"] is None, "it lives"
    process.kill()
    process.wait()
    return Path(listed["folder"])


def test_a_run_whose_process_was_killed_is_dead_with_the_command_that_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "my tasks.jsonl").write_text((place / "tasks.jsonl").read_text())
    folder = killed(
        place,
        "--model",
        "model",
        "--tasks",
        "my tasks.jsonl",
        "--group-size",
        "2",
        "--steps",
        "1000",
        env={"AGL_LEARNER__LR": "1e-3"},
    )
    (listed,) = json.loads(invoke("runs", "--json").stdout)
    assert listed["status"] == "dead"
    assert listed["resume"].startswith(
        "AGL_LEARNER__LR=1e-3 agl train agent.py:agent --model model --tasks 'my tasks.jsonl' "
    )
    assert f"{folder.name} is dead; to go on:  {listed['resume']}" in invoke("runs").stdout
    shown = invoke("show", "latest").stdout
    assert "dead, began" in shown and listed["resume"] in shown
    monkeypatch.setenv("AGL_LEARNER__LR", "1e-3")
    words = shlex.split(listed["resume"])[2:]
    done = invoke(*[word if word != "1000" else "4" for word in words])
    assert "step 4/4" in done.stdout
    (listed,) = json.loads(invoke("runs", "--json").stdout)
    assert (listed["status"], listed["resume"]) == ("finished", None)


def test_a_dead_run_whose_folder_was_moved_goes_on_where_it_lies(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed(place, "--model", "model", "--tasks", "tasks.jsonl", "--group-size", "2", "--steps", "3")
    (place / "runs").rename(place / "moved")
    (listed,) = json.loads(invoke("runs", "--output-dir", "moved", "--json").stdout)
    assert listed["status"] == "dead" and f"--output-dir {place / 'moved'}" in listed["resume"]
    assert json.loads(invoke("show", str(place / "moved" / folder.name), "--json").stdout)["resume"] == listed["resume"]
    (elsewhere := place / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    command = json.loads(invoke("runs", "--output-dir", str(place / "moved"), "--json").stdout)[0]["resume"]
    assert command.startswith(f"cd {place} && agl train ")
    monkeypatch.chdir(place)
    resumed = invoke(*shlex.split(command.partition(" && ")[2])[1:]).stdout
    assert "resuming after step" in resumed, "its checkpoints were found"
    assert (place / "moved" / folder.name / "result.json").is_file() and not folder.exists()


def test_a_dead_run_whose_folder_is_gone_says_so_and_begins_from_its_record(place: Path) -> None:
    folder = killed(place, "--model", "model", "--tasks", "tasks.jsonl", "--group-size", "2", "--steps", "3")
    shutil.rmtree(folder)
    shown = invoke("show", "latest").stdout
    assert "dead, began" in shown and "gone (moved or removed), and the run's checkpoints with it" in shown
    resumed = invoke(*shlex.split(json.loads(invoke("runs", "--json").stdout)[0]["resume"])[1:]).stdout
    assert "resuming from the start" in resumed and "step 3/3" in resumed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "agent.py:agent", "--model", "model"), "agl train needs --tasks"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "none.jsonl"), "none.jsonl cannot be read"),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "bad.jsonl"), "bad.jsonl, line 2: not JSON"),
        (("train", "agent.py:agent", "--model", "nowhere/at/all", "--tasks", "tasks.jsonl"), "nowhere/at/all"),
        (
            ("train", "agent.py:agent", "--tasks", "tasks.jsonl"),
            "no model: pass model= (--model), a Hugging Face folder, a hub id, or 'smollm2'",
        ),
        (
            ("train", "agent.py:agent", "--model", "model", "--tasks", "https://x.org/t.jsonl"),
            "a URL, and URLs are not loaded",
        ),
        (("train", "agent.py:agnt", "--model", "model", "--tasks", "tasks.jsonl"), "agnt"),
        (
            ("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--group-size", "0"),
            "group_size",
        ),
        (
            (
                "train",
                "agent.py:agent",
                "--model",
                "model",
                "--tasks",
                "tasks.jsonl",
                "--set",
                "sampling.temperature=0",
            ),
            "temperature=0",
        ),
        (("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--resume"), "nothing to resume"),
        (
            ("train", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--isolation", "vm"),
            "allowed is one of auto, thread, process",
        ),
        (
            ("eval", "agent.py:agent", "--model", "model", "--tasks", "tasks.jsonl", "--grader", "agent.py:grad"),
            "did you mean 'grade'",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(place: Path, arguments: tuple[str, ...], words: str) -> None:
    (place / "bad.jsonl").write_text('{"letter": "a"}\n{letter: a}\n')
    said = invoke(*arguments, code=2).stderr
    errors = [line for line in said.splitlines() if line.startswith("agl: ")]
    assert len(errors) == 1 and words in errors[0]
    assert "to go on" not in said, "nothing began"


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
    assert ran.stdout.count("begins anew") == 1, "the refused turn left no trace; the next one was answered"


def endless(folder: Path) -> Path:
    """A model that never ends its turn when it is sampled greedily: some logit is always above the 0 of its end-of-turn
    token."""
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
    seen = b""
    while b"[stopped]" not in seen and (byte := process.stdout.read(1)):
        seen += byte
    _, err = process.communicate(b"/quit\n", timeout=600)
    assert process.returncode == 0, err.decode()
    assert b"[stopped]" in seen


def until(process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    """Waits for something that the process does, however long this machine takes for it; not for a process that has
    ended."""
    while not happened():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def asleep(place: Path) -> int:
    """How many rollouts of the slow agent have come to their sleep."""
    return len(list(place.glob("asleep-*")))


def outcomes(mode: str) -> dict[str, int]:
    """Rollouts of the latest run by outcome, as the record has them."""
    if not Path("runs/record.db").is_file():
        return {}
    shown = CliRunner().invoke(app, ["show", "latest", "--json"])
    return json.loads(shown.stdout)["rollouts"].get(mode, {}) if shown.exit_code == 0 else {}


@pytest.mark.parametrize("command", ["dev", "eval"])
def test_ctrl_c_ends_a_short_command_in_one_line(place: Path, command: str) -> None:
    """Nothing was lost that could be told: dev reports what had ended, and both say that they were interrupted."""
    slow = (
        "import time\n" + AGENTS + "\ndef slow(task, llm):\n    if task == first:\n        return agent(task, llm)\n"
        "    open('asleep-' + task['letter'], 'w').close()\n    time.sleep(600)\n"
    )
    (place / "slow.py").write_text(slow + f"first = {letter_tasks(4)[0]!r}\n")
    arguments = [
        command,
        "slow.py:slow",
        "--model",
        "model",
        "--tasks",
        "tasks.jsonl",
        *QUICK,
        "--set",
        "runner.n_runners=4",
    ]
    program = [sys.executable, "-c", "from agentlightning.cli import main; main()", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(program, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    rollouts = 3 if command == "dev" else 4
    until(
        process,
        lambda: asleep(place) == rollouts - 1 and outcomes("dev" if command == "dev" else "val").get("succeeded") == 1,
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err.decode()
    assert "Traceback" not in err.decode() and "saving a checkpoint" not in (out + err).decode()
    assert (b"Interrupted" in out) if command == "dev" else (b"agl: interrupted" in err)
    assert invoke("runs", "--json").stdout and json.loads(invoke("runs", "--json").stdout)[0]["status"] == "stopped"
