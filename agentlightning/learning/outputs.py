"""Outputs: what a model says of the trained tokens of a block, as the arrays that an objective declares.

The logprobs are always computed: parity is measured on every run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
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
    """Computes the outputs ``names`` of blocks. ``chunk`` is how many distributions the head holds at a time.

    For ``value`` it has a linear head over the last hidden states, which begins at 0 and is trained like the model.
    """

    def __init__(self, model: PreTrainedModel, names: tuple[str, ...], chunk: int) -> None:
        self._model = model
        self._names = names
        self._chunk = chunk
        self._head = Head(model)
        check_head(model, self._head)
        self.value_head: nn.Linear | None = None
        if "value" in names:
            dtype = torch.promote_types(model.dtype, torch.float32)
            width = self._head.module.in_features
            self.value_head = nn.Linear(width, 1, dtype=dtype, device=model.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def of(self, block: Block, tokens: Tokens) -> BlockOutputs:
        """One forward. Belongs, with its backward, into ``tree_attention``."""
        device = self._model.device
        hidden_UD = hidden_states(self._model, block)[block.places_U.to(device)]
        wanted = self._wanted(block, tokens, device)
        outputs: dict[str, Tensor] = {}
        if "entropy" in self._names:
            logprobs_E, log_kept_E, outputs["entropy"] = self._head.logprobs_and_entropy(hidden_UD, wanted)
        else:
            logprobs_E, log_kept_E = self._head.logprobs(hidden_UD, wanted)
        if self.value_head is not None:
            outputs["value"] = self.value_head(hidden_UD.to(tokens.dtype))[wanted.rows_E, 0]
        return BlockOutputs(logprobs_E, {"logprob": logprobs_E - log_kept_E, **outputs})

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
