"""The store in an SQL database: what each method reads and writes, whichever database it is. How statements get there
(connections, threads, transactions) is a backend's: sqlite/ has one.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from agentlightning.errors import StoreError
from agentlightning.nouns import (
    Attempt,
    AttemptResult,
    Call,
    CallStatus,
    CreditRow,
    Failure,
    Intent,
    Json,
    Mode,
    Node,
    Reward,
    Rollout,
    RunRecord,
    RunStatus,
    SpanRecord,
    Status,
    StepRecord,
)
from agentlightning.store import calls, leases, runs
from agentlightning.store.finals import Finals
from agentlightning.store.rows import (
    Params,
    call_params,
    credit_params,
    dump,
    failed_params,
    intent_params,
    marked_json,
    node_params,
    output_json,
    printable,
    result_params,
    reward_params,
    rollout_params,
    run_params,
    span_params,
    step_params,
)
from agentlightning.store.schema import attempts as attempt_table
from agentlightning.store.schema import rollouts as rollout_table

T = TypeVar("T")

POLL_S = 0.2
"""Seconds after which ``wait`` sees what another process changed. This process' own changes wake it at once."""


class SqlStore(ABC):
    """A Store without a way to its database, which a backend adds. A read is a single statement."""

    def __init__(self) -> None:
        self._finals = Finals()

    @abstractmethod
    async def _write(self, run: Callable[[Connection], T], committed: Callable[[T], None] | None = None) -> T:
        """Runs ``run`` in a transaction and returns its result once that is durable; ``committed`` is called with it
        right after the commit. ``run`` may be called again after a rollback. Two transactions never see the database
        between each other's statements."""

    @abstractmethod
    async def _read(self, run: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _record(self, call: Params, nodes: Sequence[Params]) -> None:
        """Writes what ``calls.record`` does: the hot path, which a backend may do in its own way."""

    # ------------------------------------------------------------------ runs, steps, resources
    async def create_run(self, run: RunRecord) -> None:
        row = run_params(run)
        await self._write(lambda c: runs.create_run(c, row))

    async def get_run(self, run_id: str) -> RunRecord | None:
        return await self._read(lambda c: runs.select_run(c, run_id))

    async def runs(self) -> list[RunRecord]:
        return await self._read(runs.select_runs)

    async def end_run(self, run_id: str, status: RunStatus, error: str | None = None) -> None:
        now = time.time()
        await self._write(lambda c: runs.end_run(c, run_id, status, printable(error), now))

    async def put_resources(self, run_id: str, resources: Mapping[str, Json]) -> int:
        values = dump(resources, f"the resources of run {run_id}")
        return await self._write(lambda c: runs.put_resources(c, run_id, values))

    async def get_resources(self, run_id: str, version: int | None = None) -> Mapping[str, Json]:
        return await self._read(lambda c: runs.select_resources(c, run_id, version))

    async def put_step(self, step: StepRecord, credit: Sequence[CreditRow] | None = None) -> None:
        row, groups = step_params(step), tuple(step.groups)
        credited = None if credit is None else credit_params(credit, step)
        await self._write(lambda c: runs.put_step(c, row, groups, credited))

    async def credit(self, run_id: str, *, step: int | None = None, attempt_id: str | None = None) -> list[CreditRow]:
        return await self._read(lambda c: runs.select_credit(c, run_id, step, attempt_id))

    async def steps(self, run_id: str) -> list[StepRecord]:
        return await self._read(lambda c: runs.select_steps(c, run_id))

    async def put_intent(self, intent: Intent) -> None:
        row = intent_params(intent)
        await self._write(lambda c: runs.put_intent(c, row))

    async def intents(self, run_id: str, *, after_step: int = -1, mode: Mode | None = None) -> list[Intent]:
        return await self._read(lambda c: runs.select_intents(c, run_id, after_step, mode))

    # ------------------------------------------------------------------ rollouts and attempts
    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        now = time.time()
        rows = [rollout_params(rollout, now) for rollout in rollouts]
        return await self._write(lambda c: leases.enqueue(c, rows))

    async def get_rollout(self, rollout_id: str) -> Rollout | None:
        return next(iter(await self._read(lambda c: leases.select_rollouts(c, rollout_table.c.id == rollout_id))), None)

    async def rollouts(
        self,
        run_id: str,
        *,
        mode: Mode | None = None,
        groups: Collection[int] | None = None,
        status: Status | None = None,
    ) -> list[Rollout]:
        wanted = {"run_id": run_id, "mode": mode, "status": status}
        where = [rollout_table.c[name] == value for name, value in wanted.items() if value is not None]
        where += [leases.in_groups(groups)] if groups is not None else []
        return await self._read(lambda c: leases.select_rollouts(c, *where))

    async def lease(
        self,
        run_id: str,
        runner_id: str,
        *,
        limit: int,
        seconds: float,
        mode: Mode | None = None,
        groups: Collection[int] | None = None,
    ) -> list[tuple[Rollout, Attempt]]:
        return await self._write(
            lambda c: leases.lease(c, run_id, runner_id, limit, seconds, time.time(), mode, groups)
        )

    async def renew(self, attempt_id: str, *, seconds: float) -> bool:
        return await self._write(lambda c: leases.renew(c, attempt_id, time.time() + seconds))

    async def score(
        self,
        attempt_id: str,
        *,
        seconds: float,
        output: Json = None,
        marked: Sequence[str] = (),
        agents: Mapping[str, str] = {},
    ) -> Rollout:
        row = {"output": output_json(attempt_id, output), "marked": marked_json(attempt_id, marked)}
        return await self._write(lambda c: leases.score(c, attempt_id, row, time.time() + seconds, agents))

    async def finish(self, attempt_id: str, result: AttemptResult) -> Rollout:
        row = result_params(attempt_id, result)
        now = time.time()
        rewards = [reward_params(reward, now) for reward in result.rewards]
        given = (
            [call_params(call) for call in result.given_calls],
            [node_params(attempt_id, node) for node in result.given_nodes],
        )
        return await self._write(
            lambda c: leases.finish(c, attempt_id, row, rewards, now, result.agents, given),
            lambda rollout: self._finals.publish([rollout.id]),
        )

    async def retry(
        self, attempt_id: str, failure: Failure, *, marked: Sequence[str] = (), agents: Mapping[str, str] = {}
    ) -> Rollout:
        ended = {**failed_params(failure), "marked": marked_json(attempt_id, marked)}
        return await self._write(lambda c: leases.retry(c, attempt_id, ended, time.time(), agents))

    async def expire(self, *, now: float | None = None, max_attempts: int = 1) -> list[Attempt]:
        at = time.time() if now is None else now
        return await self._write(
            lambda c: leases.expire(c, at, max_attempts),
            lambda ended: self._finals.publish([attempt.rollout_id for attempt in ended]),
        )

    async def requeue_running(self, run_id: str) -> list[str]:
        return await self._write(lambda c: leases.requeue_running(c, run_id, time.time()))

    async def requeue_failed(self, rollout_ids: Sequence[str]) -> list[str]:
        ids = list(rollout_ids)
        return await self._write(lambda c: leases.requeue_failed(c, ids))

    async def cancel(self, rollout_ids: Sequence[str], message: str) -> list[str]:
        ids = list(rollout_ids)
        return await self._write(lambda c: leases.cancel(c, ids, message, time.time()), self._finals.publish)

    async def wait(self, rollout_ids: Sequence[str], *, timeout: float | None = None) -> list[Rollout]:
        ids = list(rollout_ids)
        until = None if timeout is None else time.monotonic() + timeout
        if not ids:
            return []
        with self._finals.watch(ids) as changed:
            while True:
                final, unknown = await self._read(lambda c: leases.select_final(c, ids))
                if unknown is not None:
                    raise StoreError(f"cannot wait for rollout {unknown}: there is none of that id")
                left = POLL_S if until is None else min(POLL_S, until - time.monotonic())
                if final or left <= 0:
                    return final
                try:
                    async with asyncio.timeout(left):
                        await changed.wait()
                except TimeoutError:
                    continue  # another process may have changed something
                changed.clear()

    async def attempts(self, rollout_id: str) -> list[Attempt]:
        return await self._read(lambda c: leases.select_attempts(c, attempt_table.c.rollout_id == rollout_id))

    async def get_attempt(self, attempt_id: str) -> Attempt | None:
        return next(iter(await self._read(lambda c: leases.select_attempts(c, attempt_table.c.id == attempt_id))), None)

    # ------------------------------------------------------------------ calls, trace nodes, rewards
    async def record(self, call: Call, nodes: Sequence[Node]) -> None:
        row = call_params(call)
        added = [node_params(call.attempt_id, node) for node in nodes]
        await self._record(row, added)

    async def set_call_status(self, call_id: str, status: str) -> None:
        try:
            known = CallStatus(status)
        except ValueError as error:
            raise StoreError(f"{status!r} is no status of a call; use one of {', '.join(CallStatus)}") from error
        await self._write(lambda c: calls.set_call_status(c, call_id, known))

    async def set_agent(self, call_id: str, agent: str) -> None:
        await self._write(lambda c: calls.set_agent(c, call_id, agent))

    async def calls(self, attempt_id: str) -> list[Call]:
        return await self._read(lambda c: calls.select_calls(c, attempt_id))

    async def nodes(self, attempt_id: str) -> list[Node]:
        return await self._read(lambda c: calls.select_nodes(c, attempt_id))

    async def add_reward(self, reward: Reward) -> None:
        row = reward_params(reward, time.time())
        await self._write(lambda c: calls.add_reward(c, row))

    async def rewards(self, rollout_id: str) -> list[Reward]:
        return await self._read(lambda c: calls.select_rewards(c, rollout_id))

    async def add_spans(self, attempt_id: str, spans: Sequence[SpanRecord]) -> None:
        rows = [span_params(attempt_id, span) for span in spans]
        await self._write(lambda c: calls.add_spans(c, attempt_id, rows))

    async def spans(self, attempt_id: str) -> list[SpanRecord]:
        return await self._read(lambda c: calls.select_spans(c, attempt_id))
