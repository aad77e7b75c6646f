"""What a client sees while it waits: nothing but what keeps it from giving up, and never a reply that looks whole and is not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from openai import APIConnectionError, InternalServerError

from agentlightning.config import GatewayConfig
from agentlightning.errors import EngineError
from agentlightning.types import CallStatus
from tests.gateway.conftest import Build, House, Visit, until
from tests.gateway.test_retries import Raw, body

SOON = GatewayConfig(heartbeat=0.03, orphan_grace=60, drain=10)


async def held_house(build: Build, **more: Any) -> tuple[House, Visit]:
    house = await build(config=SOON, hold=asyncio.Event(), **more)
    return house, await house.open()


async def test_spaces_before_the_json_keep_a_waiting_client(build: Build) -> None:
    house, visit = await held_house(build, script=["late"])
    raw = Raw(visit)
    await raw.send(body())
    head = await raw.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"application/json" in head
    assert await raw.reader.readexactly(8) == b"1\r\n \r\n1\r"
    house.engine.hold.set()
    rest = await raw.reader.readuntil(b"0\r\n\r\n")
    assert b'"late"' in rest
    raw.leave()
    reply = await visit.ask("again")
    assert reply.choices[0].message.content == "ok"


async def test_the_official_client_reads_a_reply_with_heartbeats_in_front(build: Build) -> None:
    house, visit = await held_house(build, script=["late", "later"])
    asked = asyncio.create_task(visit.ask("q"))
    await until(lambda: house.engine.requests)
    await asyncio.sleep(0.15)
    house.engine.hold.set()
    assert (await asked).choices[0].message.content == "late"
    house.engine.hold.clear()

    async def streamed() -> str:
        return "".join([chunk.choices[0].delta.content or "" async for chunk in await visit.ask("q", stream=True) if chunk.choices])

    asked = asyncio.create_task(streamed())
    await until(lambda: len(house.engine.requests) == 2)
    await asyncio.sleep(0.15)
    house.engine.hold.set()
    assert await asked == "later"


async def test_comments_between_events_keep_a_waiting_stream(build: Build) -> None:
    house, visit = await held_house(build, script=["late"])
    raw = Raw(visit)
    await raw.send(body(stream=True))
    head = await raw.reader.readuntil(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert b": waiting\n\n" in await raw.reader.readuntil(b"waiting\n\n")
    house.engine.hold.set()
    assert b'"late"' in (await raw.reader.readuntil(b"[DONE]"))
    raw.leave()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_after_a_heartbeat_drops_the_connection_and_is_never_a_whole_reply(build: Build, stream: bool) -> None:
    house, visit = await held_house(build)
    fail = asyncio.Event()

    async def failing(request: Any, on_tokens: Any = None) -> Any:
        while not fail.is_set():  # noqa: ASYNC110 - it is set from another thread
            await asyncio.sleep(0.002)
        raise EngineError("out of memory")

    house.engine.sample = failing  # type: ignore[method-assign]
    raw = Raw(visit)
    await raw.send(body(stream=stream))
    await raw.reader.readuntil(b"waiting" if stream else b"\r\n \r\n")
    fail.set()
    rest = await raw.reader.read()
    assert b"0\r\n\r\n" not in rest and b"choices" not in rest
    [call] = await visit.calls()
    assert call.status is CallStatus.REFUSED and "out of memory" in (call.error or "")


async def test_what_can_be_refused_is_refused_before_any_heartbeat(build: Build) -> None:
    house, visit = await held_house(build, context_length=10)
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{visit.endpoint.base_url}/chat/completions", json=body("a long prompt")) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "context_length_exceeded")
    assert not house.engine.requests


async def test_an_engine_that_fails_at_once_is_answered_properly(build: Build) -> None:
    house = await build(config=GatewayConfig(heartbeat=30, drain=10), script=[EngineError("out of memory")])
    visit = await house.open()
    with pytest.raises(InternalServerError, match="out of memory"):
        await visit.ask("q")


async def test_the_official_client_takes_a_dropped_reply_for_a_failure(build: Build) -> None:
    house, visit = await held_house(build, script=[EngineError("out of memory")])
    real = house.engine.sample

    async def failing(*arguments: Any) -> Any:
        while not house.engine.hold.is_set():  # noqa: ASYNC110 - it is set from another thread
            await asyncio.sleep(0.002)
        return await real(*arguments)

    house.engine.sample = failing  # type: ignore[method-assign]
    asked = asyncio.create_task(visit.ask("q"))
    await asyncio.sleep(0.15)  # some heartbeats
    house.engine.hold.set()
    with pytest.raises(APIConnectionError):
        await asked


async def test_a_client_that_reads_slowly_holds_nobody_up(build: Build) -> None:
    house = await build(script=["x" * 400_000, "quick"], chunk=2000, config=SOON)
    visit = await house.open()
    slow = Raw(visit)
    await slow.send(body(stream=True, max_tokens=500_000))
    await slow.reader.readuntil(b"\r\n\r\n")
    slow.writer.transport.pause_reading()
    async with asyncio.timeout(5):
        assert (await visit.ask("q")).choices[0].message.content == "quick"
    slow.writer.transport.resume_reading()
    await slow.reader.readuntil(b"[DONE]")
    slow.leave()


async def post(visit: Visit, key: str | None, text: str = "q") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{visit.endpoint.base_url}/chat/completions", json=body(text), headers=headers) as response:
            assert response.status == 200
            return json.loads(await response.read())


async def test_an_idempotency_key_says_which_requests_are_one_call(build: Build) -> None:
    """Equal keys are one call, also after its reply was read in full; different ones are different calls, however equal their bodies."""
    house = await build(script=["first", "second", "third"])
    visit = await house.open()
    first, again, other, none = [await post(visit, key) for key in ("k1", "k1", "k2", None)]
    assert first == again and first["choices"][0]["message"]["content"] == "first"
    assert [reply["choices"][0]["message"]["content"] for reply in (other, none)] == ["second", "third"]
    assert len({reply["id"] for reply in (first, other, none)}) == 3
    usage = await visit.end()
    assert (usage.calls, usage.repeats) == (3, 1)


async def test_equal_questions_of_several_agents_at_once_are_several_samples(build: Build) -> None:
    house = await build(script=[str(i) for i in range(8)])
    visit = await house.open()
    replies = await asyncio.gather(*(post(visit, None) for _ in range(8)))
    assert len({reply["choices"][0]["message"]["content"] for reply in replies}) == 8
