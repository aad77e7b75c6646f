"""FitResult: what ``Trainer.fit`` hands back: a result that shows itself, as a line, on a notebook's card and as a
curve. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from agentlightning.records.card import card
from agentlightning.records.result import RunResult
from agentlightning.text import printable
from agentlightning.views.live.state import summary

_ON_CARD = ("run", "validation", "reward", "rollouts", "weights", "checkpoint", "best", "folder")
"""The lines of a run's summary that a notebook shows with its curve."""


@dataclass(frozen=True, slots=True, repr=False)
class FitResult(RunResult):
    """The outcome of ``Trainer.fit``; see `RunResult` for its fields."""

    def __repr__(self) -> str:
        texts = dict(summary(self.to_json()))
        parts = (texts["run"], *(f"{label} {texts[label]}" for label in ("reward", "validation") if label in texts))
        return f"<FitResult {printable(self.run_id)}: {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        rows = [row for row in summary(self.to_json()) if row[0] in _ON_CARD]
        return card(self.run_id, rows, picture=self.curve.read_bytes() if self.curve.is_file() else None)

    def plot(self, path: str | Path | None = None) -> Path:
        """Draws the learning curve as a PNG, by default ``curve.png`` in the run's folder, and returns its path."""
        from agentlightning.views.curve import plot

        validations = [v.to_json() for v in self.validations]
        return plot(
            self.history,
            Path(path) if path else self.curve,
            validations=validations,
            title=self.run_id,
            about=self._about(),
        )

    def _about(self) -> str:
        """What was trained and how, in a line. Empty where the run's folder does not say."""
        try:
            described = orjson.loads((self.folder / "config.json").read_bytes())
            model, algorithm = described["config"]["model"]["path"], described["algorithm"]["name"]
        except (OSError, ValueError, LookupError, TypeError):
            return ""
        return f"{str(model).rstrip('/').rpartition('/')[2]}, {algorithm}"
