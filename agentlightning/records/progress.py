"""Progress: what a run tells whoever is watching. A view shows it; it may not change, delay or fail the run.

The methods are called from one thread, in the order of the run. ``metrics`` and ``ledger`` are a step's JSON line and
accounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from agentlightning.nouns import Json, Rollout, RunRecord


class Progress(Protocol):
    def run_started(self, run: RunRecord, total_steps: int | None) -> None:
        """Once, before the first step. On a resume ``step_done`` follows only for the steps that are still to do."""
        ...

    def phase(self, name: str, *, total: int = 0, step: int | None = None) -> None:
        """The run is now ``sampling``, ``training``, ``validating`` or ``saving``; ``total`` is the number of rollouts
        it waits for, ``step`` the one they are sampled for, where they are for one."""
        ...

    def rollout_done(self, rollout: Rollout) -> None:
        """A rollout of the current phase is final."""
        ...

    def sampling(self, tokens_per_s: float, live: int, waiting: int) -> None:
        """How fast the engine samples just now, and how many requests it has in hand and in its queue. Told now and
        then while rollouts are waited for."""
        ...

    def step_done(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json]) -> None:
        """A step is durable."""
        ...

    def validated(self, evaluation: Mapping[str, Json]) -> None:
        """A validation ended: ``step``, ``mean``, ``low``, ``high`` (its 95% interval), ``scored``, ``failed`` by
        outcome, ``seconds``."""
        ...

    def checkpoint_saved(self, path: Path) -> None: ...

    def message(self, text: str) -> None:
        """One line for people: a warning, a retried rollout, a save on Ctrl-C."""
        ...

    def finished(self, result: Mapping[str, Json]) -> None:
        """The run ended as planned or early; ``result`` is ``FitResult.to_json()``. Shows the summary and closes the
        view."""
        ...

    def close(self) -> None:
        """Gives the terminal back. May be called at any time and more than once."""
        ...


class SilentView:
    """Shows nothing."""

    def run_started(self, run: RunRecord, total_steps: int | None) -> None:
        """See Progress."""

    def phase(self, name: str, *, total: int = 0, step: int | None = None) -> None:
        """See Progress."""

    def rollout_done(self, rollout: Rollout) -> None:
        """See Progress."""

    def sampling(self, tokens_per_s: float, live: int, waiting: int) -> None:
        """See Progress."""

    def step_done(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json]) -> None:
        """See Progress."""

    def validated(self, evaluation: Mapping[str, Json]) -> None:
        """See Progress."""

    def checkpoint_saved(self, path: Path) -> None:
        """See Progress."""

    def message(self, text: str) -> None:
        """See Progress."""

    def finished(self, result: Mapping[str, Json]) -> None:
        """See Progress."""

    def close(self) -> None:
        """See Progress."""
