"""A step of the learner: what it changes, what it measures, and what it refuses."""

from __future__ import annotations

import copy
import logging
import math
from array import array
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    PreTrainedModel,
)

from agentlightning.engines.local.threads import Threads
from agentlightning.errors import ConfigError, ModelError, RunFailed
from agentlightning.learning.learner import Learner
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.records.batch import Batch, LearnerStats, TrainTree
from agentlightning.settings.fields import LearnerConfig
from tests.tiny import tiny_model

from .trees import given, grpo_batch, reference, sampled, trained_tokens, with_logprobs


def make(
    model: PreTrainedModel | None = None,
    *,
    total_steps: int = 10,
    seed: int = 0,
    loss: PolicyGradientLoss | None = None,
    **config: Any,
) -> Learner:
    config = {"lr": 1e-3, **config}
    return Learner(
        model or tiny_model(), LearnerConfig(**config), loss or PolicyGradientLoss(), seed=seed, total_steps=total_steps
    )


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def scaled(batch: Batch, factor: float) -> Batch:
    """The batch with all weights times ``factor``."""
    return Batch(
        tuple(
            tuple(
                replace(
                    tree,
                    nodes=tuple(
                        replace(n, columns={name: array("f", [w * factor for w in c]) for name, c in n.columns.items()})
                        for n in tree.nodes
                    ),
                )
                for tree in group
            )
            for group in batch.groups
        )
    )


# --------------------------------------------------------------------------- parity


def test_parity_between_the_plain_forward_and_the_learner_is_below_1e_4_in_float32() -> None:
    for temperature in (1.0, 0.5):
        batch = with_logprobs(tiny_model(), grpo_batch(), temperature=temperature)
        parity = make().step(batch).parity
        assert 0 < parity.max < 1e-4 * max(1, 1 / temperature)
        assert parity.mean <= parity.max and abs(parity.k3) < 1e-8
        assert parity.tokens == trained_tokens(batch)


@pytest.mark.parametrize("layout", ["tree", "flat"])
def test_a_mixture_of_experts_is_trained_like_any_other_model(layout: str) -> None:
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=tiny_model().config.vocab_size, num_key_value_heads=2, num_local_experts=4, **shape
    )
    model = cast("PreTrainedModel", AutoModelForCausalLM.from_config(config)).float().eval()
    learner = make(copy.deepcopy(model), layout=layout)
    parity = learner.step(with_logprobs(model, grpo_batch())).parity
    assert parity.max < 1e-4
    assert not any(
        torch.equal(weight, weights(learner)[name]) for name, weight in model.named_parameters() if "experts" in name
    )


def test_parity_is_measured_before_the_first_optimizer_step_whatever_the_minibatches_and_epochs() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch(groups=4), noise=0.2)
    for old in ("sampler", "recompute"):
        once = make(old_logprobs=old, lr=0.01).step(batch)
        often = make(old_logprobs=old, lr=0.01, minibatches=3, epochs=2).step(batch)
        assert often.parity.max == pytest.approx(once.parity.max, abs=1e-6)
        assert often.parity.mean == pytest.approx(once.parity.mean, abs=1e-6)
        assert often.parity.k3 == pytest.approx(once.parity.k3, abs=1e-6)
        assert often.statistics["entropy"] == pytest.approx(once.statistics["entropy"], abs=1e-6)


def test_parity_shows_a_sampler_that_is_off() -> None:
    parity = make().step(with_logprobs(tiny_model(), grpo_batch(), noise=0.5)).parity
    assert 0.4 < parity.max <= 0.51 and parity.k3 > 0.01


def test_dropout_is_off_while_the_learner_computes() -> None:
    model = tiny_model()
    config = cast("LlamaConfig", copy.deepcopy(model.config))
    config.attention_dropout = 0.5
    dropping = LlamaForCausalLM(config)
    dropping.load_state_dict(model.state_dict())
    dropping.train()
    learner = make(dropping)
    assert learner.step(with_logprobs(model, grpo_batch())).parity.max < 1e-4
    assert not dropping.training


# --------------------------------------------------------------------------- the step


def test_a_step_is_adamw_on_the_clipped_gradient_of_the_formulas() -> None:
    model = tiny_model().double()
    batch = with_logprobs(model, grpo_batch(), noise=0.2)
    expected = copy.deepcopy(model)
    found = reference(expected, batch, PolicyGradientLoss())
    for name, parameter in expected.named_parameters():
        parameter.grad = found.by_name[name]
    norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.01)
    torch.optim.AdamW(expected.parameters(), lr=1e-3, weight_decay=0.0).step()
    learner = make(model, max_grad_norm=0.01)
    stats = learner.step(batch)
    assert stats.grad_norm == pytest.approx(float(norm), rel=1e-6) and stats.grad_norm > 0.01
    assert stats.loss == pytest.approx(found.loss, abs=1e-7)
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), parameter.detach(), rtol=0, atol=2e-6)


def test_weight_decay_leaves_norms_and_biases_alone() -> None:
    groups = make(weight_decay=0.1).weights.optimizer.param_groups
    assert [(group["weight_decay"], {p.ndim for p in group["params"]}) for group in groups] == [(0.1, {2}), (0.0, {1})]


def test_steps_make_rewarded_tokens_likelier_and_punished_ones_less_likely() -> None:
    trees = (
        TrainTree((given([1, 2]), sampled([3, 4], 0, 1.0, 0)), "a"),
        TrainTree((given([1, 2]), sampled([5, 6], 0, -1.0, 1)), "b"),
    )
    model = tiny_model()
    learner = make(model)

    def chances() -> list[float]:
        recorded = with_logprobs(model, Batch((trees,)))
        return [sum(tree.nodes[1].logprobs or ()) for tree in recorded.groups[0]]

    before = chances()
    for _ in range(5):
        learner.step(with_logprobs(model, Batch((trees,))))
    after = chances()
    assert after[0] > before[0] + 0.3 and after[1] < before[1] - 0.3


def test_a_batch_in_which_nothing_is_trained_takes_no_optimizer_step_and_is_no_error() -> None:
    learner = make()
    before = weights(learner)
    for batch in (Batch(()), Batch(((),)), Batch(((TrainTree((given([1, 2]), sampled([3], 0, None)), "r"),),))):
        stats = learner.step(batch)
        assert (stats.trained_tokens, stats.rows, stats.loss, stats.grad_norm, stats.parity) == (
            0,
            0,
            0.0,
            0.0,
            None,
        ), "not measured is not 0"
        assert learner.gradient(batch).loss == 0.0
    assert same(before, weights(learner)) and not learner.state()["optimizer"]["state"]
    assert learner.steps == 3


def test_weights_of_zero_are_measured_and_change_nothing() -> None:
    learner = make()
    before = weights(learner)
    stats = learner.step(scaled(with_logprobs(tiny_model(), grpo_batch(), noise=0.1), 0.0))
    assert stats.trained_tokens == stats.parity.tokens == 72 and stats.parity.max > 0
    assert stats.grad_norm == 0.0 and same(before, weights(learner))


def test_between_steps_nothing_requires_a_gradient_and_none_is_held() -> None:
    learner = make()
    for _ in range(2):
        assert not any(p.requires_grad for p in learner.model.parameters())
        assert all(p.grad is None for p in learner.model.parameters())
        learner.step(with_logprobs(tiny_model(), grpo_batch()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_learner_works_where_gradients_are_switched_off_around_it(dtype: torch.dtype) -> None:
    batch, model = with_logprobs(tiny_model(), grpo_batch()), tiny_model(dtype=dtype)
    with torch.inference_mode():
        learner = make(model)
        assert learner.step(batch).grad_norm > 0


def test_frozen_parameters_stay_as_they_are() -> None:
    model = tiny_model()
    model.requires_grad_(False)
    model.model.layers[1].requires_grad_(True)
    learner = make(model)
    before = weights(learner)
    learner.step(with_logprobs(tiny_model(), grpo_batch()))
    changed = {name for name, tensor in weights(learner).items() if not torch.equal(tensor, before[name])}
    assert changed and all(name.startswith("model.layers.1.") for name in changed)


def test_minibatches_divide_the_groups_and_each_takes_an_optimizer_step() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch(groups=5), noise=0.1)
    for minibatches, epochs, expected in ((1, 1, 1), (2, 1, 2), (2, 3, 6), (99, 1, 5)):
        learner = make(minibatches=minibatches, epochs=epochs)
        stats = learner.step(batch)
        state = learner.state()["optimizer"]["state"]
        assert {int(entry["step"]) for entry in state.values()} == {expected}
        assert stats.trained_tokens == trained_tokens(batch)


def test_later_passes_are_measured_against_the_policy_that_sampled() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch())
    first, later = make(lr=0.01).step(batch), make(lr=0.01, epochs=3).step(batch)
    assert first.statistics["ratio_mean"] == pytest.approx(1, abs=1e-4) and first.statistics["clip_fraction"] == 0
    assert later.statistics["clip_fraction"] > 0


def test_with_recompute_the_ratio_starts_at_one_and_importance_weighs_the_tokens() -> None:
    model = tiny_model().double()
    batch = with_logprobs(model, grpo_batch(), noise=1.0)
    expected = reference(copy.deepcopy(model), batch, PolicyGradientLoss(), importance_cap=1.5)
    stats = make(model, old_logprobs="recompute", importance_cap=1.5).step(batch)
    assert stats.statistics["ratio_mean"] == pytest.approx(1) and stats.statistics["clip_fraction"] == 0
    assert stats.loss == pytest.approx(expected.loss, abs=1e-6)


def test_the_same_batches_give_the_same_bits() -> None:
    batches = [with_logprobs(tiny_model(), grpo_batch(groups=3, seed=s), noise=0.1) for s in range(3)]
    shuffled = [Batch(tuple(tuple(reversed(group)) for group in reversed(batch.groups))) for batch in batches]
    results: list[tuple[dict[str, Tensor], list[LearnerStats]]] = []
    for order in (batches, batches, shuffled):
        learner = make(minibatches=2, epochs=2)
        stats = [replace(learner.step(batch), seconds=0.0, peak_memory=0) for batch in order]
        results.append((weights(learner), stats))
    assert same(results[0][0], results[1][0]) and same(results[0][0], results[2][0])
    assert results[0][1] == results[1][1] == results[2][1]


def test_stats_count_what_was_forwarded() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch(groups=2, size=4))
    tree, flat = make(layout="tree").step(batch), make(layout="flat").step(batch)
    assert (tree.tree_groups, tree.flat_groups, flat.tree_groups, flat.flat_groups) == (2, 0, 0, 2)
    assert flat.forward_tokens == flat.flat_tokens == tree.flat_tokens == 8 * (20 + 6 + 3 + 3 - 1)
    assert tree.rows == 2 and flat.rows == 8
    assert 2 * 20 < tree.forward_tokens <= 2 * (20 + 4 * 11)
    assert (
        tree.statistics["entropy"] == pytest.approx(flat.statistics["entropy"], abs=1e-5)
        and 4 < tree.statistics["entropy"] < 8
    )
    assert tree.peak_memory > 1e7 and tree.seconds > 0


# --------------------------------------------------------------------------- the schedule


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 2, [0.5, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("cosine", 1, [1, 1, 0.75, 0.25]),
    ],
)
def test_the_learning_rate_follows_warmup_and_schedule(schedule: str, warmup: int, expected: list[float]) -> None:
    learner = make(schedule=schedule, warmup_steps=warmup, total_steps=4, lr=1.0)
    assert [learner.step(Batch(())).lr for _ in range(4)] == pytest.approx(expected)


def test_a_run_longer_than_planned_ends_at_the_schedules_last_rate() -> None:
    learner = make(schedule="linear", total_steps=2, lr=1.0)
    assert [learner.step(Batch(())).lr for _ in range(4)] == pytest.approx([1, 0.5, 0, 0])


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize("factor", [math.inf, 1e30])
def test_a_loss_or_gradient_that_is_not_finite_ends_the_run_before_any_weight_changes(factor: float) -> None:
    learner = make()
    good = with_logprobs(tiny_model(), grpo_batch())
    learner.step(good)
    before, optimizer = weights(learner), copy.deepcopy(learner.state()["optimizer"])
    with pytest.raises(RunFailed, match=r"step 2: the (loss is|gradient is not finite)"):
        learner.step(scaled(good, factor))
    assert same(before, weights(learner)) and str(learner.state()["optimizer"]) == str(optimizer)
    assert all(p.grad is None and not p.requires_grad for p in learner.model.parameters())
    assert math.isfinite(learner.step(good).loss)


def test_broken_weights_are_named_as_the_usual_cause() -> None:
    model = tiny_model()
    learner = make(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(RunFailed, match="the loss is nan"):
        learner.step(grpo_batch())


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(ModelError, match="no parameter requires a gradient"):
        make(cast("PreTrainedModel", tiny_model().requires_grad_(False)))


def test_float16_weights_are_refused_by_name() -> None:
    with pytest.raises(
        ModelError, match=r"model.embed_tokens.weight is torch.float16; load the model in float32 or bfloat16"
    ):
        make(tiny_model(dtype=torch.float16))


def other(config: Any, **more: Any) -> PreTrainedModel:
    return cast(
        "PreTrainedModel", AutoModelForCausalLM.from_config(config(vocab_size=97, hidden_size=32, **more)).eval()
    )


UNMASKABLE = (
    (lambda: other(BloomConfig, n_layer=2, n_head=4), "its forward refuses a mask of our own"),
    (
        lambda: other(
            MistralConfig,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=3,
        ),
        "it does not keep to a mask",
    ),
)


@pytest.mark.parametrize(("build", "reason"), UNMASKABLE, ids=["raises", "ignores"])
def test_a_model_that_takes_no_mask_is_trained_flat_with_one_warning_and_refused_as_tree(
    build: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentlightning"):
        learner = make(build())
    (record,) = [record for record in caplog.records if record.name.startswith("agentlightning")]
    assert "layout 'flat'" in record.message and reason in record.message
    small = Batch(
        ((TrainTree((given([1, 2]), sampled([3, 4], 0)), "a"), TrainTree((given([1, 2]), sampled([5], 0)), "b")),)
    )
    stats = learner.step(with_logprobs(learner.model, small))
    assert stats.flat_groups == 1 and stats.parity.max < 1e-4
    with pytest.raises(ModelError, match=reason):
        make(build(), layout="tree")


def test_attention_that_takes_no_mask_is_named() -> None:
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"  # pyright: ignore[reportPrivateUsage]
    from agentlightning.learning.forward import why_not_tree

    assert "'flash_attention_2' takes no mask" in str(why_not_tree(model))


def test_gradient_checkpointing_is_refused_where_the_model_has_no_layers_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from agentlightning.learning import forward

    class Nothing:
        pass

    monkeypatch.setattr(forward, "GradientCheckpointingLayer", Nothing)
    with pytest.raises(ModelError, match="gradient_checkpointing=false"):
        make(gradient_checkpointing=True)


# --------------------------------------------------------------------------- bfloat16


def test_bfloat16_weights_follow_their_float32_masters() -> None:
    """Steps smaller than half a bfloat16 spacing add up in the masters, and move the weights once they reach it."""
    model = tiny_model(dtype=torch.bfloat16)
    batch = with_logprobs(tiny_model(), grpo_batch())
    learner = make(model, lr=2e-5)
    start = weights(learner)
    learner.step(batch)
    masters = cast("dict[str, Tensor]", learner.state()["masters"])
    moved_once = sum(int((tensor != start[name]).sum()) for name, tensor in weights(learner).items())
    for _ in range(15):
        learner.step(batch)
    moved = sum(int((tensor != start[name]).sum()) for name, tensor in weights(learner).items())
    assert moved > 2 * moved_once
    for name, tensor in weights(learner).items():
        assert tensor.dtype == torch.bfloat16 and masters[name].dtype == torch.float32
        assert torch.equal(tensor, masters[name].bfloat16())


def test_bfloat16_recomputes_old_logprobs_so_that_the_ratio_is_not_its_noise() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch(), noise=0.3)
    assert make(tiny_model(dtype=torch.bfloat16)).step(batch).statistics["ratio_mean"] == pytest.approx(1)
    assert make(tiny_model(dtype=torch.bfloat16), old_logprobs="sampler").step(batch).statistics[
        "ratio_mean"
    ] != pytest.approx(1, abs=1e-4)


def test_bfloat16_layouts_agree_as_far_as_bfloat16_goes() -> None:
    batch = with_logprobs(tiny_model(), grpo_batch())
    tree = make(tiny_model(dtype=torch.bfloat16), layout="tree").step(batch)
    flat = make(tiny_model(dtype=torch.bfloat16), layout="flat").step(batch)
    assert tree.grad_norm == pytest.approx(flat.grad_norm, rel=0.05)
    assert tree.parity.max < 0.1


# --------------------------------------------------------------------------- state


def test_state_of_other_parameters_is_refused() -> None:
    partly = tiny_model()
    partly.model.layers[0].requires_grad_(False)
    with pytest.raises(ConfigError, match="other trained parameters"):
        make().load_state(make(partly).state())
    with pytest.raises(ConfigError, match="another dtype"):
        make().load_state(make(tiny_model(dtype=torch.bfloat16)).state())


def test_threads_are_set_before_each_step() -> None:
    before = torch.get_num_threads()
    try:
        learner = Learner(
            tiny_model(), LearnerConfig(), PolicyGradientLoss(), seed=0, total_steps=1, threads=Threads(2)
        )
        torch.set_num_threads(1)
        learner.step(Batch(()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
