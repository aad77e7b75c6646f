"""Batches for the learner's tests: random trees of tokens, and the same trees with the logprobs that a model gives their tokens."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from agentlightning.learning.batch import Batch, TrainNode, TrainTree
from agentlightning.types import Kept


def given(ids: list[int], parent: int = -1) -> TrainNode:
    return TrainNode(parent=parent, token_ids=array("i", ids), sampled=False)


def sampled(ids: list[int], parent: int, weight: float | list[float] | None = 1.0, unit: int = 0, logprob: float = -1.0, **more: object) -> TrainNode:
    """A sampled node. ``weight`` None masks it; a list has one weight per token, NaN where the token is masked."""
    weights = None if weight is None else array("f", weight if isinstance(weight, list) else [weight] * len(ids))
    node = TrainNode(parent, array("i", ids), True, weights, array("f", [logprob] * len(ids)), unit=unit)
    return replace(node, **more)  # pyright: ignore[reportArgumentType]


def random_tree(rng: random.Random, prompt: list[int], *, unit: int, vocabulary: int) -> TrainTree:
    """A rollout: its prompt (a second root now and then), then turns, best-of-n branches and retries at random, some masked, some tokens NaN."""

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(rng.randint(low, high))]

    nodes = [given(prompt)]
    if rng.random() < 0.3:
        nodes.append(given(ids(1, 4)))
    for _ in range(rng.randint(1, 6)):
        parent = rng.randrange(len(nodes))
        if nodes[parent].sampled and rng.random() < 0.6:
            nodes.append(given(ids(1, 3), parent))
            parent = len(nodes) - 1
        for _ in range(rng.choice((1, 1, 2, 3))):
            tokens = ids(1, 5)
            weights: list[float] | None = [rng.choice((-1.0, 0.5, 0.0, math.nan, 1.5)) for _ in tokens]
            if rng.random() < 0.2:
                weights = None
            nodes.append(sampled(tokens, parent, weights, unit))
    return TrainTree(tuple(nodes), f"rollout-{unit:03d}")


def random_batch(seed: int, vocabulary: int, *, groups: int = 2, size: int = 3) -> Batch:
    """Groups of trees, most of which begin with their group's prompt."""
    rng = random.Random(seed)
    out: list[tuple[TrainTree, ...]] = []
    for g in range(groups):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 6))]
        out.append(
            tuple(
                random_tree(rng, prompt if rng.random() < 0.8 else prompt[: len(prompt) // 2 + 1] + [0], unit=g * size + i, vocabulary=vocabulary)
                for i in range(size)
            )
        )
    return Batch(tuple(out))


def with_logprobs(model: PreTrainedModel, batch: Batch, *, noise: float = 0.0, temperature: float = 1.0, top_k: int = 0, seed: int = 0) -> Batch:
    """The batch with the logprobs that the model gives its sampled tokens, path by path in the plain forward, off by up to ``noise``.

    ``top_k`` cuts the support as sampling would, but always keeps the token itself.
    """
    rng = random.Random(seed)
    return Batch(tuple(tuple(_tree(model, tree, rng, noise, temperature, top_k) for tree in group) for group in batch.groups))


def _tree(model: PreTrainedModel, tree: TrainTree, rng: random.Random, noise: float, temperature: float, top_k: int) -> TrainTree:
    paths: list[list[int]] = []
    nodes: list[TrainNode] = []
    for node in tree.nodes:
        before = paths[node.parent] if node.parent >= 0 else []
        paths.append(before + list(node.token_ids))
        if not node.sampled:
            nodes.append(node)
            continue
        with torch.no_grad():
            logits = model(torch.tensor([paths[-1]])).logits[0].double() / temperature
        logprobs_TV = logits.log_softmax(-1)[len(before) - 1 : -1] if before else logits.log_softmax(-1)[:-1]
        tokens = list(node.token_ids)
        logprobs = [float(row[token]) + rng.uniform(-noise, noise) for row, token in zip(logprobs_TV, tokens, strict=True)]
        kept, log_kept = None, None
        if top_k:
            ids, offsets, masses = array("i"), array("i", [0]), array("f")
            for row, token in zip(logprobs_TV, tokens, strict=True):
                members = sorted({*row.topk(top_k).indices.tolist(), token})
                ids.extend(members)
                offsets.append(len(ids))
                masses.append(float(row[members].logsumexp(0)))
            kept, log_kept = Kept(ids, offsets), masses
        nodes.append(replace(node, logprobs=array("f", logprobs), temperature=temperature, kept=kept, log_kept=log_kept))
    return TrainTree(tuple(nodes), tree.rollout_id)


def trained_tokens(batch: Batch) -> int:
    """How many tokens carry a weight."""
    return sum(not math.isnan(w) for group in batch.groups for tree in group for node in tree.nodes for w in node.weights or ())
