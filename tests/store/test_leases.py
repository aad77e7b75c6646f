"""Who may run what: a rollout never has two running attempts, and ends once."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentlightning.errors import LeaseLost, StoreError
from agentlightning.nouns import Attempt, AttemptResult, Failure, Mode, Reason, Status
from agentlightning.store import Store, sql

from . import make

T = TypeVar("T")
DONE = AttemptResult(Status.SUCCEEDED, 1.0)


async def test_rollouts_are_leased_in_the_order_they_were_enqueued(store: Store) -> None:
    first = await store.lease("r", "a", limit=3, seconds=60)
    assert [rollout.index for rollout, _ in first] == [0, 1, 2]
    for rollout, attempt in first:
        assert (rollout.status, rollout.attempt_id) == (Status.RUNNING, attempt.id)
        assert (attempt.id, attempt.number, attempt.runner_id) == (f"{rollout.id}.1", 1, "a")
        assert await store.get_attempt(attempt.id) == attempt and await store.get_rollout(rollout.id) == rollout
    await store.retry(first[1][1].id, Failure(Reason.AGENT_ERROR, "x"))
    assert [rollout.index for rollout, _ in await store.lease("r", "a", limit=9, seconds=60)] == [1, 3]
    assert await store.lease("r", "a", limit=9, seconds=60) == []
    assert (
        await store.lease("r", "a", limit=-1, seconds=60) == [] == await store.lease("nobody", "a", limit=9, seconds=60)
    )


async def test_only_the_groups_that_are_asked_for_are_leased(store: Store) -> None:
    await store.enqueue([make.rollout(0, group=group) for group in (3, 1, 2)] + [make.rollout(0, mode=Mode.VAL)])

    async def leased(groups: Collection[int], limit: int = 9, mode: Mode = Mode.TRAIN) -> list[tuple[int, int]]:
        found = await store.lease("r", "a", limit=limit, seconds=60, mode=mode, groups=groups)
        return [(rollout.group, rollout.index) for rollout, _ in found]

    assert await leased(range(0)) == [] == await leased([])
    assert await leased({0}, limit=2) == [(0, 0), (0, 1)]
    assert await leased(range(2)) == [(0, 2), (0, 3), (1, 0)], "up to a number, in the order they were enqueued"
    assert await leased({2, 7}) == [(2, 0)]
    assert await leased(range(9)) == [(3, 0)]
    assert await leased(range(9), mode=Mode.VAL) == [(0, 0)]


async def test_finishing_twice_changes_nothing(store: Store) -> None:
    (attempt,) = await make.leased(store)
    result = AttemptResult(Status.SUCCEEDED, 1.0, output="x", rewards=(make.reward(attempt),))
    rollout = await store.finish(attempt.id, result)
    assert (rollout.status, rollout.reward, rollout.ended_at is not None) == (Status.SUCCEEDED, 1.0, True)
    assert await store.finish(attempt.id, AttemptResult(Status.FAILED, failure=Failure(Reason.EMPTY, "y"))) == rollout
    assert await store.finish(attempt.id, result) == rollout
    assert await store.rewards(attempt.rollout_id) == list(result.rewards)
    with pytest.raises(LeaseLost, match="ended by finish"):
        await store.retry(attempt.id, Failure(Reason.EMPTY, "y"))
    with pytest.raises(StoreError, match="status running"):
        await store.finish(attempt.id, AttemptResult(Status.RUNNING))
    with pytest.raises(StoreError, match="no attempt nobody"):
        await store.finish("nobody", DONE)


async def test_a_retried_rollout_gets_the_next_attempt(store: Store) -> None:
    (attempt,) = await make.leased(store)
    failure = Failure(Reason.AGENT_ERROR, "x", "tb")
    for _ in range(2):
        rollout = await store.retry(attempt.id, failure, marked=["planner", "critic"])
        assert (rollout.status, rollout.attempt_id, rollout.failure) == (Status.QUEUED, None, None)
    with pytest.raises(LeaseLost, match="ended by retry: x"):
        await store.finish(attempt.id, DONE)
    assert [next.number for next in await make.leased(store)] == [2]
    assert [a.failure for a in await store.attempts(attempt.rollout_id)] == [failure, None]
    assert [a.marked for a in await store.attempts(attempt.rollout_id)] == [("planner", "critic"), ()]


async def test_a_lease_that_passed_is_lost(store: Store) -> None:
    dead, alive, last = await make.leased(store, 3, seconds=0.0)
    assert await store.renew(alive.id, seconds=60)
    assert await store.expire(now=last.lease_until - 1) == []
    await store.retry(last.id, Failure(Reason.EMPTY, "x"))
    ended = await store.expire(max_attempts=2)
    assert [(a.id, a.status, a.failure and a.failure.reason) for a in ended] == [(dead.id, Status.FAILED, Reason.LOST)]
    assert not await store.renew(dead.id, seconds=60)
    with pytest.raises(LeaseLost, match="ended by expire: runner me gave no sign"):
        await store.finish(dead.id, DONE)
    again = await make.leased(store, 1, seconds=0.0)
    assert [(a.rollout_id, a.number) for a in again] == [(dead.rollout_id, 2)]
    assert [a.number for a in await store.expire(max_attempts=2)] == [2]
    rollout = await store.get_rollout(dead.rollout_id)
    assert rollout is not None and (rollout.status, rollout.failure and rollout.failure.reason) == (
        Status.FAILED,
        Reason.LOST,
    )


async def test_what_waits_for_its_grader_holds_no_lease_and_ends_by_its_own_deadline(store: Store) -> None:
    scored, hopeless, retried, slow = await make.leased(store, 4, seconds=60)
    for attempt in (scored, hopeless, retried, slow):
        rollout = await store.score(attempt.id, seconds=100, output={"text": "x"}, marked=["planner"])
        assert (rollout.status, rollout.ended_at, rollout.attempt_id) == (Status.SCORING, None, attempt.id)
        assert await store.score(attempt.id, seconds=9e9) == rollout, "once is enough"
        assert not await store.renew(attempt.id, seconds=60)
    assert await store.expire(now=scored.lease_until + 1) == [] == await store.wait([scored.rollout_id], timeout=0)
    assert await store.requeue_running("r") == [] == await store.lease("r", "a", limit=9, seconds=60)
    waiting = await store.get_attempt(scored.id)
    assert waiting is not None and (waiting.output, waiting.marked, waiting.ended_at) == (
        {"text": "x"},
        ("planner",),
        None,
    )
    await store.add_reward(make.reward(scored, 0.25))
    graded = await store.finish(scored.id, AttemptResult(Status.SUCCEEDED, 1.0, rewards=(make.reward(scored),)))
    assert (graded.status, graded.reward) == (Status.SUCCEEDED, 1.0)
    assert [(reward.value, reward.late) for reward in await store.rewards(graded.id)] == [(0.25, False), (1.0, False)]
    ended = await store.get_attempt(scored.id)
    assert ended is not None and (ended.output, ended.marked) == ({"text": "x"}, ("planner",))
    failed = await store.finish(hopeless.id, AttemptResult(Status.FAILED, failure=Failure(Reason.BAD_REWARD, "nan")))
    assert failed.status is Status.FAILED
    assert (await store.retry(retried.id, Failure(Reason.AGENT_ERROR, "x"))).status is Status.QUEUED
    with pytest.raises(LeaseLost, match="ended by retry"):
        await store.score(retried.id, seconds=1)
    with pytest.raises(StoreError, match="no attempt nobody"):
        await store.score("nobody", seconds=1)
    (lost,) = await store.expire(now=(waiting.score_until or 0) + 60, max_attempts=3)
    assert (lost.id, lost.failure and lost.failure.reason) == (slow.id, Reason.LOST)
    assert lost.failure is not None and "no grader had scored it" in lost.failure.message
    (rollout,) = await store.wait([slow.rollout_id])
    assert (rollout.status, rollout.failure, rollout.reward) == (Status.FAILED, lost.failure, None)
    with pytest.raises(LeaseLost, match="ended by expire"):
        await store.finish(slow.id, DONE)


async def test_a_rollout_that_waits_for_its_grader_can_be_cancelled(store: Store) -> None:
    (attempt,) = await make.leased(store)
    await store.score(attempt.id, seconds=60)
    assert await store.cancel([attempt.rollout_id], "quorum met") == [attempt.rollout_id]
    with pytest.raises(LeaseLost, match="ended by cancel"):
        await store.finish(attempt.id, DONE)


async def test_a_resumed_run_queues_what_was_running(store: Store) -> None:
    one, two = await make.leased(store, 2)
    await store.finish(one.id, DONE)
    assert await store.requeue_running("r") == [two.rollout_id]
    assert await store.requeue_running("r") == []
    with pytest.raises(LeaseLost, match="ended by requeue"):
        await store.finish(two.id, DONE)
    assert [a.number for a in await make.leased(store)] == [2]


async def test_cancelling_ends_what_is_not_final(store: Store) -> None:
    done, running = await make.leased(store, 2)
    await store.finish(done.id, DONE)
    queued = make.rollout(3).id
    assert await store.cancel([queued, done.rollout_id, running.rollout_id, "nobody"], "quorum met") == [
        running.rollout_id,
        queued,
    ]
    assert await store.cancel([queued], "again") == [] == await store.cancel([], "x")
    for id in (queued, running.rollout_id):
        rollout = await store.get_rollout(id)
        assert rollout is not None and (rollout.status, rollout.failure) == (
            Status.CANCELLED,
            Failure(Reason.CANCELLED, "quorum met"),
        )
    with pytest.raises(LeaseLost, match="ended by cancel: quorum met"):
        await store.finish(running.id, DONE)
    assert [a.rollout_id for a in await make.leased(store, 9)] == [make.rollout(2).id]


async def test_wait_returns_all_that_are_final_and_is_woken_by_what_ends_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "POLL_S", 600.0)  # as good as never: what this process changes wakes it
    attempts = await make.leased(store, 4)
    ids = [attempt.rollout_id for attempt in attempts]
    assert await store.wait([]) == [] == await store.wait(ids, timeout=0)
    with pytest.raises(StoreError, match="rollout nobody"):
        await store.wait(["nobody"])
    for end in (
        store.finish(attempts[1].id, DONE),
        store.cancel([ids[2]], "x"),
        store.expire(now=attempts[0].lease_until + 1),
    ):
        ids = [rollout.id for rollout in await store.rollouts("r") if not rollout.status.final]
        waiting = asyncio.create_task(store.wait(ids, timeout=600))
        await asyncio.sleep(0.05)
        await end
        finals = await asyncio.wait_for(waiting, 60)
        assert finals and all(rollout.status.final for rollout in finals)


# --------------------------------------------------------------------------- for all orders


@dataclass
class Model:
    """What should be true of one rollout."""

    status: Status = Status.QUEUED
    attempts: list[tuple[Attempt, str | None]] = field(default_factory=list)
    """Each with what ended it."""

    def end(self, by: str, status: Status) -> None:
        self.attempts[-1] = (self.attempts[-1][0], by)
        self.status = status


class Leases(RuleBasedStateMachine):
    """Two stores on one file, as two processes would have them, against a model of what the words mean."""

    loop: asyncio.AbstractEventLoop

    @initialize(backend=st.sampled_from(list(make.FACTORIES)))
    def open(self, backend: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        folder, factory = Path(self.folder.name), make.FACTORIES[backend]
        self.stores = [self.do(make.opened(folder, 0, factory)), factory(folder)]
        self.model: dict[str, Model] = {}

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                self.do(store.close())
            self.loop.close()
            self.folder.cleanup()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def pick(self, n: int) -> tuple[str, Attempt, str | None] | None:
        """Any attempt there ever was."""
        known = [(id, *attempt) for id, model in self.model.items() for attempt in model.attempts]
        return known[n % len(known)] if known else None

    either = st.integers(0, 1)
    number = st.integers(0, 1000)

    @rule(i=either, n=st.integers(0, 5))
    def enqueue(self, i: int, n: int) -> None:
        rollout = self.do(self.stores[i].enqueue([make.rollout(n)]))[0]
        assert rollout.status == self.model.setdefault(rollout.id, Model()).status

    @rule(i=either, limit=st.integers(0, 3))
    def lease(self, i: int, limit: int) -> None:
        queued = [id for id, model in self.model.items() if model.status is Status.QUEUED]
        leased = self.do(self.stores[i].lease("r", f"runner-{i}", limit=limit, seconds=60))
        assert [rollout.id for rollout, _ in leased] == queued[:limit]
        for rollout, attempt in leased:
            model = self.model[rollout.id]
            model.attempts.append((attempt, None))
            model.status = Status.RUNNING
            assert attempt.number == len(model.attempts)

    @rule(i=either, n=number, status=st.sampled_from([Status.SUCCEEDED, Status.FAILED]), again=st.booleans())
    def report(self, i: int, n: int, status: Status, again: bool) -> None:
        """Finishes or retries any attempt there ever was."""
        if (picked := self.pick(n)) is None:
            return
        id, attempt, ended_by = picked
        by = "retry" if again else "finish"
        store = self.stores[i]
        report = (
            store.retry(attempt.id, Failure(Reason.EMPTY, "x"))
            if again
            else store.finish(attempt.id, AttemptResult(status))
        )
        if ended_by not in (None, by):
            with pytest.raises(LeaseLost):
                self.do(report)
            return
        rollout = self.do(report)
        if ended_by is None:
            self.model[id].end(by, Status.QUEUED if again else status)
        assert rollout.status is self.model[id].status

    @rule(i=either, n=number)
    def renew(self, i: int, n: int) -> None:
        if (picked := self.pick(n)) is not None:
            runs = picked[2] is None and self.model[picked[0]].status is Status.RUNNING
            assert self.do(self.stores[i].renew(picked[1].id, seconds=60)) is runs

    @rule(i=either, n=number)
    def score(self, i: int, n: int) -> None:
        if (picked := self.pick(n)) is None:
            return
        id, attempt, ended_by = picked
        if ended_by is not None:
            with pytest.raises(LeaseLost):
                self.do(self.stores[i].score(attempt.id, seconds=60))
            return
        assert self.do(self.stores[i].score(attempt.id, seconds=60)).status is Status.SCORING
        self.model[id].status = Status.SCORING

    @rule(i=either, late=st.booleans(), max_attempts=st.integers(1, 3))
    def expire(self, i: int, late: bool, max_attempts: int) -> None:
        ended = self.do(self.stores[i].expire(now=4e9 if late else 0.0, max_attempts=max_attempts))
        held = {id for id, model in self.model.items() if model.status in (Status.RUNNING, Status.SCORING)}
        assert {attempt.rollout_id for attempt in ended} == (held if late else set())
        for attempt in ended:
            model = self.model[attempt.rollout_id]
            again = model.status is Status.RUNNING and attempt.number < max_attempts
            model.end("expire", Status.QUEUED if again else Status.FAILED)

    @rule(i=either)
    def requeue(self, i: int) -> None:
        for id in self.do(self.stores[i].requeue_running("r")):
            self.model[id].end("requeue", Status.QUEUED)

    @rule(i=either, n=st.integers(0, 5))
    def cancel(self, i: int, n: int) -> None:
        for id in self.do(self.stores[i].cancel([make.rollout(n).id], "x")):
            if self.model[id].status in (Status.RUNNING, Status.SCORING):
                self.model[id].end("cancel", Status.CANCELLED)
            assert not self.model[id].status.final or self.model[id].status is Status.CANCELLED
            self.model[id].status = Status.CANCELLED

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        stored = self.do(self.stores[0].rollouts("r"))
        assert {rollout.id: rollout.status for rollout in stored} == {
            id: model.status for id, model in self.model.items()
        }
        for rollout in stored:
            attempts = self.do(self.stores[1].attempts(rollout.id))
            assert [a.number for a in attempts] == list(range(1, len(self.model[rollout.id].attempts) + 1))
            held = [(a.id, a.status) for a in attempts if not a.status.final]
            waits = rollout.status is Status.QUEUED or rollout.status.final
            assert held == ([] if waits else [(rollout.attempt_id, rollout.status)])
            assert rollout.status.final == (rollout.ended_at is not None)


Leases.TestCase.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLeasesForAllOrders = Leases.TestCase
