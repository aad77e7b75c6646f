"""A resumed run tells whether it is given the tasks and the code that it began with."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.agent.calling import as_agent
from agentlightning.errors import ConfigError
from agentlightning.run.fingerprints import compare, fingerprint

AGENT = "def agent(task, llm):\n    return 1.0\n"


def agent(task: Any, llm: Any) -> float:
    return 1.0


def grade(task: Any, output: Any) -> float:
    return 1.0


def recorded(train: Any, val: Any = (), spec: Any = agent, grader: Any = None) -> Any:
    """As it comes out of the record."""
    return orjson.loads(orjson.dumps(fingerprint(train, val, as_agent(spec), grader)))


def notes(before: Any, train: Any, val: Any = (), spec: Any = agent, grader: Any = None) -> list[str]:
    return compare("run-1", before, train, val, fingerprint(train, val, as_agent(spec), grader))


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


LONG = [{"n": i} for i in range(1000)]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (numbers(1, 2, 3), numbers(1, 5, 3), r"the first that differs is train_dataset\[1\]"),
        (numbers(1, 2, 3), numbers(3, 2, 1), "the same in another order"),
        (numbers(1, 2, 3), numbers(1, 2, 3, 4), "there were 3, and there are 4; the first 3 are the same"),
        (numbers(1, 2, 3), numbers(1, 2), "there were 3, and there are 2; the first 2 are the same"),
        (
            numbers(1, 2, 3),
            numbers(9, 8),
            r"there were 3, and there are 2; the first that differs is train_dataset\[0\]",
        ),
        (LONG, [*LONG[:777], {"n": -1}, *LONG[778:]], r"between train_dataset\[776\] and \[779\]"),
        (LONG, [*LONG, {"n": -1}], "there were 1000, and there are 1001; the first 1000 are the same"),
    ],
)
def test_other_tasks_are_refused_with_what_differs_and_the_way_out(before: Any, after: Any, says: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"run-1 cannot be resumed with other tasks.*{says}.*Pass those it began with, or start a new run",
    ):
        notes(recorded(before), after)
    with pytest.raises(ConfigError, match="other tasks in val_dataset"):
        notes(recorded(LONG, before), LONG, after)


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2), min_size=1, max_size=300))
def test_the_same_tasks_are_the_same_whatever_the_order_of_their_keys(tasks: Any) -> None:
    turned = [dict(reversed(task.items())) for task in tasks]
    assert notes(recorded(tasks), turned) == []


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_tasks_differ_exactly_where_they_do(before: list[int], after: list[int]) -> None:
    if before == after:
        assert notes(recorded(before), after) == []
        return
    with pytest.raises(ConfigError) as refused:
        notes(recorded(before), after)
    if sorted(before) != sorted(after):
        first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        at = (
            f"the first {min(len(before), len(after))} are the same"
            if first is None
            else f"differs is train_dataset[{first}]"
        )
        assert at in str(refused.value)


def test_a_validation_set_that_comes_or_goes_is_said() -> None:
    (line,) = notes(recorded(LONG), LONG, numbers(1, 2))
    assert "had none in its val_dataset and is given 2 tasks" in line
    (line,) = notes(recorded(LONG, numbers(1)), LONG)
    assert "had 1 task in its val_dataset and is given none" in line


def test_changed_code_is_said_in_one_line_each(tmp_path: Path) -> None:
    file = tmp_path / "some_agent.py"
    file.write_text(AGENT)
    before = recorded(LONG, spec=f"{file}:agent", grader=grade)
    assert notes(before, LONG, spec=f"{file}:agent", grader=functools.partial(grade)) == []
    file.write_text(AGENT + "# changed\n")
    (line,) = notes(before, LONG, spec=f"{file}:agent", grader=grade)
    assert line.startswith("some_agent.py (the agent's code) has changed since run run-1 began")
    assert notes(before, LONG, spec=f"{file}:agent", grader=None)[-1] == "run run-1 had a grader and is given none"


def test_code_without_a_file_is_told_by_its_text() -> None:
    namespaces: list[dict[str, Any]] = [{}, {}]
    for namespace, text in zip(namespaces, (AGENT, AGENT.replace("1.0", "2.0")), strict=True):
        exec(compile(text, "<cell>", "exec"), namespace)
    assert fingerprint(LONG, [], as_agent(namespaces[0]["agent"]), None)["code"]["agent"] is None, (
        "a text that nobody kept"
    )


def test_a_run_without_a_fingerprint_resumes_with_a_line() -> None:
    assert notes({}, LONG) == ["run run-1 kept no fingerprint of its tasks: whether these are the same cannot be told"]


def test_a_fingerprint_stays_small() -> None:
    assert len(json.dumps(fingerprint(LONG * 50, [], as_agent(agent), None))) < 4_000
