"""Forward: a block through a model's own code. The only place that knows how a transformers model takes masks and
positions.

Nothing of a model is rewritten: the base model is called with token ids, positions and a mask, and its last hidden
states are used.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from agentlightning.errors import ModelError
from agentlightning.learning.attention import tree_attention, tree_mask
from agentlightning.learning.head import Head
from agentlightning.learning.packing import Block, Cost, Span

_MASKED_ATTENTION = ("sdpa", "eager")
_SPAN_TOKENS = {False: 96, True: 2048}
"""Queries per block of a tree's attention, without and with CUDA. Fewer compute less that is masked; on CUDA small
blocks cost more in kernel launches than they save."""


def hidden_states(model: PreTrainedModel, block: Block) -> Tensor:
    """The last hidden states of a block's tokens, ``[B * T, D]``. Causal blocks are padded at their ends, where nothing
    looks.

    Belongs, with its backward, into ``tree_attention``.
    """
    tree: dict[str, Tensor] = {}
    if block.ends_T is not None:
        tree = {"attention_mask": _mask(block, model), "position_ids": block.positions_BT.to(model.device)}
    output = cast("Any", model.base_model)(input_ids=block.token_ids_BT.to(model.device), use_cache=False, **tree)
    hidden_BTD = cast("Tensor", output.last_hidden_state)
    return hidden_BTD.reshape(-1, hidden_BTD.shape[-1])


def _mask(block: Block, model: PreTrainedModel) -> Tensor:
    """[1, 1, T, T]: bool for sdpa; for eager attention, what is added to the scores."""
    sees_TT = tree_mask(block, model.device)
    if _attention(model) != "eager":
        return sees_TT
    return torch.zeros_like(sees_TT, dtype=model.dtype).masked_fill_(~sees_TT, torch.finfo(model.dtype).min)


def _config(model: PreTrainedModel) -> Any:
    return cast("Any", model.config).get_text_config()


def _attention(model: PreTrainedModel) -> str:
    return str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def gradient_checkpointing(model: PreTrainedModel) -> Generator[None]:
    """Keeps only the inputs of the model's layers for the backward pass and computes the rest anew.

    transformers' own switch works in training mode alone, which would also turn dropout on. Raises ModelError where the
    model has no such layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} has no layers that support gradient checkpointing: set "
            "learner.gradient_checkpointing=false"
        )
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.forward = _recomputed(layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            del layer.forward
            if forward is not None:
                layer.forward = forward


def _recomputed(forward: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return cast("Any", checkpoint).checkpoint(
            forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
        )

    return call


def cost_of(model: PreTrainedModel) -> Cost:
    """Multiply-adds per token (the matrices between embedding and head) and per pair of tokens (scores and values, all
    layers)."""
    config = _config(model)
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    ends = cast("list[nn.Module]", [model.get_input_embeddings(), model.get_output_embeddings()])
    embeddings = {id(parameter) for module in ends for parameter in module.parameters()}
    token = sum(p.numel() for p in model.parameters() if p.ndim >= 2 and id(p) not in embeddings)
    block = _SPAN_TOKENS[model.device.type == "cuda"] if _attention(model) == "sdpa" else None
    return Cost(token=float(token), pair=2.0 * heads * width * int(config.num_hidden_layers), block=block)


def max_tree_depth(model: PreTrainedModel) -> int | None:
    """The path length from which on the model's own mask hides more than a tree's does: a sliding window or an
    attention chunk. None without one."""
    config = _config(model)
    windows = [getattr(config, "attention_chunk_size", None)]
    if getattr(config, "use_sliding_window", True):
        windows.append(getattr(config, "sliding_window", None))
    return min((int(window) for window in windows if window), default=None)


# --------------------------------------------------------------------------- checks at construction


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def check_head(model: PreTrainedModel, head: Head) -> None:
    """Compares the head with the model's own logits on a few tokens. Raises ModelError where they differ."""
    with torch.no_grad():
        ids_BT = _probe_ids(model)[None, :8].to(model.device)
        expected_UV = cast("Any", model)(input_ids=ids_BT, use_cache=False).logits[0]
        hidden_UD = cast("Any", model.base_model)(input_ids=ids_BT, use_cache=False).last_hidden_state[0]
        error = _difference(head.logits(hidden_UD), expected_UV)
    if not error <= _TOLERANCE.get(model.dtype, 2e-2):
        raise ModelError(
            f"{type(model).__name__}: logits from the last hidden state differ from the model's own by {error:.2g} "
            "(relative): it does something between them that the learner does not know, so its logprobs would be wrong"
        )


def why_not_tree(model: PreTrainedModel) -> str | None:
    """None where a tree's rows give what the model's plain forward gives for each path; else the reason why not (ruling
    9).

    Compared are the hidden states of a small forest. In reduced precision, where no layout repeats another's bits, the
    difference is measured against that of a row in which every token sees all before it.
    """
    attention = _attention(model)
    if attention not in _MASKED_ATTENTION:
        return (
            f"its attention implementation {attention!r} takes no mask of our own (load it with one of "
            f"{', '.join(_MASKED_ATTENTION)})"
        )
    ids = _probe_ids(model)
    # 0..3 with the branches 4..6 and 7..9, and a second root 10..11.
    paths = [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 7, 8, 9], [10, 11]]
    spans = (Span(0, 4, ()), Span(4, 7, ((0, 4),)), Span(7, 9, ((0, 4),)), Span(9, 12, ((0, 4), (7, 9))))
    ends_T = torch.tensor([10, 10, 10, 10, 7, 7, 7, 10, 10, 10, 12, 12])
    positions_T = torch.tensor([0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 0, 1])
    with torch.no_grad():
        try:
            tree = _plain_block(ids, positions_T, ends_T, spans)
            with tree_attention(model, tree):
                tree_TD = hidden_states(model, tree)
        except Exception as error:  # noqa: BLE001 - whatever a model's code raises on a mask means that it takes none; it is told to the user
            return f"its forward refuses a mask of our own ({type(error).__name__}: {error})"
        causal_TD = hidden_states(model, _plain_block(ids, torch.arange(len(ids)), None))
        plain_TD = tree_TD.clone()
        for path in paths:
            plain_TD[path] = hidden_states(model, _plain_block(ids[path], torch.arange(len(path)), None))
    error, contaminated = _difference(tree_TD, plain_TD), _difference(causal_TD, plain_TD)
    allowed = _TOLERANCE.get(model.dtype, 0.2 * contaminated)
    return (
        None
        if error <= allowed
        else f"it does not keep to a mask: hidden states of a tree differ by {error:.2g} (relative) from those of its "
        "paths"
    )


def _probe_ids(model: PreTrainedModel) -> Tensor:
    vocabulary = int(_config(model).vocab_size)
    return torch.randint(vocabulary, (12,), generator=torch.Generator().manual_seed(12))


def _plain_block(ids_T: Tensor, positions_T: Tensor, ends_T: Tensor | None, spans: tuple[Span, ...] = ()) -> Block:
    none = torch.empty(0, dtype=torch.long)
    return Block(
        ids_T[None], positions_T[None], ends_T, spans, len(ids_T), none, none, none, none, none, none, none, none
    )


def _difference(a: Tensor, b: Tensor) -> float:
    """Relative L2."""
    a, b = a.double(), b.double()
    return math.sqrt(float((a - b).square().sum()) / max(float(b.square().sum()), 1e-30))
