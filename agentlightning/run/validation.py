"""Validations: scores of what a run has made so far, on tasks that are not trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentlightning.algorithms.ports import StopRequested
from agentlightning.errors import RunFailed
from agentlightning.nouns import Intent, Json, Mode
from agentlightning.records.causes import likely_cause
from agentlightning.records.result import Evaluation, evaluate, evaluate_recorded
from agentlightning.records.traces import Group
from agentlightning.run.audience import Audience
from agentlightning.run.rollouts import RunRollouts
from agentlightning.settings.fields import EvaluationConfig

if TYPE_CHECKING:
    from agentlightning.store.base import Store


class Validations:
    """``done`` holds those of the whole run. ``partial`` is the one in which the run was stopped, of the rollouts that
    had ended; a resumed run makes it whole."""

    def __init__(
        self,
        run_id: str,
        tasks: Sequence[Json],
        config: EvaluationConfig,
        store: Store,
        rollouts: RunRollouts,
        audience: Audience,
        versions: Callable[[], Mapping[str, int]],
    ) -> None:
        self.done: list[Evaluation] = []
        self.partial: Evaluation | None = None
        self._run_id = run_id
        self._tasks = tasks
        self._config = config
        self._store = store
        self._rollouts = rollouts
        self.audience = audience
        self.versions = versions

    def due(self, step: int, total_steps: int) -> bool:
        """Whether this step is followed by one; the last one is when the run is finished, where `at_end` says so. Step
        0 is before the first."""
        if step == 0:
            return self._config.before
        return bool(self._config.every) and step % self._config.every == 0 and step < total_steps

    @property
    def at_end(self) -> bool:
        """Whether the last step is followed by one."""
        return self._config.after

    def of(self, step: int) -> Evaluation | None:
        return next((evaluation for evaluation in self.done if evaluation.step == step), None)

    def best_is(self, step: int) -> bool:
        """Whether the latest validation is of this step, and none before it was better."""
        scored = [evaluation for evaluation in self.done if evaluation.step > 0]
        return (
            bool(scored)
            and scored[-1].step == step
            and scored[-1].mean >= max(evaluation.mean for evaluation in scored)
        )

    async def run(self, step: int) -> Evaluation | None:
        """Scores what there is now, under this step, with the evaluation settings. None without tasks, or where a
        resumed run has it."""
        if not self._tasks or self.of(step) is not None:
            return None
        began = time.monotonic()
        first = len(self.done) * len(self._tasks)  # a validation that was cut short has its numbers again
        numbers = range(first, first + len(self._tasks))
        self._rollouts.number_from(Mode.VAL, first)
        await self._store.put_intent(Intent(self._run_id, step, tuple(numbers), self.versions(), Mode.VAL))
        try:
            groups = await self._rollouts.sample(self._tasks, self._config.rollouts_per_task, Mode.VAL)
        except StopRequested:
            await self._note_partial(step, numbers, time.monotonic() - began)
            raise
        try:
            evaluation = evaluate(
                step, [[trace.rollout for trace in group.traces] for group in groups], time.monotonic() - began
            )
        except RunFailed as error:
            raise RunFailed(f"{error}{await self._silence(groups)}") from None
        self.done.append(evaluation)
        return evaluation

    async def _silence(self, groups: Sequence[Group]) -> str:
        """Why no call came, in words, where none did."""
        traces = [await self._rollouts.trace(trace.rollout) for group in groups for trace in group.traces]
        return (
            ""
            if any(attempt.calls for trace in traces for attempt in trace.attempts)
            else likely_cause(self._rollouts.probe)
        )

    async def _note_partial(self, step: int, numbers: range, seconds: float) -> None:
        rollouts = await self._store.rollouts(self._run_id, mode=Mode.VAL, groups=numbers)
        self.partial = evaluate_recorded(step, rollouts, seconds)
        if self.partial is not None:
            self.audience.progress.validated(self.partial.to_json())
