"""How the gateway holds up: many open attempts with long conversations, and what it adds between the tokens of a
stream.

    python benchmarks/gateway_scale.py [--model DIR] [--attempts 1000] [--turns 128] [--at-once 8] [--minutes 12]
    [--rounds 10]

``turns``: every attempt holds a conversation that grows by one question and one sample of 256 tokens a turn,
``at_once`` of them at a time; all take a turn before any takes the next, so that all are open and equally long
throughout. The time of a turn is fitted as a + b x bytes that are new + c x bytes of history, twice: under that load
(it then holds the wait for the others), and ``alone``, of turns that are taken one at a time now and then. Memory is
what the server's process grew by, per attempt, beside the bytes of its conversation. ``stream``: an engine that gives
one token every 10 ms, 32 streams at a time; the time between tokens at the client, beyond those 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from _report import Report, model_folder, options_of
from gateway import Server, Talker

STEP_S = 0.01
MOST = 8
"""A question is one to eight times about 44 tokens."""
ALONE = 25
"""Turns that are taken one at a time, of every eighth."""


def resident_mb(pid: int) -> float:
    """Memory of a process; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: its number, its time, the bytes that were new in it and those before, and whether nobody else asked
    meanwhile."""

    number: int
    seconds: float
    new: int
    history: int
    alone: bool


async def converse(
    talkers: list[Talker], turns: int, at_once: int, minutes: float, server_mb: Callable[[], float]
) -> list[Turn]:
    seen: list[Turn] = []
    gate = asyncio.Semaphore(at_once)
    sizes = [0] * len(talkers)

    async def one(i: int, number: int, *, alone: bool = False) -> None:
        talker = talkers[i]
        # Of differing lengths, or what is new could not be told from the constant part.
        question = {"role": "user", "content": f"{number} " + talker.new * (1 + (7 * i + 3 * number) % MOST)}
        messages = [*talker.history[1:], question]
        async with gate:
            start = time.perf_counter()
            reply = orjson.loads(await talker.ask(messages))
            seconds = time.perf_counter() - start
        answer = {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
        new = len(orjson.dumps(question)) + len(orjson.dumps(answer))
        seen.append(Turn(number, seconds, new, sizes[i], alone))
        sizes[i] += new
        talker.history += [question, answer]

    begin = shown = time.perf_counter()
    for number in range(turns):
        first = min(ALONE, len(talkers)) if number % 8 == 0 or number == turns - 1 else 0
        for i in range(first):
            await one(i, number, alone=True)
        await asyncio.gather(*(one(i, number) for i in range(first, len(talkers))))
        now = time.perf_counter()
        if now - shown > 15 or number in (0, turns - 1):
            shown = now
            print(
                f"  turn {number + 1} of {turns}: {now - begin:.0f} s, {len(seen) / (now - begin):.0f} turns/s, "
                f"history {sum(sizes) / len(sizes) / 1e3:.0f} KB per attempt, server {server_mb():.0f} MB",
                flush=True,
            )
        # The next turn takes as long as this one at least: better a turn less than one that is not whole.
        if now - begin + (now - begin) / (number + 1) > 60 * minutes and number + 1 < turns:
            print(f"  the time is up after {number + 1} of {turns} turns")
            break
    return seen


def fitted(turns: list[Turn], name: str) -> dict[str, float]:
    """a, b and c of ``a + b x new + c x history``, in ms and ms per KB."""
    columns = np.array([[1.0, turn.new / 1e3, turn.history / 1e3] for turn in turns])
    found, *_ = np.linalg.lstsq(columns, np.array([turn.seconds * 1e3 for turn in turns]), rcond=None)
    keys = (f"{name}_ms_a", f"{name}_ms_b_per_new_kb", f"{name}_ms_c_per_history_kb")
    return {key: float(value) for key, value in zip(keys, found, strict=True)}


async def streams(talkers: list[Talker], rounds: int) -> list[float]:
    """Seconds between the events of streams that run side by side."""
    gaps: list[float] = []

    async def one(talker: Talker) -> None:
        reader, writer = await asyncio.open_connection(talker.host, talker.port)
        body = orjson.dumps({"model": "main", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        writer.write(
            f"POST {talker.path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\n".encode()
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
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
    pid = server.process.pid
    before = resident_mb(pid)
    seen = await converse(talkers, args.turns, args.at_once, args.minutes, lambda: resident_mb(pid))
    after = resident_mb(pid)
    turns = max(turn.number for turn in seen) + 1
    for number in sorted({0, 1, *range(15, turns, 16), turns - 1}):
        of_turn = [turn.seconds * 1e3 for turn in seen if turn.number == number and not turn.alone]
        cuts = statistics.quantiles(of_turn * 2, n=100)
        alone = [turn.seconds * 1e3 for turn in seen if turn.number == number and turn.alone]
        more = {"alone_p50_ms": statistics.median(alone)} if alone else {}
        report.add(f"turn {number + 1}", p50_ms=cuts[49], p99_ms=cuts[98], **more, requests=len(of_turn) + len(alone))
    conversation_kb = sum(turn.new for turn in seen) / args.attempts / 1e3
    server.close()

    paced = Server("--serve", "paced", "--model", model, "--folder", str(folder), "--attempts", "32")
    gaps = await streams([Talker(url, "", "") for url in paced.told["urls"]], args.rounds)
    paced.close()
    cuts = statistics.quantiles(gaps, n=100)
    report.add(
        "stream, beyond 10 ms between tokens",
        p50_ms=(cuts[49] - STEP_S) * 1e3,
        p99_ms=(cuts[98] - STEP_S) * 1e3,
        gaps=len(gaps),
    )
    return {
        "turns": turns,
        **fitted([turn for turn in seen if turn.alone], "alone"),
        **fitted([turn for turn in seen if not turn.alone], "turn"),
        "server_mb_before": before,
        "server_mb_after": after,
        "memory_kb_per_attempt": (after - before) * 1024 / args.attempts,
        "conversation_kb_per_attempt": conversation_kb,
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="folder of a model, for its tokenizer; default: SmolLM2-135M-Instruct")
    parser.add_argument("--attempts", type=int, default=1000, help="that are open")
    parser.add_argument("--turns", type=int, default=128, help="of each conversation")
    parser.add_argument("--at-once", type=int, default=8, help="conversations that take a turn at the same time")
    parser.add_argument(
        "--minutes", type=float, default=12.0, help="the conversations end before this long, at a whole turn"
    )
    parser.add_argument("--rounds", type=int, default=10, help="streams one after the other on each of 32 connections")
    args = parser.parse_args()
    report = Report("gateway_scale", attempts=args.attempts, turns=args.turns, at_once=args.at_once, sampled=256)
    with tempfile.TemporaryDirectory() as folder:
        report.finish(**asyncio.run(measure(args, model_folder(args.model), Path(folder), report)))


if __name__ == "__main__":
    main()
