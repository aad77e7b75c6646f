"""Writing HTTP answers: whole ones, and ones that begin before their end is known. Knows nothing of calls; what an
answer says is others' business."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from aiohttp import web

from agentlightning.gateway.calls import Identity
from agentlightning.gateway.wires.base import Target

JSON = {"Content-Type": "application/json"}
EVENTS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def begin(request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


def drop(request: web.BaseRequest, response: web.StreamResponse, *, gently: bool = False) -> web.StreamResponse:
    """Ends a reply that failed after it had begun: a client must not take it for a whole one. ``gently``: what was
    written still arrives."""
    if request.transport is not None:
        request.transport.close() if gently else request.transport.abort()
    return response


async def send(request: web.BaseRequest, body: bytes, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """Writes a whole response. On return it is in the operating system's hands."""
    response = web.Response(body=body, status=status, headers=headers)
    await response.prepare(request)
    await response.write_eof()
    return response


def identity_of(request: web.BaseRequest, body: bytes, target: Target, agent: str, external: str = "") -> Identity:
    """What makes two requests the same call. ``external`` is the external model that it is for: keys of the client's
    own are not shared with its endpoint."""
    asked = blake2b(body, digest_size=16)
    asked.update(f"\0{target.path}\0{target.query}\0{agent}\0{external}".encode("utf-8", "surrogateescape"))
    own = request.headers.get("Idempotency-Key")
    if not own:
        return Identity(asked.digest())
    return Identity(
        asked.digest(),
        blake2b(f"{own}\0{external}".encode("utf-8", "surrogateescape"), digest_size=16, person=b"key").digest(),
    )


def retry_count(request: web.BaseRequest) -> int:
    """Which retry of its client's a request is, as OpenAI's and Anthropic's clients say it."""
    value = request.headers.get("x-stainless-retry-count", "0")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else 0
