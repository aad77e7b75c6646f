"""The names that an agent's own process tells of its calls, from spans: in threads and in processes, whatever comes of
the attempt."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentlightning.nouns import Status
from agentlightning.runners.said import Said, mark_message, name_message
from tests.runners import naming
from tests.runners.conftest import World

PATH = naming.__file__


def either(isolation: str, name: str) -> Any:
    return getattr(naming, name) if isolation == "thread" else f"{PATH}:{name}"


async def named(world: World, rollout: Any) -> list[list[str | None]]:
    """By attempt, in the order of the calls."""
    return [
        [call.agent for call in sorted(await world.store.calls(attempt.id), key=lambda call: call.index)]
        for attempt in await world.store.attempts(rollout.id)
    ]


async def test_spans_name_the_agents_of_calls_over_any_client_and_a_name_in_the_request_stays(
    world: World, isolation: str
) -> None:
    rollout, report = await world.one(either(isolation, "several"), isolation=isolation)
    assert rollout.status is Status.SUCCEEDED, report.result.failure
    ((*first, unnamed, writer),) = await named(world, rollout)
    assert (first, writer) == (["planner", "critic", "planner"], "writer")
    assert unnamed is not None and unnamed.startswith("agent-")
    assert report.usage.agents["planner"].how == "span's gen_ai.agent.name"
    assert set(report.usage.agents) == {"planner", "critic", "writer", unnamed}, "a name that no call has is none"


async def test_agents_that_ask_at_the_same_time_are_told_apart_also_between_attempts(
    world: World, isolation: str
) -> None:
    tasks = [{"number": number} for number in range(3)]
    for rollout in await world.run(either(isolation, "at_once"), tasks, isolation=isolation):
        number = rollout.task["number"]
        (names,) = await named(world, rollout)
        assert sorted(map(str, names)) == [f"agent {number}a", f"agent {number}b", "threaded"]


@pytest.mark.parametrize("how", ["raises", "hangs", "dies"])
async def test_names_of_an_attempt_that_fails_are_kept(world: World, isolation: str, how: str) -> None:
    if how == "dies" and isolation == "thread":
        pytest.skip("a thread cannot die alone")
    rollout, _ = await world.one(
        either(isolation, "ends"), isolation=isolation, tasks=[{"how": how}], deadline=6.0, max_attempts=2
    )
    assert await named(world, rollout) == [["planner"], ["planner"]]


async def test_a_name_that_cannot_be_read_is_one_line_and_not_the_attempts_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentlightning"):
        rollouts = await world.run(naming.fails_inside, [{}, {}], isolation="thread")
    assert {rollout.status for rollout in rollouts} == {Status.SUCCEEDED}
    lines = [record.getMessage() for record in caplog.records if "name was not read" in record.getMessage()]
    assert len(lines) == len(set(lines)) > 0 and all(line.endswith("RuntimeError: no slice of me)") for line in lines)


def test_what_a_process_says_is_heard_and_what_none_of_ours_says_is_refused() -> None:
    said = Said()
    for message in (mark_message("planner"), name_message("r1", "critic", "agent.name")):
        said.hear(message)
    assert (said.marked, said.named) == (["planner"], [("r1", "critic", "agent.name")])
    for wrong in ({"mark": 1}, {"name": ["r1", "x"]}, {"name": ["r1", 2, "x"]}, "planner", None):
        with pytest.raises(ValueError, match="no message of an agent's process"):
            said.hear(wrong)
