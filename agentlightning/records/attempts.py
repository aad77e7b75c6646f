"""Attempts: what is told of one that ended."""

from __future__ import annotations

from dataclasses import dataclass

from agentlightning.nouns import Attempt, AttemptResult, Rollout
from agentlightning.records.usage import AttemptUsage


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt that ended. ``stdout`` is the last 64 KB of what it printed, ``seconds`` its wall time, ``retried``
    whether another attempt follows."""

    rollout: Rollout
    attempt: Attempt
    result: AttemptResult
    usage: AttemptUsage
    stdout: str
    seconds: float
    retried: bool = False
