"""A running gateway over a real SQLite store: `house` makes one, `house.open()` an attempt at it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from agentlightning.agent.resources import LLM
from agentlightning.gateway import AgentEndpoint, Gateway, Served
from agentlightning.gateway.session import Session
from agentlightning.nouns import Attempt, Call, Mode, Node, Rollout, RunRecord, RunStatus
from agentlightning.records.usage import AttemptUsage
from agentlightning.settings.fields import EvaluationConfig, GatewayConfig, SamplingConfig
from agentlightning.store import open_store
from agentlightning.store.base import Store
from agentlightning.templates.base import Template
from tests.gateway.scripted import GlassTemplate, ScriptedEngine


class Paths:
    """The tokens from the root to a node."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def ids(self, node: int | None) -> list[int]:
        parts: list[list[int]] = []
        while node is not None:
            parts.append(self.nodes[node].token_ids.tolist())
            node = self.nodes[node].parent
        return [token for part in reversed(parts) for token in part]


class Visit:
    """An open attempt."""

    def __init__(self, house: House, rollout: Rollout, attempt: Attempt, endpoint: AgentEndpoint) -> None:
        self.house, self.rollout, self.attempt, self.endpoint = house, rollout, attempt, endpoint
        self._client: AsyncOpenAI | None = None

    @property
    def client(self) -> AsyncOpenAI:
        """Made when it is first used: it takes its time."""
        if self._client is None:
            self._client = AsyncOpenAI(base_url=self.endpoint.base_url, api_key=self.endpoint.key, max_retries=0)
        return self._client

    @property
    def session(self) -> Session:
        """The gateway's own side of this attempt, to see when it has noticed something."""
        gateway = self.house.gateway
        return gateway._sessions[gateway._keys[self.attempt.id]]

    def orphans(self) -> int:
        return self.session.calls.orphans

    async def ask(self, messages: list[dict[str, Any]] | str, **options: Any) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return await self.client.chat.completions.create(
            model=options.pop("model", "gpt-x"), messages=messages, **options
        )

    async def calls(self) -> list[Call]:
        return await self.house.store.calls(self.attempt.id)

    async def nodes(self) -> list[Node]:
        return await self.house.store.nodes(self.attempt.id)

    async def path_ids(self, node: int | None) -> list[int]:
        return Paths(await self.nodes()).ids(node)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def end(self) -> AttemptUsage:
        return await self.house.gateway.end(self.attempt.id)


class House:
    """A gateway, its store and its engine."""

    def __init__(self, store: Store, engine: ScriptedEngine, template: Template, gateway: Gateway) -> None:
        self.store, self.engine, self.template, self.gateway = store, engine, template, gateway
        self._count = 0
        self._visits: list[Visit] = []

    async def open(
        self,
        *,
        sampling: SamplingConfig | EvaluationConfig | None = None,
        mode: Mode = Mode.TRAIN,
        seed: int = 7,
        **more: Any,
    ) -> Visit:
        self._count += 1
        rollout = Rollout(f"run-{mode}-0-{self._count}", "run", {"q": 1}, mode, 0, self._count, seed, 1)
        await self.store.enqueue([rollout])
        [(rollout, attempt)] = await self.store.lease("run", "tester", limit=1, seconds=600)
        endpoint = await self.gateway.open(rollout, attempt, sampling=sampling or SamplingConfig(), **more)
        visit = Visit(self, rollout, attempt, endpoint)
        self._visits.append(visit)
        return visit

    async def close(self) -> None:
        for visit in self._visits:
            await visit.close()
        await self.gateway.close()


Build = Callable[..., Awaitable[House]]


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    """Makes a House: ``await build(script=[...], template=..., config=GatewayConfig(...), store=wrap,
    deterministic=...)``."""
    store: Store = open_store(f"sqlite:///{tmp_path / 'record.db'}")
    await store.create_run(RunRecord("run", "run", str(tmp_path), RunStatus.RUNNING, {}, 0.0))
    houses: list[House] = []

    async def make(
        *,
        template: Template | None = None,
        config: GatewayConfig | None = None,
        wrap: Callable[[Store], Store] = lambda store: store,
        deterministic: bool = False,
        policies: dict[str, Served] | None = None,
        external: dict[str, LLM] | None = None,
        compact: Any = None,
        **engine: Any,
    ) -> House:
        template = template or GlassTemplate()
        scripted = ScriptedEngine(template, **engine)
        used = wrap(store)
        gateway = Gateway(
            used,
            {"main": Served("main", scripted, template)} if policies is None else policies,
            config or GatewayConfig(orphan_grace=60, drain=10),
            deterministic=deterministic,
            external=external or {},
            compact=compact,
        )
        await gateway.start()
        houses.append(House(used, scripted, template, gateway))
        return houses[-1]

    yield make
    for house in houses:
        await house.close()
    await store.close()


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the gateway has written, from now on, to keep waiting clients."""
    kept: list[bytes] = []
    write = web.StreamResponse.write

    async def watched(self: web.StreamResponse, data: Any) -> None:
        await write(self, data)
        if not bytes(data).strip() or b"waiting" in data or b"ping" in data:
            kept.append(bytes(data))

    monkeypatch.setattr(web.StreamResponse, "write", watched)
    return kept


@pytest.fixture
async def house(build: Build) -> House:
    return await build()


def ids(house: House, text: str) -> list[int]:
    return list(array("i", house.template.encode(text, start=False)))


def settings_asked(call: Call) -> dict[str, Any]:
    """What the record keeps of a request besides its messages and tools."""
    return {name: value for name, value in call.asked.items() if name not in ("messages", "tools")}


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Waits for a condition; fails after ``seconds``."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.005)
