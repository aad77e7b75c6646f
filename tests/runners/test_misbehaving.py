"""What an agent does to its process costs at most its own attempt: results are delivered first, and no fault of one
attempt is the run's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentlightning.nouns import Reason
from tests.runners import agents, misbehaving
from tests.runners.test_process import linux


def path(agent) -> str:
    return f"{misbehaving.__file__}:{agent.__name__}"


@pytest.fixture(autouse=True)
def _folder_and_streams():
    """As they were, whatever an agent in a thread does to this process."""
    folder, streams = Path.cwd(), (sys.stdout, sys.stderr)
    yield
    os.chdir(folder)
    sys.stdout, sys.stderr = streams


STREAMS = ["tee", "none", "closed", "breaks", "memory"]


async def test_an_agent_that_replaces_its_streams_has_its_result(world, isolation):
    agent = path(misbehaving.replaces_streams) if isolation == "process" else misbehaving.replaces_streams
    rollouts = await world.run(agent, STREAMS, isolation=isolation, n_runners=1)
    assert [(rollout.task, rollout.reward) for rollout in rollouts] == [(how, 1.0) for how in STREAMS]
    printed = {report.rollout.task: report.stdout for report in world.reports}
    assert printed["tee"] == "before\nthrough the tee\n"
    assert all(text.startswith("before\n") for text in printed.values())


@pytest.mark.parametrize(
    "agent",
    [
        misbehaving.closes_streams,
        misbehaving.bad_at_exit,
        misbehaving.sets_locale,
        misbehaving.prints_bytes,
        misbehaving.changes_folder,
    ],
)
async def test_what_an_agent_does_to_its_process_leaves_its_result_alone(world, agent):
    (rollout,) = await world.run(path(agent), isolation="process")
    assert rollout.failure is None and rollout.reward == (0.5 if agent is misbehaving.sets_locale else 1.0)


async def test_an_agent_in_a_thread_may_print_anything(world):
    rollout, report = await world.one(misbehaving.prints_bytes, isolation="thread")
    assert (
        rollout.reward == 1.0
        and report.stdout.startswith("half of a pair: ?, NUL: \0")
        and "no text: \ufffd\ufffd" in report.stdout
    )


async def test_an_exception_whose_text_cannot_be_shown_is_a_failure_like_others(world, isolation):
    agent = path(misbehaving.fails_unprintably) if isolation == "process" else misbehaving.fails_unprintably
    (rollout,) = await world.run(agent, isolation=isolation)
    assert rollout.failure.reason is Reason.AGENT_ERROR and "ValueError: half of a pair" in rollout.failure.message
    assert len(rollout.failure.message) < 1000 and len(rollout.failure.traceback) < 20_000


@pytest.mark.parametrize("how", ["text", "cycle", "exit"])
async def test_an_exception_that_fails_when_it_is_read_is_a_failure_like_others(world, isolation, how):
    agent = (
        path(misbehaving.raises_what_cannot_be_shown)
        if isolation == "process"
        else misbehaving.raises_what_cannot_be_shown
    )
    (rollout,) = await world.run(agent, [how], isolation=isolation)
    said = {
        "text": "CannotBeShown: (its text cannot be shown: SystemExit)",
        "cycle": "ValueError: the error",
        "exit": "the agent raised an exception that cannot be shown: SystemExit: no text",
    }[how]
    assert rollout.failure.reason is Reason.AGENT_ERROR and rollout.failure.message.startswith(said)


@pytest.mark.parametrize("how", ["deleted", "none", "closed"])
async def test_streams_that_an_agent_in_a_thread_takes_away_are_back_when_it_ends(world, how):
    before = sys.stdout, sys.stderr
    rollouts = await world.run(misbehaving.deletes_streams, [how, how], isolation="thread", n_runners=1)
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0], rollouts
    assert (sys.stdout, sys.stderr) == before


@linux
@pytest.mark.parametrize("agent", [misbehaving.fork_comes_back, misbehaving.fork_of_a_coroutine_comes_back])
async def test_a_fork_that_comes_back_out_of_an_agent_ends(world, isolation, agent):
    (rollout,) = await world.run(path(agent) if isolation == "process" else agent, isolation=isolation)
    assert rollout.reward == 1.0, rollout.failure


async def test_an_agent_that_ends_its_loops_executor_ends_nobody_elses(world, isolation):
    agent = path(misbehaving.ends_the_executor) if isolation == "process" else misbehaving.ends_the_executor
    rollouts = await world.run(agent, [1, 2], isolation=isolation, n_runners=1)
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0], rollouts


@linux
async def test_an_agent_that_writes_where_its_result_goes_fails_alone(world):
    failed, fine = await world.run(path(misbehaving.scribbles), [1], isolation="process") + await world.run(
        path(misbehaving.sets_locale), isolation="process"
    )
    assert (
        failed.failure.reason is Reason.LOST
        and "wrote to the descriptor that its result goes through" in failed.failure.message
    )
    assert fine.reward == 0.5


async def test_an_attempt_whose_process_cannot_be_started_fails_and_the_run_goes_on(world, monkeypatch):
    runners = world.make_runners(f"{agents.__file__}:plain", isolation="process", n_runners=1)
    await runners.start()
    launch, calls = runners.isolation.launcher.launch, []

    async def once_without(order, *rest):
        calls.append(order)
        if len(calls) == 1:
            raise OSError(24, "Too many open files")
        return await launch(order, *rest)

    monkeypatch.setattr(runners.isolation.launcher, "launch", once_without)
    first, second = await world.wait(await world.enqueue([1, 2]))
    await runners.close()
    assert (
        first.failure.reason is Reason.LOST
        and "the runner could not run it: OSError: [Errno 24] Too many open files" in first.failure.message
    )
    assert second.reward == 1.0


async def test_a_log_that_cannot_be_written_costs_no_attempt(world, isolation):
    (world.folder / "logs").write_text("a file where the folder should be")
    (rollout,) = await world.run(
        f"{agents.__file__}:emits" if isolation == "process" else agents.emits, isolation=isolation
    )
    assert rollout.reward == 0.5
    (rollout,) = await world.run(path(misbehaving.prints_bytes), isolation="process")
    assert rollout.reward == 1.0 and "could not be written" in world.reports[-1].stdout


async def test_an_output_too_large_for_the_record_is_recorded_as_what_it_is(world, monkeypatch):
    monkeypatch.setattr("agentlightning.runners.output.LARGEST_OUTPUT", 1000)
    seen = []
    tasks = [{"answer": "x" * 999}]
    (rollout,) = await world.run(
        agents.answers, tasks, isolation="thread", grader=lambda task, output: seen.append(output) or 1.0
    )
    assert rollout.reward == 1.0
    assert seen[0]["note"] == "too large to be recorded: 1001 characters of JSON" and seen[0]["repr"].startswith("'xxx")
