"""Runs a model's SQL on an SQLite database so that nothing can come of it but rows, and says whether two queries give
the same ones.

The connection can only read, statements other than SELECT are refused, and time, rows and the size of a value are
bounded.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

SECONDS = 1.0
ROWS = 1000
BYTES = 1_000_000
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class QueryError(Exception):
    """What is wrong with a query, in one line that a model can read."""


def rows_of(database: str | Path, query: str, seconds: float = SECONDS) -> list[tuple[Any, ...]]:
    """The rows of a query. Raises QueryError for one that is wrong, writes, or takes too long or too much."""
    connection = sqlite3.connect(f"{Path(database).absolute().as_uri()}?mode=ro", uri=True)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BYTES)
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        late = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > late, 1000)
        try:
            rows = connection.execute(query).fetchmany(ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a null character in the text
            said = f"it takes more than {seconds:g} s" if "interrupted" in str(error) else str(error)
            raise QueryError(said.splitlines()[0][:200]) from error
        if len(rows) > ROWS:
            raise QueryError(f"it gives more than {ROWS} rows")
        return rows
    finally:
        connection.close()


def same_result(database: str | Path, said: str, right: str) -> bool:
    """Execution match: whether both queries give the same rows; in the same order where the right one sorts them."""
    wanted = [_comparable(row) for row in rows_of(database, right)]
    try:
        rows = [_comparable(row) for row in rows_of(database, said)]
    except QueryError:
        return False
    return rows == wanted if "order by" in right.lower() else sorted(rows) == sorted(wanted)


def _comparable(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Numbers are equal whatever their type, and but for rounding."""
    return tuple(f"{value:.6g}" if isinstance(value, int | float) else repr(value) for value in row)
