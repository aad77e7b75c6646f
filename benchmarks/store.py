"""How long recording a call takes: ``python benchmarks/store.py [folder]`` (default: a temporary folder; the disk under it matters).

One record is a call with 64 given and 256 sampled tokens with their logprobs. ``alone``: one record at a time, its latency.
``N at once``: N tasks that record one after the other; the latency each sees, and the time per record of them all together, on the
clock and of the CPU (making the record included).
"""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Literal

import sqlalchemy

from agentlightning.store import Store, open_store
from agentlightning.types import (
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
        f"chatcmpl-{attempt_id}-{turn}", attempt_id, turn, *names, CallStatus.COMPLETE, "continued", 2 * turn, (sample,), asked, used
    )
    return call, nodes


async def measure(store: Store, run: str, at_once: int, records: int) -> tuple[list[float], float, float]:
    """Latency of each record, wall time per record and CPU time per record, in ms."""
    await store.create_run(RunRecord(run, "benchmark", "", RunStatus.RUNNING, {}, time.time()))
    await store.enqueue([Rollout(f"{run}-{i}", run, {}, Mode.TRAIN, 0, "g", i, i, 0) for i in range(at_once)])
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


async def bench(folder: Path, durability: Literal["process", "power"]) -> None:
    path = folder / f"{durability}.db"
    store = open_store(f"sqlite:///{path}", durability)
    for at_once in (1, 32, 100, 256):
        results: dict[str, list[float]] = {"latency p50": [], "latency p99": [], "wall per record": [], "CPU per record": []}
        for i in range(RUNS):
            latencies, wall, cpu = await measure(store, f"{at_once}-{i}", at_once, RECORDS // 4 if at_once == 1 else RECORDS)
            cuts = statistics.quantiles(latencies, n=100)
            for values, value in zip(results.values(), (cuts[49], cuts[98], wall, cpu), strict=True):
                values.append(value)
        for what, values in results.items():
            runs = " ".join(f"{value:8.3f}" for value in values)
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"{durability:8}{at_once:4} at once  {what:16} runs {runs}   min {low:.3f} median {middle:.3f} max {high:.3f} ms")
    await store.close()
    tokens = RUNS * (RECORDS // 4 + 3 * RECORDS) * (GIVEN + SAMPLED)
    print(
        f"{durability:8} bytes per token: {path.stat().st_size / tokens:.2f} (4 of each given and 8 of each sampled one are its id and logprob)"
    )


def main() -> None:
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}", end=", ")
    print(f"SQLite {sqlite3.sqlite_version}, SQLAlchemy {sqlalchemy.__version__}")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for durability in ("process", "power"):
            asyncio.run(bench(Path(folder), durability))


if __name__ == "__main__":
    main()
