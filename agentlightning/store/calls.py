"""Calls, trace nodes and rewards: what an attempt leaves behind. Each function is one step of a transaction that
somebody else opened.

``record`` is the hot path: a reply waits for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import itemgetter
from typing import cast

from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import IntegrityError

from agentlightning.errors import StoreError
from agentlightning.store.rows import Params, to_call, to_node, to_reward
from agentlightning.store.schema import attempts, calls, nodes, rewards
from agentlightning.types import Call, CallStatus, Node, Reward


class _Insert:
    """Inserts rows of a table, as many with one statement as it has: straight to the driver, since SQLAlchemy's own
    execution would more than double what a call costs (benchmarks/store.py)."""

    MOST = 128
    """Rows in one statement: SQLite takes 32,766 parameters."""

    def __init__(self, table: Table) -> None:
        self._names = [column.name for column in table.c if column.name != "seq"]
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

Recorded = tuple[Params, Sequence[Params]]
"""A call and the nodes it added."""


def record(connection: Connection, added: Sequence[Recorded]) -> None:
    """Stores calls and the nodes they added. One alone may also replace the call of the same id and its nodes."""
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    try:
        _insert_calls(driver, [call for call, _ in added])
    except sqlite3.IntegrityError:
        if len(added) > 1:
            raise
        _replace(connection, *added[0])
        return
    try:
        _insert_nodes(driver, [node for _, nodes in added for node in nodes])
    except sqlite3.IntegrityError as error:
        raise _refused(added[0][0], str(error)) from error


def _replace(connection: Connection, call: Params, added: Sequence[Params]) -> None:
    old = connection.execute(select(calls.c.attempt_id, calls.c.index).where(calls.c.id == call["id"])).one_or_none()
    if old is None:
        if connection.execute(select(attempts.c.id).where(attempts.c.id == call["attempt_id"])).one_or_none() is None:
            raise StoreError(f"call {call['id']} cannot be recorded: there is no attempt {call['attempt_id']}")
        raise StoreError(
            f"call {call['id']} cannot be recorded: attempt {call['attempt_id']} already has another call "
            f"{call['index']}"
        )
    if tuple(old) != (call["attempt_id"], call["index"]):
        raise StoreError(f"call {call['id']} is call {old.index} of attempt {old.attempt_id} and cannot become another")
    connection.execute(update(calls).where(calls.c.id == call["id"]).values(call))
    own = (nodes.c.attempt_id == call["attempt_id"]) & (nodes.c.call_index == call["index"])
    put = upsert(nodes)
    put = put.on_conflict_do_update(
        index_elements=["attempt_id", "id"],
        set_={column.name: put.excluded[column.name] for column in nodes.c if not column.primary_key},
        where=nodes.c.call_index == put.excluded.call_index,
    )
    try:
        connection.execute(delete(nodes).where(own, nodes.c.id.not_in([node["id"] for node in added])))
        changed = connection.execute(put, added).rowcount if added else 0
    except IntegrityError as error:
        raise _refused(call, str(error)) from error
    if changed != len(added):
        raise StoreError(
            f"call {call['id']} cannot be recorded: another call of attempt {call['attempt_id']} added a node of the "
            "same id"
        )


def _refused(call: Params, error: str) -> StoreError:
    what = (
        "a node of that id exists"
        if "UNIQUE" in error
        else "a node's parent, or a node below one of its own, would be missing"
    )
    return StoreError(f"call {call['id']} of attempt {call['attempt_id']} cannot be recorded: {what}")


def set_call_status(connection: Connection, call_id: str, status: CallStatus) -> None:
    if connection.execute(update(calls).where(calls.c.id == call_id).values(status=status.value)).rowcount == 0:
        raise StoreError(f"there is no call {call_id}")


def add_reward(connection: Connection, reward: Params) -> None:
    owner = connection.execute(
        select(attempts.c.rollout_id).where(attempts.c.id == reward["attempt_id"])
    ).scalar_one_or_none()
    if owner is None:
        raise StoreError(f"reward {reward['name']!r} was refused: there is no attempt {reward['attempt_id']}")
    if owner != reward["rollout_id"]:
        raise StoreError(
            f"reward {reward['name']!r} was refused: attempt {reward['attempt_id']} is not one of rollout "
            f"{reward['rollout_id']}"
        )
    connection.execute(insert(rewards), [reward])


def select_calls(connection: Connection, attempt_id: str) -> list[Call]:
    wanted = select(calls).where(calls.c.attempt_id == attempt_id).order_by(calls.c.index)
    return [to_call(row) for row in connection.execute(wanted).mappings()]


def select_nodes(connection: Connection, attempt_id: str) -> list[Node]:
    wanted = select(nodes).where(nodes.c.attempt_id == attempt_id).order_by(nodes.c.id)
    return [to_node(row) for row in connection.execute(wanted).mappings()]


def select_rewards(connection: Connection, rollout_id: str) -> list[Reward]:
    wanted = select(rewards).where(rewards.c.rollout_id == rollout_id).order_by(rewards.c.seq)
    return [to_reward(row) for row in connection.execute(wanted).mappings()]
