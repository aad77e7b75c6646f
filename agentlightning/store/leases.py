"""Rollouts and attempts: who may run what, and how each ends. Each function is one step of a write transaction that
somebody else opened.

Rows go in and records come out; values were checked before (rows.py). Safe across processes because the transaction
holds the database's only write lock from its start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, RowMapping, func, insert, select, update

from agentlightning.errors import LeaseLost, StoreError
from agentlightning.nouns import Attempt, Failure, Mode, Reason, Rollout, Status
from agentlightning.store.calls import Given, add_given, add_rewards, set_agents
from agentlightning.store.dialect import among, upsert
from agentlightning.store.rows import Params, failed_params, failure_params, to_attempt, to_rollout
from agentlightning.store.runs import require_run
from agentlightning.store.schema import OPEN, RUNNING, SCORING, attempts, rollouts


class EndedBy(StrEnum):
    """What ended an attempt."""

    FINISH = "finish"
    RETRY = "retry"
    EXPIRE = "expire"
    REQUEUE = "requeue"
    CANCEL = "cancel"


def in_groups(groups: Collection[int], group: ColumnElement[int] = rollouts.c.group) -> ColumnElement[bool]:
    """Whether a rollout's group is one of ``groups``."""
    if isinstance(groups, range) and groups.step == 1:
        return (group >= groups.start) & (group < groups.stop)
    return group.in_(list(groups))


def enqueue(connection: Connection, rows: Sequence[Params]) -> list[Rollout]:
    """Inserts those whose id is new; returns the stored ones, in the order given."""
    if not rows:
        return []
    for run_id in {row["run_id"] for row in rows}:
        require_run(connection, run_id)
    connection.execute(upsert(connection, rollouts).on_conflict_do_nothing(), list(rows))
    ids = [row["id"] for row in rows]
    stored = {rollout.id: rollout for rollout in select_rollouts(connection, among(connection, rollouts.c.id, ids))}
    for row in rows:
        if row["id"] not in stored:
            raise StoreError(
                f"rollout {row['id']} cannot be enqueued: another has its place, {row['mode']} group {row['group']}, "
                f"index {row['index']}. A run that an older version began cannot go on: begin a new one"
            )
    return [stored[id] for id in ids]


def lease(
    connection: Connection,
    run_id: str,
    runner_id: str,
    limit: int,
    seconds: float,
    now: float,
    mode: Mode | None,
    groups: Collection[int] | None,
) -> list[tuple[Rollout, Attempt]]:
    """Starts an attempt of each of the first ``limit`` queued rollouts, of the given mode and groups alone where they
    are given."""
    wanted = [rollouts.c.run_id == run_id, rollouts.c.status == Status.QUEUED.value]
    wanted += [rollouts.c.mode == mode.value] if mode is not None else []
    # Not the bare column: its index would lead through all that is done already, and past the order of the queue.
    wanted += [in_groups(groups, rollouts.c.group + 0)] if groups is not None else []
    queued = (
        select(
            rollouts.c.id,
            func.coalesce(
                select(func.max(attempts.c.number)).where(attempts.c.rollout_id == rollouts.c.id).scalar_subquery(), 0
            ),
        )
        .where(*wanted)
        .order_by(rollouts.c.seq)
        .limit(max(limit, 0))
    )
    started = [
        Attempt(f"{rollout_id}.{tried + 1}", rollout_id, tried + 1, runner_id, Status.RUNNING, now + seconds, now)
        for rollout_id, tried in connection.execute(queued)
    ]
    if not started:
        return []
    fields = ("id", "rollout_id", "number", "runner_id", "status", "lease_until", "started_at")
    connection.execute(insert(attempts), [{name: getattr(attempt, name) for name in fields} for attempt in started])
    leased: list[tuple[Rollout, Attempt]] = []
    for attempt in started:
        values = {
            "status": Status.RUNNING.value,
            "attempt_id": attempt.id,
            "started_at": func.coalesce(rollouts.c.started_at, now),
        }
        leased.append((_set_rollout(connection, attempt.rollout_id, values), attempt))
    return leased


def renew(connection: Connection, attempt_id: str, lease_until: float) -> bool:
    """Whether the attempt was still running, and now is until ``lease_until``."""
    alive = update(attempts).where(attempts.c.id == attempt_id, RUNNING)
    return connection.execute(alive.values(lease_until=lease_until)).rowcount == 1


def score(connection: Connection, attempt_id: str, result: Params, until: float, agents: Mapping[str, str]) -> Rollout:
    """Has a running attempt and its rollout wait for a grader, with the ``agents`` that made its calls. Again for one
    that waits already changes nothing."""
    values = {**result, "status": Status.SCORING.value, "score_until": until}
    waits = update(attempts).where(attempts.c.id == attempt_id, RUNNING)
    if connection.execute(waits.values(values)).rowcount == 1:
        set_agents(connection, attempt_id, agents)
        return _set_rollout(connection, _rollout_of(connection, attempt_id), {"status": Status.SCORING.value})
    row = connection.execute(select(attempts).where(attempts.c.id == attempt_id)).mappings().one_or_none()
    if row is None:
        raise StoreError(f"there is no attempt {attempt_id}")
    if row["status"] != Status.SCORING.value:
        raise _lost(row)
    return select_rollouts(connection, rollouts.c.id == row["rollout_id"])[0]


def finish(
    connection: Connection,
    attempt_id: str,
    result: Params,
    reward_rows: Sequence[Params],
    now: float,
    agents: Mapping[str, str] = {},
    given: Given = ((), ()),
) -> Rollout:
    """Ends the attempt and its rollout alike, names the ``agents`` that made its calls, records what was given with it,
    and appends the rewards."""
    kept = {name for name in ("output", "marked") if result[name] is None}  # what was said before it was scored
    ended = {name: value for name, value in result.items() if name != "reward" and name not in kept}
    repeated = _end(connection, attempt_id, EndedBy.FINISH, ended, now)
    if repeated is not None:
        return repeated
    rollout_id = _rollout_of(connection, attempt_id)
    for row in reward_rows:
        if (row["attempt_id"], row["rollout_id"]) != (attempt_id, rollout_id):
            raise StoreError(
                f"a reward of attempt {row['attempt_id']} was reported with attempt {attempt_id} of rollout "
                f"{rollout_id}"
            )
    set_agents(connection, attempt_id, agents)
    add_given(connection, attempt_id, *given)
    add_rewards(connection, reward_rows)
    of_rollout = {name: value for name, value in result.items() if name not in ("output", "marked")}
    return _set_rollout(connection, rollout_id, {"ended_at": now, **of_rollout})


def retry(connection: Connection, attempt_id: str, result: Params, now: float, agents: Mapping[str, str]) -> Rollout:
    """Ends the attempt as ``result`` says, names the ``agents`` that made its calls, and queues its rollout again."""
    repeated = _end(connection, attempt_id, EndedBy.RETRY, result, now)
    if repeated is not None:
        return repeated
    set_agents(connection, attempt_id, agents)
    return _requeue(connection, _rollout_of(connection, attempt_id))


def expire(connection: Connection, now: float, max_attempts: int) -> list[Attempt]:
    """Ends the attempts whose lease has passed; their rollouts are queued again, or fail after ``max_attempts``. One
    that no grader scored in time fails with its rollout: to run the agent again would help nothing."""
    ended: list[str] = []
    for attempt in select_attempts(connection, SCORING, attempts.c.score_until < now, order=attempts.c.score_until):
        late = now - (attempt.score_until or now)
        failure = Failure(Reason.LOST, f"no grader had scored it {late:.1f} s past the deadline for that")
        _end(connection, attempt.id, EndedBy.EXPIRE, failed_params(failure), now)
        _set_rollout(connection, attempt.rollout_id, {"ended_at": now, **failed_params(failure)})
        ended.append(attempt.id)
    for attempt in select_attempts(connection, RUNNING, attempts.c.lease_until < now, order=attempts.c.lease_until):
        failure = Failure(
            Reason.LOST,
            f"runner {attempt.runner_id} gave no sign of life for {now - attempt.lease_until:.1f} s past its lease",
        )
        _end(connection, attempt.id, EndedBy.EXPIRE, failed_params(failure), now)
        if attempt.number < max_attempts:
            _requeue(connection, attempt.rollout_id)
        else:
            _set_rollout(connection, attempt.rollout_id, {"ended_at": now, **failed_params(failure)})
        ended.append(attempt.id)
    return select_attempts(connection, among(connection, attempts.c.id, ended)) if ended else []


def requeue_running(connection: Connection, run_id: str, now: float) -> list[str]:
    """Ends every running attempt of the run as lost and queues its rollout again. What waits for a grader goes on
    waiting: its output is recorded."""
    failure = Failure(Reason.LOST, "the run was restarted while this attempt ran")
    running = select_rollouts(connection, (rollouts.c.run_id == run_id) & (rollouts.c.status == Status.RUNNING.value))
    for rollout in running:
        _end(connection, str(rollout.attempt_id), EndedBy.REQUEUE, failed_params(failure), now)
        _requeue(connection, rollout.id)
    return [rollout.id for rollout in running]


def requeue_failed(connection: Connection, rollout_ids: Sequence[str]) -> list[str]:
    """Queues those of the rollouts that failed once more."""
    asked = among(connection, rollouts.c.id, rollout_ids)
    failed = select_rollouts(connection, asked, rollouts.c.status == Status.FAILED.value)
    for rollout in failed:
        _requeue(connection, rollout.id)
    return [rollout.id for rollout in failed]


def cancel(connection: Connection, rollout_ids: Sequence[str], message: str, now: float) -> list[str]:
    """Cancels those that are not final, with their attempts."""
    ended = {"status": Status.CANCELLED.value, **failure_params(Failure(Reason.CANCELLED, message))}
    open_ = rollouts.c.status.in_([status.value for status in Status if not status.final])
    changed = select_rollouts(connection, among(connection, rollouts.c.id, rollout_ids) & open_)
    for rollout in changed:
        if rollout.status is not Status.QUEUED:
            _end(connection, str(rollout.attempt_id), EndedBy.CANCEL, ended, now)
        _set_rollout(connection, rollout.id, {"ended_at": now, **ended})
    return [rollout.id for rollout in changed]


def select_rollouts(connection: Connection, *where: ColumnElement[bool]) -> list[Rollout]:
    """The rollouts that meet every condition, in order of creation."""
    return [
        to_rollout(row)
        for row in connection.execute(select(rollouts).where(*where).order_by(rollouts.c.seq)).mappings()
    ]


def select_attempts(
    connection: Connection, *where: ColumnElement[bool], order: Column[Any] = attempts.c.seq
) -> list[Attempt]:
    """The attempts that meet every condition, in order of creation."""
    return [to_attempt(row) for row in connection.execute(select(attempts).where(*where).order_by(order)).mappings()]


def select_final(connection: Connection, rollout_ids: Sequence[str]) -> tuple[list[Rollout], str | None]:
    """Those of the rollouts that are final, and where there are none, an id that no rollout has."""
    final = rollouts.c.status.in_([status.value for status in Status if status.final])
    found = select_rollouts(connection, among(connection, rollouts.c.id, rollout_ids), final)
    if found:
        return found, None
    asked = among(connection, rollouts.c.id, rollout_ids)
    known = set(connection.execute(select(rollouts.c.id).where(asked)).scalars())
    return [], next((id for id in rollout_ids if id not in known), None)


# --------------------------------------------------------------------------- the steps they share


def _end(connection: Connection, attempt_id: str, by: EndedBy, result: Params, now: float) -> Rollout | None:
    """Ends an open attempt. An attempt that the same kind of report ended before stays as it is: then its rollout is
    returned.

    Raises LeaseLost where something else ended it, StoreError where there is none.
    """
    still_open = update(attempts).where(attempts.c.id == attempt_id, OPEN)
    values = {"ended_at": now, "ended_by": by.value, **result}
    if connection.execute(still_open.values(values)).rowcount == 1:
        return None
    row = connection.execute(select(attempts).where(attempts.c.id == attempt_id)).mappings().one_or_none()
    if row is None:
        raise StoreError(f"there is no attempt {attempt_id}")
    if row["ended_by"] != by.value:
        raise _lost(row)
    return select_rollouts(connection, rollouts.c.id == row["rollout_id"])[0]


def _lost(attempt: RowMapping) -> LeaseLost:
    why = f": {attempt['failure_message']}" if attempt["failure_message"] else ""
    return LeaseLost(f"attempt {attempt['id']} no longer counts; it was ended by {attempt['ended_by']}{why}")


def _requeue(connection: Connection, rollout_id: str) -> Rollout:
    return _set_rollout(connection, rollout_id, {"status": Status.QUEUED.value, "attempt_id": None})


def _set_rollout(connection: Connection, rollout_id: str, values: Params) -> Rollout:
    # Not RETURNING: SQLite then hands a whole-numbered REAL back as an integer.
    connection.execute(update(rollouts).where(rollouts.c.id == rollout_id).values(values))
    return select_rollouts(connection, rollouts.c.id == rollout_id)[0]


def _rollout_of(connection: Connection, attempt_id: str) -> str:
    return connection.execute(select(attempts.c.rollout_id).where(attempts.c.id == attempt_id)).scalar_one()
