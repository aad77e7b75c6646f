"""One number of threads for a whole run, and what a run tells of its pace."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import agentlightning.engines.models
from agentlightning import GRPO, Trainer
from agentlightning.engines.local.forward import SlotForward
from agentlightning.errors import ConfigError
from agentlightning.learning.outputs import Outputs
from agentlightning.nouns import Json
from agentlightning.records.progress import SilentView
from tests.e2e import letters_agent
from tests.tiny import letter_tasks

TASKS = letter_tasks(4)
QUICK: dict[str, Any] = {
    "steps": 1,
    "algorithm": GRPO(group_size=4, tasks_per_step=4),
    "sampling": {"max_tokens": 2},
    "evaluation": {"max_tokens": 2},
}


def watch(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """With how many threads a model was loaded, sampled and trained."""
    counts: dict[str, set[int]] = {}
    for owner, name in (
        (agentlightning.engines.models, "_load_weights"),
        (SlotForward, "decode"),
        (Outputs, "of"),
    ):
        original = getattr(owner, name)

        def watched(*args: Any, _original: Any = original, _name: str = name) -> Any:
            counts.setdefault(_name, set()).add(torch.get_num_threads())
            return _original(*args)

        monkeypatch.setattr(owner, name, watched)
    return counts


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_hold_for_all_that_computes_from_loading_on(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counts = watch(monkeypatch)
    trainer = Trainer(model=letters, output_dir=tmp_path, progress=False, threads=3, **QUICK)
    trainer.fit(letters_agent.graded, TASKS, val_dataset=TASKS)
    assert counts == {"_load_weights": {3}, "decode": {3}, "of": {3}}


def test_a_deterministic_run_records_its_threads_and_is_not_resumed_with_others(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    counts = watch(monkeypatch)
    settings: dict[str, Any] = {
        "model": letters,
        "output_dir": tmp_path,
        "progress": False,
        "deterministic": True,
        **QUICK,
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = Trainer(**settings).fit(letters_agent.graded, TASKS)
    assert set.union(*counts.values()) == {1}
    assert '"threads": 1' in (result.folder / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"threads \(1 then, 2 now\)"):
        Trainer(**settings, threads=2).fit(letters_agent.graded, TASKS, resume=result.run_id)


class Heard(SilentView):
    """What was told of the pace, by phase."""

    def __init__(self) -> None:
        self.name, self.paces, self.messages = "", dict[str, list[tuple[float, int, int]]](), list[str]()

    def phase(self, name: str, *, total: int = 0, step: int | None = None) -> None:
        self.name = name

    def sampling(self, tokens_per_s: float, live: int, waiting: int) -> None:
        self.paces.setdefault(self.name, []).append((tokens_per_s, live, waiting))

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.mark.parametrize("what", ["fit", "evaluate", "dev"])
def test_how_fast_the_engine_samples_is_told_while_rollouts_are_waited_for(letters: Path, tmp_path: Path, what: str):
    heard = Heard()
    trainer = Trainer(model=letters, output_dir=tmp_path, progress=heard, threads=1, **QUICK)
    if what == "fit":
        trainer.fit(letters_agent.graded, TASKS, val_dataset=TASKS)
    elif what == "evaluate":
        trainer.evaluate(letters_agent.graded, TASKS)
    else:
        trainer.dev(letters_agent.graded, TASKS, n=4)
    expected = {"fit": ["sampling", "validating"], "evaluate": ["validating"], "dev": ["sampling"]}[what]
    assert sorted(heard.paces) == expected
    for paces in heard.paces.values():
        assert max(speed for speed, _, _ in paces) > 0


def test_an_attempt_that_timed_out_while_the_engine_sampled_says_so(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    decode = SlotForward.decode

    def slowly(*args: Any) -> torch.Tensor:
        time.sleep(0.02)
        return decode(*args)

    monkeypatch.setattr(SlotForward, "decode", slowly)
    settings: dict[str, Any] = {
        **QUICK,
        "sampling": {"max_tokens": 500},
        "runner": {"deadline": 4.0, "max_attempts": 1},
    }
    trainer = Trainer(model=letters, output_dir=tmp_path, progress=False, threads=1, **settings)

    def asks_for_ever(task: dict[str, str], llm: Any) -> None:
        while True:  # until its key is revoked
            letters_agent.ask(llm, task["letter"], max_tokens=500)

    report = trainer.dev(asks_for_ever, TASKS, n=1)
    (finding,) = [finding for finding in report.findings if finding.level == "blocks"]
    assert finding.title == "The deadline passed while the engine sampled"
    assert re.search(
        r"within 4 s; .*: \d+\.\d s of its \d+\.\d s the engine had its calls, .*\(\d+ tokens, \d+\.\d tokens/s[,)]",
        finding.cause,
    )
    assert "n_runners" in finding.remedy and finding.remedy not in finding.cause


def test_a_machine_that_gets_busy_is_told_to_whoever_watches(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from tests.engines.test_threads import Told

    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr("agentlightning.run.opening.Machine", lambda: Told(others=3.5))
    heard = Heard()
    Trainer(model=letters, output_dir=tmp_path, progress=heard, **QUICK).evaluate(letters_agent.graded, TASKS)
    assert heard.messages == [
        "compute threads: 4 -> 2, on 1 of 4 cores, not spinning while they wait: other processes use 3.5 cores"
    ]


def test_a_script_that_imported_torch_first_is_told_once_what_to_set(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentlightning.policies.shared.long_spins", lambda: "set GOMP_SPINCOUNT")
    for threads, expected in ((2, ["set GOMP_SPINCOUNT"]), (1, [])):
        heard = Heard()
        settings: Json = {"model": letters, "output_dir": tmp_path, "progress": heard, "threads": threads, **QUICK}
        Trainer(**settings).evaluate(letters_agent.graded, TASKS)
        # a busy machine is told of too
        assert [line for line in heard.messages if "compute threads" not in line] == expected
