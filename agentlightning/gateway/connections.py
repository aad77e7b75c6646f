"""Connections: aiohttp's server with answers in the caller's own shape also where a request never gets as far as a
handler. Knows no attempts and no calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, ContentEncodingError, HttpProcessingError, LineTooLong

from agentlightning.gateway.http_responses import JSON
from agentlightning.gateway.request_bodies import readable
from agentlightning.gateway.wires.base import CallError

logger = logging.getLogger("agentlightning.gateway")

MAX_HEADER = 64 * 1024
"""Bytes of one header. OpenTelemetry's baggage and cookies grow beyond the 8 KB that servers usually take."""

MAX_LINE = 8 * 1024
"""Bytes of a request's first line that are looked at to know whose it is."""

Told = Callable[[str, CallError], bytes]
"""Makes the body of an error's answer for a raw path."""


class Listener(web.Server):
    """Serves with ``handler``. Bodies are limited to ``max_body`` bytes, unpacked; ``told`` makes the bodies of
    errors."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], told: Told, max_body: int
    ) -> None:
        super().__init__(handler, request_factory=self._request, handler_cancellation=True)
        self._max_body = max_body
        self._told = told

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._told)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        protocol.begins()
        return web.BaseRequest(
            message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=self._max_body
        )


class _Connection(web.RequestHandler):
    """One connection. It remembers the first line of a request itself: of one that cannot be read aiohttp tells
    nothing."""

    __slots__ = ("_coming", "_first_line", "_told")

    def __init__(self, server: web.Server, told: Told) -> None:
        options: dict[str, Any] = {"access_log": None, "max_field_size": MAX_HEADER, "max_line_size": MAX_HEADER}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._first_line = self._coming = b""
        self._told = told

    def data_received(self, data: bytes) -> None:
        if not self._coming and self._waiter is not None and not self._waiter.done():  # between two requests
            self._coming = data[:MAX_LINE].partition(b"\r\n")[0]
        super().data_received(data)

    def begins(self) -> None:
        """A request's head has been read, or could not be."""
        self._first_line, self._coming = self._coming, b""

    def log_exception(self, *args: Any, **more: Any) -> None:
        """A body that could not be read has been answered; what is left of it is worth no traceback."""
        if not isinstance(more.get("exc_info"), web.RequestPayloadError | HttpProcessingError):
            super().log_exception(*args, **more)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answers what could not be read, and what no handler could answer. The connection is closed then. One that the
        client has closed is nobody's error."""
        if isinstance(exc, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            logger.debug("a client left before it was answered: %s", exc)
            raise exc
        if isinstance(exc, HttpProcessingError):
            path, error = _path(self._first_line), _unreadable(exc)
            logger.info("a request was refused: %s", error.message)
        else:
            path, error = (
                request.raw_path,
                CallError(status, "the gateway failed; its log says how", code="internal_error"),
            )
            logger.error("a request could not be answered", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer has been sent")
        response = web.Response(status=error.status, body=self._told(path, error), headers=JSON)
        response.force_close()
        return response


def _path(first_line: bytes) -> str:
    parts = first_line.split(b" ")
    return parts[1].decode("utf-8", "surrogateescape") if len(parts) > 1 else "/"


def _unreadable(error: HttpProcessingError) -> CallError:
    if isinstance(error, LineTooLong):
        return CallError(431, f"a header, or the URL, is larger than {MAX_HEADER // 1024} KB", code="headers_too_large")
    if isinstance(error, ContentEncodingError):
        return CallError(
            415,
            "this Content-Encoding cannot be unpacked: send the body as it is, or with gzip or deflate",
            code="unsupported_media_type",
        )
    if isinstance(error, BadHttpMethod):
        return CallError(405, "the request's method is none that this server knows", code="method_not_allowed")
    lines = readable(error.message).splitlines() or [type(error).__name__]
    return CallError(400, f"the request could not be read: {lines[0][:200]}", code="bad_request")
