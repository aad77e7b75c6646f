"""`agl dev` on a model whose chat template drops earlier reasoning: it says what either value of `model.keep_reasoning` costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentlightning import Trainer
from agentlightning.dev import DevReport
from tests.e2e import letters_agent
from tests.templates.fixtures import THINKS_FIRST
from tests.tiny import letter_tasks, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is asked to think first: all that it says, to its last word, is reasoning."""
    folder = tmp_path_factory.mktemp("thinker")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer(template=THINKS_FIRST).save_pretrained(folder)
    return folder


def dev(model: Path, out: Path, agent: Any, *, keep: bool) -> DevReport:
    trainer = Trainer(
        model=model, output_dir=out, threads=1, progress=False, sampling={"max_tokens": 2}, config={"model": {"keep_reasoning": keep}}
    )
    return trainer.dev(agent, letter_tasks(2), n=2)


def test_dev_shows_what_either_way_costs_and_each_way_says_the_same(thinker: Path, tmp_path: Path) -> None:
    dropped, kept = (dev(thinker, tmp_path, letters_agent.two_turns, keep=keep) for keep in (False, True))
    for report, used in ((dropped, False), (kept, True)):
        found = report.reasoning
        assert found is not None and found.used is used and (found.rollouts, found.calls) == (3, 6)
        assert (found.dropped.paths, found.kept.paths) == (6, 3)
        assert found.kept.rows < found.dropped.rows and found.kept.prompts > found.dropped.prompts
    lines = str(dropped).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("The chat template drops earlier reasoning."))
    assert lines[at + 1].startswith("  false  6 paths") and lines[at + 1].endswith("(as it ran)")
    assert lines[at + 2].startswith("  true   3 paths") and lines[at + 3].startswith("  in 6 calls of 3 rollouts;")
    assert [call.branch for call in dropped.attempts[0].calls] == ["root", "template"]
    assert [call.branch for call in kept.attempts[0].calls] == ["root", "continued"]
    assert kept.to_json()["reasoning"]["used"] is True


def test_where_no_conversation_goes_on_there_is_nothing_to_choose(thinker: Path, tmp_path: Path) -> None:
    report = dev(thinker, tmp_path, letters_agent.agent, keep=False)
    assert report.reasoning is None and "keep_reasoning" not in str(report)
