"""A game of nine players and 300 calls an attempt, a fifth of the seats played by somebody else's model: every call of
the policy is recorded on its player's own path, the others' never reach the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning import GRPO, LLM, Trainer
from tests.e2e import players_agent
from tests.e2e.players_agent import CALLS, PLAYERS, seats
from tests.tiny import save_tiny
from tests.upstream import KEY, OtherEndpoint


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_nine_players_are_nine_paths_and_the_seats_of_another_model_are_never_trained(
    tmp_path: Path, isolation: str
) -> None:
    other = OtherEndpoint(say="I pass.")
    trainer = Trainer(
        model=save_tiny(tmp_path / "model", context=8192), output_dir=tmp_path / "out", progress=False, threads=1,
        n_runners=2, steps=1, algorithm=GRPO(group_size=2, tasks_per_step=1), sampling={"max_tokens": 2},
        runner={"isolation": isolation}, resources={"other": LLM(endpoint=other.url, model="m", api_key=KEY)},
    )  # fmt: skip
    agent = players_agent.game if isolation == "thread" else f"{players_agent.__file__}:game"
    ledger = trainer.fit(agent, [{"seed": 42}]).ledger.check()
    other.close()
    theirs = 2 * sum(call % PLAYERS in seats(42) for call in range(CALLS))
    ours = 2 * CALLS - theirs
    assert len(seats(42)) == 2 and seats(42) == seats(42) != seats(43)
    assert ledger.rollouts == {"succeeded": 2} and ledger.calls == {"complete": ours}
    assert len(other.asked) == theirs == ledger.external["other"]["calls"]
    trained_seats = PLAYERS - 2
    assert ledger.branches == {"root": 2, "new": 2 * (trained_seats - 1), "continued": ours - 2 * trained_seats}
    assert ledger.trained == ledger.sampled > 0, "nothing is lost, in rows of hundreds of calls"
