"""Attention over a tree's row, block by block, through transformers' own scaled-dot-product attention.

The kernels compute every pair of a masked row, also the pairs that the mask hides, and in a tree most are hidden: in a
prompt with eight branches of half its length three quarters. A row in depth-first order can be cut anywhere into blocks
of queries, and the keys that a block sees lie in the block itself and on the path above its first token. So each block
attends to those alone. What is computed is the same; nothing of a model is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # pyright: ignore[reportUnknownVariableType]

from agentlightning.learning.packing import Block, Span

TREE = "agentlightning_tree"
"""The name under which transformers knows it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Keys are split into pieces of ``pieces`` tokens, queries into blocks of ``blocks``; block i sees ``keys[i]`` of
    the pieces through ``masks[i]``."""

    pieces: list[int]
    blocks: list[int]
    keys: list[list[int]]
    masks: list[Tensor]


def tree_mask(block: Block, device: torch.device) -> Tensor:
    """[1, 1, T, T] bool: token t sees token s where s is t or above it. It carries the plan of its blocks to the
    attention function."""
    assert block.ends_T is not None
    ends_T = block.ends_T.to(device)
    place_T = torch.arange(len(ends_T), device=device)
    mask = ((place_T[:, None] >= place_T) & (place_T[:, None] < ends_T))[None, None]
    # Models hand a mask of four axes through as it is. One that makes another of it loses the plan and computes every
    # pair.
    cast("Any", mask).plan = _plan(block.spans, ends_T)
    return mask


def _plan(spans: tuple[Span, ...], ends_T: Tensor) -> _Plan:
    edges = sorted({edge for span in spans for run in (*span.above, (span.start, span.stop)) for edge in run})
    piece_at = {edge: number for number, edge in enumerate(edges)}
    keys: list[list[int]] = []
    masks: list[Tensor] = []
    for span in spans:
        runs = (*span.above, (span.start, span.stop))
        keys.append([piece for start, stop in runs for piece in range(piece_at[start], piece_at[stop])])
        seen_K = torch.cat([torch.arange(start, stop, device=ends_T.device) for start, stop in runs])
        query_Q = torch.arange(span.start, span.stop, device=ends_T.device)[:, None]
        masks.append(((seen_K <= query_Q) & (query_Q < ends_T[seen_K]))[None, None])
    return _Plan([b - a for a, b in pairwise(edges)], [span.stop - span.start for span in spans], keys, masks)


def _forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention function: [1, heads, T, width] each; returns [1, T, heads, width]."""
    attend = cast("Callable[..., tuple[Tensor, None]]", sdpa_attention_forward)
    plan = cast("_Plan | None", getattr(attention_mask, "plan", None))
    if plan is None:
        return attend(module, query, key, value, attention_mask, **kwargs)
    keys, values = torch.split(key, plan.pieces, dim=2), torch.split(value, plan.pieces, dim=2)
    out: list[Tensor] = []
    for query_Q, seen, mask in zip(torch.split(query, plan.blocks, dim=2), plan.keys, plan.masks, strict=True):
        key_K, value_K = (
            torch.cat([keys[piece] for piece in seen], dim=2),
            torch.cat([values[piece] for piece in seen], dim=2),
        )
        out.append(attend(module, query_Q, key_K, value_K, mask, **kwargs)[0])
    return torch.cat(out, dim=1), None


cast("Any", AttentionInterface).register(TREE, _forward)


@contextmanager
def tree_attention(model: PreTrainedModel, block: Block) -> Generator[None]:
    """Forward and backward of a tree's row belong in here. Does nothing for causal rows, or where the model does not
    use sdpa."""
    config = model.config
    before = str(config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
    if block.ends_T is None or before != "sdpa":
        yield
        return
    config._attn_implementation = TREE  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        config._attn_implementation = before  # pyright: ignore[reportPrivateUsage]
