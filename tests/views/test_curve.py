"""The learning curve: drawn from lines of metrics.jsonl, for every shape of run."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from agentlightning.errors import ConfigError, MissingExtra
from agentlightning.views.curve import plot, trend
from tests.terminals import environment

VALIDATION = {"step": 0, "mean": 0.2, "low": 0.1, "high": 0.3}


def line(step: int) -> dict[str, Any]:
    return {"step": step, "reward": step / 40, "reward_std": 0.2, "rewards": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("history", "validations"),
    [
        ([line(step) for step in range(1, 31)], [VALIDATION, {"step": 30, "mean": 0.9, "low": None, "high": None}]),
        ([line(1)], []),
        ([], [VALIDATION]),
        ([{"step": 0, "validation": VALIDATION}, {"step": 1, "reward": 0.3}], []),
        (
            [{"step": 1, "reward": 0.5, "reward_std": 0.0}, {"step": 2, "reward": None}],
            [{"step": 2, "mean": 1, "low": float("nan"), "high": 1}],
        ),
    ],
)
def test_every_shape_of_run_gives_a_picture(
    tmp_path: Path, history: list[dict[str, Any]], validations: list[dict[str, Any]]
) -> None:
    path = plot(history, tmp_path / "deep" / "curve.png", validations=validations, title="calculator")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (1125, 630)


def test_a_run_with_nothing_to_draw_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no learning curve to draw"):
        plot([], tmp_path / "curve.png")


def test_without_matplotlib_the_message_is_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="pip install matplotlib"):
        plot([line(1)], tmp_path / "curve.png")


@pytest.mark.parametrize(
    "program",
    [
        "sys.modules['matplotlib'] = None",
        "os.environ['MPLBACKEND'] = 'nonsense'",
        "sys.modules['matplotlib.figure'] = types.ModuleType('matplotlib.figure')",
    ],
)
def test_a_matplotlib_that_cannot_be_loaded_is_one_line(tmp_path: Path, program: str) -> None:
    code = (
        f"import os, sys, types; {program}\nfrom pathlib import Path\nfrom agentlightning.views.curve import "
        f"plot\nplot([{line(1)!r}], Path('c.png'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "the learning curve needs matplotlib" in ran.stderr.splitlines()[-1], ran.stderr


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/curve.png cannot be written: .*is a file, not a folder"):
        plot([line(1)], tmp_path / "file" / "curve.png")


@pytest.mark.parametrize("title", ["calculator", "$x_1$ \\alpha", "中文 \x1b[2J\n[red]", "long " * 40, "W" * 150])
def test_a_title_is_shown_as_it_is_within_the_picture(
    tmp_path: Path, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    plot([line(1), line(2)], tmp_path / "curve.png", title=title, about="SmolLM2-135M-Instruct, grpo")
    (axes,) = drawn[0].axes
    drawn[0].set_dpi(150)
    drawn[0].canvas.draw()
    left, right = (each.get_window_extent() for each in (axes._left_title, axes._right_title))
    assert left.x0 >= 0 and left.x1 < right.x0 and right.x1 <= 1125, "they do not meet, nor leave the picture"
    assert axes.get_title(loc="left").isprintable()
    assert axes.get_xlabel() == "training step" and "reward" in axes.get_ylabel()


def test_the_trend_keeps_a_straight_line_and_never_lags() -> None:
    straight = [0.1 * i for i in range(20)]
    assert trend(straight, 7) == pytest.approx(straight)
    assert trend([0.0, 3.0, 0.0], 3) == [0.0, 1.0, 0.0]
