"""Answers calls to external models over HTTP, with what their endpoints answer. The counterpart of what server.py does
for calls to policies."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from agentlightning.gateway.calls import Answer, Forwarded
from agentlightning.gateway.external.upstream import ROUTES, Outgoing, Upstream
from agentlightning.gateway.http_responses import EVENTS, begin, drop, identity_of, retry_count, send
from agentlightning.gateway.session import Session
from agentlightning.gateway.wires.base import CallError, Wire
from agentlightning.gateway.wires.unserved import Unserved

LOOK = 10.0
"""Seconds after which a connection that waits looks whether it was forgotten; it is woken by whatever happens."""


async def pass_on(
    request: web.BaseRequest, session: Session, shape: Wire | Unserved, upstream: Upstream, sent: Outgoing, agent: str
) -> web.StreamResponse:
    """Answers one call, with errors of ours in the caller's ``shape``."""
    identity = identity_of(request, sent.body, sent.target, agent, upstream.name)
    call = session.external.submit(shape.name, upstream, sent, identity, retry=retry_count(request), agent=agent)
    try:
        return await _answer(
            request,
            session,
            call,
            upstream,
            lambda error: ROUTES[sent.target.path].error_event + shape.error(error) + b"\n\n",
        )
    finally:
        call.leave()
        session.calls.left(call)


async def _answer(
    request: web.BaseRequest, session: Session, call: Forwarded, upstream: Upstream, told: Callable[[CallError], bytes]
) -> web.StreamResponse:
    """Events go on as they come, but for those that end the reply; a body goes on when it is whole. The end waits for
    the record (ruling 5)."""
    response: web.StreamResponse | None = None
    seen = 0
    try:
        while (events := await call.events(seen, LOOK)) or call.outcome is None:
            seen += len(events)
            if events:
                response = response or await begin(request, {**EVENTS, **call.headers})
                await response.write(b"".join(events))
        answer = call.answer()
        if answer.failed:
            return await _finish(request, response, answer)
        await session.calls.acknowledge(call)
    except CallError as error:
        if response is None:
            raise
        await response.write(told(error))
        return drop(request, response, gently=True)
    session.calls.delivered(call)
    session.external.answered(call, upstream)
    try:
        return await _finish(request, response, answer)
    except BaseException:
        session.calls.undelivered(call)
        raise


async def _finish(request: web.BaseRequest, response: web.StreamResponse | None, answer: Answer) -> web.StreamResponse:
    if response is None:
        return await send(request, answer.rest, answer.status, answer.headers)
    await response.write(answer.rest)
    await response.write_eof()
    return response
