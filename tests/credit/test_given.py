"""Tokens that users gave as targets: they have the credit of their call like sampled ones, and are counted apart."""

from __future__ import annotations

from array import array
from dataclasses import replace

from agentlightning.credit import CreditSettings, StepCredit, credit_rows, credit_step, train_batch, train_tree
from agentlightning.nouns import GIVEN, Reason, Reward
from agentlightning.records.credit import AttemptCredit, join
from agentlightning.records.traces import AttemptTrace, Trace

from .test_schemes import Less
from .traces import attempt, call, given_node, group, sampled_node, trace


def with_targets(id: str, *rewards: float, agent: str | None = None) -> AttemptTrace:
    """A recorded call of 4 sampled tokens, and a given one of 3 below it and of 2 apart."""
    nodes = [given_node(0, None, 5), sampled_node(1, 0, 4), given_node(2, 1, 2, 1), given_node(3, 2, 3, 1)]
    nodes += [given_node(4, None, 2, 2), given_node(5, 4, 2, 2)]
    calls = [call(0, 0, 1), call(1, 2, 3), call(2, 4, 5)]
    given = [replace(one, wire=GIVEN, used=None, agent=agent) for one in calls[1:]]
    named = [Reward("r", id, value, source="return", call_id=f"c{i}") for i, value in enumerate(rewards)]
    return attempt(nodes, [calls[0], *given], named, id=f"{id}-1")


def credited(*traces: Trace, trained_agents: str | None = None, **settings: str | int) -> StepCredit:
    return credit_step([group(*traces)], Less(), trained_agents, CreditSettings.model_validate(settings))


def test_a_given_call_is_worth_its_own_reward_or_its_episodes_and_is_counted_apart():
    pair = trace("a", 1.0, with_targets("a", 3.0, 1.0, 2.0)), trace("b", 0.0)
    own, whole = (credited(*pair, scheme=scheme) for scheme in ("call", "episode"))
    assert [list(node.per_token()) for node in own.attempts["a-1"].given] == [[-1.0] * 3, [0.0] * 2]
    assert [list(node.per_token()) for node in whole.attempts["a-1"].given] == [[0.5] * 3, [0.5] * 2]
    assert (own.trained, own.masked) == (4, {"call_without_reward": 6}), "given tokens are in neither"
    assert (own.off_record.sampled, own.off_record.trained, own.off_record.masked) == (5, 5, {})


def test_a_given_call_is_masked_for_the_reasons_that_a_sampled_one_is():
    targets = with_targets("a", 3.0, 1.0, 2.0, agent="guest")
    failed = credited(trace("a", None, targets, failure=Reason.TIMEOUT), trace("b", 0.0), trace("c", 1.0))
    assert failed.off_record.masked == {"failed: timeout": 5} and failed.off_record.trained == 0
    others = credited(trace("a", 1.0, targets), trace("b", 0.0), trained_agents="host")
    assert others.off_record.masked == {"other_agent": 5}
    limited = credited(trace("a", 1.0, targets), trace("b", 0.0), scheme="call", max_rows=1)
    assert limited.rows == {"made": 2, "kept": 1, "row_length": 0, "row_limit": 1}
    assert sum(limited.off_record.masked.values()) + limited.off_record.trained == 5


def test_the_learner_is_handed_them_as_targets_without_logprobs():
    recorded = with_targets("a", 3.0, 1.0, 2.0)
    step = credited(trace("a", 1.0, recorded), trace("b", 0.0), scheme="call")
    tree = train_tree("a", recorded, step.attempts["a-1"], 0)
    assert [(node.sampled, node.target, node.logprobs is None) for node in tree.nodes] == [
        (False, False, True), (True, False, False), (False, False, True), (False, True, True),
        (False, False, True), (False, True, True),
    ]  # fmt: skip
    assert [list(node.columns.get("advantage", ())) for node in tree.nodes if node.target] == [[-1.0] * 3, [0.0] * 2]


def test_an_attempt_of_targets_alone_is_trained():
    nodes = [given_node(0, None, 2), given_node(1, 0, 3)]
    given = replace(call(0, 0, 1), wire=GIVEN, used=None)
    step = credited(trace("a", 1.0, attempt(nodes, [given], id="a-1")), trace("b", 0.0))
    groups = [group(trace("a", 1.0, attempt(nodes, [given], id="a-1")), trace("b", 0.0))]
    trees = train_batch(groups, step.attempts).groups[0]
    assert [tree.rollout_id for tree in trees] == ["a", "b"] and step.off_record.trained == 3


def test_what_is_stored_of_them_reads_as_it_was_written_and_keeps_them_apart():
    groups = [group(trace("a", 1.0, with_targets("a", 3.0, 1.0, 2.0)), trace("b", 0.0))]
    credits = credit_step(groups, Less(), None, CreditSettings(scheme="call")).attempts
    row = credit_rows(groups, credits, "main")[0]
    again = AttemptCredit.decode(row.blob)
    assert again == credits["a-1"] == join([again]) and len(again.given) == 2
    assert again.given[0].weights == array("f", [-1.0])
