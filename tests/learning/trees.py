"""Batches for the learner's tests, and what the learner has to agree with: the same loss written the slow way, one path
and one token at a time."""

from __future__ import annotations

import functools
import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from agentlightning.learning.learner import Gradient
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.nouns import KeptIds
from agentlightning.records.batch import Batch, TrainNode, TrainTree

VOCABULARY = 272
"""Of tests.tiny.tiny_model."""


def given(ids: Sequence[int], parent: int = -1) -> TrainNode:
    return TrainNode(parent=parent, token_ids=array("i", ids), sampled=False)


def sampled(
    ids: Sequence[int],
    parent: int,
    weight: float | Sequence[float] | None = 1.0,
    unit: int = 0,
    logprob: float = -5.6,
    **more: object,
) -> TrainNode:
    """A sampled node. ``weight`` None masks it; a sequence has one weight per token, NaN where the token is masked."""
    weights = [] if weight is None else [weight] * len(ids) if isinstance(weight, float) else weight
    columns = {} if weight is None else {"advantage": array("f", weights)}
    node = TrainNode(parent, array("i", ids), True, columns, array("f", [logprob] * len(ids)), unit=unit)
    return replace(node, **more)  # pyright: ignore[reportArgumentType]


@st.composite
def trees(draw: st.DrawFn, prompt: list[int], unit: int) -> TrainTree:
    """A rollout: its group's prompt or another one, a second root, turns, best-of-n branches; some nodes and tokens
    masked, some of weight 0."""
    ids = functools.partial(st.lists, st.integers(0, 9))
    weight = st.sampled_from([-1.0, 0.5, 0.0, 1.5, math.nan])
    nodes = [given(draw(st.one_of(st.just(prompt), ids(min_size=1, max_size=4))))]
    for _ in range(draw(st.integers(1, 5))):
        parent = draw(st.integers(-1, len(nodes) - 1))
        if parent < 0 or draw(st.booleans()):
            nodes.append(given(draw(ids(min_size=1, max_size=3)), parent))
            parent = len(nodes) - 1
        for _ in range(draw(st.integers(1, 3))):
            tokens = draw(ids(min_size=1, max_size=4))
            weights = draw(st.none() | st.lists(weight, min_size=len(tokens), max_size=len(tokens)))
            nodes.append(sampled(tokens, parent, weights, unit))
    return TrainTree(tuple(nodes), f"rollout-{unit:03d}")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """One to three groups of one to four rollouts. Few different token ids, so that paths meet by chance too."""
    groups: list[tuple[TrainTree, ...]] = []
    unit = 0
    for _ in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
        size = draw(st.integers(1, 4))
        groups.append(tuple(draw(trees(prompt, unit + i)) for i in range(size)))
        unit += size
    return Batch(tuple(groups))


def grpo_batch(*, groups: int = 2, size: int = 4, seed: int = 0, prompt: int = 20, turn: int = 6) -> Batch:
    """Two turns per rollout after a shared prompt, advantages +-1."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    out: list[tuple[TrainTree, ...]] = []
    for g in range(groups):
        shared = ids(prompt)
        members: list[TrainTree] = []
        for i in range(size):
            unit, weight = g * size + i, rng.choice((-1.0, 1.0))
            first, second = sampled(ids(turn), 0, weight, unit), sampled(ids(turn // 2), 2, weight, unit)
            members.append(TrainTree((given(shared), first, given(ids(3), 1), second), f"rollout-{unit:03d}"))
        out.append(tuple(members))
    return Batch(tuple(out))


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float64 throughout: transformers' norms compute in float32 whatever the model's dtype, and would
    hide what a test at 1e-10 looks for."""
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(_rms_norm, module)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def _rms_norm(module: torch.nn.Module, x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)  # pyright: ignore[reportArgumentType, reportCallIssue]


def with_logprobs(
    model: PreTrainedModel, batch: Batch, *, noise: float = 0.0, temperature: float = 1.0, top_k: int = 0, seed: int = 0
) -> Batch:
    """The batch with the logprobs that the model gives its sampled tokens, off by up to ``noise``; ``top_k`` cuts the
    support, but keeps the token itself."""
    rng = random.Random(seed)
    return Batch(
        tuple(tuple(_recorded(model, tree, rng, noise, temperature, top_k) for tree in group) for group in batch.groups)
    )


def _recorded(
    model: PreTrainedModel, tree: TrainTree, rng: random.Random, noise: float, temperature: float, top_k: int
) -> TrainTree:
    nodes = list(tree.nodes)
    with torch.no_grad():
        by_node = list(logprobs_by_node(model, tree, temperature))
    for index, logprobs_TV, _ in by_node:
        tokens = nodes[index].token_ids
        logprobs = array(
            "f",
            [float(row[token]) + rng.uniform(-noise, noise) for row, token in zip(logprobs_TV, tokens, strict=True)],
        )
        kept, log_kept = None, None
        if top_k:
            ids, offsets, masses = array("i"), array("i", [0]), array("f")
            for row, token in zip(logprobs_TV, tokens, strict=True):
                members = sorted({*row.topk(top_k).indices.tolist(), token})
                ids.extend(members)
                offsets.append(len(ids))
                masses.append(float(row[members].logsumexp(0)))
            kept, log_kept = KeptIds(ids, offsets), masses
        nodes[index] = replace(nodes[index], logprobs=logprobs, temperature=temperature, kept=kept, log_kept=log_kept)
    return TrainTree(tuple(nodes), tree.rollout_id)


def logprobs_by_node(
    model: PreTrainedModel, tree: TrainTree, temperature: float | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each sampled node with the full log-softmax before each of its tokens and the last hidden states behind it, from
    a plain forward of its path. Roots are never sampled here."""
    paths: list[list[int]] = []
    for index, node in enumerate(tree.nodes):
        before = paths[node.parent] if node.parent >= 0 else []
        paths.append(before + list(node.token_ids))
        if node.sampled:
            hidden_TD = model.base_model(torch.tensor([paths[-1]])).last_hidden_state[0][len(before) - 1 : -1]
            logits_TV = model(torch.tensor([paths[-1]])).logits[0][len(before) - 1 : -1]
            yield index, (logits_TV.double() / (temperature or node.temperature)).log_softmax(-1), hidden_TD


def reference(
    model: PreTrainedModel, batch: Batch, loss: PolicyGradientLoss, *, importance_cap: float | None = None
) -> Gradient:
    """The loss and its gradient as the formulas say, without packing, chunks or rows. With a cap: old logprobs
    recomputed."""
    units: dict[int, list[Tensor]] = {}
    names = [name for name, _ in model.named_parameters()]
    with torch.enable_grad():
        for p in model.parameters():
            p.requires_grad_(True)
        for tree in (tree for group in batch.groups for tree in group):
            for index, logprobs_TV, _ in logprobs_by_node(model, tree):
                node = tree.nodes[index]
                assert node.logprobs is not None
                for t in node.trained:
                    weight = node.columns["advantage"][t]
                    new, old = logprobs_TV[t, node.token_ids[t]], torch.tensor(node.logprobs[t], dtype=torch.float64)
                    if node.kept is not None and node.log_kept is not None:
                        members = list(node.kept.ids[node.kept.offsets[t] : node.kept.offsets[t + 1]])
                        new, old = new - logprobs_TV[t, members].logsumexp(0), old - node.log_kept[t]
                    factor = 1.0
                    if importance_cap is not None:
                        factor, old = min(math.exp(float(new.detach() - old)), importance_cap), new.detach()
                    ratio = (new - old).exp()
                    token_loss = (
                        -torch.minimum(ratio * weight, ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high) * weight)
                        * factor
                    )
                    units.setdefault(node.unit, []).append(token_loss)
        total = torch.zeros((), dtype=torch.float64)
        for losses in units.values():
            if loss.aggregation == "token_mean":
                total = total + torch.stack(losses).sum() / sum(len(u) for u in units.values())
            else:
                total = total + torch.stack(losses).sum() / (loss.fixed_length or len(losses)) / len(units)
        grads = (
            torch.autograd.grad(total, list(model.parameters()))
            if units
            else [torch.zeros_like(p) for p in model.parameters()]
        )
    return Gradient(float(total.detach()), dict(zip(names, grads, strict=True)))


def difference(a: Gradient, b: Gradient) -> float:
    """Relative L2 over all parameters; 0 where both are zero."""
    x, y = (torch.cat([g.by_name[name].double().flatten() for name in sorted(g.by_name)]) for g in (a, b))
    return float((x - y).norm() / y.norm()) if float(y.norm()) else float(x.norm())


def trained_tokens(batch: Batch) -> int:
    """How many tokens carry a weight."""
    return sum(len(node.trained) for group in batch.groups for tree in group for node in tree.nodes)
