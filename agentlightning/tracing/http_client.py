"""The HTTP client of an agent's process: whose reply each one is, where a framework knows its agents and not the ids of
their replies.

Clients of model APIs stand on httpx. Its ``send`` is wrapped: a reply that the gateway says the id of is told with the
agent that asked for it. Request, reply and errors stay what they are, and so does what is streamed, which is not read.
"""

from __future__ import annotations

import functools
from typing import Any

from agentlightning.tracing import agentscope, langchain, openai_agents, opentelemetry
from agentlightning.tracing.names import CALL_ID, current, never_raising


def listen(module: Any) -> None:
    """Wraps both clients of httpx, or of a module that stands in for it."""
    for owner, wrapped in ((module.Client, _wrapped), (module.AsyncClient, _wrapped_async)):
        if not hasattr(owner.send, "_agentlightning"):
            owner.send = wrapped(owner.send)
            owner.send._agentlightning = True


def _wrapped(send: Any) -> Any:
    @functools.wraps(send)
    def call(*args: Any, **kwargs: Any) -> Any:
        reply = send(*args, **kwargs)
        _note(reply)
        return reply

    return call


def _wrapped_async(send: Any) -> Any:
    @functools.wraps(send)
    async def call(*args: Any, **kwargs: Any) -> Any:
        reply = await send(*args, **kwargs)
        _note(reply)
        return reply

    return call


@never_raising
def _note(reply: Any) -> None:
    names = current()
    if names is None or (reply_id := reply.headers.get(CALL_ID)) is None:
        return
    named = openai_agents.current_agent() or agentscope.current_agent() or langchain.current_node()
    if named is not None:
        names.add(reply_id, named)
    elif (span := opentelemetry.current_span()) is not None:
        names.add_by_span(reply_id, span)
