"""Ports that follow a script, for the story of a step: what was asked of them stands in one list, in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.algorithms.ports import Run, StopRequested
from agentlightning.algorithms.task_order import TaskOrder
from agentlightning.learning.objective import ObjectiveSettings
from agentlightning.nouns import CreditRow, Json, Mode
from agentlightning.records.batch import Batch, LearnerStats
from agentlightning.records.ledger import Ledger
from agentlightning.records.probe import AgentProbe
from agentlightning.records.traces import Group
from agentlightning.settings.fields import RunConfig


@dataclass
class Script:
    """``steps`` are the groups that each call of ``sample`` gets; the run is asked to stop after the last."""

    steps: list[Sequence[Group]]
    told: list[Any] = field(default_factory=list[Any])
    batches: list[Batch] = field(default_factory=list[Batch])
    lines: list[Mapping[str, Json]] = field(default_factory=list[Mapping[str, Json]])
    ledgers: list[Ledger] = field(default_factory=list[Ledger])
    statistics: Mapping[str, float] = field(default_factory=lambda: {"entropy": 0.0})

    def run(self, *, total_steps: int = 1, last_step: int = 0, stop_after: int | None = None, **config: Any) -> Run:
        journal = ScriptedJournal(self, total_steps, last_step, stop_after)
        tasks = TaskOrder(list(range(100)), 0)
        policy = ScriptedPolicy(self, last_step)
        return Run(RunConfig(**config), tasks, ScriptedRollouts(self), journal, ScriptedResources(), {"main": policy})


class ScriptedRollouts:
    probe: AgentProbe | None = None
    outstanding = 0

    def __init__(self, script: Script) -> None:
        self._script = script

    async def ask(
        self, tasks: Sequence[Json], size: int, mode: Mode = Mode.TRAIN, *, resources: int | None = None
    ) -> None:
        raise NotImplementedError

    async def next(self) -> Group:
        raise NotImplementedError

    async def sample(
        self, tasks: Sequence[Json], size: int, mode: Mode = Mode.TRAIN, *, resources: int | None = None
    ) -> list[Group]:
        self._script.told.append(("sample", len(tasks), size))
        if not self._script.steps:
            raise StopRequested("interrupted")
        return list(self._script.steps.pop(0))

    def take_late(self) -> tuple[int, int]:
        return 2, 1


class ScriptedPolicy:
    def __init__(self, script: Script, version: int) -> None:
        self._script = script
        self.version = self.learned_from = version

    async def learn(self, batch: Batch, objective: ObjectiveSettings) -> LearnerStats:
        self._script.told.append("learn")
        self._script.batches.append(batch)
        self.learned_from = self.version
        self.version += bool(batch.groups)
        weights = [
            weight
            for trees in batch.groups
            for tree in trees
            for node in tree.nodes
            for weight in node.columns.get("advantage", ())
            if weight == weight
        ]
        return LearnerStats(0.5, 1.0, 1e-6, len(weights), 0, 0, 0, 0, 0, None, self._script.statistics, 0, 0.0)

    async def score(self, batch: Batch, what: Collection[str]) -> Batch:
        raise NotImplementedError

    async def save(self, folder: Path, *, step: int, score: float | None, extra: Mapping[str, Json]) -> Path:
        raise NotImplementedError

    async def load(self, checkpoint: Path) -> None:
        raise NotImplementedError


class ScriptedJournal:
    def __init__(self, script: Script, total_steps: int, last_step: int, stop_after: int | None) -> None:
        self._script = script
        self.total_steps = total_steps
        self.last_step = last_step
        self._stop_after = stop_after

    async def intend(self, step: int, groups: Sequence[Group]) -> None:
        self._script.told.append(("intend", step, [group.number for group in groups]))

    async def commit(
        self,
        step: int,
        metrics: dict[str, Json],
        ledger: Ledger,
        groups: Sequence[Group],
        credit: Sequence[CreditRow] = (),
    ) -> None:
        self._script.told.append(("commit", step))
        self._script.lines.append(metrics)
        self._script.ledgers.append(ledger)
        self.last_step = step

    async def validate(self, step: int) -> None:
        self._script.told.append(("validate", step))

    async def checkpoint(self, step: int) -> None:
        self._script.told.append(("checkpoint", step))

    def should_stop(self) -> bool:
        return self.last_step == self._stop_after

    async def finish(self) -> None:
        self._script.told.append("finish")


class ScriptedResources:
    current = 1

    async def publish(self, values: Mapping[str, Json]) -> int:
        raise NotImplementedError

    async def promote(self, version: int) -> None:
        raise NotImplementedError
