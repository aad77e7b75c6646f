"""Storage is linear in new tokens, and a look at the queue does not read what is done."""

from __future__ import annotations

import random
import sqlite3
from array import array
from dataclasses import replace
from pathlib import Path

from agentlightning.nouns import Mode, Node
from agentlightning.store.sqlite.store import SqliteStore

from . import make

TURNS, GIVEN, SAMPLED = 128, 40, 60


async def test_a_conversation_stores_each_token_once(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=1)
    (attempt,) = await make.leased(store)
    draw = random.Random(0)
    history = array("i")
    prompts: list[array[int]] = []
    pages = [pages_of(tmp_path)]
    for index in range(TURNS):
        given = array("i", (draw.randrange(49_152) for _ in range(GIVEN)))
        sampled = array("i", (draw.randrange(49_152) for _ in range(SAMPLED)))
        logprobs = array("f", (-draw.expovariate(2) for _ in range(SAMPLED)))
        prompts.append(history + given)
        history = history + given + sampled
        nodes = [
            Node(2 * index, 2 * index - 1 if index else None, False, given, index),
            Node(2 * index + 1, 2 * index, True, sampled, index, logprobs, version=1),
        ]
        await store.record(replace(make.call(attempt.id, index), prompt_tokens=len(prompts[-1])), nodes)
        if (index + 1) % (TURNS // 2) == 0:
            pages.append(pages_of(tmp_path))

    nodes = await store.nodes(attempt.id)
    calls = await store.calls(attempt.id)
    await store.close()

    def path(node: int | None) -> array[int]:
        return array("i") if node is None else path(nodes[node].parent) + nodes[node].token_ids

    assert [path(call.prompt_node) for call in calls] == prompts
    assert path(calls[-1].samples[0].node) == history
    assert sum(len(node.token_ids) for node in nodes) <= 1.1 * len(history)
    with sqlite3.connect(tmp_path / "record.db") as connection:
        (blobs,) = connection.execute(
            "SELECT sum(length(token_ids) + ifnull(length(logprobs), 0)) FROM nodes"
        ).fetchone()
    connection.close()
    assert blobs == 4 * len(history) + 4 * TURNS * SAMPLED, "an id and a logprob are four bytes each"
    assert pages[2] - pages[1] <= 1.25 * (pages[1] - pages[0]), "later turns cost what earlier ones did"


def pages_of(folder: Path) -> int:
    """Pages of the whole database, indexes and all."""
    connection = sqlite3.connect(folder / "record.db")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.close()
    return pages


async def test_what_is_queued_is_found_without_reading_what_is_done(tmp_path: Path) -> None:
    store = await make.opened(tmp_path, rollouts=2)
    assert isinstance(store, SqliteStore)
    statements: list[str] = []
    store._writer._sql.set_trace_callback(statements.append)
    for groups in (None, range(1), {0, 1}):
        await store.lease("r", "me", limit=1, seconds=60, mode=Mode.TRAIN, groups=groups)
    await store.close()
    looks = [statement for statement in statements if "LIMIT" in statement]
    assert len(looks) == 3
    with sqlite3.connect(tmp_path / "record.db") as connection:
        for look in looks:
            plan = " ".join(step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {look}"))
            assert "rollouts_by_status (run_id=? AND status=?)" in plan and "TEMP B-TREE" not in plan, plan
    connection.close()
