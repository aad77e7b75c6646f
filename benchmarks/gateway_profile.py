"""Where the gateway's processor time goes, part by part, while 32 connections ask it.

    python benchmarks/gateway_profile.py [--model DIR] [--runs 5] [--seconds 3] [--connections 32]

The load and the engine are those of gateway.py. In the server's process the functions that a call goes through are
timed with the thread's own processor clock; a part holds what it calls, but for the parts that are listed themselves.
The clock costs about a microsecond a part, which is in the figures. ``loop: the rest`` is aiohttp's parsing, the event
loop and what no part names; ``writer`` and ``encoder`` are the threads beside the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gateway as bench
from _report import Report, model_folder, options_of

Parts = list[tuple[str, Any, str]]


def parts() -> Parts:
    """Name, owner and function of each part."""
    from agentlightning.gateway import server, session, tree
    from agentlightning.gateway.wires import chat_completions
    from agentlightning.store import sql
    from agentlightning.templates import chat

    return [
        ("read the body and parse its JSON", server, "read_body"),
        ("read the body and parse its JSON", server, "parse"),
        ("wire: JSON to request", server, "read_request"),
        ("name the agent, identify the call", server, "named_by_request"),
        ("name the agent, identify the call", server, "named_by_body"),
        ("name the agent, identify the call", server, "identity_of"),
        ("tree: match the history", tree.TraceTree, "_read"),
        ("tree: match the history", tree.TraceTree, "_longest"),
        ("template: render the history", chat.ChatTemplate, "render"),
        ("tree: place the prompt", tree.TraceTree, "place_continuation"),
        ("sampling parameters", session.Session, "_params"),
        ("template: read the sample", chat.ChatTemplate, "read"),
        ("tree: add the sample", tree.TraceTree, "grow"),
        ("tree: add the sample", tree.TraceTree, "publish"),
        ("record: rows", sql, "call_params"),
        ("record: rows", sql, "node_params"),
        ("wire: reply to JSON", chat_completions.ChatCompletions, "reply"),
        ("send the reply", server, "send"),
    ]


class Clock:
    """Adds up the processor time of each part, without that of the parts inside it."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: list[list[int]] = []

    def wrap(self, name: str, owner: Any, function: str) -> None:
        original = getattr(owner, function)
        if asyncio.iscoroutinefunction(original):

            async def timed(*args: Any, **more: Any) -> Any:
                return await _Steps(self, name, original(*args, **more))
        else:

            def timed(*args: Any, **more: Any) -> Any:
                begun = self.begin()
                try:
                    return original(*args, **more)
                finally:
                    self.end(name, begun)

        setattr(owner, function, timed)

    def begin(self) -> int:
        self._inside.append([0])
        return time.thread_time_ns()

    def end(self, name: str, begun: int) -> None:
        whole = time.thread_time_ns() - begun
        (inner,) = self._inside.pop()
        self.spent[name] += whole - inner
        if self._inside:
            self._inside[-1][0] += whole


class _Steps:
    """A coroutine of which only the steps that run are timed, not the waits between them."""

    def __init__(self, clock: Clock, name: str, work: Any) -> None:
        self._clock, self._name, self._work = clock, name, work

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        begun = self._clock.begin()
        try:
            return self._work.send(value)
        finally:
            self._clock.end(self._name, begun)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()


def serve(model: str, folder: Path, attempts: int) -> None:
    """The gateway with its parts timed; on SIGUSR1 it writes what each has taken so far, and each thread, to
    ``spent.json``."""
    clock = Clock()
    for part in parts():
        clock.wrap(*part)

    def tell(*_: Any) -> None:
        threads = {thread.name: _cpu_ns(thread.native_id) for thread in threading.enumerate()}
        (folder / "spent.new").write_text(json.dumps({"parts": clock.spent, "threads": threads}))
        (folder / "spent.new").rename(folder / "spent.json")

    signal.signal(signal.SIGUSR1, tell)
    asyncio.run(bench.serve_gateway(model, folder, attempts))


def _cpu_ns(thread: int | None) -> int:
    fields = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
    return int(fields[0])


async def measure(args: argparse.Namespace, folder: Path, report: Report) -> None:
    asked = ("--serve", "gateway", "--model", args.model, "--folder", str(folder), "--attempts", str(args.connections))
    server = bench.Server(*asked, program=__file__)
    told = server.told
    talkers = [bench.Talker(url, told["first"], told["new"]) for url in told["urls"]]
    for talker in talkers:
        await talker.connect()
        await talker.prepare()

    async def spent() -> dict[str, Any]:
        (folder / "spent.json").unlink(missing_ok=True)
        os.kill(server.process.pid, signal.SIGUSR1)
        while not (folder / "spent.json").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        return json.loads((folder / "spent.json").read_text())

    await bench.load(talkers, 1.0)
    for _ in range(args.runs):
        before = await spent()
        got = await bench.load(talkers, args.seconds)
        after = await spent()
        count = got["requests"]
        found = {name: (ns - before["parts"].get(name, 0)) / 1e3 / count for name, ns in after["parts"].items()}
        threads = {name: (ns - before["threads"].get(name, 0)) / 1e3 / count for name, ns in after["threads"].items()}
        loop = threads["agl-gateway"]
        others = {
            "writer": threads["store-writer"],
            "encoder": sum(ns for name, ns in threads.items() if "encoder" in name),
        }
        for name, microseconds in {
            **found,
            "loop: the rest": loop - sum(found.values()),
            "loop: all": loop,
            **others,
        }.items():
            report.add(name, us_per_request=microseconds)
    server.close()


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="folder of a model, for its tokenizer; left out: SmolLM2-135M-Instruct")
    parser.add_argument("--runs", type=int, default=5, help="timed runs")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run")
    parser.add_argument("--connections", type=int, default=32, help="that ask at once")
    for hidden in ("--serve", "--folder", "--attempts"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.model, Path(args.folder), int(args.attempts))
        return
    if not sys.platform.startswith("linux"):
        raise SystemExit("gateway_profile.py reads the threads' processor time from /proc: run it on Linux")
    args.model = model_folder(args.model)
    report = Report("gateway_profile", connections=args.connections, seconds=args.seconds)
    with tempfile.TemporaryDirectory() as folder:
        bench.run(lambda: measure(args, Path(folder), report))
    report.finish()


if __name__ == "__main__":
    main()
