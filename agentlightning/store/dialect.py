"""The few things that databases spell in their own ways."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

import orjson
from sqlalchemy import Column, ColumnElement, Connection, Table, Text, any_, column, func, literal, select
from sqlalchemy.types import ARRAY

if TYPE_CHECKING:
    from sqlalchemy.dialects.sqlite import Insert


def upsert(connection: Connection, table: Table) -> Insert:
    """An INSERT that has ``on_conflict_do_update`` and ``on_conflict_do_nothing``: SQLite and PostgreSQL have the same
    ones, each in its own module."""
    dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    return cast("Insert", dialect.insert(table))


def among(connection: Connection, of: Column[str], texts: Sequence[str]) -> ColumnElement[bool]:
    """Whether ``of`` is one of ``texts``: one bound value however many there are."""
    if connection.dialect.name != "sqlite":
        return of == any_(literal(list(texts), ARRAY(Text)))
    listed = func.json_each(orjson.dumps(list(texts)).decode())
    return of.in_(select(column("value", Text)).select_from(listed))
