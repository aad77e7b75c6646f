"""PlainView: one line per step, for output that is no terminal (a file, a pipe, a CI log). ASCII only; writes to one
stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from agentlightning.nouns import Json, Rollout, RunRecord
from agentlightning.text import one_line, plural, printable, short_path
from agentlightning.views.live.state import RunState, counts, pace_text, partial, score, step_line, summary
from agentlightning.views.screen import Stream

FIRST_LINE, NEXT_LINE = 5.0, 30.0
"""Seconds that a phase of rollouts may take before a line says how far it is, and until the next line."""


class PlainView:
    """See Progress. A stream that can no longer be written to (its reader left) silences the view, never the run."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self._clock = clock
        self._state = RunState()
        self._closed = self._broken = False
        self._next_line = 0.0

    def run_started(self, run: RunRecord, total_steps: int | None) -> None:
        self._state.start(run, total_steps, self._clock())
        steps = f", {plural(total_steps, 'step')}" if total_steps else ""
        self._print(f"run {one_line(run.name)} ({one_line(run.id)}){steps}, in {one_line(short_path(run.folder))}")

    def phase(self, name: str, *, total: int = 0, step: int | None = None) -> None:
        now = self._clock()
        self._state.enter(name, total, now, step)
        self._next_line = now + FIRST_LINE

    def rollout_done(self, rollout: Rollout) -> None:
        self._state.add_rollout(rollout)

    def sampling(self, tokens_per_s: float, live: int, waiting: int) -> None:
        now = self._clock()
        if now < self._next_line:
            return
        self._next_line = now + NEXT_LINE
        done = sum(self._state.phase.outcomes.values())
        self._print(
            f"{self._state.phase.name}: {done}/{plural(self._state.phase.total, 'rollout')}, "
            f"{pace_text(tokens_per_s, live, waiting)}"
        )

    def step_done(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json]) -> None:
        self._state.done.add(metrics, ledger)
        self._print(step_line(metrics, self._state.total_steps, self._state.done.trend, ledger.get("masked")))

    def validated(self, evaluation: Mapping[str, Json]) -> None:
        self._state.validations.append(evaluation)
        failed = f", not scored: {counts(evaluation['failed'])}" if evaluation.get("failed") else ""
        training = " before training" if self._state.total_steps else ""
        at = f" after step {evaluation['step']}" if evaluation.get("step") else training
        on = "" if partial(evaluation) else f" on {plural(evaluation.get('scored', 0), 'rollout')}"
        self._print(f"validation{at}: {score(evaluation)}{on}{failed}")

    def checkpoint_saved(self, path: Path) -> None:
        self._print(f"checkpoint {one_line(short_path(path))}")

    def message(self, text: str) -> None:
        """Also after the summary: what goes along with attempts ends after the run."""
        self._print(text, after=True)

    def finished(self, result: Mapping[str, Json]) -> None:
        for label, text in summary(result):
            self._print(f"{label + ':':<12}{one_line(text)}")
        self.close()

    def close(self) -> None:
        self._closed = True

    def _print(self, line: str, *, after: bool = False) -> None:
        if self._broken or (self._closed and not after):
            return
        real: TextIO | None = self.stream or getattr(sys, "stdout", None)
        if real is None:
            return
        stream = Stream(real)
        stream.write(printable(line) + "\n")
        stream.flush()
        self._broken = stream.failed is not None
