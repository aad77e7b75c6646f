"""Audience: everything that is told what a run has made durable: whoever is watching, and the files for other
programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentlightning.nouns import Json
from agentlightning.records.progress import Progress
from agentlightning.records.result import Evaluation

if TYPE_CHECKING:
    from agentlightning.run.writer import MetricsWriter


@dataclass(frozen=True, slots=True)
class Audience:
    """``progress`` is the view, ``writer`` the files."""

    progress: Progress
    writer: MetricsWriter

    def step_done(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json]) -> None:
        self.writer.write(metrics, ledger)
        self.progress.step_done(metrics, ledger)

    def validated(self, evaluation: Evaluation) -> None:
        self.writer.validated(evaluation.to_json())
        self.progress.validated(evaluation.to_json())
