"""RunJournal: the Journal port: what makes a run's steps durable, shows them, and takes a run up where its record
ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agentlightning.algorithms.task_order import TaskOrder
from agentlightning.errors import ConfigError
from agentlightning.nouns import CreditRow, Intent, Json, Mode, RunRecord, StepRecord
from agentlightning.records.ledger import Ledger
from agentlightning.records.result import Evaluation
from agentlightning.records.traces import Group
from agentlightning.run.checkpoints import Checkpoints
from agentlightning.run.rollouts import Place, RunRollouts
from agentlightning.run.validation import Validations

if TYPE_CHECKING:
    from agentlightning.store.base import Store


@dataclass(frozen=True, slots=True)
class Horizon:
    """When a run is over: after so many steps, or, where one is set, at a step's mean reward."""

    steps: int
    reward: float | None = None


@dataclass(slots=True)
class Progressed:
    """How far a run has come. ``seconds`` is wall time by phase, of all its processes; ``made`` counts the steps that
    this process has made durable."""

    step: int = 0
    record: StepRecord | None = None
    """What is stored of that step, also where an earlier process made it."""
    cursor: int = 0
    """Tasks taken up to it, and with ``place`` the groups asked for: where a resumed run goes on."""
    place: Place = field(default_factory=Place)
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    made: int = 0

    def spent(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


class RunJournal:
    """See `Journal`. ``checkpoints`` is None where the run has no policy: then it is resumed from its start, and the
    rollouts that it has recorded are not run again."""

    def __init__(
        self,
        record: RunRecord,
        horizon: Horizon,
        store: Store,
        tasks: TaskOrder,
        rollouts: RunRollouts,
        validations: Validations,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.come = Progressed()
        self.validations = validations
        self.checkpoints = checkpoints
        self._run = record
        self._horizon = horizon
        self._store = store
        self._tasks = tasks
        self._rollouts = rollouts
        self._audience = validations.audience

    # ------------------------------------------------------------------ the port

    @property
    def total_steps(self) -> int:
        return self._horizon.steps

    @property
    def last_step(self) -> int:
        return self.come.step

    async def intend(self, step: int, groups: Sequence[Group]) -> None:
        numbers = tuple(group.number for group in groups)
        await self._store.put_intent(Intent(self._run.id, step, numbers, self.validations.versions()))

    async def commit(
        self,
        step: int,
        metrics: dict[str, Json],
        ledger: Ledger,
        groups: Sequence[Group],
        credit: Sequence[CreditRow] = (),
    ) -> None:
        versions = self.validations.versions()
        metrics = {**metrics, "cursor": self._tasks.taken, "policy_version": next(iter(versions.values()), 0)}
        record = StepRecord(
            run_id=self._run.id,
            step=step,
            versions=versions,
            groups=tuple(sorted(group.number for group in groups)),
            metrics=metrics,
            ledger=ledger.to_json(),
            ended_at=time.time(),
        )
        await self._store.put_step(record, credit)
        for phase, spent in ledger.seconds.items():
            self.come.spent(phase, spent)
        self.come.step, self.come.record = step, record
        self.come.cursor, self.come.place = self._tasks.taken, self._rollouts.place()
        self.come.made += 1
        self._rollouts.watch.step = step + 1
        self._audience.step_done(metrics, ledger.to_json())

    async def validate(self, step: int) -> None:
        if self.validations.due(step, self._horizon.steps):
            await self.evaluate(step)

    async def checkpoint(self, step: int) -> None:
        if self.checkpoints is None or step >= self._horizon.steps:  # the last one is saved by ``finish``
            return
        config = self.checkpoints.config
        due = bool(config.save_every) and step % config.save_every == 0
        if due or (config.best and self.validations.best_is(step)):
            await self.save()

    def should_stop(self) -> bool:
        record, reward = self.come.record, self._horizon.reward
        return record is not None and reward is not None and record.metrics["reward"] >= reward

    async def finish(self) -> None:
        await self.save()
        if self.come.step and self.validations.at_end:
            await self.evaluate(self.come.step)

    # ------------------------------------------------------------------ for the run

    async def take_up(self) -> None:
        """Goes on where the latest checkpoint was saved. Steps recorded after it are made again from their recorded
        rollouts."""
        progress = self._audience.progress
        intents = await self._store.intents(self._run.id, mode=Mode.TRAIN)
        latest = await self.checkpoints.load() if self.checkpoints is not None else None
        if latest is None:
            where = "" if self.checkpoints is None else f" in {self.checkpoints.folder}"
            progress.message(
                f"resuming from the start: there is no checkpoint{where}; recorded rollouts are used again"
            )
            self._rollouts.replay(intents)
            return
        steps = await self._store.steps(self._run.id)
        record = next((step for step in steps if step.step == latest.step), None)
        if "groups" not in latest.extra:
            raise ConfigError(
                f"run {self._run.id} was begun by an older version of agentlightning, and this one cannot go on with "
                f"it; begin a new run from its weights: --model {latest.path}"
            )
        place = Place(latest.extra["groups"], tuple(latest.extra["asked"]))
        self.come = Progressed(latest.step, record, latest.extra["cursor"], place, dict(latest.extra["seconds"]))
        self._tasks.taken = self.come.cursor
        await self._rollouts.go_on(place)
        self._rollouts.replay([intent for intent in intents if intent.step > latest.step])
        self._rollouts.watch.step = latest.step + 1
        self.validations.done[:] = [Evaluation.from_json(value) for value in latest.extra["evaluations"]]
        progress.message(f"resuming after step {latest.step} from {latest.path}")

    async def evaluate(self, step: int) -> Evaluation | None:
        """A validation, due or not; None as `Validations.run`."""
        evaluation = await self.validations.run(step)
        if evaluation is None:
            return None
        self.come.spent("validating", evaluation.seconds)
        if self.checkpoints is not None:
            self.checkpoints.scored(step, evaluation.mean)
        self._audience.validated(evaluation)
        return evaluation

    async def save(self) -> None:
        """Saves the weights and the training state of the last durable step, unless that is done already."""
        if self.checkpoints is None or self.come.step in (0, self.checkpoints.saved):
            return
        self._audience.progress.phase("saving")
        evaluation = self.validations.of(self.come.step)
        extra: dict[str, Json] = {
            "run_id": self._run.id,
            "cursor": self.come.cursor,
            "groups": self.come.place.number,
            "asked": list(self.come.place.asked),
            "seconds": self.come.seconds,
            "evaluations": [evaluation.to_json() for evaluation in self.validations.done],
        }
        began = time.monotonic()
        path = await self.checkpoints.save(self.come.step, evaluation.mean if evaluation else None, extra)
        self.come.spent("saving", time.monotonic() - began)
        if self.come.record is not None and self.come.record.step == self.come.step:
            await self._store.put_step(replace(self.come.record, checkpoint=str(path)))
        self._audience.progress.checkpoint_saved(path)
