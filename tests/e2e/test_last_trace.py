"""The trace of the rollout that ended last, asked for by the program that ran it: a real run on the letters model."""

from __future__ import annotations

import gc
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from agentlightning import Trainer, tracing
from agentlightning.errors import ConfigError
from tests.e2e import letters_agent
from tests.tiny import letter_tasks


def test_a_program_draws_the_rollout_that_it_has_just_run(letters: Path, tmp_path: Path) -> None:
    trainer = Trainer(
        model=letters,
        output_dir=tmp_path / "runs",
        progress=False,
        sampling={"max_tokens": 2},
        runner={"isolation": "thread"},
        threads=1,
    )
    report = trainer.dev(letters_agent.two_turns, letter_tasks(8), n=2)
    trace = tracing.last_trace()
    assert trace.rollout_id in {attempt.rollout_id for attempt in report.attempts}
    svg, png = trace.visualize(tmp_path / "tree_graph")
    said = [
        "".join(element.itertext())
        for element in ET.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "call 0" in said and "call 1" in said and "not trained: dev rollout" in said
    assert png.read_bytes().startswith(b"\x89PNG")
    assert trainer.last_trace().rollout_id == trace.rollout_id
    with pytest.raises(ConfigError, match="no rollout of this Trainer has ended"):
        Trainer(model=letters).last_trace()
    again = tracing.last_trace
    del trainer
    gc.collect()
    with pytest.raises(ConfigError, match=r"keep it in a variable, trainer = Trainer\(\.\.\.\)"):
        again()
