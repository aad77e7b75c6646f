"""Who made a call, from what spans and callbacks say: nearest first, once each, bounded, and never after the end."""

from __future__ import annotations

import subprocess
import sys
from contextvars import copy_context
from pathlib import Path

import pytest

from agentlightning.tracing import names as module
from agentlightning.tracing.names import CallNames, current, listen_here, name_in


def listening() -> tuple[CallNames, list[tuple[str, str, str]]]:
    told: list[tuple[str, str, str]] = []
    return CallNames(lambda reply_id, name, how: told.append((reply_id, name, how))), told


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"agent.name": "a"}, ("a", "agent.name")),
        ({"gen_ai.agent.name": " a/b "}, ("ab", "gen_ai.agent.name")),
        ({"executor.id": "write", "gen_ai.agent.name": "a"}, ("write", "executor.id")),
        ({"langgraph_node": "write_query"}, ("write_query", "langgraph_node")),
        ({"agentops.span.kind": "agent", "operation.name": "a"}, ("a", "operation.name")),
        ({"agentops.span.kind": "tool", "operation.name": "a"}, None),
        ({"messaging.operation": "process", "recipient_agent_type": "a"}, ("a", "recipient_agent_type")),
        ({"messaging.operation": "send", "recipient_agent_type": "a"}, None),
        (
            {"recipient_agent_type": "solver_0b1e6f0c-4f5e-4f0a-9a51-1f6f3a6d9c11"},
            ("solver", "recipient_agent_type"),
        ),
        ({"agent.name": ""}, None),
        ({"agent.name": 3}, None),
        ({}, None),
    ],
)
def test_each_attribute_that_frameworks_name_agents_by_is_read(attributes: dict[str, object], named: object) -> None:
    assert name_in(attributes) == named


def test_a_call_is_of_the_nearest_agent_around_it_and_an_executor_comes_before_the_agent_that_it_runs() -> None:
    names, told = listening()
    names.begin("team", None, lambda: {"agent.name": "team"})
    names.begin("member", "team", lambda: {"agent.name": "member"})
    names.begin("call", "member", dict)
    names.end("call", {"gen_ai.response.id": "r1"})
    names.add_by_span("r2", "team")
    names.begin("executor", None, lambda: {"executor.id": "write"})
    names.begin("agent", "executor", lambda: {"gen_ai.agent.name": "a8f3"})
    names.add_by_span("r3", "agent")
    names.add_by_span("r4", "unknown")
    assert [(reply, name) for reply, name, _ in told] == [("r1", "member"), ("r2", "team"), ("r3", "write")]


def test_the_first_name_of_a_reply_counts_and_one_that_a_span_gets_later_is_told_at_the_end() -> None:
    names, told = listening()
    attributes: dict[str, object] = {}
    names.begin("span", None, lambda: attributes)
    names.add_by_span("r1", "span")
    attributes["agent.name"] = "late"
    assert told == []
    names.add("r2", ("a", "x"))
    names.add("r2", ("b", "x"))
    names.close()
    names.add("r3", ("a", "x"))
    names.begin("after", None, lambda: {"agent.name": "a"})
    names.add_by_span("r4", "after")
    assert told == [("r2", "a", "x"), ("r1", "late", "agent.name")]


def test_what_is_kept_and_told_of_an_attempt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    names, told = listening()
    for number in range(9):
        names.begin(number, None, lambda: {"agent.name": "a"})
        names.add_by_span(f"r{number}", number)
    names.add_by_span("late", 0)
    names.add("x" * 201, ("a", "x"))
    assert [reply for reply, *_ in told] == ["r0", "r1", "r2"]


def test_an_attempt_is_told_of_its_own_context_alone() -> None:
    mine, other = listening()[0], listening()[0]
    here, there = copy_context(), copy_context()
    here.run(listen_here, mine)
    there.run(listen_here, other)
    assert (here.run(current), there.run(current), current()) == (mine, other, None)


def ran(program: str) -> tuple[str, str]:
    """What a program of an interpreter of its own writes, and what it says is wrong."""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return said.stdout, said.stderr


def test_what_listens_imports_no_framework_and_listens_once() -> None:
    """Invariant 11: a program pays for the libraries that it imports itself."""
    program = (
        "import sys; from agentlightning.tracing.instruments import instrument; instrument(); instrument(); "
        "loaded = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(loaded & {'httpx', 'httpx2', 'openai', 'opentelemetry', 'agents', 'langchain_core', 'torch'}), "
        "[type(finder).__name__ for finder in sys.meta_path].count('_AfterImport'))"
    )
    assert ran(program) == ("[] 1\n", "")


def test_a_module_that_was_only_looked_for_is_listened_to_once_it_is_imported() -> None:
    program = (
        "import importlib.util; from agentlightning.tracing.instruments import instrument; instrument(); "
        "print(importlib.util.find_spec('httpx2').loader.get_filename()[-11:]); import httpx2; "
        "print(httpx2.Client.send._agentlightning, type(httpx2.__spec__.loader).__name__)"
    )
    assert ran(program) == ("__init__.py\nTrue SourceFileLoader\n", "")


def test_an_instrument_that_fails_is_one_line_and_the_import_goes_on(tmp_path: Path) -> None:
    """A module of the program's own that has the name of a library."""
    (tmp_path / "httpx.py").write_text("MINE = 'yes'\n")
    program = (
        "import sys, logging; logging.basicConfig(format='%(message)s'); "
        f"sys.path.insert(0, {str(tmp_path)!r}); "
        "from agentlightning.tracing.instruments import instrument; instrument(); import httpx; print(httpx.MINE)"
    )
    out, err = ran(program)
    assert out == "yes\n", err
    (line,) = err.splitlines()
    assert line.startswith("the agents of httpx cannot be told apart by its spans (AttributeError: ")
