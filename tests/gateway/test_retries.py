"""Clients that leave and come back (ruling 2), records that fail (ruling 5), and the end of an attempt."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anthropic
import openai
import pytest

from agentlightning.engines.base import SampleRequest
from agentlightning.errors import EngineError, StoreError, TemplateError
from agentlightning.gateway.calls import Identity, OpenCall
from agentlightning.gateway.open_calls import UnansweredRetries
from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import GatewayConfig
from agentlightning.store.base import Store
from tests.gateway.conftest import Build, House, Visit, until
from tests.gateway.scripted import Say


class Raw:
    """A bare HTTP/1.1 connection, to leave in the middle of things."""

    def __init__(self, visit: Visit) -> None:
        parts = urlsplit(visit.endpoint.base_url)
        self.host, self.port, self.path = parts.hostname, parts.port, parts.path

    async def send(
        self, body: dict[str, Any] | bytes, *, retry: int | None = None, path: str = "/chat/completions"
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        head = (
            f"POST {self.path}{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
            f"{len(data)}\r\n"
        )
        if retry is not None:
            head += f"x-stainless-retry-count: {retry}\r\n"
        self.writer.write(head.encode() + b"\r\n" + data)
        await self.writer.drain()

    async def status(self) -> int:
        return int((await self.reader.readuntil(b"\r\n\r\n")).split()[1])

    async def whole(self) -> tuple[int, Any]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    def leave(self) -> None:
        self.writer.transport.abort()


def body(text: str = "q", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


async def whole_answer(visit: Visit, *, retry: int | None = None) -> tuple[int, Any]:
    """Asks and reads the answer to its end."""
    connection = Raw(visit)
    await connection.send(body(), retry=retry)
    try:
        return await connection.whole()
    finally:
        connection.leave()


def held(**more: Any) -> dict[str, Any]:
    return {"hold": asyncio.Event(), **more}


async def leave_while_sampling(house: House, visit: Visit, *, count: int = 1, stays: bool = True, **more: Any) -> Raw:
    raw = Raw(visit)
    await raw.send(body(**more))
    await until(lambda: len(house.engine.requests) == count)
    raw.leave()
    if stays:
        await until(visit.orphans)
    return raw


async def test_an_equal_body_gets_the_reply_of_the_call_whose_client_left(build: Build) -> None:
    house = await build(**held(script=["first", "second"]))
    visit = await house.open()
    await leave_while_sampling(house, visit)
    again = Raw(visit)
    await again.send(body())
    await until(lambda: visit.session.usage.repeats)
    house.engine.hold.set()
    status, reply = await again.whole()
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "first")
    assert len(house.engine.requests) == 1
    [call] = await visit.calls()
    assert (call.status, call.id) == (CallStatus.COMPLETE, reply["id"])
    usage = await visit.end()
    assert (usage.calls, usage.repeats, usage.abandoned) == (1, 1, 0)


async def test_it_may_come_back_after_the_sampling_has_ended(build: Build) -> None:
    house = await build(**held(script=["first", "second"]), config=GatewayConfig(orphan_grace=60))
    visit = await house.open()
    await leave_while_sampling(house, visit)
    house.engine.hold.set()
    await until(lambda: visit.calls())
    assert (await visit.calls())[0].status is CallStatus.ABANDONED, "until it is claimed, nobody has it"
    again = Raw(visit)
    await again.send(body())
    assert (await again.whole())[1]["choices"][0]["message"]["content"] == "first"
    assert (await visit.calls())[0].status is CallStatus.COMPLETE


async def test_a_stream_that_was_cut_is_told_again_from_its_beginning(build: Build) -> None:
    house = await build(
        script=["a long sample that comes in many pieces"], delay=0.02, config=GatewayConfig(orphan_grace=60)
    )
    visit = await house.open()
    raw = Raw(visit)
    await raw.send(body(stream=True))
    assert await raw.status() == 200
    await raw.reader.readuntil(b"\n\n")
    raw.leave()
    await until(visit.orphans)
    text = ""
    async for chunk in await visit.ask("q", model="m", stream=True, extra_headers={"x-stainless-retry-count": "1"}):
        text += chunk.choices[0].delta.content or ""
    # The official client writes another body than ours: by its retry count alone it is no repeat.
    assert len(house.engine.requests) == 2
    again = Raw(visit)
    await again.send(body(stream=True))
    assert await again.status() == 200
    events = (await again.reader.readuntil(b"[DONE]")).decode()
    parts = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    assert (
        "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
        == "a long sample that comes in many pieces"
    )
    assert len(house.engine.requests) == 2


async def test_a_retry_count_claims_a_reply_that_was_written_but_lost(build: Build) -> None:
    house = await build(script=["first", "second", "third"])
    visit = await house.open()
    replies = []
    for retry in (None, 1, None, 0):
        raw = Raw(visit)
        await raw.send(body(), retry=retry)
        replies.append((await raw.whole())[1]["choices"][0]["message"]["content"])
        raw.leave()
    assert replies == ["first", "first", "second", "third"]
    assert len(await visit.calls()) == 3


async def test_a_retry_joins_a_call_whose_old_connection_still_looks_open(build: Build) -> None:
    house = await build(**held(script=["first", "second"]))
    visit = await house.open()
    old, new = Raw(visit), Raw(visit)
    await old.send(body())
    await until(lambda: house.engine.requests)
    await new.send(body(), retry=1)
    await until(lambda: visit.session.usage.repeats)
    house.engine.hold.set()
    assert (await new.whole())[1]["id"] == (await old.whole())[1]["id"]
    assert len(house.engine.requests) == 1


async def test_two_lost_calls_are_claimed_by_two_retries(build: Build) -> None:
    house = await build(**held(script=["first", "second", "third"]))
    visit = await house.open()
    for count in (1, 2):
        raw = Raw(visit)
        await raw.send(body())
        await until(lambda count=count: len(house.engine.requests) == count)
        if count == 1:
            one = raw
    one.leave()
    raw.leave()
    await until(lambda: visit.orphans() == 2)
    again = [Raw(visit), Raw(visit)]
    for raw in again:
        await raw.send(body(), retry=1)
    await until(lambda: visit.session.usage.repeats == 2)
    house.engine.hold.set()
    assert {(await raw.whole())[1]["choices"][0]["message"]["content"] for raw in again} == {"first", "second"}
    assert len(house.engine.requests) == 2


async def test_a_different_body_samples_anew(build: Build) -> None:
    house = await build(**held())
    visit = await house.open()
    await leave_while_sampling(house, visit)
    again = Raw(visit)
    await again.send(body("another question"))
    await until(lambda: len(house.engine.requests) == 2)
    house.engine.hold.set()
    await again.whole()


async def test_a_call_nobody_reclaims_while_it_samples_is_abandoned(build: Build) -> None:
    house = await build(**held(), config=GatewayConfig(orphan_grace=0.1))
    visit = await house.open()
    await leave_while_sampling(house, visit, stays=False)
    await until(lambda: house.engine.cancelled)
    await until(lambda: visit.calls())
    [call] = await visit.calls()
    assert (call.status, call.samples, call.prompt_node) == (CallStatus.ABANDONED, (), None)
    assert await visit.nodes() == []
    house.engine.hold.set()
    await visit.ask("q")
    assert (await visit.calls())[1].branch == "root"
    usage = await visit.end()
    assert (usage.abandoned, usage.incomplete) == (1, 0)


async def test_a_reply_nobody_reclaims_is_abandoned(build: Build) -> None:
    house = await build(**held(), config=GatewayConfig(orphan_grace=0.5))
    visit = await house.open()
    await leave_while_sampling(house, visit)
    house.engine.hold.set()
    await until(lambda: visit.session.usage.abandoned)
    await until(lambda: visit.nodes())
    again = Raw(visit)
    await again.send(body())
    await again.whole()
    assert len(house.engine.requests) == 2, "too late: it samples anew"
    assert [call.status for call in await visit.calls()] == [CallStatus.ABANDONED, CallStatus.COMPLETE]
    assert len(await visit.nodes()) == 3, "its tokens are kept, to be masked"
    assert (await visit.end()).abandoned == 1


async def test_a_client_that_times_out_and_retries_gets_the_first_reply(build: Build) -> None:
    """The official client's own behaviour: it gives up waiting, comes back with a retry count, and finds its sample
    waiting."""
    house = await build(**held(script=["slow but sure", "never"]))
    visit = await house.open()
    async with openai.AsyncOpenAI(base_url=visit.endpoint.base_url, api_key="x", max_retries=20, timeout=3.0) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
        )
        await until(lambda: visit.session.usage.repeats, 200)
        house.engine.hold.set()
        reply = await asking
    assert reply.choices[0].message.content == "slow but sure"
    assert len(house.engine.requests) == 1
    usage = await visit.end()
    assert usage.repeats >= 1
    assert (usage.abandoned, usage.calls) == (0, 1)


# --------------------------------------------------------------------------- records that fail


class Failing:
    """A store whose ``record`` fails for the calls in ``fails`` (by index)."""

    def __init__(self, store: Store, fails: set[int]) -> None:
        self._store, self.fails = store, fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def record(self, call: Any, nodes: Any) -> None:
        if call.index in self.fails:
            raise StoreError("the disk is full")
        await self._store.record(call, nodes)


async def test_a_call_that_could_not_be_recorded_makes_its_attempt_incomplete(build: Build) -> None:
    house = await build(wrap=lambda store: Failing(store, {0}))
    visit = await house.open()
    async with openai.AsyncOpenAI(base_url=visit.endpoint.base_url, api_key="x", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    assert caught.value.code == "not_recorded"
    assert "disk is full" in str(caught.value)
    assert len(house.engine.requests) == 1, "a client is told not to try again: the attempt is lost"
    assert await visit.calls() == []
    usage = await visit.end()
    assert usage.incomplete == 1
    assert "disk is full" in str(usage.last_error)


@pytest.mark.parametrize("follow_up", ["the same prompt", "a turn behind it"])
async def test_a_call_that_could_not_be_recorded_harms_no_later_one(build: Build, follow_up: str) -> None:
    house = await build(wrap=lambda store: Failing(store, {0}))
    visit = await house.open()
    with pytest.raises(openai.InternalServerError, match="the disk is full"):
        await visit.ask("q")
    reply = (await visit.ask("q")).choices[0].message.content
    if follow_up != "the same prompt":
        await visit.ask(
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": reply},
                {"role": "user", "content": "r"},
            ]
        )
    nodes = {node.id: node for node in await visit.nodes()}
    assert all(node.parent is None or node.parent in nodes for node in nodes.values())
    assert [call.branch for call in await visit.calls()] == ["root", "continued"][: len(await visit.calls())]
    assert (await visit.end()).incomplete == 1


async def test_a_stream_that_could_not_be_recorded_never_ends_well(build: Build) -> None:
    house = await build(wrap=lambda store: Failing(store, {0}), script=["a sample of some length"], delay=0.01)
    visit = await house.open()
    received = b""
    raw = Raw(visit)
    await raw.send(body(stream=True))
    try:
        while part := await raw.reader.read(1000):
            received += part
    except ConnectionError:
        received += b""
    assert b"200 OK" in received
    assert b"e length" in received, "what was sampled had been told"
    assert b"[DONE]" not in received
    assert b'finish_reason":"stop' not in received
    assert not received.endswith(b"0\r\n\r\n"), "the body is cut, so no client takes it for a whole one"
    assert (await visit.end()).incomplete == 1


async def test_the_last_bytes_wait_for_the_record(build: Build) -> None:
    release = asyncio.Event()

    class Slow(Failing):
        async def record(self, call: Any, nodes: Any) -> None:
            while not release.is_set():  # noqa: ASYNC110 - it is set from another thread
                await asyncio.sleep(0.005)
            await self._store.record(call, nodes)

    house = await build(wrap=lambda store: Slow(store, set()), script=["abcdefghijklmnop"] * 2)
    visit = await house.open()
    for stream in (True, False):
        release.clear()
        raw = Raw(visit)
        await raw.send(body(stream=stream))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await raw.reader.readuntil(b"[DONE]" if stream else b"}")
        assert len(await visit.calls()) == (0 if stream else 1)
        release.set()
        if stream:
            await raw.reader.readuntil(b"[DONE]")
        else:
            await raw.whole()


async def test_an_engine_that_fails_is_a_server_error_and_leaves_the_attempt_trainable(build: Build) -> None:
    from agentlightning.errors import EngineError

    house = await build(script=[EngineError("out of memory"), "fine"])
    visit = await house.open()
    async with openai.AsyncOpenAI(base_url=visit.endpoint.base_url, api_key="x", max_retries=1) as client:
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    assert reply.choices[0].message.content == "fine"
    assert [call.status for call in await visit.calls()] == [CallStatus.REFUSED, CallStatus.COMPLETE]
    usage = await visit.end()
    assert (usage.incomplete, usage.refused) == (0, 1)
    assert "out of memory" in str(usage.last_error)


async def test_one_failing_sample_of_n_withdraws_the_others(build: Build) -> None:
    from agentlightning.errors import EngineError

    house = await build(script=["slow" * 50, EngineError("lost"), "slow" * 50], delay=0.05)
    visit = await house.open()
    with pytest.raises(openai.InternalServerError):
        await visit.ask("q", n=3)
    assert house.engine.cancelled == 2


async def test_a_defect_is_answered_and_makes_the_attempt_incomplete(build: Build) -> None:
    house = await build(script=[ZeroDivisionError("a defect")])
    visit = await house.open()
    with pytest.raises(openai.InternalServerError):
        await visit.ask("q")
    assert (await visit.end()).incomplete == 1


# --------------------------------------------------------------------------- the end of an attempt


async def test_a_key_is_good_for_its_own_attempt_alone_and_until_it_ends(house: House) -> None:
    one, two = await house.open(), await house.open()
    assert one.endpoint.key != two.endpoint.key
    assert len(one.endpoint.key) >= 43
    await one.ask("q")
    forged = openai.AsyncOpenAI(
        base_url=one.endpoint.base_url.replace(one.endpoint.key, one.endpoint.key[:-1] + "_"), api_key=two.endpoint.key
    )
    async with forged:
        with pytest.raises(openai.AuthenticationError):
            await forged.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    assert len(await two.calls()) == 0
    usage = await one.end()
    assert usage.late == 0
    for _ in range(2):
        with pytest.raises(openai.APIStatusError) as caught:
            await one.ask("q")
        assert caught.value.status_code == 410
    assert usage.late == 2
    assert await one.end() is usage
    await two.ask("q")
    assert [call.status for call in await one.calls()] == ["complete", "late", "late"]


async def test_the_end_withdraws_what_is_still_open(build: Build) -> None:
    house = await build(**held())
    visit = await house.open()
    asking = asyncio.create_task(visit.ask("q"))
    streaming = asyncio.create_task(visit.ask("q", stream=True))
    await until(lambda: len(house.engine.requests) == 2)
    async with asyncio.timeout(20):
        usage = await visit.end()
    for task in (asking, streaming):
        with pytest.raises(openai.APIStatusError) as caught:
            await task
        assert caught.value.status_code == 410
    assert house.engine.cancelled == 2
    assert usage.abandoned == 2
    assert [call.status for call in await visit.calls()] == [CallStatus.ABANDONED] * 2


async def test_the_end_waits_for_what_is_being_recorded(build: Build) -> None:
    recording = asyncio.Event()

    class Slow(Failing):
        async def record(self, call: Any, nodes: Any) -> None:
            recording.set()
            await asyncio.sleep(0.2)
            await self._store.record(call, nodes)

    house = await build(wrap=lambda store: Slow(store, set()))
    visit = await house.open()
    asking = asyncio.create_task(visit.ask("q"))
    await until(recording.is_set)
    usage = await visit.end()
    with pytest.raises(openai.APIStatusError):
        await asking
    assert [call.status for call in await visit.calls()] == [CallStatus.ABANDONED]
    assert (usage.abandoned, usage.incomplete) == (1, 0)


async def test_closing_lets_open_calls_finish(build: Build) -> None:
    house = await build(delay=0.1, chunk=100, script=["finished"])
    visit = await house.open()
    asking = asyncio.create_task(visit.ask("q"))
    await until(lambda: house.engine.requests)
    await house.gateway.close()
    assert (await asking).choices[0].message.content == "finished"
    assert [call.status for call in await visit.calls()] == [CallStatus.COMPLETE]
    await house.gateway.close()


async def test_closing_withdraws_what_does_not_finish_in_time(build: Build) -> None:
    house = await build(**held(), config=GatewayConfig(drain=0.1))
    visit = await house.open()
    asking = asyncio.create_task(visit.ask("q"))
    await until(lambda: house.engine.requests)
    async with asyncio.timeout(30):
        await house.gateway.close()
    with pytest.raises(openai.APIError):
        await asking
    assert [call.status for call in await visit.calls()] == [CallStatus.ABANDONED]
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", int(house.gateway.url.rsplit(":", 1)[1]))


# --------------------------------------------------------------------------- calls without a reply


def fails_at(*places: int, error: type[Exception] = EngineError) -> Callable[[str, SampleRequest], Say]:
    """Samples that say which they are, but for some that fail."""
    at = itertools.count()
    return lambda _, __: error("out of memory") if (i := next(at)) in places else f"sample {i}"


@pytest.mark.parametrize("wire", ["chat", "chat stream", "responses", "messages"])
async def test_the_retry_of_a_call_that_failed_is_never_given_another_calls_reply(build: Build, wire: str) -> None:
    """Best of four with the official clients and their own retries: the same question again and again, of which the
    second and the fourth sample fail."""
    house = await build(answer=fails_at(1, 3, 4))
    visit = await house.open()

    async def ask() -> str:
        if wire == "messages":
            async with anthropic.AsyncAnthropic(base_url=visit.endpoint.root_url, api_key="k", max_retries=3) as client:
                message = await client.messages.create(
                    model="m", max_tokens=50, messages=[{"role": "user", "content": "q"}]
                )
                return message.content[0].text
        async with openai.AsyncOpenAI(base_url=visit.endpoint.base_url, api_key="k", max_retries=3) as client:
            if wire == "responses":
                return (await client.responses.create(model="m", input="q")).output_text
            asked: Any = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
            if wire == "chat":
                return (await client.chat.completions.create(**asked)).choices[0].message.content
            return "".join(
                [
                    chunk.choices[0].delta.content or ""
                    async for chunk in await client.chat.completions.create(**asked, stream=True)
                ]
            )

    assert [await ask() for _ in range(4)] == ["sample 0", "sample 2", "sample 5", "sample 6"]
    usage = await visit.end()
    assert (usage.calls, usage.repeats, usage.refused) == (7, 0, 3)


async def test_of_equal_calls_at_once_each_that_failed_is_sampled_again(build: Build) -> None:
    house = await build(answer=fails_at(1, 2))
    visit = await house.open()
    first = await asyncio.gather(*[whole_answer(visit) for _ in range(4)])
    assert sorted(status for status, _ in first) == [200, 200, 500, 500]
    again = [await whole_answer(visit, retry=1) for _ in range(2)]
    ids = {reply["id"] for status, reply in [*first, *again] if status == 200}
    assert len(ids) == 4
    lost = await whole_answer(visit, retry=1)
    assert lost[1]["id"] in ids and visit.session.usage.repeats == 1, "a third retry can only be that of a lost reply"


async def test_a_retry_that_fails_too_is_sampled_once_more(build: Build) -> None:
    house = await build(answer=fails_at(1, 2))
    visit = await house.open()
    ids = [(await whole_answer(visit))[1]["id"]]
    assert [(await whole_answer(visit, retry=retry))[0] for retry in (0, 1)] == [500, 500]
    ids.append((await whole_answer(visit, retry=2))[1]["id"])
    assert len(set(ids)) == 2


async def test_a_call_that_was_given_up_is_sampled_again_for_the_client_that_comes_back_late(build: Build) -> None:
    house = await build(**held(script=["first", "second", "third"]), config=GatewayConfig(orphan_grace=0.3))
    visit = await house.open()
    other = asyncio.create_task(whole_answer(visit))
    await until(lambda: house.engine.requests)
    await leave_while_sampling(house, visit, count=2, stays=False)
    await until(lambda: visit.session.usage.abandoned)
    house.engine.hold.set()
    _, reply = await other
    _, again = await whole_answer(visit, retry=1)
    assert again["id"] != reply["id"], "it is not the reply of the other"
    assert len(house.engine.requests) == 3


async def test_an_error_that_a_client_does_not_retry_leaves_nothing_behind(build: Build) -> None:
    house = await build(answer=fails_at(1, error=TemplateError))
    visit = await house.open()
    first = await whole_answer(visit)
    assert (await whole_answer(visit))[0] == 400
    assert (await whole_answer(visit, retry=1))[1]["id"] == first[1]["id"], (
        "the retry is that of the reply that was lost"
    )


def test_notes_of_calls_without_a_reply_are_few_and_expire() -> None:
    def call(text: bytes, retry: int = 0) -> OpenCall:
        return OpenCall("x", 0, 0, Identity(text), "chat", None, 0.0, 0.0, retry=retry)

    unanswered = UnansweredRetries(3, 60.0)
    for text, retry in ((b"a", 0), (b"b", 0), (b"b", 1), (b"c", 0)):
        unanswered.note(call(text, retry))
    assert not unanswered.take(Identity(b"a"), 1), "the oldest goes first"
    assert not unanswered.take(Identity(b"b"), 0) and not unanswered.take(Identity(b"b", b"key"), 1)
    assert unanswered.take(Identity(b"b"), 2) and unanswered.take(Identity(b"b"), 1), (
        "each retry finds its own call's note"
    )
    assert not unanswered.take(Identity(b"b"), 9)
    expired = UnansweredRetries(3, 0.0)
    expired.note(call(b"a"))
    assert not expired.take(Identity(b"a"), 1)


# --------------------------------------------------------------------------- keys of a client's own


async def keyed(visit: Visit, path: str, asked: dict[str, Any], key: str = "k") -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as client:
        async with client.post(visit.endpoint.root_url + path, json=asked, headers={"Idempotency-Key": key}) as reply:
            return reply.status, await reply.read()


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "another question": ("/v1/chat/completions", body("other")),
    "as a stream": ("/v1/chat/completions", body(stream=True)),
    "with log probabilities": ("/v1/chat/completions", body(logprobs=True)),
    "two samples": ("/v1/chat/completions", body(n=2)),
    "another agent": ("/agent/critic/v1/chat/completions", body()),
    "Messages": ("/v1/messages", body(max_tokens=9)),
    "Responses": ("/v1/responses", {"model": "m", "input": "q"}),
    "Gemini": ("/v1beta/models/g:generateContent", {"contents": [{"parts": [{"text": "q"}]}]}),
}


@pytest.mark.parametrize("open", [False, True], ids=["answered", "still sampled"])
async def test_a_key_is_good_for_one_request_alone(build: Build, open: bool) -> None:
    """Another one under the same key is refused in its wire's shape: it gets neither the first one's answer nor an
    empty stream nor a 500."""
    house = await build(**held(script=["first"]))
    visit = await house.open()
    asking = asyncio.create_task(keyed(visit, "/v1/chat/completions", body()))
    await until(lambda: house.engine.requests)
    if not open:
        house.engine.hold.set()
        await asking
    for name, (path, asked) in OTHERS.items():
        status, data = await keyed(visit, path, asked)
        error = json.loads(data)["error"]
        assert status == 422 and "Idempotency-Key" in error["message"], name
        if path.endswith("completions"):
            assert error["code"] == "idempotency_key_reuse"
    assert len(house.engine.requests) == 1
    house.engine.hold.set()
    first = await asking
    assert await keyed(visit, "/v1/chat/completions", body()) == first
    assert (await keyed(visit, "/v1/chat/completions", body("other"), "k2"))[0] == 200
    usage = await visit.end()
    assert (usage.refused, usage.incomplete) == (len(OTHERS), 0)


async def test_a_key_whose_call_failed_may_be_used_again(build: Build) -> None:
    house = await build(answer=fails_at(0))
    visit = await house.open()
    assert [(await keyed(visit, "/v1/chat/completions", body()))[0] for _ in range(2)] == [500, 200]
