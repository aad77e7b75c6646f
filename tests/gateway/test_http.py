"""Below the wires: bodies nested too deeply, heads that cannot be read, and connections of attempts that have ended."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.gateway import server
from agentlightning.gateway.request_bodies import MAX_NESTING, parse
from agentlightning.gateway.wires.base import CallError
from agentlightning.settings.fields import SamplingConfig
from tests.gateway.conftest import Build, House, Visit, until

ASK = [{"role": "user", "content": "q"}]

PLACES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "chat": (
        "/v1/chat/completions",
        {"model": "m", "messages": ASK},
        (
            "user",
            "reasoning_effort",
            "verbosity",
            "service_tier",
            "stop",
            "metadata",
            "tool_choice",
            "stream_options",
            "new",
        ),
    ),
    "responses": (
        "/v1/responses",
        {"model": "m", "input": "q"},
        ("user", "tool_choice", "truncation", "reasoning", "metadata", "text", "include", "service_tier", "new"),
    ),
    "messages": (
        "/v1/messages",
        {"model": "m", "max_tokens": 20, "messages": ASK},
        ("metadata", "service_tier", "thinking", "tool_choice", "output_config", "new"),
    ),
    "gemini": (
        "/v1beta/models/g:generateContent",
        {"contents": [{"parts": [{"text": "q"}]}]},
        ("generationConfig", "safetySettings", "toolConfig", "new"),
    ),
    "completions": ("/v1/completions", {"model": "m", "prompt": "q"}, ("user", "metadata", "stop", "new")),
}
"""For each wire a request that is answered, and fields that are recorded, refused or unknown."""


def deep(levels: int, brackets: str = "[]") -> str:
    """JSON of so many levels."""
    opened, closed = ('{"a":', "}") if brackets == "{}" else brackets
    return opened * (levels - 1) + brackets + closed * (levels - 1)


def with_field(body: dict[str, Any], field: str, value: str) -> bytes:
    """The body with one more field, whose JSON is given."""
    others = {name: item for name, item in body.items() if name != field}
    return f"{json.dumps(others)[:-1]}, {json.dumps(field)}: {value}}}".encode()


async def post(visit: Visit, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"Content-Type": "application/json", **headers}
    async with (
        aiohttp.ClientSession() as client,
        client.post(visit.endpoint.root_url + path, data=data, headers=headers) as reply,
    ):
        return reply.status, json.loads(await reply.read())


# --------------------------------------------------------------------------- nesting


@pytest.mark.parametrize("wire", PLACES)
async def test_whatever_field_is_nested_deeply_is_refused_or_recorded(house: House, wire: str) -> None:
    """None of it is a 500, and the attempt goes on: what a body may hold, the record may hold."""
    path, body, fields = PLACES[wire]
    visit = await house.open()
    for field in fields:
        for levels in (MAX_NESTING - 2, MAX_NESTING - 1, MAX_NESTING, 300, 1000):
            for value in (deep(levels), deep(levels, "{}"), f'{{"type": "auto", "x": {deep(levels - 1)}}}'):
                status, reply = await post(visit, path, with_field(body, field, value))
                assert status in (200, 400), (field, levels, reply)
                if levels >= MAX_NESTING:
                    assert status == 400 and f"nested more than {MAX_NESTING} levels" in json.dumps(reply), (
                        field,
                        levels,
                    )
    assert (await post(visit, path, body))[0] == 200
    assert (await visit.end()).incomplete == 0


async def test_a_reward_nested_too_deeply_is_refused(house: House) -> None:
    visit = await house.open()
    for value in (deep(MAX_NESTING), deep(1000)):
        status, reply = await post(visit, "/rewards", with_field({"value": 1.0}, "reason", value))
        assert (status, reply["error"]["code"]) == (400, "nested_too_deeply")
    assert (await post(visit, "/rewards", {"value": 1.0}))[0] == 200


VALUES = st.recursive(
    st.none() | st.integers(-3, 3) | st.text('[]{}"\\a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\a', max_size=3), inner, max_size=3),
    max_leaves=8,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.integers(MAX_NESTING - 12, MAX_NESTING + 4), st.lists(VALUES, max_size=3))
def test_the_limit_is_on_levels_alone(value: Any, levels: int, beside: list[Any]) -> None:
    for _ in range(levels):
        value = [value]
    body = {"a": value, "b": ["[" * 500, *beside]}
    if depth(body) <= MAX_NESTING:
        assert parse(orjson.dumps(body)) == body
    else:
        with pytest.raises(CallError, match="nested"):
            parse(orjson.dumps(body))


# --------------------------------------------------------------------------- heads


async def raw(
    visit: Visit, path: str, *headers: bytes, method: bytes = b"POST", body: bytes | None = None
) -> tuple[int, str, Any]:
    """Status, content type and JSON of the answer to a request that is written byte by byte."""
    at = urlsplit(visit.endpoint.root_url)
    body = orjson.dumps({"messages": ASK, "model": "m", "max_tokens": 9}) if body is None else body
    lines = [
        method + b" " + (at.path + path).encode() + b" HTTP/1.1",
        b"Host: x",
        b"Connection: close",
        b"Content-Length: %d" % len(body),
        *headers,
    ]
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        async with asyncio.timeout(20):
            head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    kind = next(line for line in head.decode().splitlines() if line.lower().startswith("content-type: "))
    return int(head.split()[1]), kind[14:], json.loads(text)


SHAPES = {
    "/v1/chat/completions": lambda error: set(error["error"]) == {"message", "type", "param", "code"},
    "/v1/messages": lambda error: error["type"] == "error" and set(error["error"]) >= {"message", "type"},
    "/v1beta/models/g:generateContent": lambda error: (
        isinstance(error["error"]["code"], int) and error["error"]["status"].isupper()
    ),
}

HEADS: dict[str, tuple[dict[str, Any], int]] = {
    "a content type that is no text": ({"headers": (b"Content-Type: text/\xff",)}, 415),
    "brotli": ({"headers": (b"Content-Encoding: br",)}, 415),
    "zstd": ({"headers": (b"Content-Encoding: zstd",)}, 415),
    "a method that is none": ({"method": b"BREW"}, 405),
    "a header of 70 KB": ({"headers": (b"baggage: " + b"x" * 70_000,)}, 431),
    "a header without a name": ({"headers": (b": x",)}, 400),
    "a header with a NUL": ({"headers": (b"x: a\x00b",)}, 400),
    "a body that is not gzip": ({"headers": (b"Content-Encoding: gzip",)}, 400),
    "too many headers": ({"headers": tuple(b"x-%d: y" % i for i in range(200))}, 400),
    "two lengths": ({"headers": (b"Content-Length: 3",)}, 400),
}


@pytest.mark.parametrize("path", SHAPES)
async def test_a_head_that_cannot_be_read_is_answered_in_the_callers_shape(
    house: House, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    visit = await house.open()
    for name, (request, status) in HEADS.items():
        caplog.clear()
        got, kind, reply = await raw(visit, path, *request.get("headers", ()), method=request.get("method", b"POST"))
        assert (got, kind) == (status, "application/json"), (name, reply)
        assert SHAPES[path](reply), (name, reply)
        assert "\n" not in json.dumps(reply).replace("\\n", "\n"), (name, reply)
        told = [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]
        assert not told, name
    assert (await post(visit, path, {"messages": ASK, "max_tokens": 9, "contents": [{"parts": [{"text": "q"}]}]}))[
        0
    ] == 200
    assert (await visit.end()).incomplete == 0


async def test_the_first_line_of_another_request_is_never_taken_for_that_of_one_that_cannot_be_read(
    house: House,
) -> None:
    """On one connection, with a body that comes in parts and reads like a head."""
    visit = await house.open()
    at = urlsplit(visit.endpoint.root_url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    body = orjson.dumps({"messages": [{"role": "user", "content": "POST /a/x/v1/messages HTTP/1.1"}]})
    writer.write(
        f"POST {at.path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    for part in (body[:20], body[20:35], body[35:]):
        await asyncio.sleep(0.02)
        writer.write(part)
    async with asyncio.timeout(20):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.write(f"POST {at.path}/v1beta/models/g:generateContent HTTP/1.1\r\n".encode())
        await asyncio.sleep(0.02)
        writer.write(b"Host: x\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\n{}\n")
        _, _, text = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert SHAPES["/v1beta/models/g:generateContent"](json.loads(text)), text


async def test_headers_up_to_64_kb_are_taken(house: House) -> None:
    """OpenTelemetry's baggage is long where many services add to it."""
    visit = await house.open()
    baggage = "other=" + "x" * 60_000 + ",gen_ai.agent.name=planner"
    assert (await post(visit, "/v1/chat/completions", {"messages": ASK}, baggage=baggage))[0] == 200
    assert [call.agent for call in await visit.calls()] == ["planner"]


async def test_bytes_that_are_no_text_break_no_header(house: House) -> None:
    visit = await house.open()
    for header in (
        b"User-Agent",
        b"X-Agent-Name",
        b"Authorization",
        b"baggage",
        b"Idempotency-Key",
        b"x-stainless-retry-count",
        b"Accept",
    ):
        status, _, reply = await raw(visit, "/v1/chat/completions", header + b": agent:\xff\xfe=1")
        assert status == 200, (header, reply)
    usage = await visit.end()
    assert (usage.incomplete, usage.calls) == (0, 7)
    json.dumps([usage.user_agents, *usage.agents], ensure_ascii=False).encode()


# --------------------------------------------------------------------------- connections


async def test_an_attempts_end_closes_the_connections_that_nobody_reads(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LAST_WORDS", 0.1)
    house = await build(script=["x" * 1500] * 128)
    visit, other = await house.open(sampling=SamplingConfig(max_tokens=2000)), await house.open()
    at = urlsplit(visit.endpoint.base_url)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect((at.hostname, at.port))
    reader, writer = await asyncio.open_connection(sock=small, limit=1024)
    body = orjson.dumps({"messages": ASK, "n": 128, "logprobs": True})
    writer.write(
        f"POST {at.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    answering = house.gateway._answering
    await until(lambda: visit.session.calls.kept)
    await asyncio.sleep(0.2)
    keeps = answering[visit.attempt.id]
    assert keeps, "it waits for its client to read on"
    await visit.end()
    await until(lambda: not keeps)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(10**9)
    writer.close()
    assert (await other.ask("q")).choices[0].message.content, "others go on"
    assert visit.attempt.id not in answering
