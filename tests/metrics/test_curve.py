"""The learning curve: drawn from lines of metrics.jsonl, for every shape of run."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from agentlightning.errors import ConfigError, MissingExtra
from agentlightning.metrics import plot
from agentlightning.metrics.curve import trend

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
def test_every_shape_of_run_gives_a_picture(tmp_path: Path, history: list[dict[str, Any]], validations: list[dict[str, Any]]) -> None:
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


def test_the_trend_keeps_a_straight_line_and_never_lags() -> None:
    straight = [0.1 * i for i in range(20)]
    assert trend(straight, 7) == pytest.approx(straight)
    assert trend([0.0, 3.0, 0.0], 3) == [0.0, 1.0, 0.0]
