"""The story of a policy gradient's run and of its step, told to scripted ports."""

from __future__ import annotations

import pytest

from agentlightning import GRPO
from agentlightning.algorithms.ports import Run, StopRequested
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.nouns import Reason
from tests.algorithms.scripted import Script
from tests.credit.traces import group, trace

DIFFER = group(trace("a", 1.0), trace("b", 0.0), number=0)
EQUAL = group(trace("c", 1.0), trace("d", 1.0), number=1)
FAILED = group(trace("e", None, failure=Reason.TIMEOUT), trace("f", None, failure=Reason.TIMEOUT), number=2)


def grpo(**settings: object) -> GRPO:
    return GRPO.model_validate({"group_size": 2, "tasks_per_step": 2, **settings})


def step_of(step: int, *numbers: int) -> list[object]:
    return [("sample", 2, 2), ("intend", step, [*numbers]), "learn", ("commit", step)]


async def test_a_step_samples_notes_its_intent_learns_and_commits_in_this_order():
    script = Script([[DIFFER, EQUAL], [EQUAL, DIFFER]])
    await grpo().fit(script.run(total_steps=2))
    assert script.told == [
        ("validate", 0),
        *step_of(1, 0, 1), ("validate", 1), ("checkpoint", 1),
        *step_of(2, 1, 0), ("validate", 2), ("checkpoint", 2),
        "finish",
    ]  # fmt: skip


async def test_a_step_learns_from_groups_that_differ_and_its_ledger_adds_up():
    script = Script([[DIFFER, EQUAL]])
    await grpo().fit(script.run())
    (batch,), (ledger,), (line,) = script.batches, script.ledgers, script.lines
    assert [tree.rollout_id for trees in batch.groups for tree in trees] == ["a", "b"]
    assert ledger.check().groups == {"trained": 1, "degenerate": 1}
    assert ledger.trained == ledger.sampled / 2 and ledger.masked == {"degenerate_group": ledger.sampled / 2}
    assert (ledger.late, ledger.unused) == (2, {"late": 1})
    assert (line["step"], line["reward"], line["rewards"]) == (1, 0.75, [1.0, 0.0, 1.0, 1.0])


async def test_a_statistic_of_the_objective_never_stands_in_for_a_metric():
    script = Script([[DIFFER, EQUAL]], statistics={"reward": 9.0, "spread": 1.0})
    with pytest.raises(ValueError, match="have names that metrics have: reward"):
        await grpo().fit(script.run())


async def test_staleness_is_the_version_that_learns_minus_the_one_that_sampled():
    script = Script([[DIFFER, EQUAL]])  # sampled at version 3
    await grpo().fit(script.run(last_step=5, total_steps=6))
    assert script.ledgers[0].staleness_max == 2


async def test_a_step_in_which_nobody_is_above_another_takes_nothing_to_learn_from():
    script = Script([[EQUAL]])
    await grpo().fit(script.run())
    assert script.batches[0].groups == () and script.ledgers[0].trained == 0


async def test_a_step_in_which_all_failed_ends_the_run_before_it_learns():
    script = Script([[FAILED]])
    with pytest.raises(RunFailed, match=r"step 1: all 2 rollouts failed.*timeout"):
        await grpo().fit(script.run())
    assert script.told == [("validate", 0), ("sample", 2, 2)]


async def test_a_step_without_a_call_of_a_trained_agent_ends_the_run_before_it_learns():
    script = Script([[DIFFER]])
    with pytest.raises(RunFailed, match=r"step 1: no call is of an agent that was chosen to be trained \(.*writer.*\)"):
        await grpo().fit(script.run(trained_agents="writer"))
    assert "learn" not in script.told


async def test_a_run_ends_where_it_reached_what_it_was_to_stop_at():
    script = Script([[DIFFER, EQUAL], [DIFFER, EQUAL]])
    await grpo().fit(script.run(total_steps=9, stop_after=1))
    assert script.told[-3:] == [("validate", 1), ("checkpoint", 1), "finish"] and len(script.steps) == 1


async def test_a_resumed_run_goes_on_after_its_last_durable_step_and_one_that_had_ended_makes_none():
    script = Script([[DIFFER, EQUAL]])
    await grpo().fit(script.run(last_step=4, total_steps=5))
    assert script.told[0] == ("validate", 4) and ("commit", 5) in script.told
    script = Script([])
    await grpo().fit(script.run(last_step=5, total_steps=9, stop_after=5))
    assert script.told == [("validate", 5), "finish"]


async def test_a_request_to_stop_passes_through_and_nothing_is_finished():
    script = Script([[DIFFER, EQUAL]])
    with pytest.raises(StopRequested):
        await grpo().fit(script.run(total_steps=2))
    assert script.told[-1] == ("sample", 2, 2) and "finish" not in script.told


async def test_filtering_samples_again_for_what_did_not_differ():
    script = Script([[DIFFER, EQUAL], [DIFFER]])
    await grpo(dynamic_filtering=True).fit(script.run())
    assert [told for told in script.told if told[0] == "sample"] == [("sample", 2, 2), ("sample", 1, 2)]


def test_a_run_without_a_policy_says_what_to_declare():
    with_policy = Script([]).run()
    run = Run(with_policy.config, with_policy.tasks, with_policy.rollouts, with_policy.journal, with_policy.resources)
    with pytest.raises(ConfigError, match="trains_weights = True"):
        _ = run.policy
