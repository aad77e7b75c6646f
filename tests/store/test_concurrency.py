"""Many writers, many loops, several processes: every write is whole, none waits for a reader, none is lost with its
waiter."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from agentlightning.errors import StoreError
from agentlightning.nouns import AttemptResult, Status
from agentlightning.store import Store, open_store
from agentlightning.store.sqlite import store as sqlite
from agentlightning.store.sqlite.store import SqliteStore

from . import make


async def test_writes_that_wait_share_a_commit_and_one_bad_one_fails_alone(store: Store) -> None:
    attempts = await make.leased(store, 4)
    good = [store.record(make.call(attempt.id), make.turn()) for attempt in attempts]
    bad = [store.record(make.call("nobody", id=f"bad{i}"), make.turn()) for i in range(3)]
    before = commits(store)
    outcomes = await asyncio.gather(bad[0], good[0], bad[1], good[1], good[2], good[3], bad[2], return_exceptions=True)
    assert commits(store) - before <= 2, "the first may go alone; the others wait for it together"
    assert [type(outcome) for outcome in outcomes] == [
        StoreError,
        type(None),
        StoreError,
        type(None),
        type(None),
        type(None),
        StoreError,
    ]
    for attempt in attempts:
        assert await store.calls(attempt.id) == [make.call(attempt.id)]
        assert await store.nodes(attempt.id) == make.turn()


def commits(store: Store) -> int:
    """Transactions the writer began."""
    writer = sqlite_store(store)._writer
    if not hasattr(writer, "counted"):
        writer.counted = 0  # type: ignore[attr-defined]
        writer._sql.set_trace_callback(lambda sql: setattr(writer, "counted", writer.counted + (sql == "COMMIT")))  # type: ignore[attr-defined]
    return writer.counted  # type: ignore[attr-defined]


def sqlite_store(store: Store) -> SqliteStore:
    assert isinstance(store, SqliteStore)
    return store


async def test_cancelling_the_waiter_does_not_withdraw_the_write(store: Store) -> None:
    (attempt,) = await make.leased(store)
    writes = [asyncio.create_task(store.record(make.call(attempt.id, i), make.turn(i))) for i in range(50)]
    await asyncio.sleep(0)
    for write in writes:
        write.cancel()
    assert all(
        isinstance(outcome, asyncio.CancelledError) for outcome in await asyncio.gather(*writes, return_exceptions=True)
    )
    await store.set_call_status(make.call(attempt.id, 49).id, "abandoned")
    assert [call.index for call in await store.calls(attempt.id)] == list(range(50))
    assert len(await store.nodes(attempt.id)) == 100


async def test_closing_carries_out_what_was_asked_for(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=1)
    (attempt,) = await make.leased(store)
    writes = [asyncio.create_task(store.record(make.call(attempt.id, i), make.turn(i))) for i in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    store = open_store(make.url(tmp_path))
    assert len(await store.calls(attempt.id)) == 20
    await store.close()


async def test_a_slow_read_does_not_hold_up_writes_or_other_reads(store: Store) -> None:
    (attempt,) = await make.leased(store)
    begun, end = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return end.wait(20)

    def read(connection: Connection) -> object:
        cast("sqlite3.Connection", connection.connection.driver_connection).create_function("hold", 0, hold)
        return connection.exec_driver_sql("SELECT count(*) + hold() FROM rollouts").scalar_one()

    reading = asyncio.create_task(sqlite_store(store)._read(read))
    await asyncio.to_thread(begun.wait)
    for i in range(5):
        await store.record(make.call(attempt.id, i), make.turn(i))
    assert len(await store.calls(attempt.id)) == 5
    assert not reading.done()
    end.set()
    assert await reading == 5


async def test_a_reading_connection_cannot_write(store: Store) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        await sqlite_store(store)._read(lambda connection: connection.exec_driver_sql("DELETE FROM runs").all())


def test_a_store_serves_event_loops_in_many_threads(tmp_path: Path) -> None:
    store = asyncio.run(make.opened(tmp_path, rollouts=40))
    finished: list[str] = []
    waited: list[str] = []

    async def wait_for_all() -> None:
        ids = {make.rollout(i).id for i in range(40)}
        while ids:
            done = {rollout.id for rollout in await store.wait(sorted(ids), timeout=20)}
            assert done
            ids -= done
            waited.extend(done)

    async def work(name: str) -> None:
        while leased := await store.lease("r", name, limit=2, seconds=60):
            for rollout, attempt in leased:
                await store.record(make.call(attempt.id), make.turn())
                await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0))
                finished.append(rollout.id)

    jobs: list[Any] = [wait_for_all(), *(work(f"runner-{i}") for i in range(4))]
    threads = [threading.Thread(target=asyncio.run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(finished) == sorted(waited) == sorted(make.rollout(i).id for i in range(40))
    asyncio.run(store.close())


WORKER = """
import asyncio, sys
from agentlightning.store import open_store
from agentlightning.nouns import AttemptResult, Status
from tests.store import make

async def main():
    store = open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    while leased := await store.lease("r", sys.argv[2], limit=3, seconds=60):
        for rollout, attempt in leased:
            await store.record(make.call(attempt.id), make.turn())
            await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0))
            print(attempt.id, flush=True)
    await store.close()

asyncio.run(main())
"""


def start_worker(folder: Path, name: str) -> subprocess.Popen[str]:
    """A process that leases and finishes once it is told to."""
    command = [sys.executable, "-c", WORKER, make.url(folder), name]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    return worker


async def test_leases_hold_and_waiting_works_across_processes(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=60)
    workers = await asyncio.gather(*(asyncio.to_thread(start_worker, tmp_path, f"runner-{i}") for i in range(2)))
    waiting = asyncio.create_task(store.wait([make.rollout(59).id], timeout=30))
    await asyncio.sleep(0.05)
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    mine: list[str] = []
    while leased := await make.leased(store, 3):
        for attempt in leased:
            await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0))
            mine.append(attempt.id)
    theirs = [(await asyncio.to_thread(worker.communicate, timeout=600))[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted([*mine, *theirs[0], *theirs[1]]) == sorted(f"{make.rollout(i).id}.1" for i in range(60)), "each once"
    assert [rollout.status for rollout in await waiting] == [Status.SUCCEEDED]
    await store.close()


async def test_wait_sees_what_another_connection_changed(store: Store) -> None:
    (attempt,) = await make.leased(store)
    other = open_store(f"sqlite:///{sqlite_store(store).path}")
    waiting = asyncio.create_task(store.wait([attempt.rollout_id], timeout=20))
    await asyncio.sleep(0.05)
    await other.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0))
    assert [rollout.id for rollout in await asyncio.wait_for(waiting, 60)] == [attempt.rollout_id]
    await other.close()


async def test_a_write_that_another_process_keeps_waiting_fails_after_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    store = await make.opened(tmp_path, rollouts=2)
    attempts = await make.leased(store, 2)
    other = sqlite3.connect(tmp_path / "record.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writes = (store.record(make.call(attempt.id), make.turn()) for attempt in attempts)
    for outcome in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(outcome, StoreError) and "another process has kept it locked" in str(outcome)
    other.execute("ROLLBACK")
    other.close()
    await store.record(make.call(attempts[0].id), make.turn())
    assert [len(await store.calls(attempt.id)) for attempt in attempts] == [1, 0]
    await store.close()


async def test_wait_ends_when_the_store_closes(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=1)
    waiting = asyncio.create_task(store.wait([make.rollout(0).id]))
    await asyncio.sleep(0.05)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await asyncio.wait_for(waiting, 60)
