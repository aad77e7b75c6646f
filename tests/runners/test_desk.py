"""The promises of a desk: what the local one records and drops, and that a pool needs no more than its four verbs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from agentlightning.agent.resources import LLM
from agentlightning.agent.rollouts import Attempt, Rollout
from agentlightning.errors import AgentLightningError, RunFailed
from agentlightning.nouns import Failure, Mode, Reason, Status
from agentlightning.runners.assignment import Assignment, Endpoint
from agentlightning.runners.execution import AgentResult, Returned
from agentlightning.runners.pool import RunnerPool
from agentlightning.runners.said import Said
from tests.imports import loads
from tests.runners import agents, graders

# --------------------------------------------------------------------------- a pool over a desk that is a script


def assignment(name: str, lease_seconds: float = 60.0) -> Assignment:
    view = Rollout(rollout_id=name, input={"q": name}, mode=Mode.TRAIN, attempt=Attempt(attempt_id=f"{name}.1"))
    return Assignment(view, Endpoint(f"/a/{name}", name, "m"), seconds_left=5.0, lease_seconds=lease_seconds)


class ScriptedDesk:
    """Leases what it is given, and says of each beat what it is told to. ``told`` is what it heard, in order."""

    address = "http://desk.example:1"

    def __init__(self, *names: str, lease_seconds: float = 60.0) -> None:
        self.queue = [assignment(name, lease_seconds) for name in names]
        self.ours = True
        self.over = False
        self.asked: list[int] = []
        self.reports: dict[str, tuple[AgentResult | None, Sequence[str]]] = {}
        self.printed = b""
        self.heard = asyncio.Event()

    async def lease(self, limit: int) -> list[Assignment] | None:
        self.asked.append(limit)
        leased, self.queue = self.queue[:limit], self.queue[limit:]
        await asyncio.sleep(0)
        return None if self.over and not leased else leased

    async def beat(self, attempt_id: str) -> bool:
        return self.ours

    async def report(self, attempt_id: str, result: AgentResult | None, said: Said | None = None) -> None:
        assert attempt_id not in self.reports
        self.reports[attempt_id] = (result, tuple(said.marked) if said else ())
        self.heard.set()

    def log(self, attempt_id: str, data: bytes) -> None:
        self.printed += data

    async def reported(self, count: int) -> None:
        while len(self.reports) < count:
            await self.heard.wait()
            self.heard.clear()


class ScriptedIsolation:
    """Runs an attempt by what ``acts`` says."""

    launcher = None
    abandoned = 0

    def __init__(self, acts) -> None:
        self.acts = acts
        self.seen: list[Assignment] = []
        self.running = asyncio.Semaphore(0)

    async def start(self) -> None: ...
    async def settle(self) -> None: ...
    async def close(self) -> None: ...

    async def run(self, assignment, log, said, *, stop):
        self.seen.append(assignment)
        self.running.release()
        return await self.acts(assignment, log, said, stop)


async def ends_at_once(assignment, log, said, stop):
    log.write(b"printed by " + assignment.rollout.rollout_id.encode() + b"\n")
    said.mark("planner")
    return Returned(0.5)


async def runs_until_stopped(assignment, log, said, stop):
    await stop.wait()


async def test_a_scripted_desk_drives_a_pool_without_store_and_gateway():
    desk, isolation = ScriptedDesk("a", "b", "c"), ScriptedIsolation(ends_at_once)
    desk.over = True
    pool = RunnerPool(desk, isolation, 2)
    pool.start()
    await desk.reported(3)
    await pool.close()
    assert desk.reports == {f"{name}.1": (Returned(0.5), ("planner",)) for name in "abc"}
    assert sorted(desk.printed.splitlines()) == [b"printed by a", b"printed by b", b"printed by c"]
    assert {seen.endpoint.base_url for seen in isolation.seen} == {f"http://desk.example:1/a/{n}/v1" for n in "abc"}
    assert max(desk.asked) == 2
    pool.raise_if_dead()


def test_a_pool_loads_and_names_no_store_and_no_gateway():
    needed = set(loads("agentlightning.runners.pool")) | set(loads("agentlightning.runners.desk"))
    assert not [name for name in needed if name.startswith(("agentlightning.store", "agentlightning.gateway"))]


async def test_an_attempt_whose_lease_was_lost_reports_nothing():
    desk, isolation = ScriptedDesk("a", lease_seconds=0.03), ScriptedIsolation(runs_until_stopped)
    desk.ours = False
    pool = RunnerPool(desk, isolation, 1)
    pool.start()
    await desk.reported(1)
    await pool.close()
    assert desk.reports == {"a.1": (None, ())}, "it says that it runs no more, and nothing of what came of it"


async def test_a_pool_that_is_closed_says_of_each_attempt_that_it_was_stopped():
    desk, isolation = ScriptedDesk("a", "b"), ScriptedIsolation(runs_until_stopped)
    pool = RunnerPool(desk, isolation, 4)
    pool.start()
    for _ in "ab":
        await isolation.running.acquire()
    await pool.close()
    assert desk.reports == {"a.1": (None, ()), "b.1": (None, ())}


async def test_an_attempt_that_cannot_be_run_is_lost_and_the_next_one_is_run():
    async def first_cannot(assignment, log, said, stop):
        if assignment.rollout.rollout_id == "a":
            raise OSError("no room")
        return Returned(1.0)

    desk = ScriptedDesk("a", "b")
    pool = RunnerPool(desk, ScriptedIsolation(first_cannot), 1)
    pool.start()
    await desk.reported(2)
    await pool.close()
    (failure, _), (result, _) = desk.reports["a.1"], desk.reports["b.1"]
    assert isinstance(failure, Failure) and failure.reason is Reason.LOST and "OSError: no room" in failure.message
    assert result == Returned(1.0)


async def test_an_error_of_the_runs_own_stops_every_attempt_and_the_pool():
    async def one_dies(assignment, log, said, stop):
        if assignment.rollout.rollout_id == "b":
            raise AgentLightningError("the process that starts agents died")
        await stop.wait()

    desk = ScriptedDesk("a", "b")
    pool = RunnerPool(desk, ScriptedIsolation(one_dies), 2)
    pool.start()
    await desk.reported(2)
    with pytest.raises(AgentLightningError, match="the process that starts agents died"):
        pool.raise_if_dead()
    await pool.close()
    assert {result for result, _ in desk.reports.values()} == {None}


async def test_a_desk_that_fails_ends_the_pool_by_name():
    desk = ScriptedDesk()

    async def cannot(limit):
        raise KeyError("no such desk")

    desk.lease = cannot
    pool = RunnerPool(desk, ScriptedIsolation(ends_at_once), 1)
    pool.start()
    await asyncio.wait({pool._leasing})
    await pool.close()
    with pytest.raises(RunFailed, match="the runner failed: KeyError: 'no such desk'"):
        pool.raise_if_dead()


# --------------------------------------------------------------------------- the local desk, over store and gateway


async def leased(desk, count: int = 1) -> list[Assignment]:
    taken: list[Assignment] = []
    while len(taken) < count:
        taken += await desk.lease(count - len(taken)) or []
    return taken


def echoes(task, llm):
    agents.ask(llm.endpoint)
    return task


async def called(desk, assignment: Assignment) -> str:
    """One call at the attempt's endpoint, as its agent would make it."""
    return await asyncio.to_thread(agents.ask, assignment.reached_at(desk.address).endpoint.base_url)


async def test_an_assignment_holds_durations_and_no_clock_times_and_no_secret(world):
    resources = {"judge": LLM(endpoint="http://judge/v1", model="j", api_key="sk-0123456789abcdef")}
    desk = world.make_runners(agents.plain, deadline=7.0, lease=9.0, resources=resources).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    sent = given.to_json()
    assert (sent["seconds_left"], sent["lease_seconds"]) == (7.0, 9.0)
    assert sent["rollout"]["rollout_id"] == name and sent["rollout"]["attempt"]["attempt_id"] == f"{name}.1"
    assert sent["endpoint"]["address"] == "" and sent["endpoint"]["path"] == f"/a/{given.endpoint.key}"
    (stored,) = await world.store.attempts(name)
    assert str(int(stored.started_at)) not in repr(sent), "a time of this machine's clock"
    assert "sk-0123456789abcdef" not in repr(sent) and "http://judge" not in repr(sent)
    judge = given.resources["judge"]
    assert (judge.endpoint, judge.api_key) == ("", None), "nor before it is sent: a thread is handed it as it is"
    await desk.report(given.attempt_id, None)


async def test_a_lease_opens_the_endpoint_and_a_report_closes_it(world):
    desk = world.make_runners(agents.plain).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    assert desk.holds([name]) and await called(desk, given) == "ok"
    await desk.report(given.attempt_id, Returned(0.25), Said(["planner"]))
    with pytest.raises(OSError, match="410"):
        await called(desk, given)
    rollout = await world.store.get_rollout(name)
    assert (rollout.status, rollout.reward) == (Status.SUCCEEDED, 0.25) and not desk.holds([name])
    assert world.reports[0].usage.calls == 1 and world.reports[0].result.marked == ("planner",)


async def test_the_desk_decides_the_outcome_whatever_the_runner_says(world):
    """A runner that reports a success of an agent that never called is not believed."""
    desk = world.make_runners(agents.plain).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await desk.report(given.attempt_id, Returned(1.0))
    rollout = await world.store.get_rollout(name)
    assert rollout.failure.reason is Reason.EMPTY and rollout.reward is None


async def test_a_beat_says_whether_the_attempt_is_still_ours_and_renews_it(world):
    desk = world.make_runners(agents.plain, lease=30.0).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    (before,) = await world.store.attempts(name)
    assert await desk.beat(given.attempt_id)
    (after,) = await world.store.attempts(name)
    assert after.lease_until > before.lease_until
    await world.store.cancel([name], "no longer wanted")
    assert not await desk.beat(given.attempt_id)
    await desk.report(given.attempt_id, None)


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_report_after_a_cancel_is_dropped(world, noticed):
    desk = world.make_runners(agents.plain).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await called(desk, given)
    await world.store.cancel([name], "no longer wanted")
    if noticed:
        assert not await desk.beat(given.attempt_id)
    await desk.report(given.attempt_id, Returned(1.0))
    rollout = await world.store.get_rollout(name)
    assert (rollout.status, rollout.reward, rollout.failure.message) == (Status.CANCELLED, None, "no longer wanted")
    assert await world.store.rewards(name) == [] and world.reports == [] and not desk.holds([name])
    with pytest.raises(OSError, match="410"):
        await called(desk, given)


async def test_a_report_after_the_lease_expired_is_dropped_and_another_attempt_runs(world):
    desk = world.make_runners(agents.plain, lease=0.05, max_attempts=2).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await called(desk, given)
    (again,) = await leased(desk)  # whoever leases ends the leases that have passed
    assert again.attempt_id == f"{name}.2"
    await desk.report(given.attempt_id, Returned(1.0))
    rollout = await world.store.get_rollout(name)
    first, _ = await world.store.attempts(name)
    assert rollout.reward is None and first.failure.reason is Reason.LOST and world.reports == []
    await desk.report(again.attempt_id, None)


async def test_a_second_report_changes_nothing(world):
    desk = world.make_runners(agents.plain).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await called(desk, given)
    await desk.report(given.attempt_id, Returned(0.5))
    await desk.report(given.attempt_id, Returned(1.0))
    await desk.report(given.attempt_id, Failure(Reason.AGENT_ERROR, "ValueError"))
    assert (await world.store.get_rollout(name)).reward == 0.5 and len(world.reports) == 1


async def test_an_attempt_that_was_stopped_while_it_was_ours_is_queued_again(world):
    desk = world.make_runners(agents.plain).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await desk.report(given.attempt_id, None)
    rollout = await world.store.get_rollout(name)
    (attempt,) = await world.store.attempts(name)
    assert rollout.status is Status.QUEUED and attempt.failure.reason is Reason.CANCELLED
    (again,) = await leased(desk)
    assert again.attempt_id == f"{name}.2"
    await desk.report(again.attempt_id, None)


async def test_what_an_attempt_prints_is_in_its_log_until_its_report_and_nothing_after(world):
    desk = world.make_runners(agents.plain).desk
    await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await called(desk, given)
    await asyncio.to_thread(desk.log, given.attempt_id, b"from a thread\n")
    await desk.report(given.attempt_id, Returned(0.5))
    desk.log(given.attempt_id, b"too late\n")
    desk.log("nobody.1", b"nobody's\n")
    assert world.reports[0].stdout == "from a thread\n"
    assert (world.folder / "logs" / f"{given.attempt_id}.log").read_bytes() == b"from a thread\n"


async def test_a_closed_desk_leases_nothing_and_records_nothing_more(world):
    desk = world.make_runners(agents.plain).desk
    (name,) = await world.enqueue([{"q": 1}])
    (given,) = await leased(desk)
    await called(desk, given)
    waiting = asyncio.create_task(desk.lease(1))
    await desk.close()
    assert await waiting in ([], None) and await desk.lease(1) is None
    await desk.report(given.attempt_id, Returned(1.0))
    assert (await world.store.get_rollout(name)).status is Status.QUEUED and world.reports == []


async def test_a_desk_serves_the_groups_it_is_asked_for_and_looks_for_it_at_once(world, monkeypatch):
    monkeypatch.setattr("agentlightning.runners.local_desk.POLL", 3600.0)
    desk = world.make_runners(agents.plain).desk
    desk.serve(Mode.VAL, None)
    (trained,) = await world.enqueue([{"q": 1}])
    assert await desk.lease(1) == [], "a change was noted that is not yet there to lease"
    waiting = asyncio.create_task(desk.lease(1))
    await asyncio.sleep(0)
    (validated,) = await world.enqueue([{"q": 2}], Mode.VAL)
    desk.serve(Mode.VAL, None)
    taken = await waiting or await leased(desk)
    assert [each.rollout.rollout_id for each in taken] == [validated]
    desk.serve(Mode.TRAIN, [1])
    (given,) = await leased(desk)
    assert given.rollout.rollout_id == trained
    for each in (*taken, given):
        await desk.report(each.attempt_id, None)


async def test_a_cancelled_attempt_is_not_graded_to_the_end(world):
    desk = world.make_runners(echoes, grader=graders.ends, isolation="thread").desk
    runners = world.runners
    await runners.start()
    (name,) = await world.enqueue(["hangs"], mode=Mode.VAL)
    await world.until(lambda: desk._graders.busy)
    await world.store.cancel([name], "no longer wanted")
    assert not await desk.beat(f"{name}.1")
    await world.until(lambda: not desk.holds([name]))
    await runners.close()
    assert (await world.store.get_rollout(name)).status is Status.CANCELLED and world.reports == []


async def test_a_run_that_ends_while_an_output_is_graded_queues_it_again(world):
    desk = world.make_runners(echoes, grader=graders.ends, isolation="thread").desk
    await world.runners.start()
    (name,) = await world.enqueue(["hangs"], mode=Mode.VAL)
    await world.until(lambda: desk._graders.busy)
    async with asyncio.timeout(30):
        await world.runners.close()
    assert (await world.store.get_rollout(name)).status is Status.QUEUED and world.reports == []


async def test_a_run_that_ends_does_not_wait_for_a_grader_in_a_thread(world):
    entered, release = threading.Event(), threading.Event()

    def waits(task, output):
        entered.set()
        return float(release.wait(60))

    world.make_runners(echoes, grader=waits, isolation="thread", grader_runs="thread")
    await world.runners.start()
    (name,) = await world.enqueue(["text"], mode=Mode.VAL)
    await world.until(entered.is_set)
    async with asyncio.timeout(30):
        await world.runners.close()
    release.set()
    assert (await world.store.get_rollout(name)).status is Status.QUEUED and world.reports == []
