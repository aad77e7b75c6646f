"""What a run shows: the live panel at every width, plain lines where there is no terminal, and never in the run's
way."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from agentlightning.nouns import Failure, Mode, Reason, Rollout, RunRecord, RunStatus, Status
from agentlightning.records.progress import Progress, SilentView
from agentlightning.run.pace import Pace
from agentlightning.text import duration
from agentlightning.views.live.choice import make_progress
from agentlightning.views.live.guarded import guarded
from agentlightning.views.live.plain import PlainView
from agentlightning.views.live.state import ASCII_BLOCKS, BLOCKS, RunState, counts, sparkline, step_line, summary
from agentlightning.views.live.terminal import LiveView, render
from tests.terminals import in_terminal

ROOT = Path(__file__).parents[2]


def run_record(**config: Any) -> RunRecord:
    return RunRecord("calc-1", "calculator", "/tmp/runs/calc-1", RunStatus.RUNNING, {"config": config}, 0.0)


def a_rollout(*, failed: Reason | None = None, mode: Mode = Mode.TRAIN) -> Rollout:
    status = Status.FAILED if failed else Status.SUCCEEDED
    failure = Failure(failed, "why") if failed else None
    return Rollout("r", "calc-1", {}, mode, 0, 0, 0, 1, status, reward=None if failed else 1.0, failure=failure)


def metrics(step: int, reward: float = 0.5) -> dict[str, Any]:
    return {
        "step": step, "reward": reward, "tokens_per_s": 412.4, "sampling_s": 3.0, "training_s": 1.5,
        "parity_max": 3.2e-6,
        "rollouts": {"succeeded": 60, "failed: timeout": 3, "cancelled": 1},
    }  # fmt: skip


LEDGER = {"seconds": {"sampling": 3.0, "training": 1.5}}
VALIDATION = {
    "step": 0,
    "mean": 0.2,
    "low": 0.15,
    "high": 0.26,
    "scored": 200,
    "failed": {"failed: timeout": 2},
    "seconds": 4.0,
}
RESULT = {
    "status": "stopped", "stopped_by": "interrupted", "history": [metrics(1, 0.1), metrics(2, 0.9)],
    "validation_before": VALIDATION, "validation_after": {**VALIDATION, "mean": 0.95, "low": None, "high": None},
    "ledger": {"sampled": 18234, "trained": 17000, "masked": {"forced": 34, "degenerate_group": 1200},
    "rollouts": {"succeeded": 60}, "parity_max": 3e-6},
    "seconds": {"sampling": 61.0, "training": 30.0}, "checkpoint": "runs/calc-1/checkpoints/2", "best_checkpoint": None,
    "folder": "runs/calc-1",
}  # fmt: skip


def a_whole_run(view: Progress) -> None:
    view.run_started(run_record(), 2)
    view.phase("validating", total=4)
    view.rollout_done(a_rollout(mode=Mode.VAL))
    view.validated(VALIDATION)
    for step in (1, 2):
        view.phase("sampling", total=4, step=step)
        view.rollout_done(a_rollout())
        view.sampling(412.4, 3, 0)
        view.rollout_done(a_rollout(failed=Reason.TIMEOUT))
        view.phase("training")
        view.step_done(metrics(step), LEDGER)
    view.message("a [bold]warning[/bold] that keeps its brackets")
    view.phase("saving")
    view.checkpoint_saved(Path("runs/calc-1/checkpoints/2"))
    view.finished(RESULT)
    view.close()


def screen(columns: int = 80, **options: Any) -> Console:
    return Console(
        file=io.StringIO(),
        width=columns,
        height=24,
        force_terminal=True,
        color_system=None,
        legacy_windows=False,
        **options,
    )


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --------------------------------------------------------------------------- plain


def test_without_a_terminal_each_step_is_one_plain_line() -> None:
    out = io.StringIO()
    a_whole_run(PlainView(out))
    shown = out.getvalue().splitlines()
    assert out.getvalue().isascii()
    assert shown[0].startswith("run calculator (calc-1), 2 steps, in ")
    assert shown[1] == "validation before training: 0.200 [0.150, 0.260] (200 of 202), not scored: 2 failed: timeout"
    assert (
        shown[2] == "step 1/2  reward 0.500  412 tok/s  4.5 s  4 not succeeded (3 timeout, 1 cancelled)  parity 3.2e-06"
    )
    assert shown[4] == "a [bold]warning[/bold] that keeps its brackets"
    assert shown[6:] == [
        "run:        stopped: interrupted, 2 steps in 1:31",
        "validation: 0.200 [0.150, 0.260] (200 of 202) before, 0.950 (200 of 202) after",
        "reward:     0.100 in the first step, 0.900 in the last",
        "rollouts:   60 succeeded",
        "tokens:     18,234 sampled = 17,000 trained + 1,234 masked (1,200 degenerate_group, 34 forced)",
        "parity:     max |delta logprob| 3.0e-06 between sampler and trainer",
        "wall time:  sampling 1:01, training 30 s",
        "checkpoint: runs/calc-1/checkpoints/2",
        "folder:     runs/calc-1",
    ]


def test_rollouts_that_take_long_are_told_of_now_and_then_in_plain_lines() -> None:
    stream, now = io.StringIO(), 100.0
    view = PlainView(stream, clock=lambda: now)
    view.phase("sampling", total=24)
    for second in range(120):
        now = 100.0 + second
        view.rollout_done(a_rollout()) if second == 3 else None
        view.sampling(3.25 if second < 10 else 1057.0, 8, 2 if second < 10 else 0)
    view.phase("validating", total=2)
    view.sampling(5.0, 1, 0)
    assert stream.getvalue().splitlines() == [
        "sampling: 1/24 rollouts, 3.2 tokens/s, 8 requests live, 2 waiting",
        *["sampling: 1/24 rollouts, 1,057 tokens/s, 8 requests live"] * 3,
    ]


def test_a_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    assert [pace.note(now, total) for now, total in ((0.0, 50), (0.5, 60), (2.0, 110), (5.0, 110), (7.0, 110), (30.0,
    310))] == [
        0.0, 20.0, 30.0, 12.0, 0.0, pytest.approx(200 / 23),
    ]  # fmt: skip


def test_a_reader_that_left_silences_the_view_and_not_the_run() -> None:
    read, write = os.pipe()
    os.close(read)
    view = PlainView(os.fdopen(write, "w"))
    a_whole_run(view)
    closed = io.StringIO()
    closed.close()
    a_whole_run(PlainView(closed))


def test_a_message_that_the_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    view = PlainView(io.TextIOWrapper(raw, encoding="ascii"))
    view.message("caf\u00e9")
    view.message("goes on")
    assert raw.getvalue() == b"caf\\xe9\ngoes on\n"


def test_the_view_is_chosen_by_what_stdout_is(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setenv("TERM", "xterm")
        assert isinstance(make_progress(True, terminal), LiveView)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_progress(True, terminal), PlainView)
    os.close(leader)
    assert isinstance(make_progress(True, io.StringIO()), PlainView)
    assert isinstance(make_progress(False), SilentView)
    mine = PlainView()
    assert make_progress(mine) is mine
    a_whole_run(SilentView())


# --------------------------------------------------------------------------- live


def a_state() -> RunState:
    state = RunState()
    state.start(run_record(), 40, 100.0)
    state.validations.append(VALIDATION)
    for step in range(1, 12):
        state.done.add(metrics(step, step / 20), LEDGER)
    state.enter("sampling", 64, 150.0, 12)
    for _ in range(46):
        state.add_rollout(a_rollout())
    state.add_rollout(a_rollout(failed=Reason.TIMEOUT))
    state.checkpoint = "runs/calc-1/checkpoints/10"
    return state


def test_the_live_panel_shows_what_a_user_asks_for() -> None:
    console = screen(100)
    console.print(render(a_state(), 152.0, 100))
    shown = text_of(console)
    for wanted in (
        "calculator - step 12/40", "sampling", "2.0 s", "47/64", "0.550", sparkline(range(11), 11), "+0.050 a step",
        "0.200 [0.150, 0.260] (200 of 202) before training",
        "46 succeeded, 1 timeout", "412 tokens/s sampled", "52 s, about 2:12 left", "3.2e-06",
        "runs/calc-1/checkpoints/10",
    ):  # fmt: skip
        assert wanted in shown, wanted


def test_the_live_panel_shows_the_pace_while_rollouts_are_waited_for() -> None:
    state = a_state()
    state.phase.pace = (57.4, 8, 3)
    console = screen(100)
    console.print(render(state, 152.0, 100))
    assert "57 tokens/s, 8 requests live, 3 waiting" in text_of(console) and "412 tokens/s" not in text_of(console)
    state.enter("training", 0, 153.0)
    console = screen(100)
    console.print(render(state, 153.0, 100))
    assert "412 tokens/s sampled" in text_of(console)


def test_the_live_panel_says_what_was_masked_and_that_nothing_was_trained() -> None:
    state = a_state()
    ledger = {"sampled": 18234, "trained": 17000, "masked": {"forced": 34, "degenerate_group": 1200}, **LEDGER}
    state.done.add(metrics(12), ledger)
    console = screen(100)
    console.print(render(state, 152.0, 100))
    assert "18,234 sampled, 17,000 trained" in text_of(console) and "1,200 degenerate_group, 34 forced" in text_of(
        console
    )
    state.done.add({**metrics(13), "parity_max": None}, {**ledger, "trained": 0, "masked": {"degenerate_group": 18234}})
    console = screen(100)
    console.print(render(state, 152.0, 100))
    shown = text_of(console)
    assert "18,234 sampled, nothing was trained" in shown and "18,234 degenerate_group" in shown
    assert re.search(r"parity +max \|Δ logprob\| - ", shown), "not measured is not 0"


def test_parity_that_was_not_measured_is_a_dash_in_plain_lines_and_the_summary() -> None:
    out = io.StringIO()
    view = PlainView(out)
    view.step_done(
        {**metrics(1), "parity_max": None, "trained_tokens": 0}, {**LEDGER, "masked": {"degenerate_group": 9}}
    )
    assert out.getvalue().endswith("parity -  nothing trained (9 degenerate_group)\n")
    assert ("parity", "max |delta logprob| - between sampler and trainer") in summary(
        {"ledger": {"sampled": 3, "trained": 3, "parity_max": None}}
    )


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_path_of_the_summary_is_one_piece_to_copy(columns: int) -> None:
    """A terminal breaks it where it must, and gives it back without the break; no frame and no indentation stands in
    it."""
    path = "/data/" + "a-long-folder/" * 12 + "calculator-20260101-120000-ab12"
    code = (
        "from tests.views.test_views import *\n"
        f"view = make_progress(); view.run_started(run_record(), 2); view.finished({{**RESULT, 'folder': {path!r}}})"
    )
    shown = in_terminal([sys.executable, "-c", code], columns=columns)
    assert shown.code == 0 and path in shown.text
    after = shown.text[shown.text.rindex("calculator\x1b") :]
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in after.splitlines()]
    assert all(len(line) <= columns or line == path for line in lines), "everything else is wrapped between words"
    assert "1,200 degenerate_group" in " ".join(" ".join(lines).split()), "no number is broken"


@settings(max_examples=80, deadline=None)
@given(columns=st.integers(1, 220), ascii_only=st.booleans(), steps=st.integers(0, 30))
def test_the_live_panel_never_breaks_a_narrow_terminal(columns: int, ascii_only: bool, steps: int) -> None:
    state = a_state() if steps else RunState()
    console = screen(columns)
    console.print(render(state, 152.0, columns, ASCII_BLOCKS if ascii_only else BLOCKS))
    rows = text_of(console).splitlines()
    assert max(map(len, rows)) <= columns
    assert len(rows) <= 13, "a value was wrapped"


def test_a_terminal_without_unicode_gets_ascii_bars() -> None:
    console = Console(
        file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=90, force_terminal=True, color_system=None
    )
    view = LiveView(console=console)
    a_whole_run(view)  # an encoding error would end it


def test_prints_of_the_users_code_are_not_swallowed_by_the_live_view() -> None:
    """In a real terminal, from threads, with and without a newline, to stdout and stderr."""
    code = """
import sys, threading, time
from tests.views.test_views import *
view = make_progress()
assert isinstance(view, LiveView)
view.run_started(run_record(), 2)
def agent(i):
    for j in range(20):
        print(f'hello-{i}-{j}'); time.sleep(0.005)
threads = [threading.Thread(target=agent, args=(i,)) for i in range(3)]
for t in threads: t.start()
print('to-stderr', file=sys.stderr)
for t in threads: t.join()
print('no-newline', end='')
view.step_done(metrics(1), LEDGER)
view.finished(RESULT)
print('afterwards')
"""
    ran = in_terminal([sys.executable, "-c", code], columns=90)
    assert ran.code == 0, ran.text
    shown = ran.text
    for wanted in ("to-stderr", "no-newline", "afterwards", "stopped: interrupted"):
        assert wanted in shown
    for i in range(3):
        for j in range(20):
            assert f"hello-{i}-{j}\r" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor was left hidden"


def test_a_view_that_is_closed_early_gives_the_terminal_back() -> None:
    console = screen()
    view = LiveView(console=console)
    before = sys.stdout
    view.phase("loading the model")
    view.run_started(run_record(), 3)
    assert sys.stdout is not before
    view.close()
    view.close()
    assert sys.stdout is before
    view.phase("sampling", total=3)
    view.step_done(metrics(1), LEDGER)
    for thread in threading.enumerate():
        if "_RefreshThread" in type(thread).__name__:
            thread.join(5)
            assert not thread.is_alive()


def test_a_terminal_that_went_away_silences_the_view_and_not_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    a_whole_run(guarded(LiveView(console=Console(file=Gone(), width=80, force_terminal=True))))


# --------------------------------------------------------------------------- what they know


def test_time_left_counts_steps_the_final_validation_and_max_time() -> None:
    state = RunState()
    state.start(run_record(max_time=100.0), 10, 0.0)
    assert state.seconds_left(40.0) == 60.0
    state = RunState()
    state.start(run_record(), 10, 0.0)
    assert state.seconds_left(5.0) is None
    state.validations.append(VALIDATION)
    state.done.add(metrics(1), LEDGER)
    state.enter("sampling", 4, 10.0)
    assert state.seconds_left(12.0) == pytest.approx(9 * 4.5 - 2.0 + 4.0)


def test_a_resumed_run_shows_the_step_it_is_at() -> None:
    state = RunState()
    state.start(run_record(), 10, 0.0)
    assert state.step is None
    state.enter("sampling", 4, 0.0, step=7)
    assert state.step == 7
    state.done.add(metrics(7), LEDGER)
    assert state.step == 8
    state.done.add(metrics(10), LEDGER)
    assert state.step == 10


def test_short_texts() -> None:
    assert [duration(s) for s in (0.04, 9.96, 59.4, 61, 3723)] == ["0.0 s", "10.0 s", "59 s", "1:01", "1:02:03"]
    assert sparkline([0, 1, 2], 2) == "▁█"
    assert sparkline([1, 1], 5) == "▅▅"
    assert sparkline([], 5) == sparkline([1.0], 0) == ""
    assert counts({"a": 1, "b": 3, "c": 0}) == "3 b, 1 a"
    assert step_line({"step": 3}, None, None) == "step 3"
    assert summary({}) == [("run", "finished, 0 steps in 0.0 s")]


def test_the_live_view_costs_the_run_next_to_nothing() -> None:
    view = LiveView(console=screen())
    view.run_started(run_record(), 100)
    view.phase("sampling", total=5000)
    began = time.thread_time()
    for _ in range(5000):
        view.rollout_done(a_rollout())
    spent = time.thread_time() - began
    view.close()
    assert spent < 1.0
