"""Fast inserts of calls and nodes: the hot path, on which a reply waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import itemgetter
from typing import cast

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import sqlite

from agentlightning.store.calls import Recorded, refused, replace
from agentlightning.store.rows import Params
from agentlightning.store.schema import calls, nodes


class _Insert:
    """Inserts rows of a table, as many with one statement as it has: straight to the driver, since SQLAlchemy's own
    execution would more than double what a call costs (benchmarks/store.py)."""

    MOST = 128
    """Rows in one statement: SQLite takes 32,766 parameters."""

    def __init__(self, table: Table) -> None:
        self._names = [column.name for column in table.c if column.name not in ("seq", "agent_set")]
        self._table = table
        self._values = itemgetter(*self._names)
        self._statements: dict[int, str] = {}

    def __call__(self, driver: sqlite3.Connection, rows: Sequence[Params]) -> None:
        done = 0
        while done < len(rows):
            # A power of two: few different statements to prepare.
            count = min(1 << ((len(rows) - done).bit_length() - 1), self.MOST)
            driver.execute(
                self._statement(count), [value for row in rows[done : done + count] for value in self._values(row)]
            )
            done += count

    def _statement(self, count: int) -> str:
        if count not in self._statements:
            one = str(insert(self._table).compile(dialect=sqlite.dialect(paramstyle="qmark"), column_keys=self._names))
            head, values = one.rsplit(" VALUES ", 1)
            self._statements[count] = f"{head} VALUES {', '.join([values] * count)}"
        return self._statements[count]


_insert_calls = _Insert(calls)
_insert_nodes = _Insert(nodes)


def record(connection: Connection, added: Sequence[Recorded]) -> None:
    """What ``calls.record`` does, for several calls at once. One alone may also replace the call of the same id."""
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    try:
        _insert_calls(driver, [call for call, _ in added])
    except sqlite3.IntegrityError:
        if len(added) > 1:
            raise
        replace(connection, *added[0])
        return
    try:
        _insert_nodes(driver, [node for _, nodes in added for node in nodes])
    except sqlite3.IntegrityError as error:
        raise refused(added[0][0], str(error)) from error
