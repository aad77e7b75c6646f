"""Calls, trace nodes, rewards and spans: what an attempt leaves behind. Each function is one step of a transaction that
somebody else opened.

Inserting a call is a backend's, since a reply waits for it (sqlite/inserts.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
from sqlalchemy import Connection, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from agentlightning.errors import RewardRefused, StoreError
from agentlightning.nouns import GIVEN, Call, CallStatus, Node, Reward, SpanRecord, Status
from agentlightning.store.dialect import upsert
from agentlightning.store.rows import Params, to_call, to_node, to_reward, to_span
from agentlightning.store.schema import attempts, calls, nodes, rewards, spans

Recorded = tuple[Params, Sequence[Params]]
"""A call and the nodes it added."""

Given = tuple[Sequence[Params], Sequence[Params]]
"""Calls of wire ``given`` and all their nodes."""


def replace(connection: Connection, call: Params, added: Sequence[Params]) -> None:
    """Puts a call and its nodes in the place of the recorded call of the same id. Where there is none, raises a
    StoreError that says why the call could not be inserted."""
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
    put = upsert(connection, nodes)
    put = put.on_conflict_do_update(
        index_elements=["attempt_id", "id"],
        set_={column.name: put.excluded[column.name] for column in nodes.c if not column.primary_key},
        where=nodes.c.call_index == put.excluded.call_index,
    )
    try:
        connection.execute(delete(nodes).where(own, nodes.c.id.not_in([node["id"] for node in added])))
        changed = connection.execute(put, added).rowcount if added else 0
    except IntegrityError as error:
        raise refused(call, str(error)) from error
    if changed != len(added):
        raise StoreError(
            f"call {call['id']} cannot be recorded: another call of attempt {call['attempt_id']} added a node of the "
            "same id"
        )


def refused(call: Params, error: str) -> StoreError:
    """What is said of a call whose nodes could not be inserted; ``error`` is the database's."""
    what = (
        "a node of that id exists"
        if "unique" in error.lower()
        else "a node's parent, or a node below one of its own, would be missing"
    )
    return StoreError(f"call {call['id']} of attempt {call['attempt_id']} cannot be recorded: {what}")


def set_call_status(connection: Connection, call_id: str, status: CallStatus) -> None:
    if connection.execute(update(calls).where(calls.c.id == call_id).values(status=status.value)).rowcount == 0:
        raise StoreError(f"there is no call {call_id}")


def set_agent(connection: Connection, call_id: str, agent: str) -> None:
    """Sets the agent's name once; the same name again changes nothing."""
    free = calls.c.agent_set.is_(None) | (calls.c.agent_set == agent)
    if connection.execute(update(calls).where(calls.c.id == call_id, free).values(agent_set=agent)).rowcount:
        return
    known = connection.execute(select(calls.c.agent_set).where(calls.c.id == call_id)).one_or_none()
    if known is None:
        raise StoreError(f"there is no call {call_id}")
    raise StoreError(f"call {call_id} is agent {known[0]!r}'s already and cannot become {agent!r}'s")


def set_agents(connection: Connection, attempt_id: str, agents: Mapping[str, str]) -> None:
    """Sets the agents' names of an attempt's own calls, by the call's id. What is no call of this attempt, and a call
    whose agent was set before, is left alone."""
    own = (calls.c.id == bindparam("of_call")) & (calls.c.attempt_id == attempt_id) & calls.c.agent_set.is_(None)
    named = update(calls).where(own).values(agent_set=bindparam("to"))
    if agents:
        connection.execute(named, [{"of_call": call_id, "to": agent} for call_id, agent in agents.items()])


def add_reward(connection: Connection, reward: Params) -> None:
    """Adds a reward, marked as late where its attempt has ended."""
    attempt = connection.execute(
        select(attempts.c.rollout_id, attempts.c.status).where(attempts.c.id == reward["attempt_id"])
    ).one_or_none()
    if attempt is None:
        raise RewardRefused(f"reward {reward['name']!r} was refused: there is no attempt {reward['attempt_id']}")
    if attempt.rollout_id != reward["rollout_id"]:
        raise RewardRefused(
            f"reward {reward['name']!r} was refused: attempt {reward['attempt_id']} is not one of rollout "
            f"{reward['rollout_id']}"
        )
    add_rewards(connection, [{**reward, "late": Status(attempt.status).final}])


def add_given(connection: Connection, attempt_id: str, added: Sequence[Params], their_nodes: Sequence[Params]) -> None:
    """Records calls of wire ``given`` after all that the attempt has."""
    if not added:
        return
    if strange := next((call for call in added if (call["attempt_id"], call["wire"]) != (attempt_id, GIVEN)), None):
        raise StoreError(
            f"call {strange['id']} of attempt {strange['attempt_id']}, wire {strange['wire']!r}, was reported as given "
            f"with attempt {attempt_id}"
        )
    # A call may have been recorded since these were numbered: one that was refused because the attempt is at its end.
    last = connection.execute(select(func.max(calls.c.index)).where(calls.c.attempt_id == attempt_id)).scalar()
    moved = max(0, (-1 if last is None else last) + 1 - min(call["index"] for call in added))
    try:
        connection.execute(insert(calls), [{**call, "index": call["index"] + moved} for call in added])
    except IntegrityError as error:
        raise StoreError(f"the calls given with attempt {attempt_id} cannot be recorded: {error.orig}") from error
    rows = [{**node, "call_index": node["call_index"] + moved} for node in their_nodes]
    try:
        if rows:
            connection.execute(insert(nodes), rows)
    except IntegrityError as error:
        raise refused(added[0], str(error)) from error


def add_rewards(connection: Connection, rows: Sequence[Params]) -> None:
    """Adds rewards of attempts that exist. Raises RewardRefused for one that names what its attempt has not."""
    made: dict[str, _Made] = {}
    for row in rows:
        if (row["call_id"], row["agent"], row["tool_call_id"]) == (None, None, None):
            continue
        attempt_id = row["attempt_id"]
        if attempt_id not in made:
            made[attempt_id] = _made(connection, attempt_id)
        _check_target(row, made[attempt_id])
    if rows:
        connection.execute(insert(rewards), list(rows))


_Made = Mapping[str, tuple[str | None, str]]
"""An attempt's calls: the agent and the samples, as stored, by id."""


def _made(connection: Connection, attempt_id: str) -> _Made:
    wanted = select(calls.c.id, calls.c.agent, calls.c.agent_set, calls.c.samples).where(
        calls.c.attempt_id == attempt_id
    )
    return {
        call.id: (call.agent if call.agent_set is None else call.agent_set, call.samples)
        for call in connection.execute(wanted)
    }


def _check_target(reward: Params, made: _Made) -> None:
    """The call, agent and tool call that a reward names have to be of its attempt, and go together."""
    id, agent, tool_call = reward["call_id"], reward["agent"], reward["tool_call_id"]
    for maker, samples in made.values() if id is None else [made[id]] if id in made else []:
        if agent in (None, maker) and (tool_call is None or tool_call in _tool_calls(samples)):
            return
    names = [(id, f"call {id}"), (agent, f"call of agent {agent!r}"), (tool_call, f"tool call {tool_call!r}")]
    wanted = " and ".join(text for value, text in names if value is not None)
    raise RewardRefused(f"reward {reward['name']!r} was refused: attempt {reward['attempt_id']} has no {wanted}")


def _tool_calls(samples: str) -> set[str]:
    """The ids of the tool calls in a call's samples, as stored."""
    return {tool["id"] for sample in orjson.loads(samples) for tool in sample["message"]["tool_calls"]}


def select_calls(connection: Connection, attempt_id: str) -> list[Call]:
    wanted = select(calls).where(calls.c.attempt_id == attempt_id).order_by(calls.c.index)
    return [to_call(row) for row in connection.execute(wanted).mappings()]


def select_nodes(connection: Connection, attempt_id: str) -> list[Node]:
    wanted = select(nodes).where(nodes.c.attempt_id == attempt_id).order_by(nodes.c.id)
    return [to_node(row) for row in connection.execute(wanted).mappings()]


def select_rewards(connection: Connection, rollout_id: str) -> list[Reward]:
    wanted = select(rewards).where(rewards.c.rollout_id == rollout_id).order_by(rewards.c.seq)
    return [to_reward(row) for row in connection.execute(wanted).mappings()]


def add_spans(connection: Connection, attempt_id: str, rows: Sequence[Params]) -> None:
    """Adds spans of an attempt, leaving those that it has as they are."""
    if connection.execute(select(attempts.c.id).where(attempts.c.id == attempt_id)).one_or_none() is None:
        raise StoreError(f"spans cannot be recorded: there is no attempt {attempt_id}")
    if rows:
        put = upsert(connection, spans).on_conflict_do_nothing(index_elements=["attempt_id", "span_id"])
        connection.execute(put, list(rows))


def select_spans(connection: Connection, attempt_id: str) -> list[SpanRecord]:
    wanted = (
        select(spans)
        .where(spans.c.attempt_id == attempt_id)
        .order_by(spans.c.started_at, spans.c.ended_at.desc(), spans.c.seq)
    )
    return [to_span(row) for row in connection.execute(wanted).mappings()]
