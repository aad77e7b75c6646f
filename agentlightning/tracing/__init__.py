"""Tracing: what a program can ask about the rollouts that it ran itself. Loads nothing until it is asked; the record
holds everything, this only points into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentlightning.run.last_trace import LastTrace

__all__ = ["last_trace"]


def last_trace() -> LastTrace:
    """The recorded trace of the rollout that ended last in this process, whichever run it was of.

    Reads the record anew at each call. Raises ConfigError where no rollout has ended here (agents in processes of their
    own run elsewhere: ask in the program that called ``fit``, ``dev`` or ``evaluate``), StoreError where the record
    cannot be read.
    """
    from agentlightning.run.last_trace import last_trace

    return last_trace()
