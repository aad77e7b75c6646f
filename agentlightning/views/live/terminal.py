"""LiveView: the run in a terminal, redrawn in place. Prints of the user's code appear above it. What fails in it is
raised by the next call: see Guarded."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from agentlightning.nouns import Json, Rollout, RunRecord
from agentlightning.text import clip, duration, number, one_line, short_path, small
from agentlightning.views.live.state import (
    ASCII_BLOCKS,
    BLOCKS,
    PATHS,
    Phase,
    RunState,
    counts,
    failures,
    pace_text,
    score,
    sparkline,
    summary,
)
from agentlightning.views.screen import Labelled, Stream, Text, open_console

NARROW = 44
"""Columns under which labels are left out."""
LABEL = 10
"""Columns of a label."""


class LiveView:
    """See Progress. ``console`` is for tests; by default the terminal behind ``stream``, else stdout."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or open_console(stream)
        if not isinstance(self._console.file, Stream):
            self._console.file = cast(IO[str], Stream(cast(TextIO, self._console.file)))
        self._stream = cast(Stream, self._console.file)
        self.stream = self._stream.real
        self.failed: Exception | SystemExit | None = None
        """What went wrong while the panel was drawn."""
        self._clock = clock
        self._state = RunState(began=clock(), phase=Phase(began=clock()))
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._closed = False

    def run_started(self, run: RunRecord, total_steps: int | None) -> None:
        self._check()
        with self._lock:
            self._state.start(run, total_steps, self._clock())
        self._open()

    def phase(self, name: str, *, total: int = 0, step: int | None = None) -> None:
        self._check()
        with self._lock:
            self._state.enter(name, total, self._clock(), step)
        self._open()

    def rollout_done(self, rollout: Rollout) -> None:
        with self._lock:
            self._state.add_rollout(rollout)

    def sampling(self, tokens_per_s: float, live: int, waiting: int) -> None:
        with self._lock:
            self._state.phase.pace = (tokens_per_s, live, waiting)

    def step_done(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json]) -> None:
        self._check()
        with self._lock:
            self._state.done.add(metrics, ledger)

    def validated(self, evaluation: Mapping[str, Json]) -> None:
        with self._lock:
            self._state.validations.append(evaluation)

    def checkpoint_saved(self, path: Path) -> None:
        with self._lock:
            self._state.checkpoint = short_path(path)

    def message(self, text: str) -> None:
        self._check()
        self._console.print(Text(text), soft_wrap=True)

    def finished(self, result: Mapping[str, Json]) -> None:
        self._check()
        self.close()
        self._console.print(
            Text(one_line(self._state.name), style="bold"), Labelled(summary(result), paths=PATHS), sep="\n", crop=False
        )

    def close(self) -> None:
        self._closed = True
        live, self._live = self._live, None
        if live is not None:
            try:
                sys.stdout.flush()  # a print without a newline is still held by rich's stand-in for stdout
            finally:
                live.stop()

    def _check(self) -> None:
        error = self.failed or self._stream.failed
        if error is not None:
            raise error

    def _open(self) -> None:
        if self._live is None and not self._closed:
            self._live = Live(
                _Panel(self),
                console=self._console,
                refresh_per_second=4,
                transient=True,
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()

    def render(self, width: int, glyphs: str = BLOCKS) -> RenderableType:
        """The panel as it stands now."""
        with self._lock:
            return render(self._state, self._clock(), width, glyphs)


class _Panel:
    """Asks the view anew at every refresh, so that the clock runs and a resized terminal is noticed."""

    def __init__(self, view: LiveView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._view.failed is None:
            try:
                panel = self._view.render(options.max_width, ASCII_BLOCKS if options.ascii_only else BLOCKS)
                yield from list(console.render(panel, options))
            except (Exception, SystemExit) as error:  # noqa: BLE001  # in rich's own thread it would end as a traceback on the terminal
                self._view.failed = error


def render(state: RunState, now: float, width: int, glyphs: str = BLOCKS) -> RenderableType:
    """The live panel for a terminal of ``width`` columns. Fits any width: values are cut, never wrapped."""
    width = min(width - 4 if width > NARROW else width, 100)  # room for the ^C that a terminal echoes behind the panel
    rows: list[tuple[str, RenderableType]] = []
    rows.append((state.phase.name if len(state.phase.name) <= LABEL else "phase", _phase_row(state, now, width)))
    if state.done.rewards:
        rows.append(("reward", _reward_row(state, width, glyphs)))
    if state.validations:
        rows.append(("validation", _validation_row(state)))
    lost = failures(state.phase.outcomes)
    if state.phase.outcomes:
        line = Text(f"{state.phase.outcomes.get('succeeded', 0)} succeeded", style="green")
        if lost:
            line.append(f", {counts(lost)}", style="yellow")
        rows.append(("rollouts", line))
    rows += [(label, Text(line, style)) for label, line, style in _token_rows(state)]
    if state.phase.pace is not None:
        rows.append(("speed", Text(pace_text(*state.phase.pace))))
    elif state.done.metrics.get("tokens_per_s"):
        rows.append(("speed", Text(f"{state.done.metrics['tokens_per_s']:,.0f} tokens/s sampled")))
    left = state.seconds_left(now)
    rows.append(
        ("time", Text(duration(now - state.began) + (f", about {duration(left)} left" if left is not None else "")))
    )
    if "parity_max" in state.done.metrics:
        rows.append(
            (
                "parity",
                Text(
                    f"max |Δ logprob| {small(state.done.metrics['parity_max'])}".replace(
                        "Δ", "Δ" if glyphs is BLOCKS else "delta"
                    )
                ),
            )
        )
    if state.checkpoint:
        rows.append(("checkpoint", Text(one_line(state.checkpoint))))

    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    if width >= NARROW:
        grid.add_column(style="dim", no_wrap=True, width=LABEL)
    grid.add_column(no_wrap=True, overflow="ellipsis" if glyphs is BLOCKS else "crop", ratio=1)
    for label, value in rows:
        grid.add_row(*((label, value) if width >= NARROW else (value,)))
    of = f"/{state.total_steps}" if state.total_steps is not None else ""
    step = f" - step {state.step}{of}" if state.step else ""
    title = (
        Text(overflow="crop", no_wrap=True)
        .append(clip(one_line(state.name), max(width - len(step) - 6, 1)), "bold")
        .append(step)
    )
    return Panel(grid, title=title, title_align="left", width=width, border_style="cyan")


def _phase_row(state: RunState, now: float, width: int) -> RenderableType:
    elapsed = duration(now - state.phase.began)
    done = sum(state.phase.outcomes.values())
    if not state.phase.total or state.phase.name not in ("sampling", "validating"):
        return Text(elapsed if width >= NARROW and len(state.phase.name) <= LABEL else f"{state.phase.name} {elapsed}")
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(
        Text(elapsed),
        ProgressBar(total=state.phase.total, completed=min(done, state.phase.total), width=max(4, min(30, width - 34))),
        Text(f"{done}/{state.phase.total}"),
    )
    return grid


def _reward_row(state: RunState, width: int, glyphs: str) -> Text:
    line = Text().append(number(state.done.rewards[-1]), "bold")
    line.append(f"  {sparkline(state.done.rewards, max(0, min(40, width - 44)), glyphs)}", style="cyan")
    if state.done.trend is not None:
        line.append(f"  {state.done.trend:+.3f} a step", style="green" if state.done.trend > 0 else "yellow")
    return line


def _validation_row(state: RunState) -> Text:
    last = state.validations[-1]
    line = Text(
        f"{score(last)} after step {last.get('step', '?')}" if last.get("step") else f"{score(last)} before training"
    )
    if len(state.validations) > 1:
        line.append(f"  (first {score(state.validations[0])})", style="dim")
    return line


def _token_rows(state: RunState) -> list[tuple[str, str, str]]:
    """What became of the last step's tokens: label, text and style."""
    sampled, trained = state.done.ledger.get("sampled"), state.done.ledger.get("trained")
    masked = cast("Mapping[str, int]", state.done.ledger.get("masked") or {})
    if not sampled:
        return []
    trained_too = f"{trained:,} trained" if trained else "nothing was trained"
    rows = [("tokens", f"{sampled:,} sampled, {trained_too}", "" if trained else "bold yellow")]
    return [*rows, ("masked", counts(masked), "yellow")] if any(masked.values()) else rows
