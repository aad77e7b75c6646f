"""Outputs: what a model says of the trained tokens of a block, as the arrays that an objective declares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentlightning.learning.forward import check_head, hidden_states
from agentlightning.learning.head import Head, Wanted, chunks_of
from agentlightning.learning.packing import Block
from agentlightning.learning.tokens import Tokens


@dataclass(frozen=True, slots=True)
class BlockOutputs:
    """Of a block's entries: the logprob under the full softmax at the temperature used, for parity, and the declared
    outputs, which carry gradients. ``logprob`` is always among them."""

    full_E: Tensor
    by_name: dict[str, Tensor]


class Outputs:
    """Computes the outputs ``names`` of blocks. ``chunk`` is how many distributions the head holds at a time."""

    def __init__(self, model: PreTrainedModel, names: tuple[str, ...], chunk: int) -> None:
        self._model = model
        self._names = names
        self._chunk = chunk
        self._head = Head(model)
        check_head(model, self._head)

    def of(self, block: Block, tokens: Tokens) -> BlockOutputs:
        """One forward. Belongs, with its backward, into ``tree_attention``."""
        device = self._model.device
        hidden_UD = hidden_states(self._model, block)[block.places_U.to(device)]
        logprobs_E, log_kept_E = self._head.logprobs(hidden_UD, self._wanted(block, tokens, device))
        return BlockOutputs(logprobs_E, {"logprob": logprobs_E - log_kept_E})

    def _wanted(self, block: Block, tokens: Tokens, device: torch.device) -> Wanted:
        return Wanted(
            temperatures_U=block.temperatures_U.to(device, tokens.dtype),
            rows_E=block.rows_E.to(device),
            targets_E=tokens.targets_N[block.entries_E.to(device)],
            kept_entries_K=block.kept_entries_K.to(device),
            kept_ids_K=block.kept_ids_K.to(device),
            set_entries_G=block.set_entries_G.to(device),
            sets_G=block.sets_G.to(device),
            sets_SW=tokens.sets_SW,
            chunks=chunks_of(len(block.places_U), block.rows_E, block.kept_entries_K, block.set_entries_G, self._chunk),
        )
