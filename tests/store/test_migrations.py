"""A record that an older version wrote is read whole by this one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import NullPool, create_engine

from agentlightning.errors import StoreError
from agentlightning.nouns import Intent, Mode, Status
from agentlightning.store import migrate, open_store
from agentlightning.store.sqlite.prepare import APPLICATION_ID

from . import make
from .test_opening import created, structure


def first_schema(path: Path) -> sqlite3.Connection:
    """A database as the first version made it."""
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.commit()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return database


def fill(database: sqlite3.Connection) -> None:
    """Two runs: one with a validation before two steps, the second of two groups, and a third step that was cut short;
    one of validations alone."""

    def add(table: str, **row: object) -> None:
        names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
        database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))

    for run in ("r", "v"):
        add("runs", id=run, name="run", folder="/runs/r", status="running", config='{"seed": 1}', created_at=1.0)
    places = [
        *(("r", "val", 0, 0, i) for i in range(2)),
        *(("r", "train", 1, 0, i) for i in range(2)),
        *(("r", "train", 2, group, i) for group in (2, 10) for i in range(2)),
        ("r", "val", 2, 0, 0),
        ("r", "train", 3, 0, 0),
        ("v", "val", 0, 0, 0),
        ("v", "val", 0, 1, 0),
    ]
    for run, mode, step, group, index in places:
        id, waits = f"{run}-{mode}{step}-{group}-{index}", step == 3
        add(
            "rollouts", id=id, run_id=run, task=json.dumps(id), mode=mode, step=step, group=f"{mode}{step}-{group}",
            index=index, seed=2**62, resources_version=1, status="queued" if waits else "succeeded",
            attempt_id=None if waits else f"{id}.1", reward=None if waits else 0.5, created_at=2.0,
        )  # fmt: skip
        if waits:
            continue
        add(
            "attempts", id=f"{id}.1", rollout_id=id, number=1, runner_id="me", status="succeeded", lease_until=3.0,
            started_at=2.0, ended_at=3.0, ended_by="finish",
        )  # fmt: skip
        add(
            "calls", id=f"{id}/0", attempt_id=f"{id}.1", index=0, wire="chat", model="gpt", policy="main",
            status="complete", branch="root", prompt_node=0, samples="[]", asked="{}", prompt_tokens=1,
            reused_tokens=0, sampled_tokens=0, received_at=2.0,
        )  # fmt: skip
        add("nodes", attempt_id=f"{id}.1", id=0, sampled=0, call_index=0, token_ids=b"\1\0\0\0")
        add("rewards", rollout_id=id, attempt_id=f"{id}.1", value=0.5, name="reward", source="return", created_at=3.0)
    for step, ids in ((1, ["a"]), (2, ["b"])):
        add(
            "steps", run_id="r", step=step, policy_version=step, rollout_ids=json.dumps(ids), metrics='{"loss": 0.5}',
            ledger='{"trained": 3}', checkpoint="/c" if step == 2 else None, ended_at=9.0,
        )  # fmt: skip
    add("resources", run_id="r", version=1, resources='{"prompt": "a"}')
    database.commit()
    database.close()


async def test_a_record_of_the_first_schema_is_read_whole(tmp_path: Path) -> None:
    fill(first_schema(tmp_path / "record.db"))
    created(tmp_path / "created.db")
    store = open_store(make.url(tmp_path))
    steps = await store.steps("r")
    assert [(step.step, step.versions, step.groups) for step in steps] == [
        (1, {"main": 1}, (0,)),
        (2, {"main": 2}, (1, 2)),
    ]
    assert [(step.metrics, step.checkpoint) for step in steps] == [({"loss": 0.5}, None), ({"loss": 0.5}, "/c")]
    assert await store.intents("r") == [Intent("r", 0, (0,), {}, Mode.VAL), Intent("r", 2, (1,), {}, Mode.VAL)]
    assert await store.intents("v") == [Intent("v", 0, (0, 1), {}, Mode.VAL)]
    rollouts = await store.rollouts("r")
    assert [(r.id, r.mode, r.group, r.index) for r in rollouts] == [
        ("r-val0-0-0", Mode.VAL, 0, 0),
        ("r-val0-0-1", Mode.VAL, 0, 1),
        ("r-train1-0-0", Mode.TRAIN, 0, 0),
        ("r-train1-0-1", Mode.TRAIN, 0, 1),
        ("r-train2-2-0", Mode.TRAIN, 1, 0),
        ("r-train2-2-1", Mode.TRAIN, 1, 1),
        ("r-train2-10-0", Mode.TRAIN, 2, 0),
        ("r-train2-10-1", Mode.TRAIN, 2, 1),
        ("r-val2-0-0", Mode.VAL, 1, 0),
        ("r-train3-0-0", Mode.TRAIN, 3, 0),
    ]
    for rollout in rollouts[:-1]:
        assert (rollout.task, rollout.seed, rollout.status, rollout.reward) == (
            rollout.id,
            2**62,
            Status.SUCCEEDED,
            0.5,
        )
        (attempt,) = await store.attempts(rollout.id)
        (call,) = await store.calls(attempt.id)
        (node,) = await store.nodes(attempt.id)
        (reward,) = await store.rewards(rollout.id)
        assert (attempt.id, call.id, list(node.token_ids), reward.value) == (
            rollout.attempt_id, f"{rollout.id}/0", [1], 0.5,
        )  # fmt: skip
    assert await store.get_resources("r") == {"prompt": "a"} and await store.get_run("r") == make.run()
    assert [attempt.rollout_id for attempt in await make.leased(store, 9)] == ["r-train3-0-0"]
    with pytest.raises(StoreError, match="A run that an older version began cannot go on"):
        await store.enqueue([make.rollout(0, group=3)])
    await store.close()
    assert structure(tmp_path / "record.db") == structure(tmp_path / "created.db")


def test_an_empty_record_of_the_first_schema_becomes_the_newest(tmp_path: Path) -> None:
    first_schema(tmp_path / "record.db").close()
    created(tmp_path / "record.db")
    created(tmp_path / "created.db")
    assert structure(tmp_path / "record.db") == structure(tmp_path / "created.db")
