"""The store on an SQLite file: one thread that writes in groups, others that read beside it. Holds no rule of its own
about records.

What is durable is SQLite's write-ahead log: a commit is in the operating system's hands before its waiter hears of it
(``process``), or on the disk (``power``). Reads never wait for writes, nor writes for reads. Several processes may open
one file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, QueuePool, create_engine
from sqlalchemy.exc import DBAPIError

from agentlightning.errors import StoreError, why_no_folder
from agentlightning.store import calls, leases, runs
from agentlightning.store.finals import Finals
from agentlightning.store.migrate import prepare
from agentlightning.store.rows import (
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
    step_params,
)
from agentlightning.store.schema import attempts as attempt_table
from agentlightning.store.schema import rollouts as rollout_table
from agentlightning.store.writer import Writer
from agentlightning.text import at_home
from agentlightning.types import (
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
    Status,
    StepRecord,
)

T = TypeVar("T")

READERS = 4
"""Threads that read, each on a connection of its own."""

BUSY_S = 30.0
"""Seconds a write waits for another process' write before it fails."""

POLL_S = 0.2
"""Seconds after which ``wait`` sees what another process changed. This process' own changes wake it at once."""


_ADVICE = {
    "SQLITE_FULL": "the disk is full; free some space. What was acknowledged is kept",
    "SQLITE_NOTADB": "it is not an SQLite database; name another file",
    "SQLITE_CORRUPT": "the database is damaged; restore a copy, or name another file",
    "SQLITE_CANTOPEN": "it cannot be opened; name a file in a folder that exists and can be written",
    "SQLITE_READONLY": "it cannot be written; check the permissions of the file and its folder",
    "SQLITE_BUSY": f"another process has kept it locked for {BUSY_S:.0f} s",
    "SQLITE_IOERR": "the disk refused to read or write",
}


class SqliteStore:
    """A Store in the file ``path``. Use ``open_store``, which checks its arguments."""

    def __init__(self, path: str, durability: Literal["process", "power"], *, create: bool = True) -> None:
        self.path = at_home(path).absolute()
        self._synchronous = {"process": "NORMAL", "power": "FULL"}[durability]
        if not create:
            try:
                self.path.stat()
            except FileNotFoundError as error:
                raise StoreError(f"there is no record at {self.path}") from error
            except OSError as error:
                raise self._explain(error) from error
        writing = self._engine(query_only=False)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = prepare(writing, str(self.path))
        except (OSError, sqlite3.Error, DBAPIError) as error:
            raise self._explain(error) from error
        self._reading = self._engine(query_only=True)
        self._writer = Writer(connection, self._explain)
        self._readers = ThreadPoolExecutor(READERS, "store-reader")
        self._finals = Finals()

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
        self, attempt_id: str, *, seconds: float, output: Json = None, marked: Sequence[str] = ()
    ) -> Rollout:
        row = {"output": output_json(attempt_id, output), "marked": marked_json(attempt_id, marked)}
        return await self._write(lambda c: leases.score(c, attempt_id, row, time.time() + seconds))

    async def finish(self, attempt_id: str, result: AttemptResult) -> Rollout:
        row = result_params(attempt_id, result)
        now = time.time()
        rewards = [reward_params(reward, now) for reward in result.rewards]
        return await self._write(
            lambda c: leases.finish(c, attempt_id, row, rewards, now),
            lambda rollout: self._finals.publish([rollout.id]),
        )

    async def retry(self, attempt_id: str, failure: Failure, *, marked: Sequence[str] = ()) -> Rollout:
        ended = {**failed_params(failure), "marked": marked_json(attempt_id, marked)}
        return await self._write(lambda c: leases.retry(c, attempt_id, ended, time.time()))

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
        await self._writer.write_jointly(calls.record, (row, added))

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

    async def close(self) -> None:
        """Carries out the writes that were asked for, then lets go of the file. A second call does nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    # ------------------------------------------------------------------ threads and connections
    async def _write(self, run: Callable[[Connection], T], committed: Callable[[T], None] | None = None) -> T:
        return await self._writer.write(run, committed)

    async def _read(self, run: Callable[[Connection], T]) -> T:
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._readers, self._run_read, run)
        except RuntimeError as error:
            raise StoreError("the store is closed") from error
        return await reading

    def _run_read(self, run: Callable[[Connection], T]) -> T:
        try:
            with self._reading.connect() as connection:
                return run(connection)
        except (sqlite3.Error, DBAPIError) as error:
            raise self._explain(error) from error

    def _close(self) -> None:
        self._readers.shutdown()
        self._reading.dispose()
        self._writer.close()
        self._finals.publish(None)

    def _engine(self, *, query_only: bool) -> Engine:
        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False)
            _use_wal(connection, self.path)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA query_only = {query_only:d}")
            return connection

        # Autocommit: the writer opens and ends its transactions itself, and a read is a single statement.
        return create_engine(
            "sqlite://", creator=connect, poolclass=QueuePool, pool_size=READERS, isolation_level="AUTOCOMMIT"
        )

    def _explain(self, error: Exception) -> Exception:
        """The error a user gets: one line with the file, what happened and what to do. What is no database error stays
        as it is."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, (OverflowError, UnicodeEncodeError)):
            return StoreError(f"a value cannot be stored: {cause}")
        if isinstance(cause, OSError):
            return StoreError(
                f"cannot use {self.path}: {why_no_folder(self.path.parent, cause)}; name a file in a folder that can "
                "be written"
            )
        if isinstance(cause, sqlite3.IntegrityError):
            return StoreError(f"{self.path} refused a value: {cause}")
        if not isinstance(cause, sqlite3.Error):
            return error
        name = "_".join(str(getattr(cause, "sqlite_errorname", "")).split("_")[:2])
        return StoreError(f"cannot use {self.path}: {_ADVICE.get(name, cause)}")


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switches the file to write-ahead logging, which it then keeps.

    SQLite's busy timeout does not cover this switch: while another process makes the same one it fails at once, so it
    is tried again.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreError(f"{path} is on a file system without shared memory (a network share?); put it on a local disk")
