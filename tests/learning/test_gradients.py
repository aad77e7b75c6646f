"""The gradient does not depend on how a batch is laid out, and is the one that the formulas give."""

from __future__ import annotations

import copy
import itertools
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Gemma2Config, MistralConfig, PreTrainedModel, Qwen3Config

from agentlightning.learning import attention, forward
from agentlightning.learning.learner import Gradient, Learner
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.nouns import KeptIds
from agentlightning.records.batch import Batch, TrainTree
from agentlightning.settings.fields import LearnerConfig
from tests.tiny import tiny_model

from .trees import batches, difference, exact, given, grpo_batch, reference, sampled, with_logprobs

Layout = Literal["auto", "tree", "flat"]
LOSSES = (
    PolicyGradientLoss(),
    PolicyGradientLoss(aggregation="sequence_mean"),
    PolicyGradientLoss(aggregation="dr_grpo", fixed_length=7),
)
MODEL = exact(tiny_model())
"""In float64. Weights are never changed: gradients only."""


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Attention in blocks of 6 queries, so that these small trees are cut too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "_SPAN_TOKENS", {False: 6, True: 6})
        yield


def gradient(
    model: PreTrainedModel, batch: Batch, layout: Layout = "auto", loss: PolicyGradientLoss | None = None, **config: Any
) -> Gradient:
    model.requires_grad_(True)
    learner = Learner(
        model, LearnerConfig(layout=layout, **config), loss or PolicyGradientLoss(), seed=0, total_steps=10
    )
    return learner.gradient(batch)


@settings(max_examples=12, deadline=None)
@hypothesis_given(batches(), st.sampled_from(LOSSES), st.sampled_from([0, 3]), st.sampled_from([0.7, 1.0]))
def test_tree_and_flat_give_the_gradient_of_the_formulas_in_float64(
    batch: Batch, loss: PolicyGradientLoss, top_k: int, temperature: float
) -> None:
    batch = with_logprobs(MODEL, batch, noise=0.4, top_k=top_k, temperature=temperature)
    expected = reference(MODEL, batch, loss)
    for layout in ("tree", "flat", "auto"):
        found = gradient(MODEL, batch, layout, loss)
        assert difference(found, expected) < 1e-10
        assert found.loss == pytest.approx(expected.loss, abs=1e-10)


@settings(max_examples=8, deadline=None)
@hypothesis_given(batches(), st.sampled_from(LOSSES))
def test_tree_and_flat_give_the_same_gradient_in_float32(batch: Batch, loss: PolicyGradientLoss) -> None:
    model = tiny_model()
    batch = with_logprobs(model, batch, noise=0.4)
    assert difference(gradient(model, batch, "tree", loss), gradient(model, batch, "flat", loss)) < 1e-5


@pytest.mark.parametrize(("loss", "recompute"), list(itertools.product(LOSSES, (False, True))))
def test_one_row_of_eight_is_eight_rows_of_one(loss: PolicyGradientLoss, recompute: bool) -> None:
    """The normaliser belongs to the minibatch, so neither the row cap nor the head's chunk shows in the loss or its
    gradient."""
    batch = with_logprobs(MODEL, grpo_batch(groups=1, size=8), noise=0.5)
    old = "recompute" if recompute else "sampler"
    whole = gradient(MODEL, batch, "tree", loss, old_logprobs=old)
    for layout, cap, chunk in (
        ("tree", 36, 1024),
        ("flat", 36, 1024),
        ("tree", 90, 1024),
        ("tree", 4096, 5),
        ("flat", 4096, 1),
    ):
        cut = gradient(
            MODEL, batch, cast("Layout", layout), loss, max_row_tokens=cap, head_chunk=chunk, old_logprobs=old
        )
        assert abs(cut.loss - whole.loss) < 1e-10
        assert difference(cut, whole) < 1e-10
    assert difference(whole, reference(MODEL, batch, loss, importance_cap=2.0 if recompute else None)) < 1e-10


def test_attention_is_computed_in_blocks_that_see_only_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = with_logprobs(MODEL, grpo_batch(groups=1, size=8), noise=0.3)
    pairs: list[int] = []
    attend = attention.sdpa_attention_forward

    def counting(module: Any, query: Any, key: Any, *more: Any, **settings: Any) -> Any:
        pairs.append(query.shape[2] * key.shape[2])
        return attend(module, query, key, *more, **settings)

    learner = Learner(
        copy.deepcopy(MODEL).requires_grad_(True),
        LearnerConfig(layout="tree"),
        PolicyGradientLoss(),
        seed=0,
        total_steps=1,
    )
    monkeypatch.setattr(attention, "sdpa_attention_forward", counting)
    in_blocks = learner.gradient(batch)
    blocks = sum(pairs)
    monkeypatch.setattr(forward, "_SPAN_TOKENS", {False: 10_000, True: 10_000})
    pairs.clear()
    at_once = gradient(copy.deepcopy(MODEL), batch, "tree")
    assert 0 < blocks < 0.5 * 2 * (20 + 8 * 11) ** 2  # of two layers
    assert difference(in_blocks, at_once) < 1e-12
    assert learner.model.config._attn_implementation == "sdpa"  # pyright: ignore[reportPrivateUsage]


def test_advantages_do_not_weigh_more_when_a_rollout_is_cut_into_more_nodes() -> None:
    """The same tokens as one node, and as three: invariant 7."""
    one = TrainTree((given([1, 2, 3]), sampled([4, 5, 6], 0)), "r")
    three = TrainTree((given([1]), given([2, 3], 0), sampled([4], 1), sampled([5], 2), sampled([6], 3)), "r")
    assert difference(gradient(MODEL, Batch(((one,),))), gradient(MODEL, Batch(((three,),)))) < 1e-12


def test_a_sample_shared_by_several_paths_is_trained_once() -> None:
    shared = [
        given([1, 2, 3]),
        sampled([4, 5], 0),
        given([6], 1),
        sampled([7, 8], 2),
        given([9], 1),
        sampled([10, 11], 4),
    ]
    batch = with_logprobs(MODEL, Batch(((TrainTree(tuple(shared), "r"),),)))
    for layout in ("tree", "flat"):
        assert difference(gradient(MODEL, batch, layout), reference(MODEL, batch, PolicyGradientLoss())) < 1e-10


def test_masked_tokens_leave_no_trace_in_the_gradient() -> None:
    nan = float("nan")
    masked = [
        given([1, 2, 3]),
        sampled([4, 5, 6], 0, [1.0, nan, 1.0]),
        sampled([7, 8], 0, None),
        sampled([9], 0, [nan]),
    ]
    bare = [given([1, 2, 3]), sampled([4, 5, 6], 0, [1.0, nan, 1.0])]
    noisy = [*masked[:2], *(replace(node, logprobs=array("f", [-50.0] * len(node.token_ids))) for node in masked[2:])]
    wanted = gradient(MODEL, Batch(((TrainTree(tuple(bare), "r"),),)))
    for nodes in (masked, noisy):
        assert difference(gradient(MODEL, Batch(((TrainTree(tuple(nodes), "r"),),))), wanted) < 1e-12


def test_a_forced_token_is_harmless_even_where_it_was_not_masked() -> None:
    kept = KeptIds(array("i", [4]), array("i", [0, 1]))
    forced = sampled([4], 0, kept=kept, log_kept=array("f", [-5.6]))
    found = gradient(MODEL, Batch(((TrainTree((given([1, 2]), forced), "r"),),)))
    assert all(float(grad.abs().max()) < 1e-12 for grad in found.by_name.values())


def test_importance_ratios_are_right_under_temperature_and_a_cut_support() -> None:
    """Where sampler and learner are the same policy every ratio is 1, so the loss is minus the mean weight."""
    for top_k, temperature in itertools.product((0, 5), (0.5, 1.0, 1.7)):
        batch = with_logprobs(MODEL, grpo_batch(groups=1), top_k=top_k, temperature=temperature)
        weights = [
            w
            for group in batch.groups
            for tree in group
            for node in tree.nodes
            for w in node.columns.get("advantage", ())
        ]
        assert gradient(MODEL, batch).loss == pytest.approx(-sum(weights) / len(weights), abs=1e-6)


def test_gradient_checkpointing_changes_nothing_but_memory() -> None:
    batch = with_logprobs(MODEL, grpo_batch(), noise=0.3)
    for layout in ("tree", "flat"):
        assert (
            difference(gradient(MODEL, batch, layout, gradient_checkpointing=True), gradient(MODEL, batch, layout))
            < 1e-12
        )


SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
}
IDS = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    "config",
    [Gemma2Config(**SHAPE, **IDS), Qwen3Config(**SHAPE, **IDS), MistralConfig(**SHAPE, **IDS, sliding_window=16)],
    ids=lambda config: type(config).__name__,
)
def test_other_architectures_give_the_same_gradient_in_both_layouts(config: Any) -> None:
    """Gemma2 runs with eager attention, Mistral with a window that one group's paths exceed: that group is flat."""
    torch.manual_seed(0)
    model = cast("PreTrainedModel", AutoModelForCausalLM.from_config(config).eval())
    groups = (*grpo_batch(groups=1, prompt=20).groups, *grpo_batch(groups=1, prompt=4, turn=4, seed=1).groups)
    small = Batch(tuple(tuple(_within(tree, 97) for tree in group) for group in groups))
    batch = with_logprobs(model, small, noise=0.3)
    auto = gradient(copy.deepcopy(model), batch, "auto")
    assert difference(auto, gradient(model, batch, "flat")) < 1e-5
    assert difference(auto, reference(model, batch, PolicyGradientLoss())) < 1e-5


def _within(tree: TrainTree, vocabulary: int) -> TrainTree:
    return replace(
        tree, nodes=tuple(replace(n, token_ids=array("i", [t % vocabulary for t in n.token_ids])) for n in tree.nodes)
    )
