"""Tokens that users gave as targets are learned like sampled ones, with what the learner itself knows of them in place of
what a sampler would have recorded; they are counted apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentlightning.records.batch import Batch, TrainTree
from tests.tiny import tiny_model

from .test_learner import make, weights
from .trees import given, grpo_batch, sampled, with_logprobs


def as_targets(batch: Batch, *, last_only: bool = False) -> Batch:
    """The same tokens with the same weights, given as targets: all, or only the last node of each tree."""

    def tree(one: TrainTree) -> TrainTree:
        chosen = [i for i, node in enumerate(one.nodes) if node.sampled][-1 if last_only else 0 :]
        nodes = (
            replace(node, sampled=False, target=True, logprobs=None) if i in chosen else node
            for i, node in enumerate(one.nodes)
        )
        return replace(one, nodes=tuple(nodes))

    return Batch(tuple(tuple(map(tree, group)) for group in batch.groups))


@pytest.mark.parametrize("old", ["sampler", "recompute"])
def test_a_target_is_learned_as_if_the_learner_had_sampled_it(old: str) -> None:
    batch = with_logprobs(tiny_model(), grpo_batch())
    learners = [make(tiny_model(), old_logprobs=old) for _ in range(2)]
    was_sampled, was_given = (learner.step(b) for learner, b in zip(learners, (batch, as_targets(batch)), strict=True))
    assert was_given.loss == pytest.approx(was_sampled.loss, abs=1e-6)
    assert was_given.grad_norm == pytest.approx(was_sampled.grad_norm, rel=1e-4)
    one, two = map(weights, learners)
    changed = weights(make(tiny_model()))
    assert any(not torch.equal(one[name], changed[name]) for name in one)
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=2e-5, rtol=0)


def test_targets_are_counted_apart_and_are_in_neither_parity_nor_entropy() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch())
    mixed = as_targets(batch, last_only=True)
    whole, part, none = (make(tiny_model()).step(b) for b in (batch, mixed, as_targets(batch)))
    assert (whole.trained_tokens, whole.target_tokens) == (72, 0)
    assert (part.trained_tokens, part.target_tokens) == (48, 24)
    assert (none.trained_tokens, none.target_tokens) == (0, 72)
    assert part.parity is not None and part.parity.tokens == 48 and part.parity.max < 1e-4
    assert none.parity is None and none.statistics["entropy"] == 0.0


def test_a_step_over_targets_again_and_again_clips_against_what_was_seen_first() -> None:
    """Two passes over the batch: old is what the first one saw, so that in the second the ratio has moved from 1."""
    batch = as_targets(grpo_batch())
    once, twice = (make(tiny_model(), epochs=n).step(batch) for n in (1, 2))
    assert once.statistics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert abs(twice.statistics["ratio_mean"] - 1.0) > 1e-6


def test_given_text_without_a_weight_is_no_target() -> None:
    node = replace(sampled([3, 4], 0, None), sampled=False, target=True, logprobs=None)
    stats = make(tiny_model()).step(Batch(((TrainTree((given([1, 2]), node)),),)))
    assert (stats.trained_tokens, stats.target_tokens) == (0, 0)
