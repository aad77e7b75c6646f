"""Each official client's own way to try again, on every wire, through a network that loses replies: one question is one
sample, unless it was asked twice.

openai and anthropic count their retries in a header; google-genai tells nobody that it tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import GatewayConfig
from tests.gateway.conftest import Build, House, Visit, until

WAIT, SAMPLING = 2.5, 3.5
"""A client that gives up after 60 s where a sample takes 90, in a hurry."""

Headers = dict[str, str]

Q: list[dict[str, Any]] = [{"role": "user", "content": "q"}]


class Network:
    """What lies between a client and the gateway. ``lose`` whole replies arrive here and go no further: the connection
    breaks instead."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname, parts.port)
        self.lose = 0
        self.connections = 0
        self._clients: dict[str, Any] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def through(self, url: str) -> str:
        """A URL of the gateway's, by way of here."""
        parts = urlsplit(url)
        return parts._replace(netloc=f"127.0.0.1:{self.port}").geturl()

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """The client of this name, made when it is first asked for."""
        if name not in self._clients:
            self._clients[name] = make()
        return self._clients[name]

    def cut(self) -> None:
        """Breaks every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        for client in self._clients.values():
            await (client.aio.aclose() if isinstance(client, genai.Client) else client.close())
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection(*self._to)
        self._writers |= {writer, there_writer}
        for work in (self._ask(reader, there_writer), self._answer(there_reader, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)

    async def _ask(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                there.write(data)
        except ConnectionError:
            there.transport.abort()
        there.close()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = b""
        try:
            while data := await there.read(65536):
                kept += data
                if not self.lose:
                    writer.write(kept)
                    kept = b""
                elif _whole(kept):
                    self.lose -= 1
                    self.cut()
        except ConnectionError:
            writer.transport.abort()
        writer.close()


def _whole(reply: bytes) -> bool:
    head, found, body = reply.partition(b"\r\n\r\n")
    if not found:
        return False
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    return len(body) >= int(length) if length else body.endswith(b"0\r\n\r\n")


@asynccontextmanager
async def network_of(visit: Visit) -> AsyncIterator[Network]:
    network = Network(visit.endpoint.root_url)
    await network.start()
    try:
        yield network
    finally:
        await network.close()


# --------------------------------------------------------------------------- the clients


def of_openai(visit: Visit, network: Network, timeout: float) -> AsyncOpenAI:
    url = network.through(visit.endpoint.base_url)
    return network.keep("openai", lambda: AsyncOpenAI(base_url=url, api_key="x", max_retries=9, timeout=timeout))


async def chat(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    create = of_openai(visit, network, timeout).chat.completions.create
    return (await create(model="m", messages=Q, extra_headers=headers)).choices[0].message.content or ""


async def chat_stream(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    create = of_openai(visit, network, timeout).chat.completions.create
    stream = await create(model="m", messages=Q, stream=True, extra_headers=headers)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def responses(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    return (
        await of_openai(visit, network, timeout).responses.create(model="m", input="q", extra_headers=headers)
    ).output_text


async def responses_stream(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    events = await of_openai(visit, network, timeout).responses.create(
        model="m", input="q", stream=True, extra_headers=headers
    )
    return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])


async def completions(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    create = of_openai(visit, network, timeout).completions.create
    return (await create(model="m", prompt="q", max_tokens=100, extra_headers=headers)).choices[0].text


def of_anthropic(visit: Visit, network: Network, timeout: float) -> AsyncAnthropic:
    url = network.through(visit.endpoint.root_url)
    return network.keep("anthropic", lambda: AsyncAnthropic(base_url=url, api_key="x", max_retries=9, timeout=timeout))


async def messages(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    create = of_anthropic(visit, network, timeout).messages.create
    return (await create(model="m", max_tokens=100, messages=Q, extra_headers=headers)).content[0].text


async def messages_stream(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    client = of_anthropic(visit, network, timeout)
    async with client.messages.stream(model="m", max_tokens=100, messages=Q, extra_headers=headers) as stream:
        return await stream.get_final_text()


def of_google(
    visit: Visit, network: Network, timeout: float, headers: Headers
) -> tuple[Any, types.GenerateContentConfig]:
    options = types.HttpOptions(
        base_url=network.through(visit.endpoint.root_url),
        timeout=int(timeout * 1000),
        retry_options=types.HttpRetryOptions(attempts=5, initial_delay=0.01, jitter=0.01),
    )
    client = network.keep("google", lambda: genai.Client(api_key="x", vertexai=False, http_options=options))
    return client.aio.models, types.GenerateContentConfig(http_options=types.HttpOptions(headers=headers))


async def gemini(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    models, config = of_google(visit, network, timeout, headers)
    return (await models.generate_content(model="m", contents="q", config=config)).text or ""


async def gemini_stream(visit: Visit, network: Network, timeout: float, headers: Headers) -> str:
    models, config = of_google(visit, network, timeout, headers)
    return "".join(
        [
            chunk.text or ""
            async for chunk in await models.generate_content_stream(model="m", contents="q", config=config)
        ]
    )


Ask = Callable[[Visit, Network, float, Headers], Coroutine[Any, Any, str]]
COUNTING: list[Ask] = [chat, chat_stream, responses, responses_stream, completions, messages, messages_stream]
"""These say in a header that they try again."""
SILENT: list[Ask] = [gemini, gemini_stream]


def named(ask: Ask) -> str:
    return getattr(ask, "__name__", "")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients wait half a second before they try again; a test need not."""
    for client in (openai, anthropic):
        monkeypatch.setattr(client._base_client, "INITIAL_RETRY_DELAY", 0.01)


async def came_to(visit: Visit) -> tuple[list[CallStatus], list[str]]:
    calls = await visit.calls()
    usage = await visit.end()
    assert (usage.incomplete, usage.abandoned, usage.calls) == (0, 0, len(calls))
    return [call.status for call in calls], [call.branch for call in calls]


# --------------------------------------------------------------------------- what they get


@pytest.mark.parametrize("ask", COUNTING, ids=named)
async def test_a_reply_that_was_lost_is_given_again(house: House, ask: Ask) -> None:
    house.engine.script = ["first", "second"]
    visit = await house.open()
    async with network_of(visit) as network:
        network.lose = 2
        assert await ask(visit, network, 30, {}) == "first"
        assert network.lose == 0 and network.connections == 3
    assert len(house.engine.requests) == 1
    assert visit.session.usage.repeats == 2
    assert await came_to(visit) == ([CallStatus.COMPLETE], ["root"])


@pytest.mark.parametrize("ask", SILENT, ids=named)
async def test_a_lost_reply_whose_client_does_not_say_so_is_a_sample_of_its_own(house: House, ask: Ask) -> None:
    """It had been written in full, and an equal question may be meant; an Idempotency-Key says that it is not."""
    house.engine.script = ["first", "second", "third"]
    visit, other = await house.open(), await house.open()
    for each, headers, said in ((visit, {}, "second"), (other, {"Idempotency-Key": "k"}, "third")):
        async with network_of(each) as network:
            network.lose = 1
            assert await ask(each, network, 30, headers) == said
    assert await came_to(visit) == ([CallStatus.COMPLETE] * 2, ["root", "forked"])
    assert await came_to(other) == ([CallStatus.COMPLETE], ["root"])


@pytest.mark.parametrize("ask", [*COUNTING, *SILENT], ids=named)
async def test_a_connection_that_breaks_while_the_model_samples_costs_no_second_sample(build: Build, ask: Ask) -> None:
    house = await build(script=["first", "second"], hold=asyncio.Event())
    visit = await house.open()
    async with network_of(visit) as network:
        asking = asyncio.create_task(ask(visit, network, 30, {}))
        for broken in (1, 2):
            await until(lambda: house.engine.requests)
            network.cut()
            await until(lambda broken=broken: visit.session.usage.repeats == broken)
        house.engine.hold.set()
        assert await asking == "first"
    assert len(house.engine.requests) == 1
    assert await came_to(visit) == ([CallStatus.COMPLETE], ["root"])


async def side_by_side(house: House, asks: list[Ask], wait: Callable[[Ask, Visit, Network], Awaitable[None]]) -> None:
    """Has each client ask in an attempt of its own, at the same time: all they do is wait. Each has asked before, so
    that it is ready."""

    async def one(ask: Ask, ready: asyncio.Barrier) -> None:
        visit = await house.open()
        async with network_of(visit) as network:
            assert await ask(visit, network, WAIT, {}) == "ready"
            await ready.wait()
            house.engine.delay = SAMPLING
            await wait(ask, visit, network)
        assert await came_to(visit) == ([CallStatus.COMPLETE] * 2, ["root", "forked"]), named(ask)

    ready = asyncio.Barrier(len(asks))
    async with asyncio.TaskGroup() as group:
        for ask in asks:
            group.create_task(one(ask, ready))
    assert len(house.engine.requests) == 2 * len(asks)


def slow(house: House) -> Callable[[str, Any], str]:
    return lambda prompt, request: "slow but sure" if house.engine.delay else "ready"


async def test_a_client_that_gives_up_before_the_sample_is_there_finds_it_when_it_comes_back(build: Build) -> None:
    house = await build(chunk=1000)
    house.engine.answer = slow(house)

    async def wait(ask: Ask, visit: Visit, network: Network) -> None:
        if ask in SILENT:  # it does not try again after a timeout of its own: whoever called it does
            with pytest.raises(TimeoutError):
                await ask(visit, network, WAIT, {})
        assert await ask(visit, network, WAIT, {}) == "slow but sure", named(ask)
        assert visit.session.usage.repeats >= 1, named(ask)

    await side_by_side(house, [*COUNTING, *SILENT], wait)


async def test_heartbeats_keep_a_client_from_giving_up(build: Build) -> None:
    house = await build(chunk=1000, config=GatewayConfig(heartbeat=0.05, drain=10))
    house.engine.answer = slow(house)

    async def wait(ask: Ask, visit: Visit, network: Network) -> None:
        connections = network.connections
        assert await ask(visit, network, WAIT, {}) == "slow but sure", named(ask)
        assert (network.connections, visit.session.usage.repeats) == (connections, 0), named(ask)

    await side_by_side(house, COUNTING, wait)


@pytest.mark.parametrize("ask", [*COUNTING, *SILENT], ids=named)
async def test_as_many_agents_as_ask_the_same_at_once_get_a_sample_each(build: Build, ask: Ask) -> None:
    house = await build(script=[f"answer {i}" for i in range(4)], hold=asyncio.Event())
    visit = await house.open()
    async with network_of(visit) as network:
        asking = [asyncio.create_task(ask(visit, network, 30, {})) for _ in range(4)]
        await until(lambda: len(house.engine.requests) == 4)
        house.engine.hold.set()
        assert len(set(await asyncio.gather(*asking))) == 4
    assert visit.session.usage.repeats == 0
    assert await came_to(visit) == ([CallStatus.COMPLETE] * 4, ["root", *["forked"] * 3])


@pytest.mark.parametrize("ask", [*COUNTING, *SILENT], ids=named)
async def test_a_key_of_the_clients_own_overrides_the_rule(build: Build, ask: Ask) -> None:
    """Equal keys are one call, even after its reply was read; different ones are two, even where the first connection
    broke."""
    house = await build(script=["first", "second", "third"])
    visit = await house.open()
    async with network_of(visit) as network:
        keys = ("k1", "k1", "k2", "k1")
        assert [await ask(visit, network, 30, {"Idempotency-Key": key}) for key in keys] == [
            "first",
            "first",
            "second",
            "first",
        ]
        house.engine.hold = asyncio.Event()
        left = asyncio.create_task(ask(visit, network, 30, {"Idempotency-Key": "k3"}))
        await until(lambda: len(house.engine.requests) == 3)
        left.cancel()
        await until(visit.orphans)
        again = asyncio.create_task(ask(visit, network, 30, {"Idempotency-Key": "k4"}))
        await until(lambda: len(house.engine.requests) == 4)
        house.engine.hold.set()
        assert await again == "ok"
    await until(lambda: not visit.session.calls.running)  # also what was left is recorded
    usage = await visit.end()
    assert [call.branch for call in await visit.calls()] == ["root", "forked", "forked", "forked"]
    assert usage.abandoned == 1
