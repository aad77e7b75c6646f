"""Runners: take rollouts from the store, run the agent on them in threads or processes, and report what came of each attempt.

The names are loaded when they are first used: the processes that agents run in import parts of this package and have no use for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentlightning.runners.check import AgentProbe, check_agent
    from agentlightning.runners.pool import RunnerPool
    from agentlightning.runners.report import AttemptReport

__all__ = ["AgentProbe", "AttemptReport", "RunnerPool", "check_agent"]

_HOME = {"AgentProbe": "check", "AttemptReport": "report", "RunnerPool": "pool", "check_agent": "check"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
