"""The AutoGen example without its framework: its problems, how an answer is scored, and that nothing in its agent knows
of training. `make test-examples` runs it with the framework and its MCP server."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest

from tests.imports import ROOT

EXAMPLE = ROOT / "examples" / "autogen_math"


def load(name: str) -> Any:
    sys.path.insert(0, str(EXAMPLE))
    sys.modules.pop(name, None)  # another program's of the same name
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("1234", True),
        ("It is 1,234.", True),
        ("1234.0", True),
        ("1235", False),
        ("1234 or 5", False),
        ("", False),
        ('{"name": "calculate", "parameters": {"expression": "1234"}}', False),
    ],
)
def test_the_last_number_is_the_answer(reply: str, right: bool) -> None:
    assert load("tasks").score(reply, "1234") == float(right)


def test_training_and_held_out_problems_never_overlap() -> None:
    tasks = load("tasks")
    shown = {f"How much is {a} {word} {b}?" for a, word, b in tasks.SHOWN}
    for seed in range(3):
        train, val = tasks.problems(400, 40, seed)
        questions = {task["question"] for task in train}
        assert (len(train), len(val), len(questions)) == (400, 40, 400)
        assert not questions & {task["question"] for task in val}
        assert not shown & (questions | {task["question"] for task in val})
        assert (train, val) == tasks.problems(400, 40, seed)
    assert tasks.problems(seed=0)[1] == tasks.problems(seed=1)[1]
    assert tasks.problems(seed=0)[0] != tasks.problems(seed=1)[0]


def test_answers_are_what_the_words_say() -> None:
    tasks = load("tasks")
    for task in tasks.problems()[0]:
        a, word, b = task["question"].removeprefix("How much is ").removesuffix("?").split()
        assert task["answer"] == str(eval(f"{a} {tasks.WORDS[word]} {b}"))


def test_what_its_examples_show_is_held_out() -> None:
    source = (EXAMPLE / "agent.py").read_text()
    for a, word, b in load("tasks").SHOWN:
        assert f'"How much is {a} {word} {b}?"' in source


def test_nothing_in_the_agent_knows_that_it_is_trained() -> None:
    tree = ast.parse((EXAMPLE / "agent.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"autogen_agentchat", "autogen_core", "autogen_ext", "tasks"}
