"""Runs that train the triplets which their agents return: those of recorded calls as they were sampled, the others as
targets, each with its own reward. Real models, processes and a real death."""

from __future__ import annotations

import asyncio
import io
import json
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from agentlightning import GRPO, Trainer
from agentlightning.errors import RunFailed
from agentlightning.nouns import GIVEN, Mode
from agentlightning.records.credit import AttemptCredit
from agentlightning.tracing.spans import GIVEN_CALL, spans_of
from agentlightning.views.trace import render_rollout, render_tree
from tests.e2e import triplets_agent
from tests.e2e.test_resume import end, lines_written, start, wait_for_lines, weights
from tests.e2e.test_training import _open
from tests.tiny import letter_tasks

AGENTS = Path(triplets_agent.__file__)


def trainer(letters: Path, out: Path, **settings: Any) -> Trainer:
    credit = settings.pop("credit", {"scheme": "call"})
    sizes = settings.pop("sizes", {"group_size": 4, "tasks_per_step": 4})
    return Trainer(
        model=letters, output_dir=out, progress=False, threads=1, sampling={"max_tokens": 2}, seed=3,
        algorithm=GRPO(**sizes, credit=credit), **{"steps": 1, "n_runners": 4, "learner": {"lr": 5e-3}, **settings},
    )  # fmt: skip


async def recorded(out: Path) -> list[tuple[Any, list[Any], dict[int, Any], list[Any], AttemptCredit]]:
    """Of each rollout: itself, its calls, its nodes by id, its rewards and what its step stored of it."""
    store = _open(out)
    try:
        run = (await store.runs())[0]
        found = []
        for rollout in await store.rollouts(run.id, mode=Mode.TRAIN):
            (row,) = await store.credit(run.id, attempt_id=rollout.attempt_id)
            nodes = {node.id: node for node in await store.nodes(rollout.attempt_id)}
            credit = AttemptCredit.decode(row.blob)
            found.append(
                (rollout, await store.calls(rollout.attempt_id), nodes, await store.rewards(rollout.id), credit)
            )
        return found
    finally:
        await store.close()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_is_trained_is_what_the_agent_returned(letters: Path, tmp_path: Path, isolation: str) -> None:
    """Invariants 2 and 3: tokens of matched triplets are trained as they were sampled, those of others as targets,
    counted apart, and each with the weight that its own reward gives."""
    agent = triplets_agent.turns if isolation == "thread" else f"{AGENTS}:turns"
    ledger = trainer(letters, tmp_path, runner={"isolation": isolation}).fit(agent, letter_tasks(4)).ledger.check()
    assert ledger.rollouts == {"succeeded": 16} and ledger.calls == {"complete": 32}
    assert ledger.trained + sum(ledger.masked.values()) == ledger.sampled > 0
    assert ledger.off_record == 16 * 3 == ledger.off_record_trained + sum(ledger.off_record_masked.values())
    assert ledger.off_record_trained > 0 and ledger.parity_max is not None and ledger.parity_max < 1e-4
    for rollout, calls, nodes, rewards, credit in asyncio.run(recorded(tmp_path)):
        own = {reward.call_id: reward.value for reward in rewards if reward.call_id is not None}
        assert [call.wire for call in calls] == ["chat", "chat", GIVEN] and set(own) == {call.id for call in calls}
        assert own[calls[2].id] == -1.0 and rollout.reward == pytest.approx(statistics.fmean(own.values()))
        (target,) = credit.given
        assert list(nodes[target.node].token_ids) == [5, 6, 7] and nodes[target.node].logprobs is None
        sampled = {node.node for node in credit.nodes}
        assert sampled == {node.id for node in nodes.values() if node.sampled}, "a triplet's copy is no second sample"


def test_the_weight_of_a_triplet_follows_its_own_reward(letters: Path, tmp_path: Path) -> None:
    trainer(letters, tmp_path, runner={"isolation": "thread"}).fit(triplets_agent.turns, letter_tasks(4))
    pairs: list[tuple[float, float]] = []
    for _, calls, _, rewards, credit in asyncio.run(recorded(tmp_path)):
        of_node = {node.node: node for node in (*credit.nodes, *credit.given)}
        for call in calls:
            (value,) = [reward.value for reward in rewards if reward.call_id == call.id]
            node = of_node[call.samples[0].node]
            if node.why is None:
                pairs.append((value, node.per_token()[0]))
    best, worst = max(value for value, _ in pairs), -1.0
    assert {value for value, _ in pairs} >= {worst} and best > worst
    assert all(weight > 0 for value, weight in pairs if value == best), "the best of its group gains"
    assert all(weight < 0 for value, weight in pairs if value == worst), "the worst loses"


def test_a_model_learns_from_returned_triplets(letters: Path, tmp_path: Path) -> None:
    sizes = {"group_size": 8, "tasks_per_step": 8}
    result = trainer(letters, tmp_path, steps=12, runner={"isolation": "thread"}, n_runners=8, sizes=sizes).fit(
        triplets_agent.own_calls, letter_tasks(8)
    )
    rewards = [step["reward"] for step in result.history]
    assert statistics.fmean(rewards[-3:]) > 2 * statistics.fmean(rewards[:3]), rewards
    assert result.ledger.check().off_record == 0, "all of them are recorded calls"


def test_hundreds_of_triplets_of_one_task_each_count_by_their_own_reward(letters: Path, tmp_path: Path) -> None:
    sizes = {"group_size": 1, "tasks_per_step": 1}
    credit = {"scheme": "call", "max_rows": 150}
    ledger = (
        trainer(letters, tmp_path, sizes=sizes, credit=credit, runner={"isolation": "thread"})
        .fit(triplets_agent.hundreds, letter_tasks(1))
        .ledger.check()
    )
    assert ledger.calls == {"complete": 200} and ledger.off_record == 300
    assert ledger.trained > 0 and ledger.off_record_trained > 0
    masked = {**ledger.masked, **ledger.off_record_masked}
    assert "row_limit" in masked, masked
    ((_, calls, _, rewards, _),) = asyncio.run(recorded(tmp_path))
    assert len(calls) == 300 == len([reward for reward in rewards if reward.call_id is not None])


def test_rewards_of_triplets_that_the_credit_does_not_use_are_counted(letters: Path, tmp_path: Path) -> None:
    run = trainer(letters, tmp_path, credit={}, runner={"isolation": "thread"})
    ledger = run.fit(triplets_agent.turns, letter_tasks(4)).ledger.check()
    assert ledger.unused == {"for_a_call": 16 * 3}


def test_a_step_without_any_triplet_is_never_silent(letters: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="empty"):
        trainer(letters, tmp_path, runner={"isolation": "thread"}).fit(triplets_agent.nothing, letter_tasks(4))


def test_dev_says_which_triplets_are_off_the_record(letters: Path, tmp_path: Path) -> None:
    report = str(
        trainer(letters, tmp_path, runner={"isolation": "thread"}).dev(triplets_agent.retokenised, letter_tasks(2), n=2)
    )
    assert "Triplets are off the record" in report and "3 triplets that the agent returned" in report
    assert "a triplet of no recorded call" in report and "(no model)" not in report
    report = str(
        trainer(letters, tmp_path, runner={"isolation": "thread"}).dev(triplets_agent.own_calls, letter_tasks(2), n=2)
    )
    assert "off the record" not in report


def test_the_views_name_what_is_off_the_record(letters: Path, tmp_path: Path) -> None:
    run = trainer(letters, tmp_path, runner={"isolation": "thread"})
    run.dev(triplets_agent.turns, letter_tasks(1), n=1)
    last = run.last_trace()
    text = Console(width=200, file=io.StringIO(), record=True)
    for shown in (render_tree(last.view, last.trace, last.decode), render_rollout(last.view, last.decode)):
        text.print(shown)
    said = text.export_text()
    assert said.count("2 calls and 1 triplet off the record") == 2
    assert re.search(r"target +3 tokens +call 2 +book +stop +masked: dev rollout +reward -1.000", said), said
    (svg, _) = last.visualize(tmp_path / "tree")
    assert "target 3 tokens" in "".join(ElementTree.parse(svg).getroot().itertext())
    (given,) = [span for span in spans_of(last.trace) if span.name == GIVEN_CALL]
    assert given.attributes["agent.name"] == "book" and given.attributes["response_token_ids"] == [5, 6, 7]


SETTINGS = ("--agent", "triplets_agent.py:turns", "--credit", '{"scheme": "call"}', "--set", "deterministic=true")


@pytest.fixture(scope="module")
def uninterrupted(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return weights(end(start(tmp_path_factory.mktemp("whole"), letters, *SETTINGS, steps=4))["checkpoint"])


def test_a_run_of_triplets_that_is_killed_goes_on_bit_for_bit(
    letters: Path, tmp_path: Path, uninterrupted: str
) -> None:
    """Invariant 6: what was reported before the death is there, given calls and all, and nothing of it twice."""
    process = start(tmp_path, letters, *SETTINGS, steps=4)
    wait_for_lines(tmp_path, 1, process)
    process.kill()
    process.communicate()
    end(start(tmp_path, letters, *SETTINGS, "--resume", steps=4))
    assert lines_written(tmp_path) == 4
    checkpoint = json.loads(next(tmp_path.glob("*/result.json")).read_text())["checkpoint"]
    assert weights(checkpoint) == uninterrupted
    rollouts = asyncio.run(recorded(tmp_path))
    assert len(rollouts) == 4 * 32
    for _, calls, nodes, rewards, _ in rollouts:
        assert [call.wire for call in calls] == ["chat", "chat", GIVEN]
        assert Counter(reward.call_id for reward in rewards) == {**{call.id: 1 for call in calls}, None: 1}
        assert len([node for node in nodes.values() if node.call_index == calls[2].index]) == 1
