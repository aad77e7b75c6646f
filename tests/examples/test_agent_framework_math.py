"""The Agent Framework example without its framework: its server's arithmetic, its problems, how an answer is scored, and
that its config is one that a run takes. `make test-examples` runs it with the framework and its MCP server."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.imports import ROOT

EXAMPLE = ROOT / "examples" / "agent_framework_math"


def load(name: str) -> Any:
    sys.path.insert(0, str(EXAMPLE))
    sys.modules.pop(name, None)  # another program's of the same name
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(EXAMPLE))


@given(a=st.integers(-99, 99), b=st.integers(-99, 99), op=st.sampled_from("+-*"))
def test_the_servers_calculations_are_right(a: int, b: int, op: str) -> None:
    value = a + b if op == "+" else a - b if op == "-" else a * b
    assert load("calculator_server").calculate(f"{a} {op} {b}") == str(value)


@given(st.text(max_size=80) | st.text("0123456789*+-() ", max_size=80))
def test_no_text_breaks_the_server(text: str) -> None:
    said = load("calculator_server").calculate(text)
    assert said.startswith("error: ") or abs(int(said)) <= 10**12


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("### -28", True),
        ("I am sure.\n### -28\n", True),
        ("###-28", True),
        ("-28", False),
        ("### 28", False),
        ("### -28 or so", False),
        ("### -28 ### 5", False),
        ("", False),
    ],
)
def test_what_stands_after_the_sharps_is_the_answer(reply: str, right: bool) -> None:
    assert load("problems").score(reply, "-28") == float(right)
    assert load("problems").score("### 1,234", "1234") == 1.0


def test_training_and_held_out_problems_never_overlap_and_are_solved_right() -> None:
    problems, calculate = load("problems"), load("calculator_server").calculate
    train, test = problems.load("train"), problems.load("test")
    questions = {each["question"] for each in train}
    assert (len(train), len(test), len(questions)) == (400, 40, 400)
    assert not questions & {each["question"] for each in test}
    for each in train + test:
        assert calculate(each["question"].removeprefix("What is ").removesuffix("?")) == each["result"]
    shown = ast.parse((EXAMPLE / "agent.py").read_text())
    expressions = [
        call.args[1].value
        for call in ast.walk(shown)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "example" and len(call.args) == 3
        if isinstance(call.args[1], ast.Constant)
    ]
    assert len(expressions) == 2
    assert not questions & {f"What is {expression}?" for expression in expressions}


def test_the_agent_takes_the_model_that_it_is_given_and_says_nothing_of_training() -> None:
    tree = ast.parse((EXAMPLE / "agent.py").read_text())
    named = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "llm"
    }
    assert named == {"endpoint", "model"}
    ours = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "agentlightning"]
    assert [{alias.name for alias in node.names} for node in ours] == [{"LLM", "rollout"}]


@pytest.mark.parametrize("small", [True, False])
def test_its_config_is_one_that_a_run_takes(small: bool) -> None:
    from agentlightning import VERL

    told: dict[str, Any] = {}
    source = ast.parse((EXAMPLE / "train.py").read_text())
    function = next(node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == "config")
    exec(compile(ast.Module([function], []), "train.py", "exec"), {"Any": Any}, told)
    reading = VERL(told["config"]("model", small=small, steps=3)).reading
    assert reading is not None
    settings = {name: value for name, (value, _) in reading.settings.items()}
    assert (settings["model.tool_format"], settings["steps"], settings["evaluation.before"]) == ("llama3_json", 3, True)
    assert settings["algorithm.group_size"] == (2 if small else 8)
