"""A choice of agents that finds nobody is told at the first rollout, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from agentlightning.nouns import Mode
from agentlightning.records.attempts import AttemptReport
from agentlightning.records.usage import SeenAgent
from agentlightning.run.agents_seen import AgentsSeen
from tests.runners import test_dev

report = cast(Any, test_dev).report


def attempt(*names: str, marked: tuple[str, ...] = (), mode: Mode = Mode.TRAIN) -> AttemptReport:
    made: AttemptReport = report(agents={name: SeenAgent("path", "", ()) for name in names})
    return replace(made, rollout=replace(made.rollout, mode=mode), result=replace(made.result, marked=marked))


def told(trained_agents: str | None, *attempts: AttemptReport) -> list[str]:
    said: list[str] = []
    seen = AgentsSeen(trained_agents, said.append)
    for each in attempts:
        seen(each)
    return said


def test_a_choice_that_no_agent_of_the_first_rollout_is_of_is_told_with_the_names_seen() -> None:
    (line,) = told("plan", attempt("writer", "critic"), attempt("writer"))
    assert line == (
        "no call of the first rollout is of an agent that was chosen to be trained (trained_agents='plan'); its calls "
        "came from critic, writer"
    )


def test_a_choice_that_finds_somebody_is_not_told() -> None:
    assert told("write", attempt("rewrite_query")) == []
    assert told("plan", attempt("writer", marked=("writer",))) == []
    assert told(None, attempt("writer")) == []
    assert told("plan", attempt("planner"), attempt("writer")) == []


def test_what_makes_no_calls_or_trains_nothing_does_not_count_as_the_first() -> None:
    assert len(told("plan", attempt(), attempt("writer", mode=Mode.VAL), attempt("writer"))) == 1
    assert told("plan", attempt(), attempt("writer", mode=Mode.VAL)) == []
