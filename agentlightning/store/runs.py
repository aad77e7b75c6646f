"""Runs, their steps and their versioned resources. Each function is one step of a transaction that somebody else
opened."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from agentlightning.errors import StoreError
from agentlightning.store.rows import Params, to_run, to_step
from agentlightning.store.schema import resources, runs, steps
from agentlightning.types import Json, RunRecord, RunStatus, StepRecord


def create_run(connection: Connection, run: Params) -> None:
    if connection.execute(upsert(runs).on_conflict_do_nothing(index_elements=["id"]), run).rowcount == 0:
        raise StoreError(f"run {run['id']} exists already")


def end_run(connection: Connection, run_id: str, status: RunStatus, error: str | None, now: float) -> None:
    ended = (None, None) if status is RunStatus.RUNNING else (now, error)
    values = {"status": status.value, "ended_at": ended[0], "error": ended[1]}
    if connection.execute(update(runs).where(runs.c.id == run_id).values(values)).rowcount == 0:
        raise StoreError(f"there is no run {run_id}")


def require_run(connection: Connection, run_id: str) -> None:
    """Raises StoreError where there is no such run."""
    if connection.execute(select(runs.c.seq).where(runs.c.id == run_id)).one_or_none() is None:
        raise StoreError(f"there is no run {run_id}")


def select_run(connection: Connection, run_id: str) -> RunRecord | None:
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    return None if row is None else to_run(row)


def select_runs(connection: Connection) -> list[RunRecord]:
    return [to_run(row) for row in connection.execute(select(runs).order_by(runs.c.seq.desc())).mappings()]


def put_resources(connection: Connection, run_id: str, values: str) -> int:
    """``values`` is JSON text."""
    require_run(connection, run_id)
    latest = select(func.coalesce(func.max(resources.c.version), 0)).where(resources.c.run_id == run_id)
    version = connection.execute(latest).scalar_one() + 1
    connection.execute(insert(resources), {"run_id": run_id, "version": version, "resources": values})
    return version


def select_resources(connection: Connection, run_id: str, version: int | None) -> Mapping[str, Json]:
    wanted = select(resources.c.resources).where(resources.c.run_id == run_id)
    wanted = (
        wanted.where(resources.c.version == version)
        if version is not None
        else wanted.order_by(resources.c.version.desc()).limit(1)
    )
    found = connection.execute(wanted).scalar_one_or_none()
    if found is None:
        raise StoreError(f"run {run_id} has no resources" + ("" if version is None else f" of version {version}"))
    return orjson.loads(found)


def put_step(connection: Connection, step: Params) -> None:
    require_run(connection, step["run_id"])
    put = upsert(steps)
    connection.execute(
        put.on_conflict_do_update(index_elements=["run_id", "step"], set_={k: put.excluded[k] for k in step}), step
    )


def select_steps(connection: Connection, run_id: str) -> list[StepRecord]:
    return [
        to_step(row)
        for row in connection.execute(select(steps).where(steps.c.run_id == run_id).order_by(steps.c.step)).mappings()
    ]
