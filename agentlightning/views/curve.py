"""plot: the learning curve of a run as a PNG. Reads history lines, draws with matplotlib, touches nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from agentlightning.errors import ConfigError, why_no_folder
from agentlightning.nouns import Json
from agentlightning.text import clip, one_line, width
from agentlightning.views.fonts import drawn, fonts_for, needs_matplotlib, spell
from agentlightning.views.live.state import partial

# Okabe and Ito's colours, told apart under every common colour blindness; the two series differ in form as well.
TRAIN, VALIDATION = "#0072B2", "#D55E00"
TITLE, ABOUT = 120, 32
"""Columns of the two texts above the axes, at most."""


def plot(
    history: Sequence[Mapping[str, Json]],
    path: Path,
    *,
    validations: Sequence[Mapping[str, Json]] = (),
    title: str = "",
    about: str = "",
) -> Path:
    """Draws training reward per step with its moving trend and spread, and validation points with their 95% intervals.

    ``history`` holds lines of ``metrics.jsonl`` (``step``, ``reward``, ``reward_std``); ``validations`` those of
    ``Evaluation.to_json()``, added to the ones found in the lines. The shaded band is one standard deviation of the
    step's rollouts, cut at the smallest and the largest reward seen. ``about`` stands small beside the ``title``.
    Raises ConfigError where there is nothing to draw and for a file that cannot be written, MissingExtra without
    matplotlib.
    """
    points = {
        int(v["step"]): v for v in (*(line["validation"] for line in history if line.get("validation")), *validations)
    }
    steps_T = [int(line["step"]) for line in history if line.get("reward") is not None]
    rewards_T = [float(line["reward"]) for line in history if line.get("reward") is not None]
    if not steps_T and not points:
        raise ConfigError("there is no learning curve to draw: the run has neither a finished step nor a validation")
    figure, axes = _axes()
    if steps_T:
        _draw_training(axes, history, steps_T, rewards_T)
    if points:
        _draw_validation(axes, [points[step] for step in sorted(points)])
    axes.set_xlabel("training step")
    axes.set_ylabel("reward of a rollout, mean")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.02)
    # Readable also where a curve has to pass below it
    axes.legend(framealpha=0.85, edgecolor="none", loc="best", fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.95))  # below the title, which must not be what makes room
    _write_title(axes, title, about)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {why_no_folder(path.parent, error)}") from error
    return path


def _write_title(axes: Any, title: str, about: str) -> None:
    """Both in one line above the axes, clipped to it, in fonts that have their characters; what none has is written by
    number."""
    fonts = fonts_for([one_line(title), one_line(about)])
    title, about = (spell(drawn(one_line(text)), fonts.missing) for text in (title, about))
    look: dict[str, Any] = {"parse_math": False, "family": ["DejaVu Sans", *fonts.families]}
    right = axes.set_title(clip(about, ABOUT), loc="right", fontsize=9, **look)
    left = axes.set_title(title, loc="left", fontsize=10, fontweight="bold", **look)
    end = right.get_window_extent().x0 - 12
    columns = min(width(title), TITLE)
    while left.get_window_extent().x1 > end and columns > 1:
        columns -= 1
        left.set_text(clip(title, columns))


def trend(values: Sequence[float], window: int) -> list[float]:
    """The centred moving mean; the window shrinks evenly towards both ends, so that it never lags."""
    smoothed: list[float] = []
    for i in range(len(values)):
        half = min(window // 2, i, len(values) - 1 - i)
        smoothed.append(statistics.fmean(values[i - half : i + half + 1]))
    return smoothed


def _axes() -> tuple[Any, Any]:
    with needs_matplotlib("the learning curve"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    # no pyplot: it keeps global state and wants a display
    figure: Any = Figure(figsize=(7.5, 4.2))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _draw_training(
    axes: Any, history: Sequence[Mapping[str, Json]], steps_T: list[int], rewards_T: list[float]
) -> None:
    lines = [line for line in history if line.get("reward") is not None]
    spread_T = [float(line.get("reward_std") or 0.0) for line in lines]
    seen = [float(reward) for line in lines for reward in cast("Sequence[float]", line.get("rewards") or ())] or None
    low, high = (min(seen), max(seen)) if seen else (float("-inf"), float("inf"))
    if any(spread_T):
        below = [max(low, reward - spread) for reward, spread in zip(rewards_T, spread_T, strict=True)]
        above = [min(high, reward + spread) for reward, spread in zip(rewards_T, spread_T, strict=True)]
        axes.fill_between(
            steps_T, below, above, color=TRAIN, alpha=0.12, linewidth=0, label="spread of a step's rollouts (1 std)"
        )
    many = len(steps_T) >= 6
    axes.plot(
        steps_T,
        rewards_T,
        color=TRAIN,
        alpha=0.45 if many else 1.0,
        linewidth=1.0,
        marker=".",
        markersize=5,
        label="training, mean of a step",
    )
    if many:
        window = max(3, len(steps_T) // 8) | 1
        axes.plot(
            steps_T,
            trend(rewards_T, window),
            color=TRAIN,
            linewidth=2.2,
            label=f"training, moving mean of {window} steps",
        )


def _draw_validation(axes: Any, points: Sequence[Mapping[str, Json]]) -> None:
    steps = [int(point["step"]) for point in points]
    means = [float(point["mean"]) for point in points]
    reach: list[list[float]] = [[], []]
    for point, mean in zip(points, means, strict=True):
        low, high = point.get("low"), point.get("high")
        known = low is not None and high is not None and low == low
        reach[0].append(max(0.0, mean - cast("float", low)) if known else 0.0)
        reach[1].append(max(0.0, cast("float", high) - mean) if known else 0.0)
    axes.errorbar(
        steps, means, yerr=reach, color=VALIDATION, linestyle="--", linewidth=1.2, marker="D", markersize=6,
        capsize=4, zorder=5, label="validation, 95% interval",
    )  # fmt: skip
    for step, mean, point in zip(steps, means, points, strict=True):
        if missing := partial(point):
            axes.annotate(
                missing, (step, mean), xytext=(6, 6), textcoords="offset points", fontsize=8, color=VALIDATION
            )
