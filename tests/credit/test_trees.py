"""From credited traces to the learner's trees: tokens, weights and units as they were recorded and credited."""

from __future__ import annotations

import pytest

from agentlightning.credit import credit_attempt, credit_step, train_batch, train_tree

from .test_step import Less
from .traces import attempt, call, group, sampled_node, trace


def test_a_tree_has_the_recorded_tokens_with_their_weights_versions_and_unit():
    recorded = attempt()
    tree = train_tree("r", recorded, credit_attempt(recorded, 0.5), unit=7)
    assert [node.token_ids for node in tree.nodes] == [node.token_ids for node in recorded.nodes]
    assert [node.parent for node in tree.nodes] == [-1, 0, 1, 2]
    assert [list(node.columns.get("advantage", ())) for node in tree.nodes] == [[], [0.5] * 4, [], [0.5] * 2]
    assert {node.unit for node in tree.nodes} == {7}
    assert [node.version for node in tree.nodes if node.sampled] == [3, 3]


def test_a_tree_with_a_missing_parent_is_refused():
    recorded = attempt([sampled_node(1, 9, 2)], [call(0, 9, 1)])
    with pytest.raises(ValueError, match="parent 9"):
        train_tree("r", recorded, credit_attempt(recorded, 1.0), unit=0)


def test_a_batch_holds_what_is_trained_alone_and_its_units_number_all_rollouts():
    groups = [
        group(trace("a", 1.0), trace("b", 1.0)),
        group(trace("c", 1.0), trace("d", None), trace("e", 0.0, attempt(id="e-1"), attempt(id="e-2"))),
    ]
    batch = train_batch(groups, credit_step(groups, Less()).attempts)
    assert [[tree.rollout_id for tree in trees] for trees in batch.groups] == [["c", "e"]]
    assert [tree.nodes[0].unit for tree in batch.groups[0]] == [2, 4]
