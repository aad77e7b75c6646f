"""Keys and values: those of the requests that decode, one row each, and those of finished ones that a next turn may begin with.

The only place where a token's keys and values are kept or copied. Knows token ids and rows, nothing of requests. Not thread-safe: the engine's
compute thread owns it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache

Ids = npt.NDArray[np.int32]
Prefix = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one sequence, for each layer [kv_head, token, head_dim]."""


def common_prefix(a: Ids, b: Ids) -> int:
    """How many leading ids are equal."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


class SlotCache(Cache):
    """A transformers cache of one key and one value tensor per layer, [row, kv_head, token, head_dim], each row filled to its own length.

    Before each forward ``aim`` says which rows it is for and where its tokens stand. A row's content above its own length is never
    attended to, but must be finite, so memory is zeroed when it is made.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.rows = 0
        self.tokens = 0
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._rows: slice | torch.Tensor = slice(0, 0)
        self._rows_B1 = torch.empty(0, dtype=torch.long)
        self._positions_BT = torch.empty(0, dtype=torch.long)
        self._view = 0

    @property
    def token_bytes(self) -> int:
        """Bytes that one token of one row takes, over all layers. 0 before the first forward."""
        tensors = [*self._keys.values(), *self._values.values()]
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def aim(self, rows: slice | torch.Tensor, rows_B1: torch.Tensor, positions_BT: torch.Tensor, view: int) -> None:
        """Sets what the next forward writes (``positions_BT`` of the rows) and reads (the rows' first ``view`` tokens).

        A slice of rows is read in place; an index [B] is copied out.
        """
        self._rows, self._rows_B1, self._positions_BT, self._view = rows, rows_B1, positions_BT, view

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention layers, with [B, kv_head, T, head_dim]."""
        out: list[torch.Tensor] = []
        for store, new_BHTD in ((self._keys, key_states), (self._values, value_states)):
            held = store.get(layer_idx)
            if held is None:
                _, heads, _, width = new_BHTD.shape
                held = store[layer_idx] = new_BHTD.new_zeros((self.rows, heads, self.tokens, width))
            held[self._rows_B1, :, self._positions_BT] = new_BHTD.transpose(1, 2)
            out.append(held[self._rows, :, : self._view])
        return out[0], out[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._view - self._positions_BT.shape[-1]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._view, 0

    def __len__(self) -> int:
        return len(self._keys)

    def __bool__(self) -> bool:
        return True

    # ------------------------------------------------------------------ rows

    def resize(self, rows: int, tokens: int) -> None:
        """Holds ``rows`` rows of ``tokens`` tokens from now on; what fits of the content stays. One layer at a time, to spare memory."""
        for store in (self._keys, self._values):
            for layer, old in store.items():
                new = old.new_zeros((rows, old.shape[1], tokens, old.shape[3]))
                r, t = min(rows, self.rows), min(tokens, self.tokens)
                new[:r, :, :t] = old[:r, :, :t]
                store[layer] = new
        self.rows, self.tokens = rows, tokens

    def free(self) -> None:
        """Gives the memory of all rows back."""
        for store in (self._keys, self._values):
            for layer, held in store.items():
                store[layer] = held[:0, :, :0].clone()
        self.rows = self.tokens = 0

    def move(self, source: int, target: int, length: int) -> None:
        for held in self._tensors():
            held[target, :, :length] = held[source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        for held in self._tensors():
            held[[a, b], :, :length] = held[[b, a], :, :length]

    def share(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copies the first ``length`` tokens of a row to others."""
        for held in self._tensors():
            held[list(targets), :, :length] = held[source : source + 1, :, :length]

    def save(self, row: int, length: int) -> Prefix:
        return [(self._keys[i][row, :, :length].clone(), self._values[i][row, :, :length].clone()) for i in self._keys]

    def load(self, row: int, prefix: Prefix, length: int) -> None:
        for layer, (keys, values) in zip(self._keys, prefix, strict=True):
            self._keys[layer][row, :, :length] = keys[:, :length]
            self._values[layer][row, :, :length] = values[:, :length]

    def _tensors(self) -> list[torch.Tensor]:
        return [*self._keys.values(), *self._values.values()]


@dataclass(frozen=True, slots=True)
class _Entry:
    ids: Ids
    prefix: Prefix


class PrefixStore:
    """Finished sequences, least recently used first. ``tokens`` counts what they hold together."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._next = 0
        self.tokens = 0

    def match(self, ids: Ids) -> tuple[int, int]:
        """(key, n): the entry that shares the longest prefix with ``ids``, and its length; (-1, 0) if none shares any."""
        best, length = -1, 0
        for key in reversed(self._entries):
            held = self._entries[key].ids
            if length < len(held) and length < len(ids) and held[length] == ids[length]:
                n = common_prefix(held, ids)
                if n > length:
                    best, length = key, n
        return best, length

    def take(self, key: int) -> Prefix:
        """The keys and values of an entry, which becomes the most recently used."""
        self._entries.move_to_end(key)
        return self._entries[key].prefix

    def put(self, ids: Ids, prefix: Prefix) -> None:
        """Adds a sequence, in place of those that it extends."""
        for key in [k for k, e in self._entries.items() if len(e.ids) <= len(ids) and common_prefix(e.ids, ids) == len(e.ids)]:
            self._drop(key)
        self._entries[self._next] = _Entry(ids, prefix)
        self._next += 1
        self.tokens += len(ids)

    def shrink(self, tokens: int) -> None:
        """Drops the least recently used until at most ``tokens`` are held."""
        while self._entries and self.tokens > tokens:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self.tokens = 0

    def _drop(self, key: int) -> None:
        self.tokens -= len(self._entries.pop(key).ids)
