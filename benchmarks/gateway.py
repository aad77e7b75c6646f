"""What the gateway costs, with durable recording: latency at one connection, requests/s at 32 and 256, beside a plain
capture proxy in the same run.

    python benchmarks/gateway.py [--model DIR] [--runs 5] [--seconds 3] [--connections 1 32 256]

Every request is a turn that continues a recorded conversation: about 1,000 prompt tokens of which at most 64 are new,
answered with 256 sampled tokens. The gateway has a null engine in its process (an instant reply), renders and tokenises
with a real chat template, and answers once the call is in its SQLite file. The proxy, twenty lines of aiohttp, forwards
to the same null engine behind an HTTP server of its own and appends request and reply to a file; that engine renders
and tokenises nothing. Its replies are text alone ("proxy"), or hold the token ids and logprobs that training needs, in
the API's own form ("proxy, tokens"). One process each; the load comes from a third. Run i of one is followed by run i
of the others. ``server_cpu_us`` is the processor time per request of the gateway's or the proxy's process: unlike the
rest it says something on a busy machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from _report import Report, model_folder, options_of
from aiohttp import web

PROMPT, NEW, SAMPLED = 1000, 64, 256
TEXT = (
    "the agent asks what it needs and reads what comes back then it writes a short plan and goes on until the task "
    "is done "
)

# --------------------------------------------------------------------------- the two servers


class NullEngine:
    """Replies at once, always with the same tokens."""

    context_length = 100_000

    def __init__(self, token_ids: array[int]) -> None:
        from agentlightning.engines.base import Sample
        from agentlightning.nouns import FinishReason, Segment

        self.reply = Sample(
            (Segment(token_ids, array("f", [-0.25] * len(token_ids)), 1),),
            FinishReason.STOP,
            reused_tokens=PROMPT - NEW,
        )

    def version(self, policy: str = "main") -> int:
        return 1

    async def sample(self, request: Any, on_tokens: Any = None) -> Any:
        return self.reply

    async def close(self) -> None: ...


class PacedEngine(NullEngine):
    """Gives its tokens one by one, 10 ms apart."""

    async def sample(self, request: Any, on_tokens: Any = None) -> Any:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for i, token in enumerate(self.reply.segments[0].token_ids[:64], 1):
            await asyncio.sleep(begin + i * 0.01 - loop.time())
            if on_tokens is not None:
                on_tokens(array("i", [token]))
        return self.reply


async def serve_gateway(model: str, folder: Path, attempts: int, engine: type[NullEngine] = NullEngine) -> None:
    """The gateway with ``attempts`` open attempts; says their URLs and serves until its standard input ends."""
    from transformers import AutoTokenizer

    from agentlightning.gateway import Gateway, Served
    from agentlightning.nouns import Mode, Rollout, RunRecord, RunStatus
    from agentlightning.settings.fields import GatewayConfig, SamplingConfig
    from agentlightning.store import open_store
    from agentlightning.templates import load_template

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    template = load_template(tokenizer)
    ids = template.encode(TEXT * 40, start=False)[: SAMPLED - 1]
    ids.append(template.stop_token_ids[0])
    store = open_store(f"sqlite:///{folder / 'record.db'}")
    await store.create_run(RunRecord("run", "benchmark", str(folder), RunStatus.RUNNING, {}, time.time()))
    await store.enqueue([Rollout(f"run-{i}", "run", {}, Mode.TRAIN, 0, i, i, 1) for i in range(attempts)])
    gateway = Gateway(store, {"main": Served("main", engine(ids), template)}, GatewayConfig())
    await gateway.start()
    urls = [
        (await gateway.open(rollout, attempt, sampling=SamplingConfig())).base_url
        for rollout, attempt in await store.lease("run", "benchmark", limit=attempts, seconds=3600)
    ]

    def words_of(count: int) -> str:
        """A text of about ``count`` tokens."""
        return template.decode(template.encode(TEXT * 60, start=False)[:count])

    say({"urls": urls, "first": words_of(PROMPT - 2 * SAMPLED - NEW - 60), "new": words_of(NEW - 20)})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await gateway.close()
    await store.close()


async def serve_upstream(folder: Path) -> None:
    """The null engine behind HTTP: a reply of text, or under /tokens one with token ids and logprobs."""
    text, tokens = (folder / "text.json").read_bytes(), (folder / "tokens.json").read_bytes()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(
            body=tokens if request.path.startswith("/tokens") else text, content_type="application/json"
        )

    await serve_app([web.post("/{tail:.*}", answer)])


async def serve_proxy(upstream: str, log: Path) -> None:
    """The twenty lines that a capture proxy takes."""
    client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    with log.open("ab", buffering=0) as file:

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            async with client.post(
                upstream + request.path, data=body, headers={"Content-Type": "application/json"}
            ) as reply:
                answer = await reply.read()
            file.write(
                orjson.dumps({"at": time.time(), "request": orjson.Fragment(body), "reply": orjson.Fragment(answer)})
                + b"\n"
            )
            return web.Response(body=answer, status=reply.status, content_type="application/json")

        await serve_app([web.post("/{tail:.*}", forward)])
    await client.close()


async def serve_app(routes: list[web.RouteDef]) -> None:
    app = web.Application(client_max_size=2**25)
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    say({"urls": [f"http://127.0.0.1:{runner.addresses[0][1]}/v1"]})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


# --------------------------------------------------------------------------- the load


class Connection(asyncio.Protocol):
    """A keep-alive HTTP/1.1 client that costs next to nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.buffer = b""
        self.done: asyncio.Future[bytes] | None = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if found and self.done:
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n", 1)[0])
            if len(body) >= length:
                self.buffer, done, self.done = b"", self.done, None
                if head.split(b" ", 2)[1] == b"200":
                    done.set_result(body)
                else:
                    done.set_exception(RuntimeError(self.buffer.decode() or body.decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done and not self.done.done():
            self.done.set_exception(ConnectionResetError("the server closed the connection"))

    async def post(self, path: str, body: bytes) -> bytes:
        self.done = asyncio.get_running_loop().create_future()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\nContent-Length: "
            f"{len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        return await self.done


class Talker:
    """One connection with a conversation of its own; ``turn`` asks the next question about it."""

    def __init__(self, url: str, first: str, new: str) -> None:
        self.host, self.port, self.path = (
            url.split("/")[2].split(":")[0],
            int(url.split(":")[2].split("/")[0]),
            "/" + url.split("/", 3)[3],
        )
        self.path += "/chat/completions"
        self.history = [{"role": "user", "content": first}]
        self.new = new
        self.count = 0

    async def connect(self) -> None:
        _, self.connection = await asyncio.get_running_loop().create_connection(Connection, self.host, self.port)

    async def ask(self, messages: list[dict[str, str]], **more: Any) -> bytes:
        return await self.connection.post(
            self.path, orjson.dumps({"model": "main", "messages": messages, "max_tokens": SAMPLED, **more})
        )

    async def prepare(self) -> None:
        """Two turns that become history."""
        for follow_up in ("And then?", None):
            reply = orjson.loads(await self.ask(self.history))
            self.history.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            if follow_up:
                self.history.append({"role": "user", "content": follow_up})

    async def turn(self, **more: Any) -> bytes:
        self.count += 1
        return await self.ask([*self.history, {"role": "user", "content": f"{self.count} {self.new}"}], **more)


async def load(talkers: list[Talker], seconds: float) -> dict[str, float]:
    """All talkers at once for so long: requests/s and latency quantiles in ms."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def talk(talker: Talker) -> None:
        while (start := time.perf_counter()) < end:
            await talker.turn()
            latencies.append((time.perf_counter() - start) * 1e3)

    start = time.perf_counter()
    await asyncio.gather(*map(talk, talkers))
    wall = time.perf_counter() - start
    cuts = statistics.quantiles(latencies * 2, n=100)
    return {"rps": len(latencies) / wall, "p50_ms": cuts[49], "p99_ms": cuts[98], "requests": len(latencies)}


class Server:
    """A child process that serves until it is left."""

    def __init__(self, *arguments: str, program: str = __file__) -> None:
        self.process = subprocess.Popen(
            [sys.executable, program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self.process.stdout is not None
        self.told = json.loads(self.process.stdout.readline())

    def cpu_seconds(self) -> float:
        """Processor time so far, user and system; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


async def measure(args: argparse.Namespace, folder: Path, report: Report) -> None:
    most = max(args.connections)
    ours = Server("--serve", "gateway", "--model", args.model, "--folder", str(folder), "--attempts", str(most))
    told = ours.told
    talkers = [Talker(url, told["first"], told["new"]) for url in told["urls"]]
    for talker in talkers:
        await talker.connect()
        await talker.prepare()
    reply = await talkers[0].turn()
    (folder / "text.json").write_bytes(reply)
    (folder / "tokens.json").write_bytes(await talkers[0].turn(logprobs=True, return_token_ids=True))
    usage = orjson.loads(reply)["usage"]
    print(
        f"a turn: {usage['prompt_tokens']} prompt tokens, {usage['completion_tokens']} sampled, {len(reply)} bytes of "
        "reply",
        flush=True,
    )
    upstream = Server("--serve", "upstream", "--folder", str(folder))
    proxy = Server(
        "--serve", "proxy", "--upstream", upstream.told["urls"][0].removesuffix("/v1"), "--folder", str(folder)
    )

    def like(url: str) -> list[Talker]:
        copies = [Talker(url, told["first"], told["new"]) for _ in talkers]
        for copy, talker in zip(copies, talkers, strict=True):
            copy.history = talker.history
        return copies

    sides = {
        "gateway": talkers,
        "proxy": like(proxy.told["urls"][0]),
        "proxy, tokens": like(proxy.told["urls"][0].replace("/v1", "/tokens/v1")),
        "upstream alone": like(upstream.told["urls"][0]),
    }
    for name in ("proxy", "proxy, tokens", "upstream alone"):
        for talker in sides[name]:
            await talker.connect()
    processes = {"gateway": ours, "proxy": proxy, "proxy, tokens": proxy, "upstream alone": upstream}
    for connections in args.connections:
        for side in sides.values():
            await load(side[:connections], 0.5)
        for _ in range(args.runs):
            for name, side in sides.items():
                if name == "upstream alone" and connections > 1:
                    continue
                before = processes[name].cpu_seconds()
                got = await load(side[:connections], args.seconds)
                spent = processes[name].cpu_seconds() - before
                report.add(f"{name} at {connections}", **got, server_cpu_us=spent * 1e6 / got["requests"])
    for server in (proxy, upstream, ours):
        server.close()


def conclusions(summary: dict[str, dict[str, dict[str, float]]], connections: list[int]) -> dict[str, float]:
    """Added latency at one connection, and the gateway's share of the proxy's requests/s, from the medians."""
    found: dict[str, float] = {}

    def median(side: str, count: int, key: str) -> float:
        return summary[f"{side} at {count}"][key]["median"]

    for count in connections:
        if count == 1:
            found["added p50 ms, gateway (its engine takes no time)"] = median("gateway", 1, "p50_ms")
            found["added p50 ms, proxy (beyond its upstream alone)"] = median("proxy", 1, "p50_ms") - median(
                "upstream alone", 1, "p50_ms"
            )
            continue
        for side in ("proxy", "proxy, tokens"):
            found[f"gateway / {side}, req/s at {count}"] = median("gateway", count, "rps") / median(side, count, "rps")
    return found


def run(main: Callable[[], Any]) -> Any:
    if find_spec("uvloop") is None:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=importlib.import_module("uvloop").new_event_loop) as runner:
        return runner.run(main())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="folder of a model, for its tokenizer; default: SmolLM2-135M-Instruct")
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 256], help="that ask at once")
    for hidden in ("--serve", "--upstream", "--folder", "--attempts"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve == "gateway":
        asyncio.run(serve_gateway(args.model, Path(args.folder), int(args.attempts)))
    elif args.serve == "paced":
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(serve_gateway(args.model, Path(folder), int(args.attempts), PacedEngine))
    elif args.serve == "upstream":
        run(lambda: serve_upstream(Path(args.folder)))
    elif args.serve == "proxy":
        run(lambda: serve_proxy(args.upstream, Path(args.folder) / "capture.jsonl"))
    else:
        args.model = model_folder(args.model)
        settings = {
            "connections": args.connections,
            "seconds": args.seconds,
            "prompt": PROMPT,
            "new": NEW,
            "sampled": SAMPLED,
        }
        report = Report("gateway", **settings, uvloop=find_spec("uvloop") is not None, sqlite=sqlite3.sqlite_version)
        with tempfile.TemporaryDirectory() as folder:
            run(lambda: measure(args, Path(folder), report))
        report.finish(**conclusions(report.summary(), args.connections))


if __name__ == "__main__":
    main()
