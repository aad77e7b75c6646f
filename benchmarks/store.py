"""How long recording a call takes. The disk under it matters.

    python benchmarks/store.py [--folder FOLDER]

One record is a call with 64 given and 256 sampled tokens with their logprobs. ``alone``: one record at a time, its
latency. ``N at once``: N tasks that record one after the other; the latency each sees, and the time per record of them
all together, on the clock and of the CPU (making the record included). ``bytes``: of the database; 4 of each given and
8 of each sampled token are its id and logprob.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from array import array
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from _report import Report, options_of

from agentlightning.nouns import (
    Call,
    CallStatus,
    FinishReason,
    Message,
    Mode,
    Node,
    Rollout,
    RunRecord,
    RunStatus,
    SampleRecord,
    SamplingParams,
)
from agentlightning.store import Store, open_store

RECORDS = 4096
RUNS = 3
GIVEN, SAMPLED = 64, 256


def record(attempt_id: str, turn: int) -> tuple[Call, list[Node]]:
    """Turn number ``turn`` of a conversation: the nodes it adds hang below the last turn's sample."""
    ids, given = array("i", range(30_000, 30_000 + SAMPLED)), array("i", range(GIVEN))
    nodes = [
        Node(2 * turn, 2 * turn - 1 if turn else None, False, given, turn),
        Node(2 * turn + 1, 2 * turn, True, ids, turn, logprobs=array("f", [-0.25] * SAMPLED), version=3),
    ]
    sample = SampleRecord(2 * turn + 1, FinishReason.STOP, Message("assistant", "some words of an answer " * 40))
    asked = {"temperature": 0.7, "max_tokens": 512, "tools": 3}
    used = SamplingParams(seed=turn, stop_token_ids=(2,))
    names = ("chat", "any-model", "main")
    call = Call(
        f"chatcmpl-{attempt_id}-{turn}",
        attempt_id,
        turn,
        *names,
        CallStatus.COMPLETE,
        "continued",
        2 * turn,
        (sample,),
        asked,
        used,
    )
    return call, nodes


async def measure(store: Store, run: str, at_once: int, records: int) -> tuple[list[float], float, float]:
    """Latency of each record, wall time per record and CPU time per record, in ms."""
    await store.create_run(RunRecord(run, "benchmark", "", RunStatus.RUNNING, {}, time.time()))
    await store.enqueue([Rollout(f"{run}-{i}", run, {}, Mode.TRAIN, 0, i, i, 0) for i in range(at_once)])
    leased = await store.lease(run, "benchmark", limit=at_once, seconds=600)
    latencies: list[float] = []

    async def agent(attempt_id: str) -> None:
        for turn in range(records // at_once):
            call, nodes = record(attempt_id, turn)
            start = time.perf_counter()
            await store.record(call, nodes)
            latencies.append((time.perf_counter() - start) * 1e3)

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(agent(attempt.id) for _, attempt in leased))
    scale = 1e3 / len(latencies)
    return latencies, (time.perf_counter() - start) * scale, (time.process_time() - cpu) * scale


async def bench(report: Report, folder: Path, durability: Literal["process", "power"]) -> None:
    path = folder / f"{durability}.db"
    store = open_store(f"sqlite:///{path}", durability)
    for at_once in (1, 32, 100, 256):
        for i in range(RUNS):
            latencies, wall, cpu = await measure(
                store, f"{at_once}-{i}", at_once, RECORDS // 4 if at_once == 1 else RECORDS
            )
            cuts = statistics.quantiles(latencies, n=100)
            report.add(
                f"durability {durability}, {at_once} at once",
                latency_p50_ms=cuts[49],
                latency_p99_ms=cuts[98],
                wall_per_record_ms=wall,
                cpu_per_record_ms=cpu,
            )
    await store.close()
    tokens = RUNS * (RECORDS // 4 + 3 * RECORDS) * (GIVEN + SAMPLED)
    report.add(f"durability {durability}, bytes", bytes_per_token=path.stat().st_size / tokens)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--folder", help="where the record is written, for its disk; default: a temporary folder")
    options = parser.parse_args()
    report = Report(
        "store", given=GIVEN, sampled=SAMPLED, sqlite=sqlite3.sqlite_version, sqlalchemy=version("sqlalchemy")
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for durability in ("process", "power"):
            asyncio.run(bench(report, Path(folder), durability))
    report.finish()


if __name__ == "__main__":
    main()
