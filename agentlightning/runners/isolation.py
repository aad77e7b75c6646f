"""Isolation: how agents are kept apart, in threads or in processes, behind one protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from agentlightning.agent.calling import AgentSpec
from agentlightning.records.probe import AgentProbe
from agentlightning.runners.assignment import Assignment
from agentlightning.runners.check import new_launcher
from agentlightning.runners.companions import Companions, Once, Say
from agentlightning.runners.execution import AgentResult
from agentlightning.runners.output_log import Log
from agentlightning.runners.process import Launcher, ProcessIsolation
from agentlightning.runners.said import Said
from agentlightning.runners.thread import ThreadIsolation

logger = logging.getLogger("agentlightning.runners")


class Isolation(Protocol):
    """Runs attempts of one agent. ``abandoned`` counts threads of ended attempts that still run; ``launcher`` is what
    starts processes, where it starts any."""

    @property
    def launcher(self) -> Launcher | None: ...
    @property
    def abandoned(self) -> int: ...
    async def start(self) -> None: ...
    async def run(self, assignment: Assignment, log: Log, said: Said, *, stop: asyncio.Event) -> AgentResult | None:
        """Runs one attempt for at most the seconds it has left. None when ``stop`` was set before it ended. ``said``
        is told what the agent says of its agents, from any thread."""
        ...

    async def settle(self) -> None:
        """Waits a little for what ended attempts have left running."""
        ...

    async def close(self) -> None: ...


def isolate(
    agent: AgentSpec,
    probe: AgentProbe,
    address: str,
    *,
    extra_env: Mapping[str, str] | None = None,
    keys: Collection[str] = (),
    companions: Companions | None = None,
    say: Say = logger.warning,
) -> Isolation:
    """The isolation that a check of the agent found. Its calls go to ``address``; ``keys`` are kept out of its
    environment, and ``extra_env`` is added to it. ``companions`` go along with every attempt, and ``say`` is told
    once of each thing that goes wrong with them; raises ConfigError for those that cannot be where it runs."""
    if probe.isolation == "thread":
        return ThreadIsolation(agent.load(), address, companions, Once(say))
    assert agent.source is not None
    launcher = new_launcher(probe, keys)
    return ProcessIsolation(agent.source, agent.name, extra_env or {}, launcher, companions, Once(say))
