"""External models: calls go out under a key that agents never see, come back as they are, are recorded whole, and are
never trained."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.agent.resources import LLM, NamedResources
from agentlightning.errors import ConfigError, StoreError
from agentlightning.gateway.connections import Listener
from agentlightning.gateway.external.replies import EventGate, Redactor, usage_of
from agentlightning.gateway.external.upstream import Upstream, with_model
from agentlightning.nouns import Call, CallStatus
from agentlightning.settings.fields import GatewayConfig
from tests.gateway.conftest import Build, House, Visit, until
from tests.upstream import KEY, USAGE, OtherEndpoint, event, stream

ASK = [{"role": "user", "content": "how good is this?"}]


@pytest.fixture
def other() -> Iterator[OtherEndpoint]:
    endpoint = OtherEndpoint()
    yield endpoint
    endpoint.go.set()
    endpoint.close()


@pytest.fixture
async def house(build: Build, other: OtherEndpoint) -> AsyncIterator[House]:
    yield await build(**judged(other.url))


def judged(url: str, config: GatewayConfig | None = None, **more: Any) -> dict[str, Any]:
    """What `build` needs for a house with an external model called ``judge``."""
    return {
        "external": {"judge": LLM(endpoint=url, model="true-name", api_key=KEY)},
        "config": config or GatewayConfig(orphan_grace=60, drain=10, upstream_timeout=20),
        **more,
    }


async def judge(visit: Visit, **options: Any) -> Any:
    return await visit.ask(ASK, model="judge", **options)


async def raw(visit: Visit, body: bytes, path: str = "chat/completions", **headers: str) -> tuple[int, bytes, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{visit.endpoint.base_url}/{path}", data=body, headers={"Content-Type": "application/json", **headers}
        ) as response,
    ):
        return response.status, await response.read(), response.headers


# --------------------------------------------------------------------------- what passes


async def test_a_call_is_passed_on_with_the_true_name_and_key_and_comes_back_byte_for_byte(
    house: House, other: OtherEndpoint
) -> None:
    visit = await house.open()
    body = b' {"stop":"x" ,"model"\n: "judge","temperature": 1.0, "seed":123456789012345678901234567890, "extra":{"model":"judge"},"messages":[]}\n'
    status, reply, headers = await raw(
        visit, body, Authorization="Bearer the-agents-own", **{"x-api-key": "the-agents-own"}
    )
    [asked] = other.asked
    assert asked.body == body.replace(b'"judge"', b'"true-name"', 1), "all but the name stays as the agent sent it"
    assert (
        asked.path == "/v1/chat/completions"
        and asked.headers["Authorization"] == f"Bearer {KEY}"
        and "x-api-key" not in asked.headers
    )
    assert (status, reply) == (200, other.whole({"model": "true-name"}))
    assert headers["Content-Type"] == "application/json" and headers["x-request-id"] == "req-7"


async def test_the_official_client_talks_to_policy_and_judge_through_one_endpoint(
    house: House, other: OtherEndpoint
) -> None:
    house.engine.script = ["the policy's words"]
    visit = await house.open()
    mine = await visit.ask("hello")
    theirs = await judge(visit)
    assert mine.choices[0].message.content == "the policy's words" and theirs.choices[0].message.content == "0.5"
    policy, external = await visit.calls()
    assert policy.external is None and policy.sampled_tokens > 0
    assert (external.policy, external.branch, external.prompt_node, external.samples) == ("", "", None, ())
    assert (external.prompt_tokens, external.sampled_tokens, external.model, external.wire) == (0, 0, "judge", "chat")
    assert {node.call_index for node in await visit.nodes()} == {policy.index}, "no token of it is in the tree"
    usage = await visit.end()
    assert usage.calls == 1 and usage.external["judge"].calls == 1 and usage.sampled_tokens == policy.sampled_tokens


async def test_a_call_is_recorded_whole_as_it_was_given(house: House, other: OtherEndpoint) -> None:
    visit = await house.open()
    body = orjson.dumps({"model": "judge", "messages": ASK, "logit_bias": {"1": 2}, "user": "agent:critic"})
    await raw(visit, body)
    [call] = await visit.calls()
    assert call.status is CallStatus.COMPLETE and call.agent == "critic" and call.error is None
    assert call.external is not None and call.external.model == "true-name" and call.external.status == 200
    assert call.external.request.encode() == body and call.external.reply.encode() == other.whole(
        {"model": "true-name"}
    )
    assert call.external.usage == USAGE and call.external.tokens == (12, 3)
    assert call.total_s is not None and call.first_token_s is not None and 0 < call.first_token_s <= call.total_s


async def test_a_stream_arrives_while_it_is_being_sampled(house: House, other: OtherEndpoint) -> None:
    other.say = "abc"
    other.go.clear()
    visit = await house.open()
    events = await judge(visit, stream=True)
    first = await asyncio.wait_for(anext(events), 10)
    assert first.choices[0].delta.content == "a" and first.model == "true-name"
    assert await visit.calls() == [], "it has just begun"
    other.go.set()
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in events]) == "bc"
    [call] = await visit.calls()
    assert (
        call.external is not None and call.external.usage == USAGE and call.external.reply.endswith("data: [DONE]\n\n")
    )


async def test_events_pass_unchanged_however_they_are_cut(house: House, other: OtherEndpoint) -> None:
    whole = b': hi\n\ndata: {"a":\ndata: 1}\n\nevent: x\r\ndata: \xc3\xa9\r\n\r\ndata: [DONE]\n\n: bye\n\n'
    visit = await house.open()
    for size in (1, 3, 7, 1000):

        async def handle(request: web.Request, given: Any, size: int = size) -> web.StreamResponse:
            return await stream(request, [whole[i : i + size] for i in range(0, len(whole), size)])

        other.handle = handle
        status, reply, headers = await raw(visit, orjson.dumps({"model": "judge", "stream": True, "size": size}))
        assert (status, reply, headers["Content-Type"]) == (200, whole, "text/event-stream")


async def test_the_last_event_waits_for_the_record(build: Build, other: OtherEndpoint) -> None:
    """Invariant 6, ruling 5: what an agent took for a whole reply is in the record."""
    held = asyncio.Event()

    def wrap(store: Any) -> Any:
        record = store.record

        async def slow(call: Call, nodes: Any) -> None:
            await until(held.is_set)
            await record(call, nodes)

        store.record = slow
        return store

    other.say = "ab"
    visit = await (await build(**judged(other.url, wrap=wrap))).open()
    got = bytearray()
    async with aiohttp.ClientSession() as session:
        for body, last in (({"stream": True}, b"[DONE]"), ({}, b"chatcmpl")):
            got.clear()
            held.clear()

            async def read(body: dict[str, Any]) -> None:
                async with session.post(
                    f"{visit.endpoint.base_url}/chat/completions", json={"model": "judge", **body}
                ) as response:
                    async for piece in response.content.iter_any():
                        got.extend(piece)

            reading = asyncio.create_task(read(body))
            if "stream" in body:
                await until(lambda: b'"stop"' in got)
            else:
                await until(lambda: len(other.asked) == 2)
                await asyncio.sleep(0.1)
            assert last not in got
            held.set()
            await reading
            assert last in got


async def test_a_call_that_cannot_be_recorded_makes_the_attempt_incomplete(build: Build, other: OtherEndpoint) -> None:
    def wrap(store: Any) -> Any:
        async def full(call: Call, nodes: Any) -> None:
            raise StoreError("the disk is full")

        store.record = full
        return store

    visit = await (await build(**judged(other.url, wrap=wrap))).open()
    with pytest.raises(openai.InternalServerError, match="the disk is full"):
        await judge(visit)
    with pytest.raises(openai.APIError, match="the disk is full"):
        _ = [chunk async for chunk in await judge(visit, stream=True)]
    assert (await visit.end()).incomplete == 2


# --------------------------------------------------------------------------- the key


async def test_no_key_and_no_endpoint_is_in_the_record_in_a_reply_or_in_a_log(
    house: House, other: OtherEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def tells(request: web.Request, given: Any) -> web.StreamResponse:
        told = f"Incorrect API key provided: {request.headers['Authorization']} for {request.url}, {request.host}"
        if given.get("stream"):
            return await stream(request, [f"data: {told[:40]}".encode(), f"{told[40:]}\n\ndata: [DONE]\n\n".encode()])
        headers = {
            "x-request-id": KEY,
            "Set-Cookie": "a=b",
            "Content-Type": f"application/json; key={KEY}; at={other.url}",
        }
        return web.Response(text=json.dumps({"error": {"message": told}}), status=401, headers=headers)

    visit = await house.open()
    await judge(visit)
    other.handle = tells
    said: list[Any] = [
        await raw(visit, orjson.dumps({"model": "judge", "stream": streams})) for streams in (False, True)
    ]
    assert (
        said[0][0] == 401
        and b"Bearer ***" in said[0][1]
        and b"Bearer ***" in said[1][1]
        and "Set-Cookie" not in said[0][2]
    )
    other.close()
    said.append(await raw(visit, b'{"model":"judge"}'))
    assert said[-1][0] == 502
    await visit.end()
    files = b"".join(file.read_bytes() for file in tmp_path.glob("record.db*"))  # noqa: ASYNC240 - small ones
    for secret in (KEY, f"127.0.0.1:{other.port}", f"127.0.0.1', {other.port}"):
        assert secret not in repr(said) and secret not in caplog.text and secret.encode() not in files, secret
    assert b"true-name" in files


async def test_the_key_is_not_taken_along_to_another_host(house: House, other: OtherEndpoint) -> None:
    thief = OtherEndpoint()

    async def moved(request: web.Request, given: Any) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"{thief.url}/chat/completions"})

    other.handle = moved
    visit = await house.open()
    with pytest.raises(openai.InternalServerError, match="judge.*307, a redirect") as caught:
        await judge(visit)
    thief.close()
    assert thief.asked == [] and "Location" not in caught.value.response.headers and thief.url not in str(caught.value)


async def test_an_attempts_key_is_needed_for_external_calls_too(house: House, other: OtherEndpoint) -> None:
    visit = await house.open()
    wrong = visit.endpoint.base_url.replace(visit.endpoint.key, "wrong")
    async with openai.AsyncOpenAI(base_url=wrong, api_key=KEY, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="judge", messages=ASK)  # type: ignore[arg-type]
    await visit.end()
    with pytest.raises(openai.APIStatusError, match="this attempt has ended"):
        await judge(visit)
    assert other.asked == []


@given(st.text("ab/", min_size=12, max_size=16), st.lists(st.text("ab/", max_size=12), max_size=12), st.integers(0, 12))
def test_a_key_is_blotted_out_wherever_the_bytes_are_cut(key: str, pieces: list[str], at: int) -> None:
    cut = len(key) // 2
    pieces[at:at] = [key[:cut], key[cut:]]
    redactor = Redactor((key,))
    out = b"".join(redactor.feed(piece.encode()) for piece in pieces) + redactor.end()
    assert key.encode() not in out and key.replace("/", "\\/").encode() not in out
    if "/" not in key:
        assert out == "".join(pieces).replace(key, "***").encode()


def test_a_placeholder_for_a_key_is_no_secret() -> None:
    assert Upstream.of("judge", LLM(endpoint="http://localhost/v1", model="m", api_key="EMPTY")).secrets == (
        "localhost/v1",
    )


@pytest.mark.parametrize(
    ("endpoint", "said", "left"),
    [
        ("https://API.other/v1", "POST https://API.other/v1/x at api.other: no", "POST https://***/x at ***: no"),
        ("https://api.other/v1", r"https:\/\/api.other\/v1\/chat", r"https:\/\/***\/chat"),
        ("http://judge:8000/v1", "judge:8000 judges /v1", "*** judges /v1"),
        ("http://127.0.0.1:8000/v1", "127.0.0.1 and 127.0.0.1:8000/v1", "127.0.0.1 and ***"),
        (
            "https://x.other/deployments/a%20b?api-version=2024-10-01",
            "/deployments/a b, /deployments/a%20b?v=2024-10-01",
            "***, ***?v=2024-10-01",
        ),
        ("https://x.other/v1?token=abcdefghijkl%2F", "abcdefghijkl/ abcdefghijkl%2F", "*** ***"),
    ],
)
def test_an_endpoint_is_blotted_out_by_host_path_and_query(endpoint: str, said: str, left: str) -> None:
    redactor = Redactor(Upstream.of("judge", LLM(endpoint=endpoint, model="m")).secrets)
    assert (redactor.feed(said.encode()) + redactor.end()).decode() == redactor.redact(said) == left


@given(st.lists(st.text("ab/", min_size=1, max_size=6), max_size=4), st.text("ab/", max_size=30), st.data())
def test_where_the_bytes_are_cut_changes_nothing_of_what_is_redacted(
    secrets: list[str], text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    redactor = Redactor(secrets)
    pieces = [redactor.feed(text[a:b].encode()) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert (b"".join(pieces) + redactor.end()).decode() == redactor.redact(text)


# --------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
async def test_an_error_of_the_endpoints_own_passes_as_it_is(house: House, other: OtherEndpoint, status: int) -> None:
    body = b'{ "error" : {"message": "not now", "code": 7} }'

    async def refuses(request: web.Request, given: Any) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type="application/json", headers={"Retry-After": "3"})

    other.handle = refuses
    visit = await house.open()
    for streams in (False, True):
        got, reply, headers = await raw(visit, orjson.dumps({"model": "judge", "stream": streams}))
        assert (got, reply, headers["Retry-After"]) == (status, body, "3")
    call = (await visit.calls())[0]
    assert call.status is CallStatus.REFUSED and call.error == f"external model 'judge' answered {status}: not now"
    assert call.external is not None and (call.external.status, call.external.reply.encode()) == (status, body)
    usage = await visit.end()
    assert usage.external["judge"].failed == 2 and (usage.refused, usage.incomplete, usage.calls) == (0, 0, 0)
    assert (usage.trouble is None) is (status == 400), "400 may be the agent's own fault, the others are not"


async def test_a_client_that_retries_after_an_error_is_passed_on_again(house: House, other: OtherEndpoint) -> None:
    async def busy(request: web.Request, given: Any) -> web.StreamResponse:
        if len(other.asked) < 3:
            return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After-Ms": "1"})
        return web.Response(body=other.whole(given), content_type="application/json")

    other.handle = busy
    visit = await house.open()
    async with openai.AsyncOpenAI(base_url=visit.endpoint.base_url, api_key="x", max_retries=4) as client:
        reply = await client.chat.completions.create(model="judge", messages=ASK)  # type: ignore[arg-type]
    assert reply.choices[0].message.content == "0.5" and len(other.asked) == 3
    usage = await visit.end()
    assert (usage.external["judge"].calls, usage.external["judge"].failed, usage.trouble) == (3, 2, None), (
        "it got over it"
    )


async def fails(build: Build, url: str, said: str, **options: Any) -> Visit:
    """Expects an error in the wire's shape that names the model, in time; and a record that says the same."""
    visit = await (await build(**judged(url, **options))).open()
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError, match=f"external model 'judge' failed: .*{said}") as caught:
        await judge(visit)
    assert time.monotonic() - began < 25
    assert caught.value.code == "upstream_error" and "127.0.0.1" not in str(caught.value)
    call = (await visit.calls())[-1]
    assert call.status is CallStatus.REFUSED and call.error is not None and call.error in str(caught.value)
    assert visit.session.usage.trouble == call.error
    return visit


async def test_a_dead_endpoint_is_said_so(build: Build, other: OtherEndpoint) -> None:
    other.close()
    await fails(build, other.url, "could not be reached: Connection refused")


async def test_an_unknown_host_is_said_so(build: Build) -> None:
    await fails(build, "http://no-such-host.invalid/v1", "its host name is unknown")


@pytest.mark.parametrize("begun", [False, True])
async def test_an_endpoint_that_falls_silent_is_not_waited_for_forever(
    build: Build, other: OtherEndpoint, begun: bool
) -> None:
    async def hangs(request: web.Request, given: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if begun:
            await response.prepare(request)
            await response.write(b'{"half')
        await asyncio.sleep(30)
        return response

    other.handle = hangs
    await fails(
        build,
        other.url,
        r"it sent nothing for 0.3 s \(gateway.upstream_timeout\)",
        config=GatewayConfig(upstream_timeout=0.3),
    )


async def test_an_endpoint_that_takes_no_connection_is_not_waited_for_forever(build: Build) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        await fails(build, url, "", config=GatewayConfig(upstream_timeout=0.4))
        for filler in fillers:
            filler.close()


async def test_a_reply_cut_halfway_is_no_reply(build: Build, other: OtherEndpoint) -> None:
    async def cut(request: web.Request, given: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices": [')
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    other.handle = cut
    visit = await fails(build, other.url, "its reply broke off")
    call = (await visit.calls())[-1]
    assert call.external is not None and call.external.reply == '{"choices": [', "what came is kept"


async def test_a_stream_cut_halfway_ends_in_an_error_that_names_the_model(house: House, other: OtherEndpoint) -> None:
    async def cut(request: web.Request, given: Any) -> web.StreamResponse:
        chunk = event(
            {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "delta": {"content": "a"}}],
            }
        )
        return await stream(request, [chunk.encode(), b'data: {"id": "c", "cho'], ends=False)

    other.handle = cut
    visit = await house.open()
    got: list[str] = []
    with pytest.raises(openai.APIError, match="external model 'judge' failed: its reply broke off"):
        async for chunk in await judge(visit, stream=True):
            got.append(chunk.choices[0].delta.content)
    assert got == ["a"]
    with pytest.raises(aiohttp.ClientPayloadError):
        await raw(visit, orjson.dumps({"model": "judge", "stream": True}))
    assert [call.status for call in await visit.calls()] == [CallStatus.REFUSED] * 2


CHUNK = event(
    {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "a"}}],
    }
)
OVERLOADED = {"message": "Overloaded", "type": "overloaded_error"}


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("chat/completions", event({"error": OVERLOADED})),
        ("chat/completions", event({"error": OVERLOADED}) + "data: [DONE]\n\n"),
        ("completions", event({"choices": [], "error": "Overloaded"})),
        ("messages", f"event: error\r\ndata: {json.dumps({'type': 'error', 'error': OVERLOADED})}\r\n\r\n"),
        (
            "responses",
            f"event: error\ndata: {json.dumps({'type': 'error', 'code': 'server_error', 'message': 'Overloaded'})}\n\n",
        ),
        ("responses", event({"response": {"status": "failed", "error": OVERLOADED}, "type": "response.failed"})),
    ],
)
async def test_an_error_inside_a_stream_is_the_models_failure_and_passes_as_it_is(
    house: House, other: OtherEndpoint, path: str, end: str
) -> None:
    async def breaks(request: web.Request, given: Any) -> web.StreamResponse:
        return await stream(request, [b"data: {}\n\n", end.encode()])

    other.handle = breaks
    visit = await house.open()
    body = orjson.dumps({"model": "judge", "stream": True})
    assert (await raw(visit, body, path))[:2] == (200, b"data: {}\n\n" + end.encode())
    [call] = await visit.calls()
    said = "external model 'judge' failed in its reply: Overloaded"
    assert (call.status, call.error) == (CallStatus.REFUSED, said)
    assert call.external is not None and call.external.reply == "data: {}\n\n" + end
    assert (await raw(visit, body, path))[0] == 200 and len(other.asked) == 2, "a failure is nobody's reply"
    usage = await visit.end()
    assert (usage.external["judge"].failed, usage.trouble) == (2, said)


async def test_an_error_that_blames_the_request_is_no_fault_of_the_endpoints(
    house: House, other: OtherEndpoint
) -> None:
    async def refuses(request: web.Request, given: Any) -> web.StreamResponse:
        error = {"error": {"message": "too long", "code": 400}}
        return await stream(request, [event(error).encode()]) if given.get("stream") else web.json_response(error)

    other.handle = refuses
    visit = await house.open()
    for streams in (True, False):
        await raw(visit, orjson.dumps({"model": "judge", "stream": streams}))
    usage = await visit.end()
    assert (usage.external["judge"].failed, usage.trouble) == (2, None)


async def test_a_whole_body_that_is_an_error_under_a_good_status_is_a_failure(
    house: House, other: OtherEndpoint
) -> None:
    async def fails(request: web.Request, given: Any) -> web.StreamResponse:
        return web.json_response(
            {"error": OVERLOADED} if given["stop"] else {"object": "response", "status": "completed", "error": None}
        )

    other.handle = fails
    visit = await house.open()
    status, reply, _ = await raw(visit, b'{"model":"judge","stop":1}')
    assert (status, json.loads(reply)) == (200, {"error": OVERLOADED}) and visit.session.usage.trouble is not None
    await raw(visit, b'{"model":"judge","stop":0}')
    assert visit.session.usage.trouble is None, "it got over it"
    assert [call.status for call in await visit.calls()] == [CallStatus.REFUSED, CallStatus.COMPLETE]


@pytest.mark.parametrize(
    "rest", ["", 'data: {"id": "c", "cho', "event: message_stop\n", 'event: message_stop\ndata: {"type":"mess']
)
async def test_a_stream_that_ends_before_its_last_event_is_no_reply(
    house: House, other: OtherEndpoint, rest: str
) -> None:
    """A proxy on the way ends the body as if it were whole."""

    async def ends(request: web.Request, given: Any) -> web.StreamResponse:
        return await stream(request, [CHUNK.encode(), rest.encode()])

    other.handle = ends
    visit = await house.open()
    got: list[str] = []
    with pytest.raises(openai.APIError, match="external model 'judge' failed: its stream ended without its last event"):
        async for chunk in await judge(visit, stream=True):
            got.append(chunk.choices[0].delta.content)
    assert got == ["a"]
    with pytest.raises(aiohttp.ClientPayloadError):
        await raw(visit, orjson.dumps({"model": "judge", "stream": True}))
    calls = await visit.calls()
    assert [call.status for call in calls] == [CallStatus.REFUSED] * 2
    assert calls[0].external is not None and calls[0].external.reply == CHUNK + rest, "what came is kept"
    assert visit.session.usage.trouble == calls[1].error


@pytest.mark.parametrize(
    "end",
    [
        "data: [DONE]",
        "data: [DONE]\n",
        'data: {"a": 1, "type": "response.completed"}\n',
        'data:{"type":"message_stop"}',
    ],
)
async def test_a_last_event_may_lack_its_empty_line(house: House, other: OtherEndpoint, end: str) -> None:
    async def ends(request: web.Request, given: Any) -> web.StreamResponse:
        return await stream(request, [CHUNK.encode(), end.encode()])

    other.handle = ends
    visit = await house.open()
    assert (await raw(visit, b'{"model":"judge"}'))[:2] == (200, (CHUNK + end).encode())
    assert [call.status for call in await visit.calls()] == [CallStatus.COMPLETE]


@pytest.mark.parametrize(("finish", "whole"), [('"stop"', True), ("null", False), ('"stop", "x": "cut', False)])
async def test_a_chat_stream_without_done_has_ended_where_a_choice_has(
    house: House, other: OtherEndpoint, finish: str, whole: bool
) -> None:
    said = 'data: {"choices": [{"delta": {"content": "\\"finish_reason\\": \\"stop\\""}, "finish_reason": null}]}\n\n'
    last = f'data: {{"choices": [{{"delta": {{}}, "finish_reason": {finish}}}]}}'

    async def ends(request: web.Request, given: Any) -> web.StreamResponse:
        return await stream(request, [said.encode(), last.encode() + b"\n\n" * ("cut" not in finish)])

    other.handle = ends
    visit = await house.open()
    if whole:
        assert (await raw(visit, b'{"model":"judge"}'))[:2] == (200, (said + last + "\n\n").encode())
    else:
        with pytest.raises(aiohttp.ClientPayloadError):
            await raw(visit, b'{"model":"judge"}')
    assert [call.status for call in await visit.calls()] == [CallStatus.COMPLETE if whole else CallStatus.REFUSED]


async def test_a_certificate_that_is_not_trusted_is_said_so(build: Build, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    await asyncio.to_thread(
        subprocess.run, [*command, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        await fails(
            build, f"https://localhost:{server.sockets[0].getsockname()[1]}/v1", "its certificate is not trusted"
        )


async def test_an_endpoint_that_keeps_a_finished_stream_open_holds_nothing_up(
    house: House, other: OtherEndpoint, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agentlightning.gateway.external.upstream.AFTER_THE_END", 0.1)

    async def lingers(request: web.Request, given: Any) -> web.StreamResponse:
        response = await stream(request, [b"data: 1\n\n", b"data: [DONE]\n\n"])
        await asyncio.sleep(30)
        return response

    other.handle = lingers
    visit = await house.open()
    status, reply, _ = await asyncio.wait_for(raw(visit, orjson.dumps({"model": "judge", "stream": True})), 25)
    assert (status, reply) == (200, b"data: 1\n\ndata: [DONE]\n\n")
    assert [call.status for call in await visit.calls()] == [CallStatus.COMPLETE]


# --------------------------------------------------------------------------- retries (ruling 2)


async def leave(visit: Visit, other: OtherEndpoint, body: bytes) -> None:
    """Asks, and closes the connection once the endpoint has been asked."""
    before = len(other.asked)
    asking = asyncio.create_task(raw(visit, body))
    await until(lambda: len(other.asked) > before)
    asking.cancel()
    await asyncio.wait([asking])
    await until(visit.orphans)


def holds_back(other: OtherEndpoint) -> None:
    async def held(request: web.Request, given: Any) -> web.StreamResponse:
        while not other.go.is_set():  # noqa: ASYNC110 - it is set from another thread
            await asyncio.sleep(0.002)
        return web.Response(body=other.whole(given), content_type="application/json")

    other.handle = held
    other.go.clear()


async def test_an_equal_body_gets_the_reply_that_its_lost_connection_was_waiting_for(
    house: House, other: OtherEndpoint
) -> None:
    holds_back(other)
    visit = await house.open()
    body = orjson.dumps({"model": "judge", "messages": ASK})
    await leave(visit, other, body)
    again = asyncio.create_task(raw(visit, body))
    await until(lambda: visit.session.usage.repeats)
    other.go.set()
    assert (await again)[1] == other.whole({"model": "true-name"}) and len(other.asked) == 1, "it was paid for once"
    assert [call.status for call in await visit.calls()] == [CallStatus.COMPLETE]
    await raw(visit, body)
    assert len(other.asked) == 2, "an equal call after a reply that arrived is another call"


async def test_a_stream_that_was_lost_is_given_from_its_beginning(house: House, other: OtherEndpoint) -> None:
    other.say = "abc"
    other.go.clear()
    visit = await house.open()
    body = orjson.dumps({"model": "judge", "messages": ASK, "stream": True})
    await leave(visit, other, body)
    other.go.set()
    _, reply, _ = await raw(visit, body)
    [call] = await visit.calls()
    assert call.external is not None and reply.decode() == call.external.reply and len(other.asked) == 1


async def test_a_call_nobody_reclaims_is_withdrawn_and_recorded_as_abandoned(
    build: Build, other: OtherEndpoint
) -> None:
    holds_back(other)
    visit = await (await build(**judged(other.url, GatewayConfig(orphan_grace=0.1)))).open()
    await leave(visit, other, b'{"model":"judge"}')
    await until(lambda: visit.calls())
    [call] = await visit.calls()
    assert (call.status, call.model) == (CallStatus.ABANDONED, "judge")
    usage = await visit.end()
    assert (usage.abandoned, usage.calls, usage.external["judge"].calls, usage.trouble) == (0, 0, 1, None)


async def patient(
    visit: Visit, seconds: float, body: bytes = b'{"model":"judge"}', path: str = "chat/completions"
) -> None:
    """Asks as a client with a timeout of its own."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(raw(visit, body, path), seconds)


@pytest.mark.parametrize("grace", [0.0, 60.0])
async def test_an_endpoint_that_is_silent_until_its_client_gives_up_is_to_blame(
    build: Build, other: OtherEndpoint, monkeypatch: Any, grace: float
) -> None:
    monkeypatch.setattr("agentlightning.gateway.external.upstream.PATIENCE", 0.2)
    holds_back(other)
    visit = await (await build(**judged(other.url, GatewayConfig(orphan_grace=grace)))).open()
    await patient(visit, 0.3)
    usage = await visit.end()
    assert usage.trouble is not None and usage.trouble.startswith("external model 'judge' had said nothing for 0.3")
    [call] = await visit.calls()
    assert (call.status, call.error) == (CallStatus.ABANDONED, usage.trouble)


async def test_an_endpoint_that_still_is_silent_when_the_attempt_ends_is_to_blame(
    house: House, other: OtherEndpoint, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agentlightning.gateway.external.upstream.PATIENCE", 0.1)
    holds_back(other)
    visit = await house.open()
    asking = asyncio.create_task(raw(visit, b'{"model":"judge"}'))
    await asyncio.sleep(0.2)
    assert (await visit.end()).trouble is not None
    await asking


async def test_a_call_that_is_left_after_the_answer_began_says_nothing_of_the_endpoint(
    house: House, other: OtherEndpoint, monkeypatch: Any
) -> None:
    async def speaks(request: web.Request, given: Any) -> web.StreamResponse:
        await asyncio.sleep(given["seconds"])
        return await stream(request, [b"data: 1\n\n"] * 20 + [b"data: [DONE]\n\n"], other.go)

    other.handle = speaks
    monkeypatch.setattr("agentlightning.gateway.external.upstream.PATIENCE", 0.5)
    third = await house.open()
    other.go.clear()
    async with aiohttp.ClientSession() as session:
        url = f"{third.endpoint.base_url}/chat/completions"
        async with session.post(url, json={"model": "judge", "seconds": 0.6}) as response:
            await response.content.readany()  # its first word took longer than that; then the client leaves at once
            response.close()
    await until(lambda: not third.session.calls.waited_for)
    assert (await third.end()).trouble is None, "it had begun to answer"
    await patient(fourth := await house.open(), 0.9, b'{"model":"judge","seconds":5}')
    assert (await fourth.end()).trouble is not None


async def test_an_answer_after_the_silence_makes_good_for_it(
    house: House, other: OtherEndpoint, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agentlightning.gateway.external.upstream.PATIENCE", 0.1)

    async def speaks(request: web.Request, given: Any) -> web.StreamResponse:
        while not (other.go.is_set() or "n" in given):  # noqa: ASYNC110 - it is set from another thread
            await asyncio.sleep(0.002)
        return web.Response(body=other.whole(given), content_type="application/json")

    other.handle = speaks
    for again in (
        b'{"model":"judge"}',
        b'{"model":"judge","n":1}',
    ):  # the same call once more; another one, while the first is still waited for
        other.go.clear()
        visit = await house.open()
        await patient(visit, 0.2)
        if again == b'{"model":"judge"}':
            other.go.set()
        assert (await raw(visit, again))[0] == 200
        assert (await visit.end()).trouble is None, again


@pytest.mark.parametrize("begun", [True, False])
async def test_a_client_that_leaves_is_nobodys_error(caplog: pytest.LogCaptureFixture, begun: bool) -> None:
    left = asyncio.Event()

    async def answers(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        if begun:
            await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()  # as it looks when a write finds the connection closed
        left.set()
        await response.prepare(request)
        await response.write(b"more")
        return response

    runner = web.ServerRunner(Listener(answers, lambda path, error: b"", 1000))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    _, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await left.wait()
    await asyncio.sleep(0.05)
    writer.close()
    await runner.cleanup()
    assert [record.getMessage() for record in caplog.records if record.levelno > 10] == []


@pytest.mark.parametrize("status", [500, 429, 409])
async def test_the_retry_of_a_call_that_the_endpoint_failed_is_sent_on_again(
    house: House, other: OtherEndpoint, status: int
) -> None:
    """It is not given the reply of the equal call before it, which has arrived."""

    async def fails(request: web.Request, given: Any) -> web.StreamResponse:
        return web.json_response({"error": {"message": "try again"}}, status=status)

    visit = await house.open()
    body = orjson.dumps({"model": "judge", "messages": ASK})
    await raw(visit, body)
    other.handle = fails
    assert (await raw(visit, body))[0] == status
    other.handle = None
    assert (await raw(visit, body, **{"x-stainless-retry-count": "1"}))[0] == 200
    assert (len(other.asked), visit.session.usage.repeats) == (3, 0)
    assert (await raw(visit, body, **{"x-stainless-retry-count": "1"}))[0] == 200
    assert (len(other.asked), visit.session.usage.repeats) == (3, 1), "this one is that of a reply that was lost"


async def test_a_call_still_open_when_the_attempt_ends_is_withdrawn(house: House, other: OtherEndpoint) -> None:
    holds_back(other)
    visit = await house.open()
    asking = asyncio.create_task(raw(visit, b'{"model":"judge"}'))
    await until(lambda: other.asked)
    usage = await asyncio.wait_for(visit.end(), 5)
    assert usage.external["judge"].left == 1 and (await asking)[0] == 410


async def test_an_idempotency_key_decides_what_is_one_call(house: House, other: OtherEndpoint) -> None:
    visit = await house.open()
    body = orjson.dumps({"model": "judge", "messages": ASK})
    await asyncio.gather(*[raw(visit, body, **{"Idempotency-Key": "one"}) for _ in range(3)])
    assert len(other.asked) == 1
    house.engine.script = ["mine"]
    reply = await visit.ask("hello", extra_headers={"Idempotency-Key": "one"})
    assert reply.choices[0].message.content == "mine", "the same key for the policy is another call"


async def test_external_calls_do_not_change_what_the_policy_samples(house: House, other: OtherEndpoint) -> None:
    """Seeds come from a call's place among those to policies: a judge that has to be asked twice changes nothing."""
    with_judge, without = await house.open(), await house.open()
    for visit in (with_judge, without):
        for turn in range(3):
            if visit is with_judge:
                await judge(visit)
            await visit.ask(f"turn {turn}")
    seeds = [
        [call.used.seed for call in await visit.calls() if call.used is not None] for visit in (with_judge, without)
    ]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3


# --------------------------------------------------------------------------- other APIs


async def test_responses_messages_completions_and_embeddings_are_passed_on_likewise(
    house: House, other: OtherEndpoint
) -> None:
    async def echo(request: web.Request, given: Any) -> web.StreamResponse:
        return web.json_response({"model": given["model"], "usage": {"input_tokens": 4, "output_tokens": 5}})

    other.handle = echo
    visit = await house.open()
    for path in ("responses", "messages?beta=true", "messages/count_tokens", "completions", "embeddings"):
        status, reply, _ = await raw(visit, b'{"model":"judge"}', path, **{"anthropic-version": "2023-06-01"})
        assert status == 200 and json.loads(reply)["model"] == "true-name", path
        asked = other.asked[-1]
        assert asked.path == f"/v1/{path}" and asked.headers["anthropic-version"] == "2023-06-01"
        given_key = (
            asked.headers["x-api-key"]
            if path.startswith("messages")
            else asked.headers["Authorization"].removeprefix("Bearer ")
        )
        assert given_key == KEY and ("Authorization" in asked.headers) is not path.startswith("messages")
    assert {call.external.tokens for call in await visit.calls() if call.external is not None} == {(4, 5)}


async def test_the_anthropic_client_streams_from_an_external_model_and_sees_its_errors(
    house: House, other: OtherEndpoint
) -> None:
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "good"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 6},
        },
        {"type": "message_stop"},
    ]

    async def speaks(request: web.Request, given: Any) -> web.StreamResponse:
        pieces = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]
        whole = given["max_tokens"] == 5
        return await stream(request, pieces if whole else pieces[:3], ends=whole)

    other.handle = speaks
    visit = await house.open()
    async with anthropic.AsyncAnthropic(base_url=visit.endpoint.root_url, api_key="x", max_retries=0) as client:
        async with client.messages.stream(
            model="judge", max_tokens=5, messages=[{"role": "user", "content": "?"}]
        ) as answer:
            assert await answer.get_final_text() == "good"
        with pytest.raises(anthropic.APIStatusError, match="external model 'judge' failed"):
            async with client.messages.stream(
                model="judge", max_tokens=6, messages=[{"role": "user", "content": "?"}]
            ) as answer:
                await answer.get_final_text()
    call = (await visit.calls())[0]
    assert call.external is not None and call.external.tokens == (9, 6)


async def test_the_responses_client_sees_errors_in_a_stream(house: House, other: OtherEndpoint) -> None:
    async def cut(request: web.Request, given: Any) -> web.StreamResponse:
        return await stream(
            request, [b'event: response.in_progress\ndata: {"type": "response.in_progress"}\n\n'], ends=False
        )

    other.handle = cut
    visit = await house.open()
    with pytest.raises(openai.APIError, match="external model 'judge' failed"):
        async for _ in await visit.client.responses.create(model="judge", input="?", stream=True):
            continue


async def test_paths_that_are_not_passed_on_say_which_are(house: House, other: OtherEndpoint) -> None:
    visit = await house.open()
    for path in ("models/judge:generateContent", "responses/input_tokens"):
        status, reply, _ = await raw(
            visit, b'{"model":"judge","contents":[]}' if "responses" in path else b'{"contents":[]}', path
        )
        assert status == 404 and b"external model 'judge' is not passed on" in reply and b"chat/completions" in reply
    status, reply, _ = await raw(visit, b'{"model":"gpt-x"}', "embeddings")
    assert status == 404 and b"makes no embeddings" in reply and other.asked == []


# --------------------------------------------------------------------------- names


async def test_external_models_are_listed(house: House) -> None:
    visit = await house.open()
    assert [model.id for model in (await visit.client.models.list()).data] == ["main", "judge"]


async def test_a_true_name_means_the_policy_and_only_the_resources_name_the_external_model(
    house: House, other: OtherEndpoint
) -> None:
    """Agents hard-code well-known names: none of their calls may go to a judge because it happens to be that model."""
    visit = await house.open()
    await visit.ask("hello", model="true-name")
    assert other.asked == [] and (await visit.calls())[0].policy == "main"


async def test_a_name_that_a_policy_has_is_refused_at_start(build: Build, other: OtherEndpoint) -> None:
    with pytest.raises(ConfigError, match="resource 'main' is an external model.*give the resource another name"):
        await build(external={"main": LLM(endpoint=other.url, model="x")})


async def test_an_external_model_whose_endpoint_is_not_known_here_is_never_taken_for_the_policy(build: Build) -> None:
    visit = await (await build()).open(
        resources=NamedResources(judge=LLM(endpoint="http://x", model="m", api_key=KEY)).to_json()
    )
    with pytest.raises(openai.InternalServerError, match="the endpoint of external model 'judge' is not known"):
        await judge(visit)


@pytest.fixture
async def alone(build: Build, other: OtherEndpoint) -> House:
    """A gateway without any policy, which serves external models alone."""
    return await build(**judged(other.url), policies={})


async def test_a_gateway_without_a_policy_serves_external_models(alone: House, other: OtherEndpoint) -> None:
    visit = await alone.open()
    assert visit.endpoint.model == "judge", "an agent that is told no name asks for the external model"
    reply = await visit.ask(ASK, model=visit.endpoint.model)
    assert reply.choices[0].message.content == "0.5" and other.asked[0].json["model"] == "true-name"
    assert [model.id async for model in visit.client.models.list()] == ["judge"]
    [call] = await visit.calls()
    assert (call.model, call.policy, call.status) == ("judge", "", CallStatus.COMPLETE)
    assert (await visit.end()).external["judge"].calls == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("chat/completions", lambda error: (error["code"], error["param"])),
        ("completions", lambda error: (error["code"], error["param"])),
        ("responses", lambda error: (error["code"], error["param"])),
        ("embeddings", lambda error: (error["code"], error["param"])),
        ("messages", lambda error: error["type"]),
        ("messages/count_tokens", lambda error: error["type"]),
        ("models/gpt-x:generateContent", lambda error: error["status"]),
    ],
)
async def test_without_a_policy_a_name_that_is_nobodys_is_refused_in_the_callers_shape(
    alone: House, other: OtherEndpoint, path: str, told: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    visit = await alone.open()
    # What only a policy would have to honour is not what is wrong with the request.
    status, reply, headers = await raw(visit, b'{"model": "gpt-x", "logit_bias": {"1": 2}}', path)
    error = json.loads(reply)["error"]
    shapes = {"messages": "not_found_error", "messages/count_tokens": "not_found_error"}
    gemini = "NOT_FOUND" if path.startswith("models/") else None
    assert (status, headers["X-Should-Retry"]) == (404, "false")
    assert told(error) == (gemini or shapes.get(path) or ("model_not_found", "model"))
    assert error["message"] == (
        "no model is called 'gpt-x', and this run has no policy that would take its place: use 'judge'"
    )
    assert not other.asked and not caplog.records
    recorded = [(call.status, call.policy, call.model, call.error) for call in await visit.calls()]
    assert recorded == ([] if path == "embeddings" else [(CallStatus.REFUSED, "", "", error["message"])])
    assert (await visit.end()).last_error == (None if path == "embeddings" else error["message"])


async def test_without_a_policy_any_name_means_the_main_model_and_is_warned_of_once(
    build: Build, other: OtherEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    models = {"judge": LLM(endpoint=other.url, model="j", api_key=KEY)}
    models["main_llm"] = LLM(endpoint=other.url, model="true-name", api_key=KEY)
    visit = await (await build(external=models, policies={})).open()
    assert visit.endpoint.model == "main_llm"
    for name in ("gpt-x", "gpt-x", "true-name", "judge"):
        await visit.ask(ASK, model=name)
    assert [asked.json["model"] for asked in other.asked] == ["true-name"] * 3 + ["j"]
    assert [call.model for call in await visit.calls()] == ["main_llm"] * 3 + ["judge"]
    assert [record.message for record in caplog.records] == ["no model is called 'gpt-x': its calls go to 'main_llm'"]


async def test_without_a_policy_and_an_external_model_a_call_says_what_to_pass(build: Build) -> None:
    house = await build(policies={})
    visit = await house.open()
    assert visit.endpoint.model == ""
    with pytest.raises(openai.NotFoundError, match=r"'gpt-x'.*it serves none; pass an LLM\(endpoint=...\) resource"):
        await visit.ask(ASK)
    status, reply, _ = await raw(visit, b'{"messages": []}')
    assert status == 404 and "the request names no model" in json.loads(reply)["error"]["message"]
    async with aiohttp.ClientSession() as session:  # what needs no model is there
        answer = await session.post(f"{visit.endpoint.root_url}/rewards", json={"value": 1.0})
    assert answer.status == 200


async def test_an_endpoint_keeps_its_own_path_and_query(build: Build, other: OtherEndpoint) -> None:
    visit = await (await build(**judged(f"http://127.0.0.1:{other.port}/deployments/a%2Fb/?api-version=7"))).open()
    await judge(visit)
    assert other.asked[0].path == "/deployments/a%2Fb/chat/completions?api-version=7"


async def test_the_machines_proxy_is_used_but_never_for_this_machine(
    build: Build, other: OtherEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", other.url.removesuffix("/v1"))
    monkeypatch.setenv("no_proxy", "direct.invalid")
    local = OtherEndpoint()
    models = {"far": "http://api.invalid/v1", "near": local.url, "direct": "http://direct.invalid/v1"}
    house = await build(external={name: LLM(endpoint=url, model="x", api_key=KEY) for name, url in models.items()})
    visit = await house.open()
    assert [(await raw(visit, orjson.dumps({"model": name})))[0] for name in models] == [200, 200, 502]
    local.close()
    assert [asked.headers["Host"] for asked in other.asked] == ["api.invalid"] and len(local.asked) == 1


async def test_an_endpoint_without_a_key_gets_none(build: Build, other: OtherEndpoint) -> None:
    async def anyone(request: web.Request, given: Any) -> web.StreamResponse:
        return web.json_response({"authorization": request.headers.get("Authorization")})

    other.handle = anyone
    visit = await (await build(external={"judge": LLM(endpoint=other.url, model="x")})).open()
    assert json.loads((await raw(visit, b'{"model":"judge"}'))[1]) == {"authorization": None}


# --------------------------------------------------------------------------- pure parts

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("model"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=4), _values, max_size=5),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.text(max_size=8),
)
def test_only_the_name_changes_in_any_body(body: dict[str, Any], indent: int | None, escaped: bool, name: str) -> None:
    body = {**body, "model": "judge"}
    text = json.dumps(body, indent=indent, ensure_ascii=escaped).encode("utf-8", "replace")
    expected = json.loads(text)
    changed = with_model(text, name)
    assert json.loads(changed) == {**expected, "model": name}
    assert changed.replace(json.dumps(name).encode(), b'"judge"', 1) == text or json.dumps(name).encode() in text


@given(
    st.lists(
        st.sampled_from(
            [
                b"data: 1\n\n",
                b": hb\r\n\r\n",
                b"event: x\rdata: 2\r\r",
                b"data: [DONE]\n\n",
                b"data: half",
                b'data: {"error": 1}\n\n',
            ]
        ),
        max_size=6,
    ),
    st.data(),
)
def test_events_go_through_in_order_and_the_last_one_stays(events: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    gate = EventGate()
    passed = b"".join(gate.feed(whole[a:b]) for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True))
    assert passed + gate.rest == whole
    assert not any(line == b"data: [DONE]" for line in passed.split(b"\n"))
    assert passed == b"" or passed.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
    at_once = EventGate()
    assert (at_once.feed(whole), at_once.ended, at_once.fault) == (passed, gate.ended, gate.fault), "however it is cut"


@pytest.mark.parametrize(
    ("last", "ends"),
    [
        (b'data: {"response":{"error":null},"type":"response.completed"}\n\n', True),
        (b'data: {"delta":"response.completed","type":"response.output_text.delta"}\n\n', False),
        (b'data: {"type":"response.output_text.delta","delta":"{\\"type\\":\\"message_stop\\"}"}\n\n', False),
        (b"event: message_stop\ndata: {}\n\n", True),
        (b'data: {"type":\ndata: "message_stop"}\n\n', True),
        (b'data: {"type":"response.created","response":{"error":null}}\n\n', False),
        (b'data: {"error":null,"type":["error"]}\n\n', False),
        (b'data: {"type":"response.incomplete"}\r\r', True),
    ],
)
def test_the_json_of_an_event_says_whether_it_is_the_last(last: bytes, ends: bool) -> None:
    gate = EventGate()
    assert gate.feed(last) == (b"" if ends else last)
    assert gate.ended is ends and gate.fault is None


def test_a_large_event_is_searched_once_however_many_pieces_it_comes_in() -> None:
    def seconds(size: int) -> float:
        piece, gate = b"x" * 1024, EventGate()
        began = time.process_time()
        for _ in range(size):
            gate.feed(piece)
        return time.process_time() - began

    assert seconds(1024) < 25 * max(seconds(128), 0.001), (
        "eight times as much takes about eight times as long, not 64 times"
    )


def test_usage_is_read_from_any_apis_reply() -> None:
    assert usage_of(b'{"usage": {"prompt_tokens": 1, "completion_tokens": null}}') == {"prompt_tokens": 1}
    events = b'data: {"message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}\n\ndata: {"usage": {"output_tokens": 9}}\n\ndata: {"usage": broken\n\n'
    assert usage_of(events) == {"input_tokens": 3, "output_tokens": 9}
    assert usage_of(b'data: {"response": {"usage": {"input_tokens": 2}}}\n\n') == {"input_tokens": 2}
    assert usage_of(b"\xff\x00 no json") == {} and usage_of(b'{"usage": [1]}') == {}


def test_what_cannot_be_called_is_refused_by_name() -> None:
    good = LLM(endpoint="https://api.other/v1", model="m", api_key=KEY)
    assert list(NamedResources(judge=good, mine=LLM(), n=1).external()) == ["judge"]
    for broken, said in (
        (replace(good, endpoint="api.other/v1"), "is no URL"),
        (replace(good, endpoint="ftp://api.other"), "is no URL"),
        (replace(good, endpoint="http://x:y/v1"), "is no URL"),
        (replace(good, endpoint="https://me:pw@api.other/v1"), "user name or password"),
        (replace(good, endpoint="https://api.other/v1/chat/completions/"), "give the base URL"),
        (replace(good, model="", name=""), "names no model"),
        (replace(good, api_key="a\nb"), "no HTTP header"),
    ):
        with pytest.raises(ConfigError, match=f"resource 'judge'.*{said}") as caught:
            NamedResources(judge=broken).external()
        assert KEY not in str(caught.value) and "pw" not in str(caught.value)
