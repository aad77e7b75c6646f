"""What answers to this name where the lab package is not installed, with the names that its module has here.

It lies aside, in a folder that an installation puts behind everything else on the path (``aside.pth``), so that the
lab's own file always comes first and none of its files is ever written over.
"""

from __future__ import annotations

from typing import Any

import agentlightning
from agentlightning.compat.agent_framework import init, public
from agentlightning.compat.tracers import AgentOpsTracer

__all__ = ["AgentFrameworkTracer", "init", *(name for name in agentlightning.__all__ if not name.startswith("_"))]  # pyright: ignore[reportUnsupportedDunderAll]  # the public names, by __getattr__


class AgentFrameworkTracer(AgentOpsTracer):
    """A tracer that turns on Agent Framework's telemetry first, as the lab's own does."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        init()
        super().init(*args, **kwargs)


__getattr__ = public
