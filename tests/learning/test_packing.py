"""Packing: every trained token once, behind exactly the tokens of its own path, in rows no longer than the cap."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from agentlightning.errors import RunFailed
from agentlightning.learning.packing import Block, Cost, Packed, pack
from agentlightning.nouns import KeptIds
from agentlightning.records.batch import Batch, TrainTree

from .trees import batches, given, grpo_batch, sampled, trained_tokens

COST = Cost(token=1000.0, pair=1.0, block=4)
Layout = Literal["auto", "tree", "flat"]


def packed(batch: Batch, layout: Layout = "auto", cap: int = 4096, cost: Cost = COST, **more: int) -> Packed:
    return pack(batch, layout=layout, max_row_tokens=cap, cost=cost, **more)


def one_tree(*nodes: object) -> Batch:
    return Batch(((TrainTree(tuple(nodes), "r"),),))  # pyright: ignore[reportArgumentType]


def paths_of(batch: Batch) -> list[tuple[list[int], int, float]]:
    """(path before a trained token, token, weight) of every trained token that has something before it, sorted."""
    out: list[tuple[list[int], int, float]] = []
    for tree in (tree for group in batch.groups for tree in group):
        ends: list[list[int]] = []
        for node in tree.nodes:
            path = ends[node.parent] if node.parent >= 0 else []
            for t, token in enumerate(node.token_ids):
                before = path + list(node.token_ids[:t])
                if t in node.trained and before:
                    out.append((before, token, node.columns["advantage"][t]))
            ends.append(path + list(node.token_ids))
    return sorted(out)


def visible(block: Block, place: int) -> list[int]:
    """The tokens that the token at a flat place sees, itself included."""
    length = block.token_ids_BT.shape[1]
    row, column = divmod(place, length)
    ids = block.token_ids_BT[row].tolist()
    if block.ends_T is None:
        return ids[: column + 1]
    ends = block.ends_T.tolist()
    return [ids[s] for s in range(column + 1) if column < ends[s]]


def seen_paths(result: Packed) -> list[tuple[list[int], int, float]]:
    trained = result.trained
    out: list[tuple[list[int], int, float]] = []
    for block in (block for group in result.groups for block in group.blocks):
        for row, entry in zip(block.rows_E.tolist(), block.entries_E.tolist(), strict=True):
            path = visible(block, int(block.places_U[row]))
            assert int(block.positions_BT.flatten()[block.places_U[row]]) == len(path) - 1
            assert float(block.temperatures_U[row]) == float(trained.temperatures_E[entry])
            out.append((path, int(trained.targets_E[entry]), float(trained.columns_E["advantage"][entry])))
    return sorted(out)


@settings(max_examples=30, deadline=None)
@hypothesis_given(batches(), st.sampled_from(["auto", "tree", "flat"]), st.sampled_from([24, 40, 4096]))
def test_every_trained_token_is_seen_once_behind_exactly_its_own_path(batch: Batch, layout: Layout, cap: int) -> None:
    longest = max((len(path) for path, _, _ in paths_of(batch)), default=0)
    result = packed(batch, layout, max(cap, longest))
    assert seen_paths(result) == paths_of(batch)
    entries = [e for group in result.groups for block in group.blocks for e in block.entries_E.tolist()]
    assert sorted(entries) == list(range(len(result.trained.targets_E)))


@settings(max_examples=30, deadline=None)
@hypothesis_given(batches(), st.sampled_from(["auto", "tree", "flat"]), st.integers(0, 20))
def test_no_block_holds_more_than_the_cap(batch: Batch, layout: Layout, spare: int) -> None:
    cap = max((len(path) for path, _, _ in paths_of(batch)), default=1) + spare
    for group in packed(batch, layout, cap).groups:
        assert all(block.token_ids_BT.numel() <= cap for block in group.blocks)


@settings(max_examples=30, deadline=None)
@hypothesis_given(batches(), st.integers(1, 8))
def test_the_spans_of_a_row_cover_it_and_reach_all_that_its_tokens_see(batch: Batch, tokens: int) -> None:
    for group in packed(batch, "tree", cost=Cost(1.0, 1.0, tokens)).groups:
        for block in group.blocks:
            if block.ends_T is None:
                continue
            ends = block.ends_T.tolist()
            assert [span.start for span in block.spans] == [0, *(span.stop for span in block.spans[:-1])]
            assert block.spans[-1].stop == len(ends)
            for span in block.spans:
                reached = {*range(span.start, span.stop), *(s for a, b in span.above for s in range(a, b))}
                assert all(s in reached for t in range(span.start, span.stop) for s in range(t + 1) if t < ends[s])


@settings(max_examples=30, deadline=None)
@hypothesis_given(batches())
def test_the_tree_never_forwards_more_than_the_flat_layout(batch: Batch) -> None:
    result = packed(batch, "tree")
    assert all(sum(block.tokens for block in group.blocks) <= group.flat_tokens for group in result.groups)
    flat = packed(batch, "flat")
    assert [g.flat_tokens for g in result.groups] == [sum(block.tokens for block in g.blocks) for g in flat.groups]


@settings(max_examples=30, deadline=None)
@hypothesis_given(batches(), st.randoms(use_true_random=False))
def test_the_order_in_which_rollouts_finished_does_not_show(batch: Batch, rng: random.Random) -> None:
    groups = [list(group) for group in batch.groups]
    for group in groups:
        rng.shuffle(group)
    rng.shuffle(groups)
    a, b = packed(batch), packed(Batch(tuple(tuple(group) for group in groups)))
    assert torch.equal(a.trained.targets_E, b.trained.targets_E) and len(a.groups) == len(b.groups)
    for one, other in zip(a.groups, b.groups, strict=True):
        assert [block.token_ids_BT.tolist() for block in one.blocks] == [
            block.token_ids_BT.tolist() for block in other.blocks
        ]


def test_a_shared_prompt_is_forwarded_once_and_equal_samples_too() -> None:
    prompt = given(range(100, 110))
    trees = tuple(TrainTree((prompt, sampled([1, 2, 3], 0, 1.0, unit=i)), f"r{i}") for i in range(8))
    (group,) = packed(Batch((trees,)), "tree").groups
    (block,) = group.blocks
    assert block.tokens == 12  # the last sampled token is predicted and never an input
    assert group.flat_tokens == 8 * 12
    assert len(block.entries_E) == 24 and len(block.places_U) == 3


def test_what_nothing_trained_depends_on_is_not_forwarded() -> None:
    tree = one_tree(
        given([1, 2, 3]),
        sampled([4, 5, 6], 0, [1.0, 1.0, math.nan]),
        given([7] * 50, 1),
        sampled([8] * 50, 2, None),
        sampled([9] * 50, 0, [math.nan] * 50),
    )
    (group,) = packed(tree, "tree").groups
    assert [block.token_ids_BT.tolist() for block in group.blocks] == [[[1, 2, 3, 4]]]


def test_a_batch_in_which_nothing_is_trained_packs_to_nothing() -> None:
    result = packed(one_tree(given([1, 2]), sampled([3], 0, None)))
    assert result.groups == () and len(result.trained.targets_E) == 0


def test_the_first_token_of_a_path_has_no_predictor_and_is_masked() -> None:
    result = packed(one_tree(sampled([1, 2, 3], -1)))
    assert result.trained.targets_E.tolist() == [2, 3]


def test_auto_takes_the_tree_for_a_shared_prompt_and_flat_for_what_shares_nothing() -> None:
    alone = tuple(TrainTree((given([i] * 30), sampled([9] * 5, 0, unit=i)), f"r{i}") for i in range(4))
    result = packed(Batch((*grpo_batch(groups=1).groups, alone)))
    assert sorted(group.layout for group in result.groups) == ["flat", "tree"]


def test_auto_weighs_attention_against_tokens() -> None:
    """A short shared prompt under long branches: with dense attention the tree computes more pairs than it saves
    tokens."""
    trees = tuple(
        TrainTree((given([1, 2]), sampled(range(10 * i, 10 * i + 60), 0, unit=i)), f"r{i}") for i in range(1, 5)
    )
    layouts = [packed(Batch((trees,)), cost=Cost(1.0, pair, None)).groups[0].layout for pair in (0.0, 1.0)]
    assert layouts == ["tree", "flat"]


def test_flat_rows_of_like_length_are_forwarded_together_and_unlike_ones_are_not() -> None:
    trees = tuple(
        TrainTree((given([i]), sampled([5] * length, 0, unit=i)), f"r{i}") for i, length in enumerate((40, 38, 12, 11))
    )
    (group,) = packed(Batch((trees,)), "flat").groups
    assert [tuple(block.token_ids_BT.shape) for block in group.blocks] == [(2, 40), (2, 12)]


def test_a_group_over_the_cap_is_split_and_its_shared_part_forwarded_again() -> None:
    trees = tuple(TrainTree((given(range(20)), sampled([30 + i] * 12, 0, unit=i)), f"r{i}") for i in range(4))
    (group,) = packed(Batch((trees,)), "tree", cap=45).groups
    assert [block.tokens for block in group.blocks] == [42, 42]  # 20 shared + 2 x (12 - 1)
    assert [len(block.entries_E) for block in group.blocks] == [24, 24]


def test_a_single_tree_over_the_cap_is_split_by_branches_and_its_shared_samples_are_trained_once() -> None:
    tree = one_tree(
        given([1] * 10), sampled([2] * 5, 0), given([3], 1), sampled([4] * 10, 2), given([5], 1), sampled([6] * 10, 4)
    )
    (group,) = packed(tree, "tree", cap=30).groups
    assert [block.tokens for block in group.blocks] == [25, 25]
    assert [len(block.entries_E) for block in group.blocks] == [15, 10]


@pytest.mark.parametrize("layout", ["auto", "tree", "flat"])
def test_a_path_longer_than_the_cap_is_refused_by_name(layout: Layout) -> None:
    with pytest.raises(RunFailed, match=r"rollout r: a path of 31 tokens is longer than learner.max_row_tokens=30"):
        packed(one_tree(given([1] * 30), sampled([2, 3], 0)), layout, cap=30)


def test_beyond_a_sliding_window_auto_takes_flat_and_tree_is_refused() -> None:
    batch = grpo_batch(groups=1)
    assert packed(batch, "auto", max_tree_depth=100).groups[0].layout == "tree"
    assert packed(batch, "auto", max_tree_depth=8).groups[0].layout == "flat"
    with pytest.raises(RunFailed, match="sliding window of 8"):
        packed(batch, "tree", max_tree_depth=8)


def test_kept_supports_stay_with_their_tokens() -> None:
    kept = KeptIds(array("i", [7, 8, 9, 6]), array("i", [0, 3, 4]))
    batch = one_tree(given([1]), sampled([7, 6], 0, kept=kept, log_kept=array("f", [-0.5, -1.0])), sampled([5], 0))
    result = packed(batch, "tree")
    ((block,),) = (group.blocks for group in result.groups)
    by_target: dict[int, list[int]] = {}
    for place, kept_id in zip(block.kept_entries_K.tolist(), block.kept_ids_K.tolist(), strict=True):
        by_target.setdefault(int(result.trained.targets_E[block.entries_E[place]]), []).append(kept_id)
    assert by_target == {7: [7, 8, 9], 6: [6]}
    assert result.trained.log_kept_E.tolist() == [-0.5, -1.0, 0.0]


def test_only_sampled_tokens_and_given_targets_are_trained() -> None:
    with pytest.raises(ValueError, match="only sampled tokens, and given targets, are trained"):
        packed(one_tree(given([1]), replace(sampled([2], 0), sampled=False)))


@pytest.mark.parametrize(
    "broken",
    [
        replace(sampled([2, 3], 0), logprobs=None),
        replace(sampled([2, 3], 0), logprobs=array("f", [0.0])),
        replace(sampled([2, 3], 0), columns={"advantage": array("f", [1.0])}),
        replace(sampled([2, 3], 0), log_kept=array("f", [0.0, 0.0])),
        replace(sampled([2, 3], 0), log_kept=array("f", [0.0, 0.0]), kept=KeptIds(array("i", [2]), array("i", [0, 1]))),
        sampled([2, 3], 5),
    ],
)
def test_a_tree_that_breaks_the_contract_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match="rollout r: node 1"):
        packed(one_tree(given([1]), broken))


def test_the_count_of_trained_tokens_is_that_of_the_weights() -> None:
    batch = grpo_batch()
    assert len(packed(batch).trained.targets_E) == trained_tokens(batch) == 72
