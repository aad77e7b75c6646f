"""Show: a run's records as tables for people and as JSON for programs. Reads the store, changes nothing, loads no
torch.

Pure functions from records to text, with two readers that gather the records; a single rollout's trace is in
trace.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from rich.console import Group, RenderableType

from agentlightning.credit.compare import TASK
from agentlightning.credit.settings import CreditSettings
from agentlightning.nouns import Intent, Json, Mode, Rollout, RunRecord, RunStatus, StepRecord
from agentlightning.records.ledger import (
    Ledger,
    count_outcomes,
    describe_external,
    describe_off_record,
    describe_rows,
    outcome,
    total,
)
from agentlightning.records.result import Evaluation, evaluate_recorded
from agentlightning.records.steps import StepsOfGroups
from agentlightning.store.base import Store
from agentlightning.store.run_lock import DEAD, Standing, standing_of
from agentlightning.text import duration, number, plural, short_path, small
from agentlightning.views.live.state import counts, score
from agentlightning.views.screen import Column, Labelled, Listing, Text

STATUS_STYLE = {
    "finished": "green",
    "succeeded": "green",
    "running": "cyan",
    "dead": "red",
    "stopped": "yellow",
    "failed": "red",
    "cancelled": "yellow",
}
_NO_SETTINGS: dict[str, Json] = {}
SHOWN_DEAD = 3
"""Dead runs, the newest, whose command the list of runs shows."""


@dataclass(frozen=True)
class RunView:
    """A run with what belongs to it. ``rollouts`` is empty where only the steps were asked for."""

    record: RunRecord
    steps: Sequence[StepRecord]
    rollouts: Sequence[Rollout] = ()
    standing: Standing | None = None
    """None where it was not asked for."""
    intents: Sequence[Intent] = ()

    def step_of(self, rollout: Rollout) -> int:
        """The step that a rollout belongs to: see StepsOfGroups."""
        return self._steps_of_groups.step_of(rollout)

    @cached_property
    def _steps_of_groups(self) -> StepsOfGroups:
        return StepsOfGroups.of(self.steps, self.intents)

    @property
    def status(self) -> str:
        """The record's, or that the run is dead: whoever ran it is gone."""
        return DEAD if self.dead else str(self.record.status)

    @property
    def dead(self) -> bool:
        return self.standing is not None and self.standing.dead

    @property
    def resume(self) -> str:
        """How to go on with it, "" where there is nothing to go on with."""
        return self.standing.resume if self.standing is not None else ""

    @property
    def validations(self) -> list[Evaluation]:
        """One for each step that was validated, from the rollouts themselves. Validations in which nothing was scored
        are left out."""
        by_step: dict[int, list[Rollout]] = {}
        for rollout in self.rollouts:
            if rollout.mode is Mode.VAL:
                by_step.setdefault(self.step_of(rollout), []).append(rollout)
        found = (evaluate_recorded(step, rollouts) for step, rollouts in sorted(by_step.items()))
        return [evaluation for evaluation in found if evaluation is not None]

    def setting(self, *keys: str) -> Json:
        """A value of the run's ``config.json``, None where there is none."""
        at: Json = self.record.config
        for key in keys:
            at = cast("Mapping[str, Json]", at).get(key) if isinstance(at, Mapping) else None
        return at


async def read_runs(store: Store, place: Path) -> list[RunView]:
    """Every run with its steps, newest first; of evaluations the rollouts too. ``place`` is the output folder that was
    named."""
    views: list[RunView] = []
    for record in await store.runs():
        evaluation = record.config.get("mode") == Mode.VAL
        rollouts = await store.rollouts(record.id, mode=Mode.VAL) if evaluation else ()
        intents = await store.intents(record.id, mode=Mode.VAL) if evaluation else ()
        views.append(RunView(record, await store.steps(record.id), rollouts, standing_of(record, place), intents))
    return views


async def read_run(store: Store, record: RunRecord, place: Path | None = None) -> RunView:
    """One run. Without a ``place``, the output folder that was named, nothing is said of whether it lives."""
    standing = standing_of(record, place) if place is not None else None
    steps, intents = await store.steps(record.id), await store.intents(record.id)
    return RunView(record, steps, await store.rollouts(record.id), standing, intents)


# --------------------------------------------------------------------------- runs


def runs_json(runs: Iterable[RunView]) -> list[dict[str, Json]]:
    return [_run_line(run) for run in runs]


def _run_line(run: RunView) -> dict[str, Json]:
    record = run.record
    rewards = [step.metrics["reward"] for step in run.steps if step.metrics.get("reward") is not None]
    rewards = rewards or [evaluation.mean for evaluation in run.validations]
    return {
        "id": record.id,
        "name": record.name,
        "mode": run.setting("mode"),
        "status": run.status,
        "resume": run.resume or None,
        "error": record.error,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "folder": record.folder,
        "model": run.setting("config", "model", "path"),
        "algorithm": run.setting("algorithm", "name"),
        "steps": len(run.steps),
        "first_reward": rewards[0] if rewards else None,
        "last_reward": rewards[-1] if rewards else None,
    }


def render_runs(runs: Sequence[RunView], now: float | None = None) -> RenderableType:
    """A table of runs, newest first."""
    columns = (
        Column("run", least=26),
        Column("status"),
        Column("mode", leave=1),
        Column("started", leave=4),
        Column("took", right=True, leave=2),
        Column("steps", right=True),
        Column("reward", right=True),
        Column("model", leave=3, least=8, cut=True),
        Column("error", leave=5, least=20, cut=True),
    )
    rows: list[list[str | Text]] = []
    for run in runs:
        line = _run_line(run)
        first, last = line["first_reward"], line["last_reward"]
        reward = "" if last is None else f"{number(first)} to {number(last)}" if line["steps"] > 1 else number(last)
        rows.append(
            [
                run.record.id,
                _status(line["status"]),
                line["mode"] or "",
                _when(run.record.created_at),
                _took(run, now),
                str(line["steps"]),
                reward,
                str(line["model"] or "").rstrip("/").rsplit("/", 1)[-1],
                line["error"] or "",
            ]
        )
    dead = [(f"{run.record.id} is dead; to go on:", run.resume) for run in runs if run.dead and run.resume][:SHOWN_DEAD]
    if not dead:
        return Listing(columns, rows)
    return Group(Listing(columns, rows), Text(), Labelled(dead, paths=[label for label, _ in dead]))


# --------------------------------------------------------------------------- one run


def run_json(run: RunView) -> dict[str, Json]:
    """Everything about a run but its rollouts' traces."""
    ids: dict[int, list[str]] = {}
    for rollout in run.rollouts:
        if rollout.mode is Mode.TRAIN:
            ids.setdefault(run.step_of(rollout), []).append(rollout.id)
    return {
        **_run_line(run),
        "config": dict(run.record.config),
        "ledger": _total(run).to_json(),
        "rollouts": _outcomes(run),
        "validations": [evaluation.to_json() for evaluation in run.validations],
        "history": [
            {
                "step": step.step,
                "versions": dict(step.versions),
                "groups": list(step.groups),
                "metrics": dict(step.metrics),
                "ledger": dict(step.ledger),
                "checkpoint": step.checkpoint,
                "rollout_ids": ids.get(step.step, []),
                "ended_at": step.ended_at,
            }
            for step in run.steps
        ],
    }


def render_run(run: RunView, now: float | None = None) -> RenderableType:
    """A run's head, its steps, its rollouts by outcome and the sum of its ledgers."""
    parts: list[RenderableType] = [_run_head(run, now)]
    if run.steps:
        parts += [Text(), _steps_table(run)]
    parts += [Text(), _ledger_lines(run)]
    if run.rollouts:
        hints = [
            ("a step's rollouts", f"agl show {run.record.id} --step N"),
            ("one rollout", f"agl show {run.record.id} ROLLOUT"),
        ]
        parts += [Text(), Labelled(hints, paths=dict(hints))]
    return Group(*parts)


def _run_head(run: RunView, now: float | None) -> RenderableType:
    record = run.record
    git = cast("Mapping[str, Json]", run.setting("git") or _NO_SETTINGS)
    revision = (
        f"{str(git['revision'])[:12]}{' with changes' if git.get('dirty') else ''}" if git.get("revision") else ""
    )
    error = Text(record.error, style="red") if record.error else ""
    took = _took(run, now)
    folder = Path(record.folder) if run.standing is None else run.standing.folder
    gone = "gone (moved or removed), and the run's checkpoints with it" if folder is None else ""
    rows: list[tuple[str, str | Text]] = [
        ("run", Text(record.id, style="bold")),
        ("status", _status(run.status).append(f", began {_when(record.created_at)}{f', took {took}' if took else ''}")),
        ("error", error),
        ("to go on", run.resume),
        ("model", str(run.setting("config", "model", "path") or "")),
        ("agent", str(run.setting("agent_file") or "")),
        ("algorithm", str(run.setting("algorithm", "name") or "") if run.setting("mode") in (None, "train") else ""),
        ("credit", credit_text(run) if run.setting("mode") in (None, "train") else ""),
        ("trained agents", str(run.setting("config", "trained_agents") or "")),
        ("seed", str(run.setting("seed") or 0)),
        ("code", revision),
        ("folder", short_path(record.folder if folder is None else folder)),
        ("", Text(gone, style="red") if gone else ""),
    ]
    return Labelled(rows, paths=("run", "model", "agent", "folder", "to go on"))


def credit_text(run: RunView) -> str:
    """The scheme of credit that a run was set to, with the settings that are not the defaults: ``call, max_rows 64``.
    Nothing where its algorithm has none."""
    given = run.setting("algorithm", "credit")
    if not isinstance(given, Mapping):
        return ""
    settings = cast("Mapping[str, Json]", given)
    fields = CreditSettings.model_fields
    others = {name: value for name, value in settings.items() if name in fields and value != fields[name].default}
    others.pop("scheme", None)
    parts = [name if value is True else f"{name} {value}" for name, value in others.items()]
    return ", ".join([str(settings.get("scheme", "")), *parts])


def _steps_table(run: RunView) -> RenderableType:
    columns = (
        Column("step", right=True),
        Column("reward", right=True),
        Column("validation"),
        Column("scored", right=True, leave=3),
        Column("failed", right=True),
        Column("sampled", right=True, leave=5),
        Column("trained", right=True, leave=2),
        Column("tok/s", right=True, leave=6),
        Column("took", right=True, leave=4),
        Column("parity", right=True, leave=1),
        Column("checkpoint", leave=7, least=20),
    )
    validations = {evaluation.step: evaluation for evaluation in run.validations}
    rows: list[list[str | Text]] = []
    if 0 in validations:
        rows.append(["0", "", score(validations[0].to_json()), *[""] * 8])
    for step in run.steps:
        metrics, ledger = step.metrics, step.ledger
        rollouts = cast("Mapping[str, int]", ledger.get("rollouts") or {})
        lost = sum(rollouts.values()) - rollouts.get("succeeded", 0)
        seconds = cast("Mapping[str, float]", ledger.get("seconds") or {})
        rows.append(
            [
                str(step.step),
                number(metrics["reward"]) if metrics.get("reward") is not None else "",
                score(validations[step.step].to_json()) if step.step in validations else "",
                str(rollouts.get("succeeded", 0)),
                Text(str(lost), style="yellow" if lost else "dim"),
                f"{ledger.get('sampled', 0):,}",
                f"{ledger.get('trained', 0):,}",
                f"{metrics['tokens_per_s']:,.0f}" if metrics.get("tokens_per_s") else "",
                duration(sum(seconds.values())),
                small(metrics.get("parity_max")),
                short_path(step.checkpoint) if step.checkpoint else "",
            ]
        )
    return Listing(columns, rows)


def _ledger_lines(run: RunView) -> RenderableType:
    ledger = _total(run)
    rows: list[tuple[str, str | Text]] = [
        (f"{mode} rollouts", counts(outcomes)) for mode, outcomes in _outcomes(run).items()
    ]
    if run.steps:
        rows += [
            ("groups", counts(ledger.groups)),
            ("compared", counts(ledger.compared) if ledger.compared.keys() - {TASK} else ""),
            ("calls", counts(ledger.calls)),
            ("external", describe_external(ledger.external)),
            ("malformed", plural(ledger.malformed, "tool call") if ledger.malformed else ""),
            ("cut", f"{plural(ledger.cut, 'sample')} by max_tokens" if ledger.cut else ""),
            ("late", f"{plural(ledger.late, 'call')} after the attempt had ended, refused" if ledger.late else ""),
            (
                "unused",
                f"{plural(sum(ledger.unused.values()), 'emitted reward')}: {counts(ledger.unused)}"
                if ledger.unused
                else "",
            ),
            ("branches", counts(ledger.branches)),
            (
                "tokens",
                f"{ledger.sampled:,} sampled = {ledger.trained:,} trained + {sum(ledger.masked.values()):,} masked",
            ),
            ("masked", counts(ledger.masked)),
            ("off record", describe_off_record(ledger.off_record, ledger.off_record_trained, ledger.off_record_masked)),
            ("rows", describe_rows(ledger.rows)),
            ("staleness", f"at most {ledger.staleness_max} versions"),
            ("parity", f"max |delta logprob| {small(ledger.parity_max)}, k3 {small(ledger.parity_k3)}"),
            ("wall time", ", ".join(f"{phase} {duration(spent)}" for phase, spent in ledger.seconds.items())),
        ]
    return Labelled(rows)


def _total(run: RunView) -> Ledger:
    return total(Ledger.from_json(step.ledger) for step in run.steps)


def _outcomes(run: RunView) -> dict[str, dict[str, int]]:
    """Rollouts by mode and outcome; those that wait or run are counted as such."""
    return {str(mode): found for mode in Mode if (found := count_outcomes(r for r in run.rollouts if r.mode is mode))}


# --------------------------------------------------------------------------- one step's rollouts


def rollouts_json(run: RunView, rollouts: Iterable[Rollout]) -> list[dict[str, Json]]:
    return [rollout_line(run, rollout) for rollout in rollouts]


def rollout_line(run: RunView, rollout: Rollout) -> dict[str, Json]:
    """A rollout without its trace. ``advantage`` is the weight its tokens were trained with, None where they were
    not."""
    failure = rollout.failure
    return {
        "id": rollout.id,
        "mode": str(rollout.mode),
        "step": run.step_of(rollout),
        "group": rollout.group,
        "index": rollout.index,
        "status": str(rollout.status),
        "reward": rollout.reward,
        "advantage": advantage_of(run, rollout),
        "failure": None
        if failure is None
        else {"reason": str(failure.reason), "message": failure.message, "traceback": failure.traceback},
        "task": rollout.task,
        "seed": rollout.seed,
        "created_at": rollout.created_at,
        "started_at": rollout.started_at,
        "ended_at": rollout.ended_at,
    }


def render_rollouts(run: RunView, rollouts: Iterable[Rollout]) -> RenderableType:
    """A table of rollouts, in their order."""
    columns = (
        Column("rollout"),
        Column("outcome", least=20),
        Column("reward", right=True),
        Column("advantage", right=True),
        Column("took", right=True, leave=2),
        Column("failure", leave=1, least=16, cut=True),
    )
    rows: list[list[str | Text]] = []
    for rollout in rollouts:
        advantage = advantage_of(run, rollout)
        took = (
            ""
            if rollout.ended_at is None or rollout.started_at is None
            else duration(rollout.ended_at - rollout.started_at)
        )
        rows.append(
            [
                short_rollout(rollout),
                Text(outcome(rollout), style=STATUS_STYLE.get(str(rollout.status), "")),
                number(rollout.reward) if rollout.reward is not None else "",
                f"{advantage:+.3f}" if advantage is not None else "",
                took,
                rollout.failure.message if rollout.failure else "",
            ]
        )
    return Listing(columns, rows)


def advantage_of(run: RunView, rollout: Rollout) -> float | None:
    """What the step recorded as the rollout's advantage; None where its calls have advantages of their own, which stand
    in its trace."""
    if rollout.mode is not Mode.TRAIN:
        return None
    number = run.step_of(rollout)
    step = next((step for step in run.steps if step.step == number), None)
    return (
        cast("Mapping[str, float]", step.metrics.get("advantages") or {}).get(rollout.id) if step is not None else None
    )


def short_rollout(rollout: Rollout) -> str:
    """A rollout's id without its run's: ``train-3-1``."""
    return rollout.id.removeprefix(f"{rollout.run_id}-")


# --------------------------------------------------------------------------- small parts


def _status(status: str) -> Text:
    return Text().append(status, STATUS_STYLE.get(status, ""))


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _took(run: RunView, now: float | None) -> str:
    """Of one that lives, up to now; of a dead one up to its last sign of life in the record, "" where it left none."""
    record = run.record
    end = record.ended_at
    if end is None and run.dead:
        end = max(
            (at for at in (*(step.ended_at for step in run.steps), *(one.ended_at for one in run.rollouts)) if at),
            default=None,
        )
    elif end is None and record.status is RunStatus.RUNNING:
        end = time.time() if now is None else now
    return "" if end is None else duration(end - record.created_at)
