"""The README's first agent as a reader would copy it: its tasks are made by its command, and its reward cannot be had
by naming every answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.examples.test_calculator import Endpoint
from tests.imports import ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder with what the README has one copy: the agent's file, and what its command for tasks makes."""
    here = tmp_path_factory.mktemp("first")
    agent = re.search(r"```python\n(# my_agent\.py\n.*?)```", README, re.DOTALL)
    tasks = re.search(r"```sh\n(python -c .*?)```", README, re.DOTALL)
    assert agent is not None and tasks is not None
    (here / "my_agent.py").write_text(agent[1])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", tasks[1]], cwd=here, env={**os.environ, "PATH": path}, check=True, timeout=600)
    return here


def tasks(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def reward(folder: Path, task: dict[str, Any], reply: str) -> float:
    program: dict[str, Any] = {}
    exec((folder / "my_agent.py").read_text(), program)
    with Endpoint(reply) as endpoint:
        return program["agent"](task, SimpleNamespace(endpoint=endpoint.url, model="m", api_key="k"))


def test_the_command_makes_tasks_that_do_not_overlap(folder: Path) -> None:
    train, val = tasks(folder, "train.jsonl"), tasks(folder, "val.jsonl")
    assert (len(train), len(val)) == (48, 50)
    assert not {task["question"] for task in train} & {task["question"] for task in val}


def test_every_answer_scores_and_naming_every_number_does_not(folder: Path) -> None:
    for task in tasks(folder, "train.jsonl")[:3]:
        numbers = re.findall(r"\d+", task["question"])
        other = next(number for number in numbers if number != task["answer"])
        assert task["answer"] in numbers and len(numbers) == 2
        assert reward(folder, task, f" {task['answer']}\n") == 1.0
        for wrong in (
            " ".join(numbers),
            " ".join(reversed(numbers)),
            other,
            f"The answer is {task['answer']}.",
            "",
            task["question"],
        ):
            assert reward(folder, task, wrong) == 0.0


def test_what_the_readme_says_of_the_models_size_is_what_the_model_says() -> None:
    from agentlightning.settings.starters import STARTERS

    starter = STARTERS["smollm2"]
    assert f"{starter.download} MB to fetch, {starter.disk} MB on disk" in README
