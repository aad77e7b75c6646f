"""The calculator example: its agent is plain code that works against any endpoint, its arithmetic is safe, its problems
do not overlap."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.imports import ROOT

EXAMPLE = ROOT / "examples" / "calculator"


@pytest.fixture(scope="module")
def agent():
    return load("agent")


def load(name: str) -> Any:
    sys.path.insert(0, str(EXAMPLE))
    sys.modules.pop(name, None)  # another program's of the same name
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(EXAMPLE))


class Endpoint:
    """A chat-completions endpoint that says the given replies in turn and keeps what it was asked."""

    def __init__(self, *replies: str) -> None:
        self.requests: list[dict[str, Any]] = []
        endpoint, left = self, list(replies)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                message = {"role": "assistant", "content": left.pop(0)}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                body = json.dumps(
                    {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                ).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


TASK = {"question": "What is 12 x 34?", "answer": 408}


def test_the_agent_runs_the_calculation_it_asked_for_and_is_scored_by_its_answer(agent: Any):
    with Endpoint("<calc>12 x 34</calc>", "408") as endpoint:
        assert agent.calculator(TASK, SimpleNamespace(endpoint=endpoint.url, model="m")) == 1.0
    first, second = endpoint.requests
    assert first["messages"][-1] == {"role": "user", "content": "What is 12 x 34?"}
    assert second["messages"][:-2] == first["messages"]
    assert second["messages"][-2:] == [
        {"role": "assistant", "content": "<calc>12 x 34</calc>"},
        {"role": "user", "content": "Result: 408"},
    ]


def test_the_agent_needs_no_more_than_the_environment(agent: Any, monkeypatch: pytest.MonkeyPatch):
    with Endpoint("It is 407") as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        assert agent.calculator(TASK) == 0.0


def test_an_agent_that_only_calculates_ends(agent: Any):
    with Endpoint(*["<calc>1 + 1</calc>"] * 9) as endpoint:
        assert agent.calculator(TASK, SimpleNamespace(endpoint=endpoint.url, model="m")) == 0.0
    assert len(endpoint.requests) == agent.MAX_CALLS


def test_nothing_in_the_agent_knows_that_it_is_trained():
    tree = ast.parse((EXAMPLE / "agent.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"openai"}


@given(a=st.integers(-99, 99), b=st.integers(-99, 99), op=st.sampled_from("+-x*"))
def test_calculations_are_right(a: int, b: int, op: str):
    value = a + b if op == "+" else a - b if op == "-" else a * b
    assert load("agent").calculate(f"{a} {op} {b}") == str(value)


@given(st.text(max_size=80) | st.text("0123456789x*+-() ", max_size=80))
def test_no_text_breaks_the_calculator(text: str):
    result = load("agent").calculate(text)
    assert result.startswith("error, ") or int(result) <= 10**12


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("-28", True),
        ("The answer is -28.", True),
        ("28", False),
        ("", False),
        ("<calc>-28</calc>", False),
        ("-28 or 5", False),
    ],
)
def test_the_last_number_is_the_answer(agent: Any, reply: str, right: bool):
    assert agent.score(reply, -28) == float(right)


def test_training_and_held_out_problems_never_overlap():
    tasks = load("tasks")
    for seed in range(3):
        train, val = tasks.problems(600, 200, seed)
        questions = {task["question"] for task in train}
        assert (len(train), len(val), len(questions)) == (600, 200, 600)
        assert not questions & {task["question"] for task in val}
        assert "What is 31 + 46?" not in questions
        assert (train, val) == tasks.problems(600, 200, seed)
    assert tasks.problems(seed=0)[1] == tasks.problems(seed=1)[1]
    assert tasks.problems(seed=0)[0] != tasks.problems(seed=1)[0]


def test_task_files_hold_one_problem_a_line(tmp_path: Any):
    done = subprocess.run(
        [sys.executable, EXAMPLE / "tasks.py", str(tmp_path)], capture_output=True, text=True, check=True, timeout=600
    )
    train, val = [Path(path).read_text().splitlines() for path in done.stdout.split()]
    assert (len(train), len(val)) == (600, 200)
    assert set(json.loads(train[0])) == {"question", "answer"}
