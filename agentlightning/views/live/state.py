"""What a view knows: the run so far, folded from the calls of Progress, and the short texts made of it. No terminal, no
clock of its own."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from agentlightning.credit.compare import TASK
from agentlightning.nouns import Json, Rollout, RunRecord
from agentlightning.records.ledger import describe_external, describe_off_record, describe_rows, outcome
from agentlightning.text import duration, number, plural, short_path, small

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"
TREND_STEPS = 10
RESUME = "to go on"
"""The label of the last line of a summary: how to go on with a run that was stopped."""
PATHS = ("checkpoint", "best", "curve", "folder", RESUME)
"""The lines of a summary that are to be copied whole."""


@dataclass(slots=True)
class Phase:
    """What a run is doing now, since when, and how far it is with the rollouts that it waits for."""

    name: str = "starting"
    began: float = 0.0
    total: int = 0
    """Rollouts that are waited for; 0 where it is something else."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Of the rollouts that have ended, also in the phases that follow until others are waited for."""
    pace: tuple[float, int, int] | None = None
    """Tokens a second, requests in hand and in the queue, while rollouts are waited for."""


@dataclass(slots=True)
class StepsDone:
    """The steps that were made: their numbers, rewards and last seconds, and the last one's metrics and ledger."""

    numbers: list[int] = field(default_factory=list[int])
    rewards: list[float] = field(default_factory=list[float])
    seconds: deque[float] = field(default_factory=lambda: deque[float](maxlen=TREND_STEPS))
    metrics: Mapping[str, Json] = field(default_factory=dict[str, Json])
    ledger: Mapping[str, Json] = field(default_factory=dict[str, Json])

    def add(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json]) -> None:
        self.metrics, self.ledger = metrics, ledger
        self.numbers.append(int(metrics.get("step", len(self.numbers) + 1)))
        reward = metrics.get("reward")
        if isinstance(reward, int | float):
            self.rewards.append(float(reward))
        self.seconds.append(sum(ledger.get("seconds", {}).values()))

    @property
    def trend(self) -> float | None:
        """Reward gained per step: the slope of a line through the last steps' rewards. None before the third step."""
        recent = self.rewards[-TREND_STEPS:]
        if len(recent) < 3:
            return None
        return statistics.linear_regression(range(len(recent)), recent).slope


@dataclass(slots=True)
class RunState:
    """Times are seconds of one monotonic clock that the caller reads."""

    name: str = "run"
    folder: str = ""
    total_steps: int | None = None
    began: float = 0.0
    max_time: float | None = None
    sampling_step: int | None = None
    done: StepsDone = field(default_factory=StepsDone)
    validations: list[Mapping[str, Json]] = field(default_factory=list[Mapping[str, Json]])
    phase: Phase = field(default_factory=Phase)
    checkpoint: str | None = None

    # ------------------------------------------------------------------ what happened

    def start(self, run: RunRecord, total_steps: int | None, now: float) -> None:
        self.name, self.folder, self.total_steps = run.name, run.folder, total_steps
        self.began = self.phase.began = now
        limit = cast("Mapping[str, Json]", run.config.get("config") or {}).get("max_time")
        self.max_time = float(limit) if isinstance(limit, int | float) else None

    def enter(self, phase: str, total: int, now: float, step: int | None = None) -> None:
        self.phase = Phase(phase, now, total, Counter() if total else self.phase.outcomes)
        if step is not None:
            self.sampling_step = step

    def add_rollout(self, rollout: Rollout) -> None:
        self.phase.outcomes[outcome(rollout)] += 1

    # ------------------------------------------------------------------ what follows from it

    @property
    def step(self) -> int | None:
        """The step that is being made, or the last one where there is none left. None where no step is (yet)."""
        if self.sampling_step is None and not self.done.numbers:
            return None
        done = self.done.numbers[-1] if self.done.numbers else 0
        return max(
            self.sampling_step or 0, done if self.total_steps is not None and done >= self.total_steps else done + 1
        )

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the last steps, with the final validation; ``max_time`` is a ceiling. None before the first
        step ended."""
        guesses: list[float] = []
        if self.total_steps is not None and self.done.seconds:
            done = self.done.numbers[-1]
            per_step = statistics.fmean(self.done.seconds)
            into_step = (
                min(now - self.phase.began, per_step)
                if self.phase.name in ("sampling", "training") and done < self.total_steps
                else 0.0
            )
            validation = float(self.validations[-1].get("seconds") or 0.0) if self.validations else 0.0
            guesses.append(max(0.0, (self.total_steps - done) * per_step - into_step) + validation)
        if self.max_time is not None:
            guesses.append(max(0.0, self.max_time - (now - self.began)))
        return min(guesses) if guesses else None


# --------------------------------------------------------------------------- texts


def sparkline(values: Sequence[float], width: int, glyphs: str = BLOCKS) -> str:
    """The last ``width`` values as bars between the smallest and the largest of them."""
    shown = list(values)[-width:] if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high - low < 1e-12:
        return glyphs[len(glyphs) // 2] * len(shown)
    return "".join(glyphs[round((value - low) / (high - low) * (len(glyphs) - 1))] for value in shown)


def counts(values: Mapping[str, float], *, skip: str = "") -> str:
    """``12 timeout, 3 empty``: largest first; zeros and ``skip`` are left out."""
    kept = sorted(
        ((number, key) for key, number in values.items() if number and key != skip),
        key=lambda pair: (-pair[0], pair[1]),
    )
    return ", ".join(f"{number:,} {key}" for number, key in kept)


def score(evaluation: Mapping[str, Json]) -> str:
    """``0.712 [0.650, 0.768]``, and of how many where some rollouts have none: ``0.712 [0.650, 0.768] (12 of 16)``."""
    low, high = evaluation.get("low"), evaluation.get("high")
    text = f"{number(evaluation['mean'])}"
    text = text if low is None or high is None or low != low else f"{text} [{number(low)}, {number(high)}]"
    missing = partial(evaluation)
    return f"{text} ({missing})" if missing else text


def partial(evaluation: Mapping[str, Json]) -> str:
    """``12 of 16``, the rollouts that were scored; "" where all were."""
    scored, failed = evaluation.get("scored"), cast("Mapping[str, int]", evaluation.get("failed") or {})
    return (
        f"{scored:,} of {scored + sum(failed.values()):,}" if isinstance(scored, int) and any(failed.values()) else ""
    )


def failures(outcomes: Mapping[str, int]) -> dict[str, int]:
    """The outcomes that are not a success; ``failed: timeout`` and ``timeout`` are the same."""
    return {key.removeprefix("failed: "): count for key, count in outcomes.items() if key != "succeeded" and count}


def step_line(
    metrics: Mapping[str, Json], total_steps: int | None, trend: float | None, masked: Mapping[str, int] | None = None
) -> str:
    """One step in one line of plain ASCII. ``masked`` says why, where nothing was trained."""
    parts = [f"step {metrics.get('step', '?')}" + (f"/{total_steps}" if total_steps else "")]
    if isinstance(metrics.get("reward"), int | float):
        parts.append(f"reward {number(metrics['reward'])}" + (f" ({trend:+.3f} a step)" if trend is not None else ""))
    if metrics.get("tokens_per_s"):
        parts.append(f"{metrics['tokens_per_s']:,.0f} tok/s")
    seconds = sum(float(metrics.get(key) or 0.0) for key in ("sampling_s", "training_s"))
    if seconds:
        parts.append(duration(seconds))
    lost = failures(cast("Mapping[str, int]", metrics.get("rollouts") or {}))
    if lost:
        parts.append(f"{sum(lost.values())} not succeeded ({counts(lost)})")
    if "parity_max" in metrics:
        parts.append(f"parity {small(metrics['parity_max'])}")
    if metrics.get("trained_tokens") == 0:
        parts.append(f"nothing trained{f' ({counts(masked)})' if masked else ''}")
    return "  ".join(parts)


def pace_text(tokens_per_s: float, live: int, waiting: int) -> str:
    """``57 tokens/s, 8 requests live, 2 waiting``."""
    speed = f"{tokens_per_s:,.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.1f}"
    return f"{speed} tokens/s, {plural(live, 'request')} live" + (f", {waiting:,} waiting" if waiting else "")


def summary(result: Mapping[str, Json]) -> list[tuple[str, str]]:
    """A run's end as labelled lines, from ``FitResult.to_json()``. What the result does not hold is left out."""
    history = cast("Sequence[Mapping[str, Json]]", result.get("history") or ())
    seconds = cast("Mapping[str, float]", result.get("seconds") or {})
    ledger = cast("Mapping[str, Json]", result.get("ledger") or {})
    before, after = result.get("validation_before"), result.get("validation_after")
    why = f": {result['stopped_by']}" if result.get("stopped_by") else ""
    lines = [
        (
            "run",
            f"{result.get('status', 'finished')}{why}, {plural(len(history), 'step')} in "
            f"{duration(sum(seconds.values()))}",
        )
    ]
    if before or after:
        lines.append(
            (
                "validation",
                f"{score(before) if before else 'not measured'} before, {score(after) if after else 'not measured'} "
                "after",
            )
        )
    if history and "reward" in history[0]:
        lines.append(
            ("reward", f"{number(history[0]['reward'])} in the first step, {number(history[-1]['reward'])} in the last")
        )
    rollouts = cast("Mapping[str, int]", ledger.get("rollouts") or {})
    if rollouts:
        lines.append(("rollouts", counts(rollouts)))
    if ledger.get("off_record"):
        given = describe_off_record(ledger["off_record"], ledger["off_record_trained"], ledger["off_record_masked"])
        lines.append(("off record", given))
    if rows := describe_rows(ledger.get("rows") or {}):
        lines.append(("rows", rows))
    if (ledger.get("compared") or {}).keys() - {TASK}:
        lines.append(("compared", counts(ledger["compared"])))
    if ledger.get("sampled"):
        masked = cast("Mapping[str, int]", ledger.get("masked") or {})
        why_masked = f" ({counts(masked)})" if any(masked.values()) else ""
        lines.append(
            (
                "tokens",
                f"{ledger['sampled']:,} sampled = {ledger['trained']:,} trained + {sum(masked.values()):,} "
                f"masked{why_masked}",
            )
        )
        if not ledger["trained"] and not ledger.get("off_record_trained"):
            lines.append(("weights", f"unchanged: no token was trained ({counts(masked)})"))
        refused = cast("Mapping[str, int]", ledger.get("calls") or {}).get("refused")
        if refused:
            lines.append(
                (
                    "calls",
                    f"{counts(cast('Mapping[str, int]', ledger['calls']))}; `agl show RUN ROLLOUT` says why one was "
                    "refused",
                )
            )
        if ledger.get("external"):
            lines.append(("external", f"{describe_external(ledger['external'])}; recorded, never trained"))
        if ledger.get("malformed"):
            lines.append(("malformed", f"{plural(ledger['malformed'], 'tool call')}: given to the agent as text"))
        if ledger.get("cut"):
            lines.append(("cut", f"{plural(ledger['cut'], 'sample')} by max_tokens"))
        if ledger.get("late"):
            lines.append(
                (
                    "late",
                    f"{plural(ledger['late'], 'call')} after the attempt had ended, refused: the agent leaves "
                    "something running",
                )
            )
        if ledger.get("unused"):
            lines.append(
                (
                    "unused",
                    f"{plural(sum(ledger['unused'].values()), 'emitted reward')} changed no weight: "
                    f"{counts(ledger['unused'])}",
                )
            )
        if ledger["trained"]:
            lines.append(
                ("parity", f"max |delta logprob| {small(ledger.get('parity_max'))} between sampler and trainer")
            )
    if seconds:
        lines.append(("wall time", ", ".join(f"{phase} {duration(spent)}" for phase, spent in seconds.items())))
    for key, label in (
        ("checkpoint", "checkpoint"),
        ("best_checkpoint", "best"),
        ("curve", "curve"),
        ("folder", "folder"),
    ):
        if result.get(key):
            lines.append((label, short_path(result[key])))
    if result.get("resume"):
        lines.append((RESUME, str(result["resume"])))
    return lines
