"""Group commit: one thread that runs every write, all that are waiting in one transaction.

A commit costs the same for one write as for a hundred, so a busy gateway pays for few. Writes of one kind can also
share their statements: each statement lets go of the interpreter and takes it back, which on a busy event loop costs
more than its rows. A write that fails fails alone, and its waiter hears of it only after the commit. Knows nothing of
tables.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar, cast

from sqlalchemy import Connection

from agentlightning.errors import StoreError

T = TypeVar("T")

MAX_GROUP = 256
"""Writes in one transaction, at most: bounds how long the first of them waits."""


@dataclass(slots=True)
class _Write:
    """``run`` carries it out alone; ``joint`` carries out the ``item`` of each of several, where there is one."""

    run: Callable[[Connection], Any]
    committed: Callable[[Any], None] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    joint: Callable[[Connection, Sequence[Any]], None] | None = None
    item: Any = None
    result: Any = None
    error: Exception | None = None


class Writer:
    """Owns the one connection that writes, and the thread that uses it.

    ``connection`` is in autocommit mode: transactions are opened and ended here, in plain SQL. ``explain`` turns what
    the database raised into the error a user gets.
    """

    def __init__(self, connection: Connection, explain: Callable[[Exception], Exception]) -> None:
        self._connection = connection
        self._sql = cast("sqlite3.Connection", connection.connection.driver_connection)
        self._explain = explain
        self._lock = threading.Lock()
        self._waiting: list[_Write] = []
        self._idle = False
        self._wake = threading.Lock()  # held while there is nothing to wake for
        self._wake.acquire()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, run: Callable[[Connection], T], committed: Callable[[T], None] | None = None) -> T:
        """Runs ``run`` in a transaction and returns its result once that is durable. ``run`` may be called again after
        a rollback.

        ``committed`` is called with the result right after the commit, on the writer's thread. Cancelling the awaiting
        task does not withdraw the write.
        """
        loop = asyncio.get_running_loop()
        write = _Write(run, cast("Callable[[Any], None] | None", committed), loop, loop.create_future())
        self._put(write)
        return await write.future

    async def write_jointly(self, joint: Callable[[Connection, Sequence[T]], None], item: T) -> None:
        """Runs ``joint`` on ``item``, and on the items of the writes beside it that name the same function; where that
        fails, on each item alone."""
        loop = asyncio.get_running_loop()
        write = _Write(lambda connection: joint(connection, (item,)), None, loop, loop.create_future(), joint, item)
        self._put(write)
        await write.future

    def _put(self, write: _Write) -> None:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            self._waiting.append(write)
            idle, self._idle = self._idle, False
        if idle:
            write.loop.call_soon(self._call)  # not at once: what else this round of the loop has to write comes along

    def _call(self) -> None:
        with suppress(RuntimeError):  # it has been called
            self._wake.release()

    def close(self) -> None:
        """Carries out what was queued, then ends the thread and closes the connection. Blocks; a second call does
        nothing."""
        with self._lock:
            self._closed = True
        self._call()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                group = self._waiting[:MAX_GROUP]
                del self._waiting[:MAX_GROUP]
                if not group:
                    if self._closed:
                        break
                    self._idle = True
            if group:
                self._commit(group)
                _settle(group)
            else:
                self._wake.acquire()
        self._connection.close()
        self._connection.engine.dispose()

    def _commit(self, group: list[_Write]) -> None:
        """Gives each write its result or its error."""
        parts = [list(part) for _, part in groupby(group, key=lambda write: write.joint or id(write))]
        began = False
        try:
            self._sql.execute("BEGIN IMMEDIATE")
            began = True
            if len(group) == 1:
                self._carry_out(group)
            else:
                for part in parts:
                    self._run(part)
            self._sql.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - the thread lives on and every waiter gets the error
            with suppress(sqlite3.Error):  # none may be open any more; the error that counts is the first
                self._sql.execute("ROLLBACK")
            if not began or len(group) == 1:
                self._fail(group, error)
                return
            # Again, alone: then only the one that cannot be committed (too large for a full disk, say) fails
            for write in group:
                self._commit([write])

    def _run(self, part: list[_Write]) -> None:
        """Runs a part of a transaction in a savepoint. Raises only what undid the whole transaction: SQLite does that
        on some full disks and I/O errors."""
        self._sql.execute("SAVEPOINT one")
        try:
            self._carry_out(part)
        except Exception as error:
            if not self._sql.in_transaction:
                raise
            self._sql.execute("ROLLBACK TO one")
            if len(part) == 1:
                self._fail(part, error)
        else:
            self._sql.execute("RELEASE one")
            return
        self._sql.execute("RELEASE one")
        if len(part) > 1:
            for write in part:
                self._run([write])

    def _carry_out(self, part: list[_Write]) -> None:
        for write in part:
            write.error = None
        first = part[0]
        if first.joint is not None and len(part) > 1:
            first.joint(self._connection, [write.item for write in part])
        else:
            first.result = first.run(self._connection)

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
