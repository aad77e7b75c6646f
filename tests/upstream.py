"""Somebody else's endpoint: a real HTTP server in a thread of its own, with a key, that keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "sk-other-0123456789abcdef"
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}

Handler = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class OtherEndpoint:
    """``handle`` answers; the default one speaks Chat Completions, JSON and events. ``say`` is the text of the
    reply."""

    handle: Handler | None = None
    say: str = "0.5"
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.go = threading.Event()
        """What the default stream waits for between its events."""
        self.go.set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="other-endpoint", daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)  # type: ignore[arg-type]
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(Asked(request.path_qs, dict(request.headers), body))
        given = json.loads(body)
        if self.handle is not None:
            return await self.handle(request, given)
        if KEY not in (
            request.headers.get("Authorization", "").removeprefix("Bearer "),
            request.headers.get("x-api-key"),
        ):
            return web.json_response({"error": {"message": "no such key", "type": "invalid_request_error"}}, status=401)
        if given.get("stream"):
            return await stream(request, [chunk.encode() async for chunk in self._chunks(given)], self.go)
        return web.Response(body=self.whole(given), content_type="application/json", headers={"x-request-id": "req-7"})

    def whole(self, given: Any) -> bytes:
        """Not as any library would write it, so that bytes which pass unchanged show."""
        message = {"role": "assistant", "content": self.say, "refusal": None}
        reply = {
            "id": "chatcmpl-their-own", "object": "chat.completion", "created": 1, "model": given["model"],
            "their_field": [1.0, 1e3],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE,
        }  # fmt: skip
        return json.dumps(reply, indent=3).encode()

    async def _chunks(self, given: Any) -> AsyncIterator[str]:
        base = {"id": "chatcmpl-their-own", "object": "chat.completion.chunk", "created": 1, "model": given["model"]}
        for letter in self.say:
            yield event({**base, "choices": [{"index": 0, "delta": {"content": letter}, "finish_reason": None}]})
        yield event({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE})
        yield "data: [DONE]\n\n"


def event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def stream(
    request: web.Request, pieces: list[bytes], go: threading.Event | None = None, *, ends: bool = True
) -> web.StreamResponse:
    """Writes the pieces one by one; with ``go``, the ones after the first each when it is set. Without ``ends`` the
    connection is cut after them."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for i, piece in enumerate(pieces):
        while i and go is not None and not go.is_set():  # noqa: ASYNC110 - it is set from another thread
            await asyncio.sleep(0.002)
        await response.write(piece)
    if not ends:
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
    return response
