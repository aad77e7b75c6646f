"""Request bodies: read within their limits and parsed, before any wire looks at them. Knows nothing of wires, sessions
or calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentlightning.gateway.wires.base import CallError
from agentlightning.nouns import Json

READ_DEADLINE = 60.0
"""Seconds a client may take to send its body."""

MAX_NESTING = 128
"""Levels of arrays and objects in a body. Half of what can be written as JSON again, so that whatever a wire keeps of a
body can be recorded and told."""


def readable(text: str) -> str:
    """Text of a request's head, whose bytes may be of any encoding, as it can be written."""
    return text.encode("utf-8", "backslashreplace").decode()


async def read_body(request: web.BaseRequest) -> bytes:
    """The whole body, unpacked, of at most the request's ``client_max_size``. Raises CallError."""
    kind = request.headers.get("Content-Type")
    if kind is not None and "json" not in kind.lower():
        raise CallError(
            415, f"Content-Type must be application/json, not {readable(kind)[:80]}", code="unsupported_media_type"
        )
    limit = request.client_max_size
    too_large = CallError(
        413, f"the body is larger than {limit / 2**20:.3g} MB (gateway.max_body_mb)", code="request_too_large"
    )
    if request.content_length is not None and request.content_length > limit:
        raise too_large
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if request.content.is_eof() and request.content.total_bytes <= limit:
            return request.content.read_nowait()  # it came with its head, as most do
        async with asyncio.timeout(READ_DEADLINE):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except TimeoutError:
        raise CallError(408, f"the body did not arrive within {READ_DEADLINE:g} s", code="timeout") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        cause = error.__cause__ or error
        why = cause.message if isinstance(cause, HttpProcessingError) else str(cause)
        raise CallError(
            400, f"the body could not be read: {' '.join(readable(why).split())[:200]}", code="unreadable_body"
        ) from error


def parse(body: bytes, *, constants: bool = False) -> Mapping[str, Json]:
    """The JSON object in a body. With ``constants``, NaN and Infinity are read as Python writes them, so that they can
    be refused by name.

    Raises CallError, also for a NUL and for what is nested more than ``MAX_NESTING`` levels deep.
    """
    parsed = _parsed(body, constants=constants)
    if not isinstance(parsed, dict):
        raise CallError(400, "the body must be a JSON object", code="invalid_json")
    return cast("dict[str, Json]", _sound(parsed, body))


def parse_list(body: bytes) -> list[Json]:
    """The JSON list in a body. Raises CallError as `parse` does."""
    parsed = _parsed(body)
    if not isinstance(parsed, list):
        raise CallError(400, "the body must be a JSON list", code="invalid_json")
    return cast("list[Json]", _sound(parsed, body))


def _parsed(body: bytes, *, constants: bool = False) -> Json:
    try:
        return orjson.loads(body)
    except ValueError as error:
        if constants:
            with suppress(ValueError, RecursionError):
                return json.loads(body)
        raise CallError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error


def _sound(parsed: Json, body: bytes) -> Json:
    """What was parsed, where all of it can be recorded."""
    if body.count(b"[") + body.count(b"{") > MAX_NESTING and _too_deep(parsed):
        raise CallError(400, f"the body is nested more than {MAX_NESTING} levels deep", code="nested_too_deeply")
    if b"\\u0000" in body and _has_nul(parsed):
        raise CallError(
            400,
            "the body holds a NUL character (\\u0000), which no tokenizer or database can be trusted with",
            code="invalid_text",
        )
    return parsed


def _too_deep(value: Any) -> bool:
    """Looks at one level after the other, so that neither the depth nor a number of levels with much in them costs more
    than the body's size."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [
            item
            for outer in level
            for item in (cast("dict[str, Any]", outer).values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _has_nul(value: Any) -> bool:
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if "\0" in item:
                return True
        elif isinstance(item, dict):
            todo.extend(cast("dict[str, Any]", item).items())
        elif isinstance(item, list | tuple):
            todo.extend(cast("list[Any]", item))
    return False
