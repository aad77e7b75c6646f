"""What was acknowledged survives: kill -9 at any moment, a full disk, a disk that refuses to write. What was not is
whole or absent."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentlightning.errors import StoreError
from agentlightning.nouns import GIVEN, AttemptResult, RunStatus, Status
from agentlightning.store import open_store
from agentlightning.store.sqlite.store import SqliteStore

from . import make

KILLED = """
import asyncio, itertools, json, os, sys
from agentlightning.store import open_store
from tests.store import make

def acknowledge(*what):
    os.write(1, (json.dumps(what) + "\\n").encode())

async def agent(store, life, name):
    for i in itertools.count():
        new = make.rollout(i, group=life * 100 + name)
        await store.enqueue([new])
        acknowledge("rollout", new.id)
        for _, attempt in await store.lease("r", "me", limit=1, seconds=60):
            for turn in range(3):
                await store.record(make.call(attempt.id, turn), make.turn(turn))
                acknowledge("call", attempt.id, turn)
            await store.add_reward(make.reward(attempt, 0.5))
            acknowledge("reward", attempt.rollout_id)
            await store.finish(attempt.id, make.given(attempt, 3))
            acknowledge("finish", attempt.rollout_id)

async def main():
    store = open_store(sys.argv[1], sys.argv[3])
    await asyncio.gather(*(agent(store, int(sys.argv[2]), name) for name in range(8)))

asyncio.run(main())
"""


def live(folder: Path, life: int, durability: str, seconds: float) -> list[list[str]]:
    """What a process acknowledged before it was killed, that long after its first word."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, make.url(folder), str(life), durability], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate()
    assert child.returncode == -signal.SIGKILL
    return [json.loads(line) for line in (first + rest).split(b"\n")[:-1]]


@pytest.mark.parametrize("durability", ["process", "power"])
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, durability: str) -> None:
    await (await make.opened(tmp_path)).close()
    moments = random.Random(durability)
    acknowledged = [what for life in range(3) for what in live(tmp_path, life, durability, moments.uniform(0.0, 0.4))]
    assert acknowledged
    connection = sqlite3.connect(tmp_path / "record.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    store = open_store(make.url(tmp_path))
    for kind, id, *rest in acknowledged:
        if kind == "call":
            assert make.call(id, int(rest[0])) in await store.calls(id)
        elif kind == "reward":
            assert 0.5 in [reward.value for reward in await store.rewards(id)]
        else:
            rollout = await store.get_rollout(id)
            assert rollout is not None and (kind == "rollout" or rollout.status is Status.SUCCEEDED)
    for rollout in await store.rollouts("r"):
        attempts = await store.attempts(rollout.id)
        finals = [reward.value for reward in await store.rewards(rollout.id) if reward.value == 1.0]
        ended = rollout.status is Status.SUCCEEDED
        assert finals == ([1.0, 1.0] if ended else []), "a result and its rewards are one"
        assert len(attempts) == (rollout.status is not Status.QUEUED)
        for attempt in attempts:
            calls = await store.calls(attempt.id)
            turns = [make.given_turn if call.wire == GIVEN else make.turn for call in calls]
            assert [call.wire == GIVEN for call in calls].count(True) == ended, "a result and what was given are one"
            assert await store.nodes(attempt.id) == [
                node for call, turn in zip(calls, turns, strict=True) for node in turn(call.index)
            ], "a call and its nodes are one"
    running = await store.rollouts("r", status=Status.RUNNING)
    assert sorted(await store.requeue_running("r")) == sorted(rollout.id for rollout in running)
    await store.close()


async def test_a_full_disk_is_said_and_the_record_stays_usable(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=2)
    assert isinstance(store, SqliteStore)
    attempt, other = await make.leased(store, 2)

    async def allow(pages: int) -> None:
        await store._writer.write(
            lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all()
        )

    await allow(60)
    kept = 0
    with pytest.raises(StoreError, match=r"record\.db: the disk is full; free some space"):
        while True:
            await store.record(make.call(attempt.id, kept), make.turn(kept))
            kept += 1
    outcomes = await asyncio.gather(
        *(store.record(make.call(attempt.id, kept + i), []) for i in range(100)),
        store.end_run("r", RunStatus.FAILED, "the disk is full"),
        return_exceptions=True,
    )
    assert any(isinstance(outcome, StoreError) for outcome in outcomes) and outcomes[-1] is None, (
        "what still fits is kept"
    )
    calls = await store.calls(attempt.id)
    assert [call.index for call in calls] == list(range(kept)) + [
        kept + i for i, outcome in enumerate(outcomes[:-1]) if outcome is None
    ]
    assert len(await store.nodes(attempt.id)) == 2 * kept
    await allow(10_000)
    await store.record(make.call(other.id), make.turn())
    assert (await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0))).status is Status.SUCCEEDED
    await store.close()


REFUSED = """
import asyncio, resource, sys
from agentlightning.errors import StoreError
from agentlightning.store import open_store
from tests.store import make

async def main():
    store = await make.opened(__import__("pathlib").Path(sys.argv[1]), rollouts=1)
    (attempt,) = await make.leased(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))  # a write beyond this fails, as on a disk that refuses
    kept, failed = [], []
    for group in range(40):
        indexes = [group * 5 + i for i in range(5)]
        calls = [store.record(make.call(attempt.id, i), []) for i in indexes]
        for i, outcome in zip(indexes, await asyncio.gather(*calls, return_exceptions=True)):
            if outcome is None:
                kept.append(i)
            else:
                assert isinstance(outcome, StoreError) and "\\n" not in str(outcome), outcome
                failed.append(str(outcome))
    assert kept and failed, (kept, failed)
    assert [call.index for call in await store.calls(attempt.id)] == kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.record(make.call(attempt.id, 1000), make.turn(0))
    kept.append(1000)
    assert [call.index for call in await store.calls(attempt.id)] == kept
    print(len(kept), len(failed), failed[0])
    await store.close()

asyncio.run(main())
"""


def test_a_disk_that_refuses_to_write_fails_the_write_and_nothing_before_it(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", REFUSED, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stderr
    assert "the disk refused" in child.stdout or "the disk is full" in child.stdout
    with sqlite3.connect(tmp_path / "record.db") as connection:
        assert connection.execute("SELECT count(*) FROM calls").fetchone() == (int(child.stdout.split()[0]),)
    connection.close()


async def test_a_damaged_database_is_said(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=200)
    await store.close()
    path = tmp_path / "record.db"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="the database is damaged"):
        store = open_store(make.url(tmp_path))
        await store.rollouts("r")
