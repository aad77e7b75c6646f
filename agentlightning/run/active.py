"""Run: owns everything one run needs, opens it in order, offers the algorithm its verbs, and closes it once, in order.

The algorithm says what to sample and learn; this file moves it between the rooms: it queues rollouts and waits for
them, reads their traces, hands batches to the learner on the engine's compute thread, and makes each step durable. It
decides nothing about rewards, tokens or losses.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentlightning.agent.resources import POLICY
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.records.causes import likely_cause
from agentlightning.records.ledger import Ledger
from agentlightning.records.result import Evaluation, evaluate, evaluate_recorded
from agentlightning.records.traces import AttemptTrace, Group, Trace
from agentlightning.run.pace import Pace
from agentlightning.settings.fields import RunConfig
from agentlightning.types import Intent, Json, Mode, Rollout, RunRecord, RunStatus, StepRecord

if TYPE_CHECKING:
    from agentlightning.engines.local.engine import LocalEngine
    from agentlightning.engines.local.threads import Threads
    from agentlightning.engines.models import LoadedModel
    from agentlightning.gateway import Gateway
    from agentlightning.learning.learner import Learner
    from agentlightning.learning.objective import ObjectiveSettings
    from agentlightning.records.attempts import AttemptReport
    from agentlightning.records.batch import Batch, LearnerStats
    from agentlightning.records.probe import AgentProbe
    from agentlightning.records.progress import Progress
    from agentlightning.run.writer import MetricsWriter
    from agentlightning.runners.local_desk import LocalDesk
    from agentlightning.runners.pool import RunnerPool
    from agentlightning.store.base import Store
    from agentlightning.templates.base import Template


def derive_seed(*parts: Json) -> int:
    """A stable 63-bit seed from what it is for."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@lru_cache(maxsize=4)
def shuffled(count: int, seed: int) -> tuple[int, ...]:
    """A seeded permutation of range(count)."""
    return tuple(random.Random(seed).sample(range(count), count))


class StopRequested(Exception):
    """The run was asked to end early (Ctrl-C or max_time). Raised between, never inside, durable steps."""


@dataclass(slots=True)
class Run:
    """One run in progress. Made and closed by `opening.open_run`."""

    record: RunRecord
    config: RunConfig
    folder: Path
    store: Store
    gateway: Gateway
    engine: LocalEngine
    model: LoadedModel
    template: Template
    desk: LocalDesk
    pool: RunnerPool
    probe: AgentProbe
    threads: Threads
    progress: Progress
    writer: MetricsWriter
    tasks: Sequence[Json]
    val_tasks: Sequence[Json]
    resources_version: int
    resumed: bool = False
    learner: Learner | None = None
    last_step: int = 0
    trained_version: int = 0
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    checkpoint: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    reports: list[AttemptReport] = field(default_factory=list["AttemptReport"])
    best_checkpoint: Path | None = None
    partial: Evaluation | None = None
    """The validation in which the run was stopped, of the rollouts that had ended. A resumed run makes it whole."""
    made: int = 0
    """Steps that this process has made durable."""
    _saved_step: int = 0
    _step_record: StepRecord | None = None
    _late: tuple[int, int] = (0, 0)
    _stop: str | None = None
    _cursor: int = 0
    """Tasks taken so far, those of an unfinished step too."""
    _durable_cursor: int = 0
    """Tasks taken up to the last durable step: where a resumed run goes on."""
    _numbers: Counter[Mode] = field(default_factory=Counter[Mode])
    """The number that the next group of each mode gets."""
    _durable_number: int = 0
    """That of training, up to the last durable step."""
    _began: float = field(default_factory=time.monotonic)

    # ------------------------------------------------------------------ plan

    def total_steps(self, tasks_per_step: int) -> int:
        """Steps of the whole run: as set, else as many as ``epochs`` over the tasks need."""
        return self.config.steps or -(-len(self.tasks) * self.config.epochs // tasks_per_step)

    def take_tasks(self, count: int) -> list[Json]:
        """The next tasks in an endless, seeded order in which every pass over the data set is shuffled anew."""
        taken: list[Json] = []
        for position in range(self._cursor, self._cursor + count):
            epoch, offset = divmod(position, len(self.tasks))
            taken.append(self.tasks[shuffled(len(self.tasks), derive_seed(self.config.seed, "order", epoch))[offset]])
        self._cursor += count
        return taken

    # ------------------------------------------------------------------ stopping

    def request_stop(self, why: str) -> None:
        """Asks the run to save and end. Safe to call from a signal handler."""
        self._stop = why

    @property
    def stopping(self) -> str | None:
        """Why the run is to end early, or None."""
        limit = self.config.max_time
        if self._stop is None and limit is not None and time.monotonic() - self._began > limit:
            self._stop = f"max_time of {limit:g} s is over"
        return self._stop

    def _check_stop(self) -> None:
        if self.stopping is not None:
            raise StopRequested(self.stopping)

    # ------------------------------------------------------------------ rollouts

    async def sample(self, mode: Mode, tasks: Sequence[Json], size: int) -> list[Group]:
        """Runs a group of ``size`` rollouts for each task and returns them finished, with their traces (validation
        needs none).

        The groups get the next numbers of their mode. Ids and seeds follow from the run's seed and the place, so that a
        resumed run finds what it has already recorded.
        """
        self._check_stop()
        self.progress.phase(
            "validating" if mode is Mode.VAL else "sampling",
            total=len(tasks) * size,
            step=self.last_step + 1 if mode is Mode.TRAIN else None,
        )
        numbers = range(self._numbers[mode], self._numbers[mode] + len(tasks))
        self._numbers[mode] = numbers.stop
        groups = [
            [
                Rollout(
                    id=f"{self.record.id}-{mode}-{number}-{i}",
                    run_id=self.record.id,
                    task=task,
                    mode=mode,
                    group=number,
                    index=i,
                    seed=derive_seed(self.config.seed, mode, number, i),
                    resources_version=self.resources_version,
                    created_at=time.time(),
                )
                for i in range(size)
            ]
            for number, task in zip(numbers, tasks, strict=True)
        ]
        await self.store.enqueue([rollout for group in groups for rollout in group])
        self.desk.serve(mode, numbers)
        done = await self._wait(groups)
        if mode is Mode.VAL:
            return [Group(group[0].group, tuple(Trace(done[r.id], ()) for r in group)) for group in groups]
        return [Group(group[0].group, tuple([await self.trace(done[r.id]) for r in group])) for group in groups]

    async def _wait(self, groups: Sequence[Sequence[Rollout]]) -> dict[str, Rollout]:
        """Until every rollout is final. A group past its deadline goes on by quorum: what still runs is cancelled."""
        done: dict[str, Rollout] = {}
        pending = {rollout.id for group in groups for rollout in group}
        started: dict[int, float] = {}
        pace = Pace()
        pace.note(time.monotonic(), self.engine.load.sampled)
        while pending:
            for rollout in await self.store.wait(list(pending), timeout=0.5):
                done[rollout.id] = rollout
                pending.discard(rollout.id)
                self.progress.rollout_done(rollout)
            load = self.engine.load
            self.progress.sampling(pace.note(time.monotonic(), load.sampled), load.live, load.waiting)
            self.pool.raise_if_dead()
            self._check_stop()
            for group in groups:
                await self._give_up_late(group, pending, started)
        return done

    async def _give_up_late(self, group: Sequence[Rollout], pending: set[str], started: dict[int, float]) -> None:
        late = [rollout.id for rollout in group if rollout.id in pending]
        finished = len(group) - len(late)
        if not late or (finished == 0 and not self.desk.holds(late)):
            return
        began = started.setdefault(group[0].group, time.monotonic())
        if time.monotonic() - began > self.config.group_deadline and finished >= self.config.quorum * len(group):
            await self.store.cancel(
                late, f"group {group[0].group} went on with {finished} of {len(group)} rollouts after its deadline"
            )

    async def trace(self, rollout: Rollout) -> Trace:
        """A finished rollout with everything recorded of it."""
        rewards = await self.store.rewards(rollout.id)
        attempts = [
            AttemptTrace(
                a,
                tuple(await self.store.calls(a.id)),
                tuple(await self.store.nodes(a.id)),
                tuple(reward for reward in rewards if reward.attempt_id == a.id and not reward.late),
            )
            for a in await self.store.attempts(rollout.id)
        ]
        return Trace(rollout, tuple(attempts))

    def take_late(self) -> tuple[int, int]:
        """Calls and rewards that came after their attempt had ended, since this was last asked."""
        now = self.gateway.ended.calls, self.gateway.ended.rewards
        before, self._late = self._late, now
        return now[0] - before[0], now[1] - before[1]

    # ------------------------------------------------------------------ learning

    async def start_learning(self, objective: ObjectiveSettings, total_steps: int) -> None:
        """Makes the learner over the engine's own weights and, on a resume, loads its state from the latest
        checkpoint."""
        from agentlightning.engines.grammar import Grammars
        from agentlightning.learning.learner import Learner

        def make() -> Learner:
            vocabulary = cast("int", cast("Any", self.model.model).get_input_embeddings().weight.shape[0])
            return Learner(
                self.model.model,
                self.config.learner,
                objective,
                seed=self.config.seed,
                total_steps=total_steps,
                threads=self.threads,
                grammars=Grammars(self.model.tokenizer, vocabulary),
            )

        self.learner = await self.engine.run_exclusive(make)
        self.progress.run_started(self.record, total_steps)
        if self.resumed:
            await self._load_latest()

    async def learn(self, batch: Batch) -> LearnerStats:
        """One training step on the compute thread; the engine samples from the new version afterwards."""
        learner = self.learner
        assert learner is not None
        self.progress.phase("training")
        self.trained_version = self.engine.version()
        if not batch.groups:
            return await self.engine.run_exclusive(lambda: learner.step(batch))
        return await self.engine.update(lambda: learner.step(batch), release_memory=True)

    # ------------------------------------------------------------------ durable steps

    async def end_step(
        self, step: int, metrics: dict[str, Json], ledger: Ledger, groups: Sequence[Group]
    ) -> StepRecord:
        """Makes the step durable, then shows it."""
        metrics["cursor"] = self._cursor
        metrics["policy_version"] = self.engine.version()
        record = StepRecord(
            run_id=self.record.id,
            step=step,
            versions={POLICY: self.engine.version()},
            groups=tuple(sorted(group.number for group in groups)),
            metrics=metrics,
            ledger=ledger.to_json(),
            ended_at=time.time(),
        )
        await self.store.put_step(record)
        for phase, spent in ledger.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        self.last_step, self._step_record = step, record
        self._durable_cursor, self._durable_number = self._cursor, self._numbers[Mode.TRAIN]
        self.made += 1
        self.writer.write(metrics, ledger.to_json())
        self.progress.step_done(metrics, ledger.to_json())
        return record

    # ------------------------------------------------------------------ validation, checkpoints, the end

    def should_validate(self, step: int, total_steps: int) -> bool:
        """Whether this step is followed by a validation; the last one is validated by ``finish``."""
        every = self.config.evaluation.every
        return bool(every) and step % every == 0 and step < total_steps

    async def validate(self, step: int) -> Evaluation | None:
        """Scores the current weights on the validation tasks with the evaluation settings. None without such tasks, or
        where a resumed run has it."""
        if not self.val_tasks or any(evaluation.step == step for evaluation in self.evaluations):
            return None
        began = time.monotonic()
        # A validation that was cut short has its numbers again.
        first = len(self.evaluations) * len(self.val_tasks)
        numbers = range(first, first + len(self.val_tasks))
        self._numbers[Mode.VAL] = first
        versions = {POLICY: self.engine.version()}
        await self.store.put_intent(Intent(self.record.id, step, tuple(numbers), versions, Mode.VAL))
        try:
            groups = await self.sample(Mode.VAL, self.val_tasks, self.config.evaluation.rollouts_per_task)
        except StopRequested:
            await self._note_partial(step, numbers, time.monotonic() - began)
            raise
        try:
            evaluation = evaluate(
                step, [[trace.rollout for trace in group.traces] for group in groups], time.monotonic() - began
            )
        except RunFailed as error:
            raise RunFailed(f"{error}{await self._silence(groups)}") from None
        self.evaluations.append(evaluation)
        self.seconds["validating"] = self.seconds.get("validating", 0.0) + evaluation.seconds
        self._score_checkpoint(evaluation)
        self.writer.validated(evaluation.to_json())
        self.progress.validated(evaluation.to_json())
        return evaluation

    async def _silence(self, groups: Sequence[Group]) -> str:
        """Why no call came, in words, where none did."""
        traces = [await self.trace(trace.rollout) for group in groups for trace in group.traces]
        return "" if any(attempt.calls for trace in traces for attempt in trace.attempts) else likely_cause(self.probe)

    async def _note_partial(self, step: int, numbers: range, seconds: float) -> None:
        rollouts = await self.store.rollouts(self.record.id, mode=Mode.VAL, groups=numbers)
        self.partial = evaluate_recorded(step, rollouts, seconds)
        if self.partial is not None:
            self.progress.validated(self.partial.to_json())

    def _score_checkpoint(self, evaluation: Evaluation) -> None:
        """Gives the checkpoint of the validated weights their score, where it was saved before that was known."""
        if not evaluation.step or self._saved_step != evaluation.step:
            return
        from agentlightning.learning import checkpoints

        latest = checkpoints.latest(self.checkpoints)
        if latest is not None and latest.step == evaluation.step:
            checkpoints.set_score(latest, evaluation.mean)
            checkpoints.prune(self.checkpoints, self.config.checkpoint.keep, self.config.checkpoint.best)

    def reached(self, record: StepRecord | None) -> bool:
        """Whether the step's mean reward is what the run was to stop at."""
        return (
            record is not None and self.config.stop_at is not None and record.metrics["reward"] >= self.config.stop_at
        )

    @property
    def last_record(self) -> StepRecord | None:
        """What was stored of the last durable step, also where an earlier process made it."""
        return self._step_record

    async def maybe_checkpoint(self, step: int, total_steps: int) -> None:
        """Saves where the step is due, or where its validation is the best so far; the last one is saved by
        ``finish``."""
        every = self.config.checkpoint.save_every
        scored = [evaluation for evaluation in self.evaluations if evaluation.step > 0]
        best = (
            bool(scored)
            and scored[-1].step == step
            and scored[-1].mean >= max(evaluation.mean for evaluation in scored)
        )
        if step < total_steps and ((every and step % every == 0) or (best and self.config.checkpoint.best)):
            await self.save_checkpoint()

    async def save_checkpoint(self) -> None:
        """Saves the weights and the training state of the last durable step, unless that is done already, and removes
        what is no longer kept."""
        from agentlightning.learning import checkpoints

        learner = self.learner
        if learner is None or self.last_step in (0, self._saved_step):
            return
        self.progress.phase("saving")
        score = next((e.mean for e in self.evaluations if e.step == self.last_step), None)
        extra: dict[str, Json] = {
            "run_id": self.record.id,
            "cursor": self._durable_cursor,
            "groups": self._durable_number,
            "seconds": self.seconds,
            "evaluations": [evaluation.to_json() for evaluation in self.evaluations],
        }
        began = time.monotonic()
        saved = await self.engine.run_exclusive(
            lambda: checkpoints.save(
                self.checkpoints,
                learner,
                self.model.tokenizer,
                step=self.last_step,
                version=self.engine.version(),
                score=score,
                extra=extra,
            )
        )
        checkpoints.prune(self.checkpoints, self.config.checkpoint.keep, self.config.checkpoint.best)
        self.checkpoint, self._saved_step = saved.path, saved.step
        self.seconds["saving"] = self.seconds.get("saving", 0.0) + time.monotonic() - began
        if self._step_record is not None and self._step_record.step == saved.step:
            await self.store.put_step(replace(self._step_record, checkpoint=str(saved.path)))
        self.progress.checkpoint_saved(saved.path)

    async def _load_latest(self) -> None:
        """Takes over the latest checkpoint. Steps recorded after it are made again from their recorded rollouts."""
        from agentlightning.learning import checkpoints

        learner, latest = self.learner, checkpoints.latest(self.checkpoints)
        if latest is None or learner is None:
            self.progress.message(
                f"resuming from the start: there is no checkpoint in {self.checkpoints}; recorded rollouts are used "
                "again"
            )
            return
        await self.engine.set_version(latest.version, lambda: checkpoints.load_state(latest, learner))
        self.last_step = self._saved_step = latest.step
        self.checkpoint = latest.path
        self._step_record = next(
            (step for step in await self.store.steps(self.record.id) if step.step == latest.step), None
        )
        self._cursor = self._durable_cursor = latest.extra["cursor"]
        if "groups" not in latest.extra:
            raise ConfigError(
                f"run {self.record.id} was begun by an older version of agentlightning, and this one cannot go on with "
                f"it; begin a new run from its weights: --model {latest.path}"
            )
        self._numbers[Mode.TRAIN] = self._durable_number = latest.extra["groups"]
        self.seconds = dict(latest.extra["seconds"])
        self.evaluations = [Evaluation.from_json(value) for value in latest.extra["evaluations"]]
        self.progress.message(f"resuming after step {latest.step} from {latest.path}")

    async def finish(self) -> None:
        """The last checkpoint and the last validation, whose score the checkpoint gets."""
        from agentlightning.learning import checkpoints

        await self.save_checkpoint()
        if self.last_step:
            await self.validate(self.last_step)
        best = checkpoints.best(self.checkpoints)
        self.best_checkpoint = best.path if best is not None else None

    @property
    def checkpoints(self) -> Path:
        """The folder that holds this run's checkpoints."""
        return self.folder / "checkpoints"

    async def end(self, status: RunStatus) -> None:
        await self.store.end_run(self.record.id, status)
