"""A policy of another layout is a class and a line in the table: the run, its algorithm and its record use it as it
is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning import policies
from agentlightning.errors import ConfigError
from agentlightning.learning.objective import ObjectiveSettings
from agentlightning.policies.shared import SharedPolicy
from agentlightning.records.batch import Batch, LearnerStats
from tests.e2e.test_training import train


class CountingPolicy(SharedPolicy):
    """Counts what it learns from."""

    learned: list[int] = []  # noqa: RUF012  # one for all: it is the run that makes its policy

    async def learn(self, batch: Batch, objective: ObjectiveSettings) -> LearnerStats:
        self.learned.append(len(batch.groups))
        return await super().learn(batch, objective)


def test_a_policy_of_the_table_is_what_a_run_samples_and_learns_with(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policies.LAYOUTS, "counting", f"{__name__}:CountingPolicy")
    CountingPolicy.learned.clear()
    result = train(letters, tmp_path, config={"layout": "counting"})
    assert len(CountingPolicy.learned) == 2 and len(result.history) == 2 and result.ledger.trained > 0


def test_an_unknown_layout_is_refused_at_start_with_what_there_is(letters: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^layout='shard' is not known: did you mean shared\?$"):
        train(letters, tmp_path, config={"layout": "shard"})
    with pytest.raises(ConfigError, match=r"^layout='fsdp' is not known: there is shared$"):
        train(letters, tmp_path, config={"layout": "fsdp"})
