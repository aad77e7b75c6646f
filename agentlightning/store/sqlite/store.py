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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, QueuePool, create_engine
from sqlalchemy.exc import DBAPIError

from agentlightning.errors import StoreError, why_no_folder
from agentlightning.store.rows import Params
from agentlightning.store.sql import SqlStore
from agentlightning.store.sqlite.inserts import record
from agentlightning.store.sqlite.prepare import prepare
from agentlightning.store.sqlite.writer import Writer
from agentlightning.text import at_home

T = TypeVar("T")

READERS = 4
"""Threads that read, each on a connection of its own."""

BUSY_S = 30.0
"""Seconds a write waits for another process' write before it fails."""

_ADVICE = {
    "SQLITE_FULL": "the disk is full; free some space. What was acknowledged is kept",
    "SQLITE_NOTADB": "it is not an SQLite database; name another file",
    "SQLITE_CORRUPT": "the database is damaged; restore a copy, or name another file",
    "SQLITE_CANTOPEN": "it cannot be opened; name a file in a folder that exists and can be written",
    "SQLITE_READONLY": "it cannot be written; check the permissions of the file and its folder",
    "SQLITE_BUSY": f"another process has kept it locked for {BUSY_S:.0f} s",
    "SQLITE_IOERR": "the disk refused to read or write",
}


class SqliteStore(SqlStore):
    """A Store in the file ``path``. Use ``open_store``, which checks its arguments."""

    def __init__(self, path: str, durability: Literal["process", "power"], *, create: bool = True) -> None:
        super().__init__()
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

    async def close(self) -> None:
        """Carries out the writes that were asked for, then lets go of the file. A second call does nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    # ------------------------------------------------------------------ threads and connections
    async def _write(self, run: Callable[[Connection], T], committed: Callable[[T], None] | None = None) -> T:
        return await self._writer.write(run, committed)

    async def _record(self, call: Params, nodes: Sequence[Params]) -> None:
        await self._writer.write_jointly(record, (call, nodes))

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
