"""Result: what is left of a finished run, as data, and its scores on tasks that are not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import fmean

import orjson

from agentlightning.errors import RunFailed
from agentlightning.nouns import Json, Rollout, RunStatus
from agentlightning.records.card import card
from agentlightning.records.intervals import mean_interval
from agentlightning.records.ledger import Ledger, commonest_cause, count_outcomes
from agentlightning.text import plural


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """Scores on tasks that are not trained on.

    ``mean`` is over the rollouts that were scored and ``low``..``high`` is its 95% interval, None where a single score
    has none. ``failed`` counts the rollouts without a score, by outcome: a failure is never a 0. ``seconds`` is wall
    time. ``rollout_ids`` are in the order of the tasks.
    """

    step: int
    mean: float
    low: float | None
    high: float | None
    scored: int
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    rollout_ids: Sequence[str] = ()

    @property
    def rollouts(self) -> int:
        """How many it was to be: the scored ones and the others."""
        return self.scored + sum(self.failed.values())

    def __str__(self) -> str:
        failed = (
            f", {sum(self.failed.values())} not scored ({', '.join(f'{n} {k}' for k, n in self.failed.items())})"
            if self.failed
            else ""
        )
        interval = f" [{self.low:.3f}, {self.high:.3f}]" if self.low is not None and self.high is not None else ""
        of = f"{self.scored:,} of " if self.failed else ""
        return f"{self.mean:.3f}{interval} on {of}{plural(self.rollouts, 'rollout')}{failed}"

    def __repr__(self) -> str:
        return f"<Evaluation{f' after step {self.step}' if self.step else ''}: {self}>"

    def _repr_html_(self) -> str:
        score = str(self).partition(", ")[0] if self.failed else str(self)
        not_scored = [(reason, plural(count, "rollout")) for reason, count in self.failed.items()]
        when = f" after step {self.step}" if self.step else ""
        return card(f"Evaluation{when}", [("score", score), *not_scored, ("seconds", f"{self.seconds:.1f}")])

    def to_json(self) -> dict[str, Json]:
        return {
            "step": self.step,
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "scored": self.scored,
            "rollouts": self.rollouts,
            "failed": dict(self.failed),
            "seconds": self.seconds,
            "rollout_ids": list(self.rollout_ids),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Evaluation:
        return cls(**{key: one for key, one in value.items() if key != "rollouts"})


def evaluate_recorded(step: int, rollouts: Sequence[Rollout], seconds: float = 0.0) -> Evaluation | None:
    """The evaluation of a step's rollouts as they stand, in the order of their creation, those that have not ended
    counted as such. None where none is scored."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return (
        evaluate(step, list(groups.values()), seconds)
        if any(rollout.reward is not None for rollout in rollouts)
        else None
    )


def evaluate(step: int, groups: Sequence[Sequence[Rollout]], seconds: float) -> Evaluation:
    """Mean and 95% interval over tasks, each task's score the mean of its scored rollouts; the other rollouts are
    counted by outcome, never scored."""
    rollouts = [rollout for group in groups for rollout in group]
    scores = [[rollout.reward for rollout in group if rollout.reward is not None] for group in groups]
    by_task = [sum(rewards) / len(rewards) for rewards in scores if rewards]
    failed = count_outcomes(rollout for rollout in rollouts if rollout.reward is None)
    if not by_task:
        raise RunFailed(
            f"validation: none of {plural(len(rollouts), 'rollout')} was scored; the commonest cause, "
            f"{commonest_cause(rollouts)}"
        )
    interval = mean_interval(by_task)
    low, high = interval if all(map(isfinite, interval)) else (None, None)
    return Evaluation(
        step, fmean(by_task), low, high, sum(map(len, scores)), failed, seconds, tuple(r.id for r in rollouts)
    )


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """The outcome of a run.

    ``history`` has one dict per step, the lines of ``metrics.jsonl``. ``before`` and ``after`` are the validations of
    the weights the run began and ended with, None where there were no validation tasks or the run was stopped before
    them. ``ledger`` is the sum over all steps. ``seconds`` is wall time by phase. ``resume`` says how to go on with a
    run that was stopped.
    """

    run_id: str
    folder: Path
    status: RunStatus
    history: Sequence[Mapping[str, Json]]
    validations: Sequence[Evaluation]
    checkpoint: Path | None
    best_checkpoint: Path | None
    ledger: Ledger
    seconds: Mapping[str, float]
    stopped_by: str | None = None
    resume: str | None = None

    @property
    def before(self) -> Evaluation | None:
        """The validation of the weights the run began with."""
        return next((v for v in self.validations if v.step == 0), None)

    @property
    def after(self) -> Evaluation | None:
        """The validation of the weights the run ended with."""
        last = self.history[-1]["step"] if self.history else 0
        return next((v for v in self.validations if v.step == last and last > 0), None)

    @property
    def metrics(self) -> Mapping[str, Json]:
        """The last step's metrics."""
        return self.history[-1] if self.history else {}

    @property
    def curve(self) -> Path:
        """Where ``plot`` draws to."""
        return self.folder / "curve.png"

    def to_json(self) -> dict[str, Json]:
        return {
            "run_id": self.run_id,
            "folder": str(self.folder),
            "status": str(self.status),
            "stopped_by": self.stopped_by,
            "resume": self.resume,
            "steps": len(self.history),
            "validation_before": self.before.to_json() if self.before else None,
            "validation_after": self.after.to_json() if self.after else None,
            "validations": [v.to_json() for v in self.validations],
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "best_checkpoint": str(self.best_checkpoint) if self.best_checkpoint else None,
            "curve": str(self.curve) if self.curve.is_file() else None,
            "ledger": self.ledger.to_json(),
            "seconds": dict(self.seconds),
            "history": [dict(line) for line in self.history],
        }

    def save(self) -> Path:
        """Writes ``result.json`` into the run's folder."""
        path = self.folder / "result.json"
        path.write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2))
        return path
