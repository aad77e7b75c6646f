"""Every objective through the real learner: the gradient of its formula over plain forwards, whatever the layout, the cut
into rows, the head's chunk, the order of rollouts, and the kind it is declared as (invariant 7)."""

from __future__ import annotations

import copy
import math
import random
from array import array
from dataclasses import replace
from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from agentlightning.errors import ConfigError
from agentlightning.learning.learner import Gradient, Learner
from agentlightning.learning.objective import (
    Columns,
    ObjectiveSettings,
    Outputs,
    Statistics,
    TokenSum,
    Whole,
    maximum_of,
    mean_of,
)
from agentlightning.learning.objectives import OBJECTIVES, objective_of
from agentlightning.learning.objectives.cross_entropy import CrossEntropyLoss
from agentlightning.learning.objectives.entropy_bonus import EntropyBonusLoss
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.learning.objectives.preference import PreferenceLoss
from agentlightning.learning.objectives.sequence_ratio import SequenceRatioLoss
from agentlightning.learning.objectives.value import ValueLoss
from agentlightning.records.batch import Batch, TrainNode
from agentlightning.settings.fields import LearnerConfig
from tests.tiny import tiny_model

from .trees import batches, difference, exact, grpo_batch, logprobs_by_node, with_logprobs

OBJECTIVES_TESTED: dict[str, ObjectiveSettings] = {
    "policy_gradient": PolicyGradientLoss(),
    "entropy_bonus": EntropyBonusLoss(entropy_weight=0.3, aggregation="sequence_mean"),
    "gspo": SequenceRatioLoss(clip_low=0.2, clip_high=0.28),
    "cross_entropy": CrossEntropyLoss(),
    "dpo": PreferenceLoss(beta=0.5),
    "value": ValueLoss(),
}
COLUMNS = ("advantage", "weight", "return", "pair", "preference", "reference")
MODEL = exact(tiny_model())
"""In float64. Weights are never changed: gradients only."""
EVERY = pytest.mark.parametrize("name", OBJECTIVES_TESTED)


def filled(batch: Batch) -> Batch:
    """The batch with every column: two neighbours of a group are a pair, the reference is what was recorded."""
    groups = [
        tuple(
            replace(tree, nodes=tuple(_filled_node(node, 100 * g + i // 2, i % 2 == 0) for node in tree.nodes))
            for i, tree in enumerate(group)
        )
        for g, group in enumerate(batch.groups)
    ]
    return Batch(tuple(groups))


def _filled_node(node: TrainNode, pair: int, first: bool) -> TrainNode:
    if not node.columns:
        return node
    advantages, count = node.columns["advantage"], len(node.token_ids)
    weights = array("f", [math.nan if math.isnan(a) else abs(a) for a in advantages])
    columns = {
        "advantage": advantages,
        "weight": weights,
        "return": array("f", [a + 0.25 for a in advantages]),
        "pair": array("f", [pair]) * count,
        "preference": array("f", [1.0 if first else -1.0]) * count,
        "reference": cast("array[float]", node.logprobs),
    }
    return replace(node, columns=columns)


def learner(model: PreTrainedModel, settings: ObjectiveSettings, **config: Any) -> Learner:
    model.requires_grad_(True)
    return Learner(model, LearnerConfig(lr=1e-3, **config), settings, seed=0, total_steps=10, columns=COLUMNS)


def gradient(batch: Batch, settings: ObjectiveSettings, **config: Any) -> Gradient:
    made = learner(MODEL, settings, **config)
    _move_value_head(made)
    return made.gradient(batch)


def _move_value_head(made: Learner) -> None:
    """Away from 0, so that a gradient of values reaches the model."""
    head = made._outputs.value_head  # pyright: ignore[reportPrivateUsage]
    if head is not None:
        with torch.no_grad():
            head.weight.copy_(torch.linspace(-0.5, 0.5, head.in_features)[None])


def reference(batch: Batch, settings: ObjectiveSettings) -> Gradient:
    """The objective over all tokens at once, from a plain forward of each node's path, through autograd."""
    objective = objective_of(settings)
    width = MODEL.config.hidden_size
    head_D = torch.linspace(-0.5, 0.5, width).double().requires_grad_()
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    columns: dict[str, list[float]] = {name: [] for name in (*COLUMNS, "old", "unit")}
    outputs: dict[str, list[Tensor]] = {"logprob": [], "entropy": [], "value": []}
    with torch.enable_grad():
        MODEL.requires_grad_(True)
        for tree in (tree for group in batch.groups for tree in group):
            for index, logprobs_TV, hidden_TD in logprobs_by_node(MODEL, tree):
                node = tree.nodes[index]
                for t in node.trained:
                    ids = range(logprobs_TV.shape[1])
                    mass = 0.0
                    if node.kept is not None and node.log_kept is not None:
                        ids = node.kept.ids[node.kept.offsets[t] : node.kept.offsets[t + 1]]
                        mass = node.log_kept[t]
                    support_K = logprobs_TV[t, list(ids)].log_softmax(0)
                    outputs["logprob"].append(support_K[list(ids).index(node.token_ids[t])])
                    outputs["entropy"].append(-(support_K.exp() * support_K).sum())
                    outputs["value"].append(hidden_TD[t] @ head_D + bias[0])
                    for name in COLUMNS:
                        columns[name].append(node.columns[name][t])
                    columns["old"].append(cast("array[float]", node.logprobs)[t] - mass)
                    columns["unit"].append(node.unit)
        names = [name for name, _ in MODEL.named_parameters()]
        parameters: list[Tensor] = list(MODEL.parameters())
        if "value" in objective.outputs:
            names, parameters = [*names, "value_head.weight", "value_head.bias"], [*parameters, head_D, bias]
        if not columns["unit"]:
            zeros = [torch.zeros_like(p) for p in parameters]
            return Gradient(0.0, dict(zip(names, zeros, strict=True)))
        filled_N = {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}
        filled_N["importance"] = torch.ones_like(filled_N["old"])
        filled_N["unit"] = filled_N["unit"].long()
        loss, _ = objective.loss(filled_N, {name: torch.stack(values) for name, values in outputs.items()})
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
    return Gradient(float(loss.detach()), dict(zip(names, grads, strict=True)))


# --------------------------------------------------------------------------- invariances


@EVERY
@hypothesis_settings(max_examples=4, deadline=None)
@hypothesis_given(batch=batches(), top_k=st.sampled_from([0, 3]), temperature=st.sampled_from([0.7, 1.0]))
def test_tree_and_flat_give_the_gradient_of_the_formula(
    name: str, batch: Batch, top_k: int, temperature: float
) -> None:
    settings = OBJECTIVES_TESTED[name]
    batch = filled(with_logprobs(MODEL, batch, noise=0.4, top_k=top_k, temperature=temperature))
    expected = reference(batch, settings)
    for layout in ("tree", "flat"):
        got = gradient(batch, settings, layout=layout)
        assert difference(got, expected) < 1e-9
        assert got.loss == pytest.approx(expected.loss, abs=1e-10)


@EVERY
@pytest.mark.parametrize("old", ["sampler", "recompute"])
def test_one_row_of_eight_is_eight_rows_of_one(name: str, old: str) -> None:
    settings = OBJECTIVES_TESTED[name]
    batch = filled(with_logprobs(MODEL, grpo_batch(groups=1, size=8), noise=0.5, top_k=4))
    whole = gradient(batch, settings, layout="tree", old_logprobs=old)
    assert max(float(grad.abs().max()) for grad in whole.by_name.values()) > 1e-4
    cuts: tuple[tuple[Literal["tree", "flat"], int, int], ...] = (
        ("tree", 36, 1024),
        ("flat", 36, 1024),
        ("tree", 90, 1024),
        ("tree", 4096, 5),
        ("flat", 4096, 1),
    )
    for layout, cap, chunk in cuts:
        cut = gradient(batch, settings, layout=layout, max_row_tokens=cap, head_chunk=chunk, old_logprobs=old)
        assert cut.loss == pytest.approx(whole.loss, abs=1e-10)
        assert difference(cut, whole) < 1e-9


@EVERY
def test_the_order_of_rollouts_and_the_numbers_of_units_do_not_show(name: str) -> None:
    settings = OBJECTIVES_TESTED[name]
    batch = filled(with_logprobs(MODEL, grpo_batch(groups=3, size=4), noise=0.5))
    whole = gradient(batch, settings)
    for seed in range(3):
        rng = random.Random(seed)
        groups = [rng.sample(group, len(group)) for group in batch.groups]
        units = rng.sample(range(50), 50)
        moved = Batch(
            tuple(
                tuple(
                    replace(tree, nodes=tuple(replace(node, unit=units[node.unit]) for node in tree.nodes))
                    for tree in group
                )
                for group in rng.sample(groups, len(groups))
            )
        )
        got = gradient(moved, settings)
        assert got.loss == pytest.approx(whole.loss, abs=1e-12) and difference(got, whole) < 1e-12


@pytest.mark.parametrize(
    "name", [name for name, s in OBJECTIVES_TESTED.items() if isinstance(objective_of(s), TokenSum)]
)
def test_a_sum_over_tokens_gives_the_same_gradient_declared_as_a_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = OBJECTIVES_TESTED[name]
    batch = filled(with_logprobs(MODEL, grpo_batch(groups=2), noise=0.5, top_k=4))
    once = gradient(batch, settings)
    declared = cast("TokenSum", objective_of(settings))
    whole = Whole(declared.columns, declared.loss, declared.outputs)
    monkeypatch.setitem(cast("dict[type, Any]", OBJECTIVES), type(settings), lambda _settings: whole)
    twice = gradient(batch, settings)
    assert twice.loss == pytest.approx(once.loss, abs=1e-12) and difference(twice, once) < 1e-12


@EVERY
def test_measured_statistics_do_not_depend_on_layout_or_cut(name: str) -> None:
    settings = OBJECTIVES_TESTED[name]
    batch = filled(with_logprobs(MODEL, grpo_batch(groups=2), noise=0.5))
    whole = learner(copy.deepcopy(MODEL), settings).step(batch).statistics
    for config in ({"layout": "flat"}, {"layout": "tree", "max_row_tokens": 36}, {"minibatches": 1, "head_chunk": 3}):
        assert learner(copy.deepcopy(MODEL), settings, **config).step(batch).statistics == pytest.approx(whole)


@EVERY
def test_an_empty_batch_has_the_statistics_of_a_full_one_and_takes_no_step(name: str) -> None:
    settings = OBJECTIVES_TESTED[name]
    made = learner(tiny_model(), settings)
    empty = made.step(Batch(()))
    full = made.step(filled(with_logprobs(tiny_model(), grpo_batch())))
    assert empty.statistics.keys() == full.statistics.keys() and empty.loss == empty.grad_norm == 0.0
    assert full.grad_norm > 0 and all(math.isfinite(value) for value in full.statistics.values())


# --------------------------------------------------------------------------- forwards


@EVERY
def test_a_sum_over_tokens_forwards_each_block_once_and_a_whole_twice(name: str) -> None:
    settings = OBJECTIVES_TESTED[name]
    batch = filled(with_logprobs(MODEL, grpo_batch(groups=3), noise=0.1))
    made = learner(MODEL, settings, layout="tree")
    _move_value_head(made)
    calls: list[int] = []
    hook = cast("torch.nn.Module", MODEL.base_model).register_forward_hook(lambda *_: calls.append(1))
    try:
        made.gradient(batch)
    finally:
        hook.remove()
    assert len(calls) == (3 if isinstance(objective_of(settings), TokenSum) else 6)


@pytest.mark.parametrize(
    ("name", "zero"), [("policy_gradient", "advantage"), ("cross_entropy", "weight"), ("gspo", "advantage")]
)
def test_where_nothing_is_to_be_learned_there_is_no_backward_and_no_optimizer_step(name: str, zero: str) -> None:
    batch = filled(with_logprobs(tiny_model(), grpo_batch()))
    flat = Batch(
        tuple(
            tuple(
                replace(
                    tree,
                    nodes=tuple(
                        replace(
                            n, columns={**n.columns, zero: array("f", [0.0]) * len(n.token_ids)} if n.columns else {}
                        )
                        for n in tree.nodes
                    ),
                )
                for tree in group
            )
            for group in batch.groups
        )
    )
    made = learner(tiny_model(), OBJECTIVES_TESTED[name])
    stats = made.step(flat)
    assert stats.trained_tokens > 0 and stats.grad_norm == 0.0 and not made.state()["optimizer"]["state"]


# --------------------------------------------------------------------------- what an objective does


def test_a_step_on_preferences_makes_the_preferred_rollouts_gain() -> None:
    model = tiny_model()
    batch = filled(with_logprobs(model, grpo_batch(groups=2)))
    made = learner(model, PreferenceLoss(beta=0.5))
    first = made.step(batch).statistics
    for _ in range(5):
        last = made.step(batch).statistics
    assert first["preference_margin"] == pytest.approx(0, abs=1e-3)
    assert last["preference_margin"] > 0.5 and last["preference_accuracy"] == 1.0


def test_a_value_head_learns_returns_and_is_kept_in_the_learners_state() -> None:
    batch = filled(with_logprobs(tiny_model(), grpo_batch()))

    def made() -> Learner:
        one = learner(tiny_model(), ValueLoss())
        for parameter in one.weights.parameters[:-2]:
            assert not parameter.requires_grad
        return one

    trained = made()
    losses = [trained.step(batch).loss for _ in range(6)]
    assert losses[-1] < 0.9 * losses[0]
    resumed = made()
    resumed.model.load_state_dict(trained.model.state_dict())
    resumed.load_state(copy.deepcopy(trained.state()))
    assert resumed.gradient(batch).loss == trained.gradient(batch).loss
    assert resumed.step(batch).loss == trained.step(batch).loss


def test_an_entropy_bonus_keeps_the_policy_more_open_than_none() -> None:
    batch = filled(with_logprobs(tiny_model(), grpo_batch()))
    entropies = []
    for weight in (0.0, 1.0):
        made = learner(tiny_model(), EntropyBonusLoss(entropy_weight=weight))
        for _ in range(4):
            stats = made.step(batch)
        entropies.append(stats.statistics["policy_entropy"])
    assert entropies[1] > entropies[0]


# --------------------------------------------------------------------------- what is refused


def test_a_column_that_nobody_fills_is_refused_when_the_learner_is_made() -> None:
    with pytest.raises(ConfigError, match=r"PreferenceLoss reads the column 'pair', which nobody fills here .*credit"):
        Learner(tiny_model(), LearnerConfig(), PreferenceLoss(), seed=0, total_steps=1)
    with pytest.raises(ConfigError, match="ValueLoss reads the column 'return'.*a critic's values would fill it"):
        Learner(tiny_model(), LearnerConfig(), ValueLoss(), seed=0, total_steps=1)


def test_a_batch_without_a_column_that_was_promised_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="reads the column 'weight', and the batch has none"):
        learner(tiny_model(), CrossEntropyLoss()).step(with_logprobs(tiny_model(), grpo_batch()))


def test_a_batch_that_fills_a_column_of_the_learner_is_refused() -> None:
    tree = filled(with_logprobs(tiny_model(), grpo_batch())).groups[0][0]
    nodes = [replace(n, columns={**n.columns, "old": n.columns["advantage"]} if n.columns else {}) for n in tree.nodes]
    with pytest.raises(ValueError, match="the learner fills itself: old"):
        learner(tiny_model(), CrossEntropyLoss()).step(Batch(((replace(tree, nodes=tuple(nodes)),),)))


def test_settings_without_an_objective_are_refused_by_name() -> None:
    class Unregistered(ObjectiveSettings):
        pass

    with pytest.raises(TypeError, match="no objective is registered for Unregistered"):
        Learner(tiny_model(), LearnerConfig(), Unregistered(), seed=0, total_steps=1)


# --------------------------------------------------------------------------- a new loss


class Reinforce(ObjectiveSettings):
    """REINFORCE, as a stranger would add it: one function and one line in the table."""


def reinforce(_settings: Reinforce) -> TokenSum:
    def coefficients(columns_N: Columns) -> Tensor:
        return columns_N["advantage"].double() / len(columns_N["advantage"])

    def losses(_columns_N: Columns, outputs_N: Outputs) -> tuple[Tensor, Statistics]:
        new_N = outputs_N["logprob"]
        return -new_N, {"surprise_max": maximum_of(-new_N), "surprise": mean_of(-new_N)}

    return TokenSum(("advantage",), coefficients, losses)


def test_a_new_loss_is_one_function_whose_statistics_are_shown_under_their_own_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cast("dict[type, Any]", OBJECTIVES), Reinforce, reinforce)
    model = tiny_model()
    batch = with_logprobs(model, grpo_batch())
    recorded = [x for g in batch.groups for t in g for n in t.nodes for x in (n.logprobs or ()) if n.columns]
    stats = learner(model, Reinforce()).step(batch)
    assert stats.statistics["surprise_max"] == pytest.approx(-min(recorded), abs=1e-4)
    assert stats.statistics["surprise"] == pytest.approx(stats.statistics["entropy"], abs=1e-6)
