"""Group commit: one thread that runs every write, all that are waiting in one transaction.

A commit costs the same for one write as for a hundred, so a busy gateway pays for few. Each write has its own savepoint: one that
fails fails alone. Its waiter hears of it only after the commit. Knows nothing of tables.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from sqlalchemy import Connection

from agentlightning.errors import StoreError

T = TypeVar("T")

MAX_GROUP = 256
"""Writes in one transaction, at most: bounds how long the first of them waits."""


@dataclass(slots=True)
class _Write:
    run: Callable[[Connection], Any]
    committed: Callable[[Any], None] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Writer:
    """Owns the one connection that writes, and the thread that uses it.

    ``connection`` is in autocommit mode: transactions are opened and ended here, in plain SQL. ``explain`` turns what the database raised
    into the error a user gets.
    """

    def __init__(self, connection: Connection, explain: Callable[[Exception], Exception]) -> None:
        self._connection = connection
        self._sql = cast("sqlite3.Connection", connection.connection.driver_connection)
        self._explain = explain
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, run: Callable[[Connection], T], committed: Callable[[T], None] | None = None) -> T:
        """Runs ``run`` in a transaction and returns its result once that is durable. ``run`` may be called again after a rollback.

        ``committed`` is called with the result right after the commit, on the writer's thread. Cancelling the awaiting task does not
        withdraw the write.
        """
        loop = asyncio.get_running_loop()
        write = _Write(run, cast("Callable[[Any], None] | None", committed), loop, loop.create_future())
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            self._queue.put(write)
        return await write.future

    def close(self) -> None:
        """Carries out what was queued, then ends the thread and closes the connection. Blocks; a second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        last = False
        while not last:
            group: list[_Write] = []
            item = self._queue.get()
            while item is not None:
                group.append(item)
                if len(group) == MAX_GROUP:
                    break
                try:
                    item = self._queue.get_nowait()
                except Empty:
                    break
            last = item is None
            if group:
                self._commit(group)
                _settle(group)
        self._connection.close()
        self._connection.engine.dispose()

    def _commit(self, group: list[_Write]) -> None:
        """Gives each write its result or its error."""
        began = False
        try:
            self._sql.execute("BEGIN IMMEDIATE")
            began = True
            for write in group:
                self._run(write)
            self._sql.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the thread lives on and every waiter gets the error
            with suppress(sqlite3.Error):  # none may be open any more; the error that counts is the first
                self._sql.execute("ROLLBACK")
            if not began or len(group) == 1:
                self._fail(group, error)
                return
            for write in group:  # again, alone: then only the one that cannot be committed (too large for a full disk, say) fails
                self._commit([write])

    def _run(self, write: _Write) -> None:
        """Runs one write in its savepoint. Raises only what undid the whole transaction: SQLite does that on some full disks and I/O errors."""
        self._sql.execute("SAVEPOINT one")
        write.error = None
        try:
            write.result = write.run(self._connection)
        except Exception as error:
            if not self._sql.in_transaction:
                raise
            self._sql.execute("ROLLBACK TO one")
            self._fail([write], error)
        self._sql.execute("RELEASE one")

    def _fail(self, group: list[_Write], error: Exception) -> None:
        for write in group:
            write.error = self._explain(error)


def _settle(group: list[_Write]) -> None:
    """Wakes the waiters, one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
    for write in group:
        if write.error is None and write.committed is not None:
            write.committed(write.result)
        by_loop.setdefault(write.loop, []).append(write)
    for loop, writes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, writes)
        except RuntimeError:
            continue  # the loop was closed: nobody waits any more, and what was written is written


def _resolve(writes: list[_Write]) -> None:
    for write in writes:
        if write.future.done():  # cancelled
            continue
        if write.error is not None:
            write.future.set_exception(write.error)
        else:
            write.future.set_result(write.result)
