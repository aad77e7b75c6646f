"""The agents that an attempt marks as trainable: they reach the record with its report, in threads and in processes,
whatever comes of it."""

from __future__ import annotations

import sys

import pytest

from agentlightning.agent.calling import as_agent
from agentlightning.algorithms import ALGORITHMS
from agentlightning.errors import ConfigError
from agentlightning.nouns import Status
from agentlightning.run.opening import with_agents_choice
from agentlightning.runners.check import check_agent
from agentlightning.runners.process import ProcessIsolation
from agentlightning.runners.spawn import Spawn
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.sources import resolve
from agentlightning.store import open_store
from tests.runners import agents

PATH = agents.__file__


async def marked(world, rollout):
    """As another process would read it."""
    store = open_store(f"sqlite:///{world.folder / 'record.db'}")
    try:
        return [attempt.marked for attempt in await store.attempts(rollout.id)]
    finally:
        await store.close()


def either(isolation, name):
    return getattr(agents, name) if isolation == "thread" else f"{PATH}:{name}"


@pytest.mark.parametrize(
    ("name", "says"), [("marks", ("planner", "critic", "editor")), ("marks_async", ("planner",)), ("plain", ())]
)
async def test_marks_are_recorded_with_the_attempt_once_and_in_order(world, isolation, name, says):
    rollout, report = await world.one(either(isolation, name), isolation=isolation)
    assert rollout.status is Status.SUCCEEDED and report.result.marked == says
    assert await marked(world, rollout) == [says]


@pytest.mark.parametrize("how", ["raises", "hangs", "dies"])
async def test_marks_of_an_attempt_that_fails_are_kept_so_that_a_scored_failure_trains_no_others(world, isolation, how):
    if how == "dies" and isolation == "thread":
        pytest.skip("a thread cannot die alone")
    rollout, report = await world.one(
        either(isolation, "marks_and_fails"), isolation=isolation, tasks=[{"how": how}], deadline=3.0,
        failure_reward={"agent_error": -1.0, "timeout": -1.0},
    )  # fmt: skip
    assert (rollout.status, rollout.reward) == (Status.FAILED, -1.0)
    assert report.result.marked == ("planner",) and await marked(world, rollout) == [("planner",)]


async def test_marks_of_an_attempt_that_is_retried_are_kept_as_those_of_one_that_is_not(world, isolation):
    rollout, _ = await world.one(
        either(isolation, "marks_and_fails"),
        isolation=isolation,
        tasks=[{"how": "raises"}],
        max_attempts=2,
        failure_reward={"agent_error": -1.0},
    )
    assert await marked(world, rollout) == [("planner",), ("planner",)]


async def test_marks_come_through_a_fresh_interpreter_too(world):
    runners = world.make_runners(f"{PATH}:marks", isolation="process")
    await runners.start()
    spec = as_agent(f"{PATH}:marks")
    assert spec.source is not None
    runners.pool.isolation = ProcessIsolation(spec.source, spec.name, {}, Spawn())
    (rollout,) = await world.wait(await world.enqueue([{"q": 1}]))
    await runners.close()
    assert await marked(world, rollout) == [("planner", "critic", "editor")]


async def test_a_mark_after_the_end_is_refused_and_changes_nothing(world):
    agents.late.clear()
    rollout, _ = await world.one(agents.marks_too_late, isolation="thread")
    await world.until(lambda: agents.late)
    assert agents.late[0].startswith("mark_agent_as_trainable('planner') came after its attempt had ended")
    assert await marked(world, rollout) == [()]


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
async def test_a_mark_in_a_process_that_the_agent_forked_is_refused_by_name(world, isolation):
    said = []
    rollout, _ = await world.one(
        either(isolation, "marks_in_forked_process"),
        isolation=isolation,
        grader=lambda task, output: said.append(output) or 1.0,
    )
    assert rollout.status is Status.SUCCEEDED and await marked(world, rollout) == [()]
    assert said[0].startswith("mark_agent_as_trainable('planner') was called in a process that the agent forked")


async def test_reporting_twice_keeps_the_marks(world):
    rollout, report = await world.one(agents.marks, isolation="thread")
    await world.store.finish(rollout.attempt_id, report.result)
    assert await marked(world, rollout) == [("planner", "critic", "editor")]


# --------------------------------------------------------------------------- what the agent's own code says


@pytest.mark.parametrize("agent", [agents.chooses, f"{PATH}:chooses"])
async def test_a_check_finds_what_the_agent_chooses_before_anything_runs(agent):
    assert (await check_agent(as_agent(agent))).trained_agents == "planner|critic"


async def test_the_agents_choice_is_the_runs_where_the_run_has_none():
    own = await check_agent(as_agent(agents.chooses))
    settled = with_agents_choice(resolve(ALGORITHMS), own)
    assert settled.config.trained_agents == "planner|critic" and settled.sources["trained_agents"] == "agent Chooses"
    assert settled.config.model_copy(update={"trained_agents": None}) == RunConfig()
    none = await check_agent(as_agent(agents.plain))
    assert with_agents_choice(resolve(ALGORITHMS, flags={"trained_agents": "x"}), none).config.trained_agents == "x"
    assert with_agents_choice(resolve(ALGORITHMS), none).config.trained_agents is None
    same = resolve(ALGORITHMS, flags={"trained_agents": "planner|critic"})
    assert with_agents_choice(same, own) is same


async def test_two_choices_that_differ_are_refused_by_name():
    own = await check_agent(as_agent(agents.chooses))
    with pytest.raises(ConfigError) as caught:
        with_agents_choice(resolve(ALGORITHMS, flags={"trained_agents": "writer"}), own)
    assert str(caught.value) == (
        "trained_agents is given twice: 'writer' (flag --set) and 'planner|critic' (agent 'Chooses'): "
        "leave one of them out, or make them the same"
    )
