"""What `agl` cannot take is one line with what to do: commands and options that are absent, misspelt, or settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer.main

from agentlightning.cli.app import app
from agentlightning.spellings.absent import ABSENT, why

NAMES = [name for entry in ABSENT for name in entry.names.split()]


COMMAND: Any = typer.main.get_command(app)
Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """The one line that a command line is refused with."""

    def refused(*args: str) -> str:
        with pytest.raises(SystemExit) as left:
            COMMAND.main(list(args), prog_name="agl")
        out, err = capsys.readouterr()
        assert (left.value.code, out) == (2, "") and err.startswith("agl: ") and err.count("\n") == 1, out + err
        return err.removeprefix("agl: ").strip()

    return refused


@pytest.mark.parametrize("name", NAMES)
def test_what_is_absent_says_what_to_do_today_as_an_option_and_as_a_command(name: str, said: Said) -> None:
    option = "--" + name.replace("_", "-")
    assert (
        said("train", "a.py:agent", option, "8")
        == said("train", f"{option}=8", "a.py:agent")
        == f"{option}: {why(name)}"
    )
    assert said(name) == said(name, "latest", "--out", "x") == f"{name}: {why(name)}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("evaluate a.py:agent", "evaluate: `agl eval FILE.py:AGENT"),
        ("train a.py:agent "
         "--lora-rnak 8", "--lora-rnak: did you mean lora_rank? there are no adapters in this version"),
        ("train a.py:agent --wandb-projct x", "--wandb-projct: did you mean wandb_project? no tracker is called"),
        ("train a.py:agent --set learner.learning_rte=1", "learner.learning_rte (flag --set): did you mean "
                                                          "learning_rate? these are learner.lr"),
        ("exprot latest", "exprot: did you mean export? a checkpoint is a Hugging Face folder already"),
        ("resume", "there is no command 'resume': a run goes on with the command that began it, and --resume behind "
                   "it"),
        ("version", "there is no command 'version': agl --version"),
        ("evl a.py:agent", "there is no command 'evl'; nearest: eval"),
        ("Train a.py:agent", "there is no command 'Train'; nearest: train"),
        ("frobnicate", "there is no command 'frobnicate'; commands: train, eval, dev, "),
        ("train a.py:agent --grup-size 8", "agl train has no option --grup-size; nearest: --group-size"),
        ("train a.py:agent --lr 1e-5", "agl train has no option --lr; nearest: --set learner.lr=VALUE"),
        ("train a.py:agent --zzzz", "agl train has no option --zzzz; options: agl train --help"),
        ("runs --lr 1", "agl runs has no option --lr; options: agl runs --help"),
        ("--versoin", "agl has no option --versoin; nearest: --version"),
        ("--lora train", "--lora: there are no adapters"),
        ("train", "Missing argument 'FILE.py:AGENT' (agl train --help)"),
        ("train", "Missing argument 'FILE.py:AGENT' (agl train --help), e.g. agl train my_agent.py:agent --model"),
        ("train a.py:agent --steps many", "--steps many: expected a whole number, e.g. --steps 10 (agl train --help)"),
        ("train a.py:agent --seed 1.5", "--seed 1.5: expected a whole number, e.g. --seed 10"),
        ("dev a.py:agent -n 0", "-n 0: expected a number, at least 1, e.g. -n 1 (agl dev --help)"),
        ("dev a.py:agent -n x", "-n x: expected a whole number"),
        ("chat --model m --temperature x", "--temperature x: expected a number, e.g. --temperature 0.7"),
        ("chat --model m --temperature -1", "--temperature -1: expected a number, at least 0"),
        ("trace latest --attempt 0", "--attempt 0: expected a number, at least 1"),
        ("train a.py:agent --backend vllm", "--backend vllm: sampling is by the engine inside the process"),
        ("train a.py:agent --algorithm=ppo", "--algorithm ppo: there is no critic in this version"),
        ("train a.py:agent --algorithm "
         "grpo", "agl train has no option --algorithm; nearest: --set algorithm.name=VALUE"),
        ("train a.py:agent --runner-deadline 9", "agl train has no option --runner-deadline; nearest: --set "
                                                 "runner.deadline=VALUE"),
        ("train a.py:agent --n-runner 3", "agl train has no option --n-runner; nearest: --n-runners"),
        ("train a.py:agent --lrr 3", "agl train has no option --lrr; nearest: --set learner.lr=VALUE"),
        ("dev a.py:agent --steps 3", "agl dev has no option --steps; nearest: --set steps=VALUE"),
        ("eval a.py:agent --val t.jsonl", "agl eval has no option --val; nearest: --tasks"),
        ("--tasks t.jsonl train", "agl has no option --tasks; it goes behind a command: agl train --tasks ..."),
        ("train a.py:agent t.jsonl", "Got unexpected extra argument(s) (t.jsonl): tasks are given by --tasks FILE"),
        ("train a.py:agent another", "Got unexpected extra argument"),
        ("train a.py:agent --set "
         "algorithm.name=ppo", "algorithm.name (flag --set): algorithm 'ppo': there is no critic"),
        ("train a.py:agent --set runner.isolation=docker", 'runner.isolation = "docker" (flag --set): allowed is one '
                                                           'of auto, thread, process; agents run in'),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line_with_the_nearest_that_would_do(line: str, expected: str, said: Said) -> None:
    assert said(*line.split()).startswith(expected)
