"""A real store, a real gateway and a real pool around an engine that answers at once. ``world.run`` does what a step of
training does."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agentlightning.agent.calling import AgentSpec, as_agent
from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.errors import ContextLengthError, TemplateError
from agentlightning.gateway import Gateway, Served
from agentlightning.nouns import FinishReason, Message, Mode, Rollout, RunRecord, RunStatus, Segment
from agentlightning.records.attempts import AttemptReport
from agentlightning.records.probe import AgentProbe
from agentlightning.runners.check import check_agent
from agentlightning.runners.companions import Companions
from agentlightning.runners.local_desk import LocalDesk, run_here
from agentlightning.runners.pool import RunnerPool
from agentlightning.settings.fields import EvaluationConfig, GatewayConfig, RunnerConfig, SamplingConfig
from agentlightning.store import open_store
from agentlightning.templates.base import Parsed, ParsedDelta, Rendering, SampledTurn

END = 0


class PlainTemplate:
    """Text as bytes; a turn ends with a zero."""

    stop_token_ids = (END,)
    tool_format = "text"
    kwargs_key = b""

    def render(self, messages: Sequence[Message], tools: Any, sampled: Any) -> Rendering:
        texts = [""]
        for i, message in enumerate(messages):
            if i in sampled:
                texts.append("")
            else:
                texts[-1] += f"{message.role}:{message.content}\n"
        return Rendering(tuple(texts))

    def encode(self, text: str, *, start: bool) -> array[int]:
        return array("i", list(text.encode()))

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
        return [self.encode(text, start=start) for text, start in texts]

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < 256).decode("utf-8", "replace")

    def sampled_turn(self, token_ids: Sequence[int]) -> SampledTurn:
        return SampledTurn(self.decode([t for t in token_ids if t != END]), "\0")

    def read(
        self, token_ids: Sequence[int], tools: Any, finish: Any, stop_string: str | None = None, *, plain: bool = False
    ) -> Parsed:
        return Parsed(Message("assistant", self.decode([t for t in token_ids if t != END])))

    def stream(self, tools: Any, stop: Sequence[str] = (), *, plain: bool = False) -> Any:
        return _Stream(self)


class _Stream:
    malformed = thought_tokens = 0

    def __init__(self, template: PlainTemplate) -> None:
        self._template = template

    def feed(self, token_ids: array[int]) -> ParsedDelta:
        return ParsedDelta(self._template.read(token_ids, (), None).message.content)

    def finish(self, finish: Any, stop_string: str | None = None) -> ParsedDelta:
        return ParsedDelta()


class EchoEngine:
    """Samples "ok". ``delay`` seconds each; ``seen`` counts requests, ``open`` those being sampled."""

    context_length = 4096

    def __init__(self) -> None:
        self.delay = 0.0
        self.seen = 0
        self.most = 0
        self.open = 0

    def version(self, policy: str = "main") -> int:
        return 1

    async def sample(self, request: SampleRequest, on_tokens: Any = None) -> Sample:
        if len(request.prompt_ids) >= self.context_length:
            raise ContextLengthError(len(request.prompt_ids), self.context_length)
        self.seen += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.open -= 1
        ids = array("i", [*b"ok", END])
        if on_tokens is not None:
            on_tokens(ids)
        return Sample((Segment(ids, array("f", [-0.5] * len(ids)), 1),), FinishReason.STOP)

    async def close(self) -> None: ...


_probes: dict[str, AgentProbe] = {}


def agent_file(agent: Any) -> bool:
    """Whether the agent is a path into the tests' own agents, which may be imported here too."""
    return isinstance(agent, str) and agent.startswith(str(Path(__file__).with_name("agents.py")))


async def _probe_of(spec: AgentSpec) -> AgentProbe:
    """What a check finds of an agent, found once per file: starting a process for it costs more than most tests."""
    file = str(spec.file)
    if file not in _probes:
        _probes[file] = await check_agent(spec, "process")
    agent = spec.load()
    return replace(_probes[file], name=spec.name, parameters=agent.parameters, needs_template=agent.needs_template)


@dataclass
class Runners:
    """A desk and the pool that runs what it leases, for one agent."""

    desk: LocalDesk
    agent: AgentSpec
    extra_env: dict[str, str] | None = None
    probe: AgentProbe | None = None
    pool: RunnerPool | None = None
    companions: Companions | None = None
    said: list[str] = field(default_factory=list[str])
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        self.probe = self.probe or await check_agent(
            self.agent, self.desk.config.isolation, extra_env=self.extra_env, keys=self.desk.keys
        )
        self.pool = await self._closing.enter_async_context(
            run_here(self.desk, self.agent, self.probe, self.extra_env, self.companions, self.said.append)
        )

    async def close(self) -> None:
        await self._closing.aclose()

    @property
    def isolation(self) -> Any:
        assert self.pool is not None
        return self.pool.isolation


@dataclass
class World:
    store: Any
    gateway: Gateway
    engine: EchoEngine
    folder: Path
    run_id: str = "run"
    reports: list[AttemptReport] = field(default_factory=list)
    runners: Runners | None = None
    count: int = 0

    def make_runners(
        self,
        agent: Any,
        *,
        grader: Any = None,
        resources: Any = None,
        extra_env: Any = None,
        companions: Companions | None = None,
        **config: Any,
    ) -> Runners:
        config.setdefault("n_runners", 4)
        config.setdefault("deadline", 60.0)
        if "grader_runs" in config:
            config["grader"] = config.pop("grader_runs")
        desk = LocalDesk(
            self.store,
            self.gateway,
            RunnerConfig(**config),
            self.run_id,
            sampling={Mode.TRAIN: SamplingConfig(), Mode.VAL: EvaluationConfig(), Mode.DEV: SamplingConfig()},
            grader=grader,
            resources=resources,
            folder=self.folder,
        )
        desk.on_attempt = self.reports.append
        self.runners = Runners(desk, as_agent(agent), extra_env, companions=companions)
        return self.runners

    async def enqueue(self, tasks: Sequence[Any], mode: Mode = Mode.TRAIN, version: int = 0) -> list[str]:
        rollouts = []
        for task in tasks:
            self.count += 1
            name = f"{self.run_id}-{mode}-{self.count}"
            rollouts.append(
                Rollout(
                    id=name,
                    run_id=self.run_id,
                    task=task,
                    mode=Mode(mode),
                    group=self.count,
                    index=0,
                    seed=self.count * 7919,
                    resources_version=version,
                    created_at=time.time(),
                )
            )
        await self.store.enqueue(rollouts)
        return [rollout.id for rollout in rollouts]

    async def wait(self, ids: Sequence[str], timeout: float = 120.0) -> list[Rollout]:
        """Until all are final."""
        done: dict[str, Rollout] = {}
        until = time.monotonic() + timeout
        while len(done) < len(ids):
            pending = [i for i in ids if i not in done]
            for rollout in await self.store.wait(pending, timeout=0.5):
                done[rollout.id] = rollout
            if self.runners is not None and self.runners.pool is not None:
                self.runners.pool.raise_if_dead()
            assert time.monotonic() < until, f"still not final: {pending}"
        return [done[i] for i in ids]

    async def until(self, test: Callable[[], Any], timeout: float = 90.0) -> None:
        """Until ``test`` is true."""
        async with asyncio.timeout(timeout):
            while not test():  # noqa: ASYNC110  # what is waited for happens in other threads and processes
                await asyncio.sleep(0.02)

    async def run(
        self, agent: Any, tasks: Sequence[Any] = ({"q": 1},), mode: Mode = Mode.TRAIN, version: int = 0, **settings: Any
    ) -> list[Rollout]:
        runners = self.make_runners(agent, **settings)
        if (settings.get("isolation") == "process" or agent_file(agent)) and "extra_env" not in settings:
            runners.probe = await _probe_of(runners.agent)
        await runners.start()
        try:
            return await self.wait(await self.enqueue(tasks, mode, version))
        finally:
            await runners.close()

    async def one(self, agent: Any, **settings: Any) -> tuple[Rollout, AttemptReport]:
        """One rollout of ``agent`` and the report of its only attempt."""
        (rollout,) = await self.run(agent, **settings)
        return rollout, self.reports[-1]


@asynccontextmanager
async def made(folder: Path) -> AsyncGenerator[World]:
    """A world that keeps its record in ``folder``."""
    opened = open_store(f"sqlite:///{folder / 'record.db'}")
    store: Any = await opened if asyncio.iscoroutine(opened) else opened
    await store.create_run(RunRecord("run", "run", str(folder), RunStatus.RUNNING, {}, time.time()))
    engine = EchoEngine()
    gateway = Gateway(store, {"main": Served("main", engine, PlainTemplate())}, GatewayConfig(drain=0.5))
    await gateway.start()
    yield World(store, gateway, engine, folder)
    await gateway.close()
    await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made(tmp_path) as one:
        yield one


@pytest.fixture(params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    return request.param
