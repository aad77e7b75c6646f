"""What a result shows of itself: one short line at a prompt, a card in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.nouns import RunStatus
from agentlightning.records.card import card
from agentlightning.records.ledger import Ledger
from agentlightning.records.result import Evaluation
from agentlightning.views.dev.finding import Finding
from agentlightning.views.dev.report import AttemptLine, CallLine, DevReport
from agentlightning.views.result import FitResult

EVALUATION = Evaluation(3, 0.5, 0.4, 0.6, 200, {"failed: timeout": 2}, 12.3, tuple(f"rollout-{i}" for i in range(202)))


@pytest.fixture
def result(tmp_path: Path) -> FitResult:
    history = [{"step": step, "reward": step / 10, "rewards": [0.1] * 64} for step in (1, 2, 3)]
    return FitResult(
        "<run>\x1b[31m", tmp_path, RunStatus.FINISHED, history, (EVALUATION,), tmp_path / "<b>step</b>", None,
        Ledger({"succeeded": 6}), {"sampling": 2.0}
    )  # fmt: skip


def test_a_result_is_one_short_line_at_the_prompt(result: FitResult) -> None:
    report = DevReport("Agent a", (AttemptLine("r", "succeeded", 1.0, "return", 0.1, (), "printed"),) * 50, ())
    for value, words in (
        (result, "finished, 3 steps"),
        (EVALUATION, "0.500 [0.400, 0.600] on 200"),
        (report, "Nothing was found"),
    ):
        text = repr(value)
        assert words in text and len(text) < 300 and text.isprintable()


def test_a_result_is_a_card_in_a_notebook_with_its_curve_where_there_is_one(result: FitResult) -> None:
    without = result._repr_html_()
    assert "<img" not in without and "finished, 3 steps" in without
    result.plot()
    assert 'src="data:image/png;base64,iVBOR' in result._repr_html_()


def test_nothing_on_a_card_is_taken_for_html(result: FitResult) -> None:
    assert (
        "<run>" not in result._repr_html_() and "<b>" not in result._repr_html_() and "\x1b" not in result._repr_html_()
    )
    call = CallLine(0, "chat", "m", "complete", "root", 1, 1, "stop", ("<script>",))
    attempt = AttemptLine("<i>", "failed: agent_error", None, "", 0.1, (call,), "")
    report = DevReport("<u>agent</u>", (attempt,), (Finding("blocks", "<b>No call</b>", "<cause>", "<remedy>"),))
    html = report._repr_html_()
    assert "&lt;b&gt;No call" in html and "1 thing would keep it from being trained" in html
    for tag in ("<u>", "<i>", "<b>", "<cause>", "<remedy>", "<script>"):
        assert tag not in html
    assert "2 rollouts" in EVALUATION._repr_html_() and "timeout" in EVALUATION._repr_html_()


def test_a_card_keeps_the_order_and_the_lines_of_its_rows() -> None:
    html = card("t", [("b", "1\n2"), ("a", "3")])
    assert html.index("1\n2") < html.index(">3<")
