"""Desk: what runners ask of the rest of a run, in four verbs: lease, beat, report, log.

A runner knows no store, no gateway and no settings; whoever implements this protocol does. Only durations travel, never
times of a clock, for the two sides may be different machines. ``local_desk`` implements it by direct calls.
"""

from __future__ import annotations

from typing import Protocol

from agentlightning.runners.assignment import Assignment
from agentlightning.runners.execution import AgentResult
from agentlightning.runners.said import Said


class Desk(Protocol):
    @property
    def address(self) -> str:
        """``http://HOST:PORT``, where the endpoints of its assignments are reached from here."""
        ...

    async def lease(self, limit: int) -> list[Assignment] | None:
        """Up to ``limit`` attempts to run, each with an endpoint that is open until it is reported. Where nothing is
        queued it waits a little and returns []. None once nothing will be leased any more."""
        ...

    async def beat(self, attempt_id: str) -> bool:
        """Renews the lease of an attempt. False when it is no longer the runner's: cancelled, expired or ended."""
        ...

    async def report(self, attempt_id: str, result: AgentResult | None, said: Said | None = None) -> None:
        """Says what came of the agent, once it runs no more: closes the endpoint, has the output graded where that is
        needed, and decides and records what it means for the attempt.

        None: the agent was stopped. Then, and where the lease was lost meanwhile, nothing is recorded of the agent; an
        attempt that is still the runner's is queued again. ``said`` is what it said of its agents.
        """
        ...

    def log(self, attempt_id: str, data: bytes) -> None:
        """Takes what an attempt printed. From any thread; what comes after its report is dropped."""
        ...
