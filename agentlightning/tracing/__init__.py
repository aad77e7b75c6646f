"""Tracing: what a program can ask about the rollouts that it ran itself. Holds nothing but which Trainer was made last,
weakly; what a rollout did is in the record, and read anew at each call."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentlightning.errors import ConfigError

if TYPE_CHECKING:
    from agentlightning.records.traces import AttemptTrace

__all__ = ["DrawnTrace", "last_trace"]


class DrawnTrace(Protocol):
    """One attempt as it is recorded. ``rollout_id`` and ``attempt`` (its number) are what ``agl trace`` takes."""

    @property
    def rollout_id(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def trace(self) -> AttemptTrace: ...

    def visualize(self, filename: str | Path = "tree_graph") -> tuple[Path, ...]:
        """Draws the tree, the picture of `agl trace --out`, and returns the files it wrote."""
        ...


class KnowsItsRollouts(Protocol):
    """What is asked: a Trainer."""

    def last_trace(self) -> DrawnTrace: ...


_newest: weakref.ref[KnowsItsRollouts] | None = None


def note_trainer(trainer: KnowsItsRollouts) -> None:
    """From now on ``last_trace`` asks this one, for as long as the program keeps it."""
    global _newest  # the question names no trainer: the answer belongs to the process
    _newest = weakref.ref(trainer)


def last_trace() -> DrawnTrace:
    """The recorded trace of the rollout that ended last in the newest run of the last Trainer that was made.

    Raises ConfigError where that Trainer is gone, where no rollout of it has ended (agents in processes of their own
    have none: ask in the program that called ``fit``, ``dev`` or ``evaluate``), StoreError where the record cannot be
    read.
    """
    trainer = _newest() if _newest is not None else None
    if trainer is None:
        raise ConfigError(
            "there is no last trace: this process has no Trainer, or no longer: keep it in a variable, "
            "trainer = Trainer(...), and ask after fit, dev or evaluate, or draw one of the record: agl trace RUN "
            "ROLLOUT"
        )
    return trainer.last_trace()
