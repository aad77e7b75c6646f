"""Runs, their steps and their versioned resources. Each function is one step of a transaction that somebody else
opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from sqlalchemy import Connection, Text, cast, delete, func, insert, select, update

from agentlightning.errors import StoreError
from agentlightning.nouns import CreditRow, Intent, Json, Mode, RunRecord, RunStatus, StepRecord
from agentlightning.store.dialect import upsert
from agentlightning.store.rows import Params, to_credit, to_intent, to_run, to_step
from agentlightning.store.schema import credit, intents, resources, runs, step_groups, steps


def create_run(connection: Connection, run: Params) -> None:
    if connection.execute(upsert(connection, runs).on_conflict_do_nothing(index_elements=["id"]), run).rowcount == 0:
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


def put_step(connection: Connection, step: Params, groups: Sequence[int], credited: Sequence[Params] | None) -> None:
    """``groups`` are the step's, ``credited`` its rows of credit, None to keep those it has. A later step that shares
    one of the groups is of a life of the run before its resume, and is forgotten."""
    run_id, number = step["run_id"], step["step"]
    require_run(connection, run_id)
    shared = (step_groups.c.run_id == run_id) & step_groups.c.group.in_(list(groups)) & (step_groups.c.step != number)
    of_others = connection.execute(
        select(step_groups.c.step, func.min(step_groups.c.group))
        .where(shared)
        .group_by(step_groups.c.step)
        .order_by(step_groups.c.step)
    ).all()
    if of_others and of_others[0][0] < number:
        other, group = of_others[0]
        raise StoreError(f"step {number} of run {run_id} cannot have group {group}, which is in step {other}")
    replaced = [number, *(other for other, _ in of_others)]
    connection.execute(delete(step_groups).where(step_groups.c.run_id == run_id, step_groups.c.step.in_(replaced)))
    forgotten = replaced[1:] if credited is None else replaced
    connection.execute(delete(credit).where(credit.c.run_id == run_id, credit.c.step.in_(forgotten)))
    connection.execute(delete(steps).where(steps.c.run_id == run_id, steps.c.step.in_(replaced[1:])))
    put = upsert(connection, steps)
    connection.execute(
        put.on_conflict_do_update(index_elements=["run_id", "step"], set_={k: put.excluded[k] for k in step}), step
    )
    if groups:
        connection.execute(
            insert(step_groups), [{"run_id": run_id, "group": group, "step": number} for group in groups]
        )
    if credited:
        connection.execute(insert(credit), list(credited))


def select_credit(connection: Connection, run_id: str, step: int | None, attempt_id: str | None) -> list[CreditRow]:
    wanted = select(credit).where(credit.c.run_id == run_id)
    wanted = wanted if step is None else wanted.where(credit.c.step == step)
    wanted = wanted if attempt_id is None else wanted.where(credit.c.attempt_id == attempt_id)
    ordered = wanted.order_by(credit.c.step, credit.c.attempt_id, credit.c.policy)
    return [to_credit(row) for row in connection.execute(ordered).mappings()]


def select_steps(connection: Connection, run_id: str) -> list[StepRecord]:
    of_step = (step_groups.c.run_id == steps.c.run_id) & (step_groups.c.step == steps.c.step)
    groups = select(func.aggregate_strings(cast(step_groups.c.group, Text), ",")).where(of_step).scalar_subquery()
    wanted = select(steps, groups.label("groups")).where(steps.c.run_id == run_id).order_by(steps.c.step)
    return [to_step(row) for row in connection.execute(wanted).mappings()]


def put_intent(connection: Connection, intent: Params) -> None:
    require_run(connection, intent["run_id"])
    put = upsert(connection, intents)
    keys = ["run_id", "mode", "step"]
    connection.execute(
        put.on_conflict_do_update(index_elements=keys, set_={k: put.excluded[k] for k in intent}), intent
    )


def select_intents(connection: Connection, run_id: str, after_step: int, mode: Mode | None) -> list[Intent]:
    wanted = select(intents).where(intents.c.run_id == run_id, intents.c.step > after_step)
    wanted = wanted if mode is None else wanted.where(intents.c.mode == mode.value)
    return [to_intent(row) for row in connection.execute(wanted.order_by(intents.c.step, intents.c.mode)).mappings()]
