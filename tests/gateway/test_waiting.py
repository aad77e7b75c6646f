"""What a client sees while it waits: nothing but what keeps it from giving up, and never a reply that looks whole and
is not."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai import APIConnectionError, InternalServerError

from agentlightning.errors import EngineError
from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import GatewayConfig, SamplingConfig
from agentlightning.templates import load_template
from tests.gateway.conftest import Build, House, Visit, until
from tests.gateway.test_retries import Raw, body
from tests.tiny import tiny_tokenizer

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


async def test_the_official_client_reads_a_reply_with_heartbeats_in_front(
    build: Build, heartbeats: list[bytes]
) -> None:
    house, visit = await held_house(build, script=["late", "later"])
    asked = asyncio.create_task(visit.ask("q"))
    await until(lambda: len(heartbeats) > 2)
    house.engine.hold.set()
    assert (await asked).choices[0].message.content == "late"
    house.engine.hold.clear()

    async def streamed() -> str:
        return "".join(
            [chunk.choices[0].delta.content or "" async for chunk in await visit.ask("q", stream=True) if chunk.choices]
        )

    asked = asyncio.create_task(streamed())
    heartbeats.clear()
    await until(lambda: len(heartbeats) > 2)
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
async def test_a_failure_after_a_heartbeat_drops_the_connection_and_is_never_a_whole_reply(
    build: Build, stream: bool
) -> None:
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


async def test_the_official_client_takes_a_dropped_reply_for_a_failure(build: Build, heartbeats: list[bytes]) -> None:
    house, visit = await held_house(build, script=[EngineError("out of memory")])
    real = house.engine.sample

    async def failing(*arguments: Any) -> Any:
        while not house.engine.hold.is_set():  # noqa: ASYNC110 - it is set from another thread
            await asyncio.sleep(0.002)
        return await real(*arguments)

    house.engine.sample = failing  # type: ignore[method-assign]
    asked = asyncio.create_task(visit.ask("q"))
    await until(lambda: len(heartbeats) > 2)
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
    async with asyncio.timeout(60):
        assert (await visit.ask("q")).choices[0].message.content == "quick"
    slow.writer.transport.resume_reading()
    await slow.reader.readuntil(b"[DONE]")
    slow.leave()


async def test_what_a_client_does_not_read_is_not_piled_up(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of several megabytes: the connection holds a few events of it, and the reply counts as given only once
    it was read."""
    piled: list[int] = []
    write = web.StreamResponse.write

    async def watched(self: web.StreamResponse, data: Any) -> None:
        await write(self, data)
        piled.append(self._req.transport.get_write_buffer_size())  # type: ignore[union-attr]

    monkeypatch.setattr(web.StreamResponse, "write", watched)
    house = await build(template=load_template(tiny_tokenizer()), script=["x" * 30_000], chunk=1, config=SOON)
    visit = await house.open(sampling=SamplingConfig(max_tokens=50_000))
    slow = Raw(visit)
    await slow.send(body(stream=True))
    await slow.reader.readuntil(b"\r\n\r\n")
    slow.writer.transport.pause_reading()
    await until(lambda: visit.calls())
    await asyncio.sleep(0.2)
    stuck = len(piled)
    assert not visit.session.calls.kept, "sampled and recorded, but not given"
    assert max(piled) < 500_000
    slow.writer.transport.resume_reading()
    read = bytearray()
    while not read.endswith(b"0\r\n\r\n"):
        read += await slow.reader.read(2**20)
    assert read.count(b'"content":"x') > 1000 and b"[DONE]" in read
    assert len(piled) > stuck, "it stood still"
    assert visit.session.calls.kept
    slow.leave()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_never_reads_keeps_neither_its_attempt_nor_the_gateway_from_ending(
    build: Build, stream: bool
) -> None:
    house = await build(template=load_template(tiny_tokenizer()), script=["x" * 80_000], chunk=1000, config=SOON)
    visit = await house.open(sampling=SamplingConfig(max_tokens=100_000))
    stuck = Raw(visit)
    await stuck.send(body(stream=stream, logprobs=True))
    await stuck.reader.readuntil(b"HTTP/1.1 200 OK\r\n")
    stuck.writer.transport.pause_reading()
    await until(lambda: visit.calls())
    await asyncio.sleep(0.2)
    async with asyncio.timeout(60):
        usage = await visit.end()
        await house.gateway.close()
    assert usage.incomplete == 0
    [call] = await visit.calls()
    assert call.status in (CallStatus.ABANDONED, CallStatus.COMPLETE)
    stuck.leave()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_an_attempt_lets_go_of_those_that_wait(build: Build, stream: bool) -> None:
    """EarlierReplies its deadline an attempt is ended, whatever its agent waits for: a reply that has begun is cut, and no client
    takes it for a whole one."""
    house, visit = await held_house(build)
    raw = Raw(visit)
    await raw.send(body(stream=stream))
    await raw.reader.readuntil(b"waiting" if stream else b"\r\n \r\n")
    async with asyncio.timeout(60):
        usage = await visit.end()
        try:
            rest = await raw.reader.read()
        except ConnectionError:
            rest = b""
    assert b"0\r\n\r\n" not in rest and b"choices" not in rest
    assert (usage.abandoned, usage.incomplete, house.engine.cancelled) == (1, 0, 1)
    again = Raw(visit)
    await again.send(body(stream=stream))
    assert await again.status() == 410


async def test_while_it_drains_the_gateway_takes_no_new_calls(build: Build) -> None:
    """Also on a connection that was open already; what is under way ends well."""
    house, visit = await held_house(build, script=["first", "last"])
    house.engine.hold.set()
    kept = Raw(visit)
    await kept.send(body())
    assert (await kept.whole())[1]["choices"][0]["message"]["content"] == "first"
    house.engine.hold.clear()
    asked = asyncio.create_task(visit.ask("q"))
    await until(lambda: len(house.engine.requests) == 2)
    closing = asyncio.create_task(house.gateway.close())
    await until(lambda: house.gateway._draining)
    data = json.dumps(body("late")).encode()
    head = (
        f"POST {kept.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    kept.writer.write(head.encode() + data)
    status, refusal = await kept.whole()
    assert (status, refusal["error"]["code"]) == (503, "shutting_down")
    house.engine.hold.set()
    assert (await asked).choices[0].message.content == "last"
    await closing


async def test_load_makes_calls_wait_and_is_never_a_429(build: Build) -> None:
    """Two hundred at once for an engine that takes one at a time."""

    def answer(prompt: str, request: Any) -> str:
        return re.findall(r"question \d+[.]", prompt)[-1]

    house = await build(config=GatewayConfig(heartbeat=0.05, drain=10), answer=answer, deterministic=True)
    visit = await house.open()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def one(i: int) -> tuple[int, str]:
            async with client.post(
                f"{visit.endpoint.base_url}/chat/completions", json=body(f"question {i}.")
            ) as response:
                return response.status, (await response.json())["choices"][0]["message"]["content"]

        answers = await asyncio.gather(*(one(i) for i in range(200)))
    assert {status for status, _ in answers} == {200}
    assert house.engine.most_running == 1
    assert [said for _, said in answers] == [f"question {i}." for i in range(200)]


async def post(visit: Visit, key: str | None, text: str = "q") -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    async with aiohttp.ClientSession() as client:
        async with client.post(
            f"{visit.endpoint.base_url}/chat/completions", json=body(text), headers=headers
        ) as response:
            assert response.status == 200
            return json.loads(await response.read())


async def test_an_idempotency_key_says_which_requests_are_one_call(build: Build) -> None:
    """Equal keys are one call, also after its reply was read in full; different ones are different calls, however equal
    their bodies."""
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
