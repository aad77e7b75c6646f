"""A run whose agent's history outgrows the model: the user's function shortens it, in a process of its own or in a
thread, and the run learns from all of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentlightning import GRPO, Trainer
from agentlightning.errors import ConfigError
from tests.e2e import talking_agent
from tests.e2e.test_training import _open
from tests.tiny import save_tiny

FILE = talking_agent.__file__


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=256)


def trainer(tiny: Path, out: Path, compact: Any, **settings: Any) -> Trainer:
    return Trainer(
        model=tiny, output_dir=out, progress=False, threads=1, n_runners=2, compact=compact, steps=1,
        algorithm=GRPO(group_size=2, tasks_per_step=1), sampling={"max_tokens": 16}, **settings,
    )  # fmt: skip


async def _branches(out: Path) -> list[Counter[str]]:
    """Of each rollout."""
    store = _open(out)
    try:
        [run] = await store.runs()
        attempts = [a for r in await store.rollouts(run.id) for a in await store.attempts(r.id)]
        return [Counter([call.branch for call in await store.calls(attempt.id)]) for attempt in attempts]
    finally:
        await store.close()


def here(messages: list[Any], limit: int, count: Any) -> list[Any]:
    return talking_agent.shorten(messages, limit, count)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize(
    "compact",
    [talking_agent.shorten, f"{FILE}:shorten_later", lambda messages, limit, count: here(messages, limit, count)],
    ids=["function", "path, async", "closure"],
)
def test_a_run_learns_from_histories_that_were_shortened(
    tiny: Path, tmp_path: Path, compact: Any, isolation: str
) -> None:
    agent = talking_agent.talker if isolation == "thread" else f"{FILE}:talker"
    result = trainer(tiny, tmp_path, compact).fit(agent, [{"q": 1}])
    ledger = result.ledger.check()
    assert ledger.rollouts == {"succeeded": 2} and ledger.calls == {"complete": 16}
    assert ledger.branches["compacted"] >= 2 and set(ledger.branches) == {"root", "continued", "compacted"}
    for branches in asyncio.run(_branches(tmp_path)):
        assert branches["root"] == 1 and branches["compacted"] >= 1 and branches["continued"] >= 4
    if callable(compact) and compact is talking_agent.shorten:
        [log] = result.folder.glob("logs/compact.log")
        assert "shortening" in log.read_text()


def test_dev_says_how_often_a_history_was_shortened(tiny: Path, tmp_path: Path) -> None:
    text = str(trainer(tiny, tmp_path, talking_agent.shorten).dev(talking_agent.talker, [{"q": 1}], n=1))
    assert "Histories were shortened" in text and "compact shortened one" in " ".join(text.split())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("too_slow", "compact did not return within 1 s; its process was killed"),
        ("dies", "compact's process exited with code 3"),
        ("asks_wrongly", r"compact raised ValueError: messages\[0\].role must be one of"),
    ],
)
def test_a_function_that_hangs_dies_or_asks_wrongly_is_the_context_length_error(
    tiny: Path, tmp_path: Path, function: str, said: str
) -> None:
    compact = getattr(talking_agent, function)
    report = trainer(tiny, tmp_path, compact, gateway={"compact_timeout": 1.0}).dev(talking_agent.talker, [1], n=1)
    text = " ".join(str(report).split())
    assert "A history could not be shortened" in text and said.split(r"\[")[0] in text
    assert "context_length" in text


def test_what_cannot_shorten_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for compact, said in (
        (7, "compact=7"),
        (lambda history, budget: history, "of tools, limit, count those that it takes by these names"),
        (f"{FILE}:nothing", "defines no 'nothing'"),
    ):
        with pytest.raises(ConfigError, match=said):
            trainer(tmp_path, tmp_path, compact)
