"""A gateway that serves forgets: whatever is asked of it, and for however long, it holds no more."""

from __future__ import annotations

import asyncio
import gc

import aiohttp
import openai
import pytest

from agentlightning.gateway import model_server
from agentlightning.gateway.model_server import ModelServer
from agentlightning.gateway.session import Served
from agentlightning.settings.fields import GatewayConfig, SamplingConfig
from tests.gateway.conftest import until
from tests.gateway.scripted import GlassTemplate, ScriptedEngine


@pytest.fixture
async def gateway():
    template = GlassTemplate()
    made = ModelServer(
        Served("served", ScriptedEngine(template), template), GatewayConfig(drain=1), SamplingConfig(), "key"
    )
    await made.start()
    yield made
    await made.close()


async def test_what_was_answered_is_forgotten(gateway: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_server, "KEPT_REPLIES", 3)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0) as client:
        replies = [await client.responses.create(model="m", input=f"question {i}") for i in range(8)]
        for i in range(8):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"question {i}"}])
            await client.conversations.create()
        assert (await client.responses.retrieve(replies[-1].id)).id == replies[-1].id
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(replies[0].id)

    def forgotten() -> bool:
        gc.collect()
        return not gateway._live

    await until(forgotten)
    assert (
        len(gateway._kept_replies._kept)
        == len(gateway._kept_replies._order)
        == len(gateway._kept_replies.conversations)
        == 3
    )
    assert not gateway._sessions and not gateway.ended._attempts and len(gateway._answering) == 1


async def test_a_client_that_leaves_stops_its_sample(gateway: ModelServer) -> None:
    engine = gateway._policies["served"].engine
    assert isinstance(engine, ScriptedEngine)
    engine.hold = asyncio.Event()
    async with openai.AsyncOpenAI(base_url=gateway.url, api_key="key", max_retries=0) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
        )
        await until(lambda: engine.running == 1)
        asking.cancel()
        await until(lambda: engine.cancelled == 1 and engine.running == 0)


async def test_the_end_withdraws_what_is_still_sampled_and_answers_nothing_new(gateway: ModelServer) -> None:
    engine = gateway._policies["served"].engine
    assert isinstance(engine, ScriptedEngine)
    engine.hold = asyncio.Event()
    async with openai.AsyncOpenAI(base_url=gateway.url, api_key="key", max_retries=0) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
        )
        await until(lambda: engine.running == 1)
        await gateway.close()
        with pytest.raises(openai.APIError):
            await asking
        assert (engine.cancelled, engine.running) == (1, 0)
        with pytest.raises(openai.APIConnectionError):
            await client.models.list()


async def test_without_a_key_everybody_is_let_in_and_with_one_nobody_who_lacks_it(gateway: ModelServer) -> None:
    for key, status in (("key", 200), ("kez", 401), ("", 401)):
        for name, value in (
            ("x-api-key", key),
            ("x-goog-api-key", key),
            ("api-key", key),
            ("Authorization", f"Bearer {key}"),
        ):
            assert await _models(gateway.url, {name: value}) == status
    assert await _models(f"{gateway.url}/v1beta", {}, "?key=key") == 200
    template = GlassTemplate()
    free = ModelServer(
        Served("served", ScriptedEngine(template), template), GatewayConfig(drain=1), SamplingConfig(), None
    )
    await free.start()
    assert await _models(free.url, {}) == 200
    await free.close()


async def _models(url: str, headers: dict[str, str], query: str = "") -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/models{query}", headers=headers) as response:
        return response.status
