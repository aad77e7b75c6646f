"""How the gateway holds up: many open attempts with long conversations, and what it adds between the tokens of a stream.

    python benchmarks/gateway_scale.py [--attempts 1000] [--turns 128] [--at-once 32] [--minutes 8]

``turns``: every attempt holds a conversation that grows by one question and one sample of 256 tokens a turn, ``at_once`` of them at a time. The time of a turn is fitted as
a + b x bytes that are new + c x bytes of history; memory is what the server's process grew by, per attempt. ``stream``: an engine that gives one token every 10 ms,
32 streams at a time; the time between tokens at the client, beyond those 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from _report import Report, model_folder
from gateway import Server, Talker

STEP_S = 0.01


def resident_mb(pid: int) -> float:
    """Memory of a process; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def converse(talkers: list[Talker], turns: int, at_once: int, deadline: float) -> list[tuple[int, float, int, int]]:
    """Turn number, seconds, new bytes and bytes of history of each turn. All attempts take a turn before any takes the next one."""
    seen: list[tuple[int, float, int, int]] = []
    gate = asyncio.Semaphore(at_once)
    sizes = [0] * len(talkers)

    async def one(i: int, turn: int) -> None:
        talker = talkers[i]
        # Of differing lengths, or what is new could not be told from the constant part.
        question = {"role": "user", "content": f"{turn} " + talker.new * (1 + (7 * i + 3 * turn) % 16)}
        messages = [*talker.history[1:], question]
        async with gate:
            start = time.perf_counter()
            reply = orjson.loads(await talker.ask(messages))
            seconds = time.perf_counter() - start
        answer = {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
        new = len(orjson.dumps(question)) + len(orjson.dumps(answer))
        seen.append((turn, seconds, new, sizes[i]))
        sizes[i] += new
        talker.history += [question, answer]

    for turn in range(turns):
        if time.perf_counter() > deadline:
            print(f"  the time is up after {turn} turns")
            break
        await asyncio.gather(*(one(i, turn) for i in range(len(talkers))))
    return seen


async def streams(talkers: list[Talker], rounds: int) -> list[float]:
    """Seconds between the events of streams that run side by side."""
    gaps: list[float] = []

    async def one(talker: Talker) -> None:
        reader, writer = await asyncio.open_connection(talker.host, talker.port)
        body = orjson.dumps({"model": "main", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        writer.write(
            f"POST {talker.path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        last: float | None = None
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: ") and b'"content":' in line and b'"role"' not in line:
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
        writer.close()

    for _ in range(rounds):
        await asyncio.gather(*map(one, talkers))
    return gaps


async def measure(args: argparse.Namespace, model: str, folder: Path, report: Report) -> dict[str, Any]:
    server = Server("--serve", "gateway", "--model", model, "--folder", str(folder), "--attempts", str(args.attempts))
    talkers = [Talker(url, server.told["first"], server.told["new"]) for url in server.told["urls"]]
    for talker in talkers:
        await talker.connect()
    before = resident_mb(server.process.pid)
    seen = await converse(talkers, args.turns, args.at_once, time.perf_counter() + 60 * args.minutes)
    after = resident_mb(server.process.pid)
    turns = max(turn for turn, *_ in seen) + 1
    for turn in sorted({0, 1, *range(15, turns, 16), turns - 1}):
        of_turn = sorted(seconds * 1e3 for number, seconds, *_ in seen if number == turn)
        cuts = statistics.quantiles(of_turn * 2, n=100)
        report.add(f"turn {turn + 1}", p50_ms=cuts[49], p99_ms=cuts[98], requests=len(of_turn))
    columns = np.array([[1.0, new, history] for _, _, new, history in seen])
    times_ms = np.array([seconds * 1e3 for _, seconds, *_ in seen])
    fitted, *_ = np.linalg.lstsq(columns, times_ms, rcond=None)
    conversation_kb = sum(new for _, _, new, _ in seen) / args.attempts / 1e3
    server.close()

    paced = Server("--serve", "paced", "--model", model, "--folder", str(folder), "--attempts", "32")
    gaps = await streams([Talker(url, "", "") for url in paced.told["urls"]], args.rounds)
    paced.close()
    cuts = statistics.quantiles(gaps, n=100)
    report.add("stream, beyond 10 ms between tokens", p50_ms=(cuts[49] - STEP_S) * 1e3, p99_ms=(cuts[98] - STEP_S) * 1e3, gaps=len(gaps))
    return {
        "turns": turns,
        "turn_ms_a": float(fitted[0]),
        "turn_ms_b_per_new_kb": float(fitted[1]) * 1e3,
        "turn_ms_c_per_history_kb": float(fitted[2]) * 1e3,
        "server_mb_before": before,
        "server_mb_after": after,
        "memory_kb_per_attempt": (after - before) * 1024 / args.attempts,
        "conversation_kb_per_attempt": conversation_kb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", help="folder of a model, for its tokenizer; default: SmolLM2-135M-Instruct")
    parser.add_argument("--attempts", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=8.0, help="the conversations end after this long, at a whole turn")
    parser.add_argument("--rounds", type=int, default=10, help="streams one after the other on each of 32 connections")
    args = parser.parse_args()
    report = Report("gateway_scale", attempts=args.attempts, turns=args.turns, at_once=args.at_once, sampled=256)
    with tempfile.TemporaryDirectory() as folder:
        report.finish(**asyncio.run(measure(args, model_folder(args.model), Path(folder), report)))


if __name__ == "__main__":
    main()
