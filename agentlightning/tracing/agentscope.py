"""AgentScope: the agent that runs here.

Its spans are written only where somebody exports them, and serialise every message. So the one coroutine of an agent
that all its model calls are made in is wrapped: `AgentBase.__call__` of version 1, `Agent._call_model` of version 2.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any

from agentlightning.tracing.names import Named

_agent: ContextVar[Any] = ContextVar("agentlightning_agentscope_agent", default=None)


def listen(module: Any) -> None:
    """Wraps the coroutine. ``module`` is `agentscope.agent`."""
    for name, method in (("AgentBase", "__call__"), ("Agent", "_call_model")):
        owner: Any = getattr(module, name, object)
        function: Any = getattr(owner, method, None) if method in vars(owner) else None
        if function is not None and not hasattr(function, "_agentlightning"):
            setattr(owner, method, _within(function))


def _within(function: Any) -> Any:
    @functools.wraps(function)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _agent.set(self)
        try:
            return await function(self, *args, **kwargs)
        finally:
            _agent.reset(before)

    call._agentlightning = True  # pyright: ignore[reportAttributeAccessIssue]
    return call


def current_agent() -> Named | None:
    """The agent that runs here; None outside one."""
    agent = _agent.get()
    name = getattr(agent, "name", None)
    return (name, "name") if isinstance(name, str) else None
