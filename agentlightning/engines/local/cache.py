"""Keys and values: those of the requests that decode, one row each, and those of finished ones that a next turn may
begin with.

The only place where a token's keys and values are kept or copied. Knows token ids and rows, nothing of requests. Not
thread-safe: the engine's compute thread owns it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache

Ids = npt.NDArray[np.int32]
Prefix = list[torch.Tensor]
"""Keys and values of one sequence, for each stack of layers [layer, kv_head, token, head_dim]."""

_STACK = 8
"""Layers that share a tensor: fewer, larger copies, and yet only as much spare memory while rows grow as one stack
takes."""


def common_prefix(a: Ids, b: Ids) -> int:
    """How many leading ids are equal."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


class LayerShape(NamedTuple):
    heads: int
    key_width: int
    value_width: int


class ShapeProbe(Cache):
    """A cache that keeps nothing and learns what each layer would have it keep."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer_idx] = LayerShape(key_states.shape[1], key_states.shape[3], value_states.shape[3])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def __len__(self) -> int:
        return len(self.shapes)

    def __bool__(self) -> bool:
        return True


class SlotCache(Cache):
    """A transformers cache whose keys and values are rows, [row, kv_head, token, head_dim] per layer, each filled to
    its own length.

    Before each forward ``aim`` says which rows it is for and where its tokens stand. What a row holds above its own
    length is never attended to, but has to be finite, so memory is zeroed when it is made. ``generation`` changes
    whenever the memory is made anew.
    """

    def __init__(
        self, shapes: Mapping[int, LayerShape], dtype: torch.dtype, device: torch.device, spare_rows: int = 0
    ) -> None:
        """``spare_rows``: rows behind the last for whatever a forward writes that nobody wants."""
        super().__init__(layers=[])
        self.rows = 0
        self.tokens = 0
        self.generation = 0
        self._spare = spare_rows
        self._shapes = dict(sorted(shapes.items()))
        self._groups = [group[i : i + _STACK] for group in _alike(self._shapes) for i in range(0, len(group), _STACK)]
        self._stacks = [
            torch.zeros((len(group), 0, shape.heads, 0, width), dtype=dtype, device=device)
            for group in self._groups
            for shape in (self._shapes[group[0]],)
            for width in (shape.key_width, shape.value_width)
        ]
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rows: slice | torch.Tensor = slice(0, 0)
        self._rows_B1 = torch.empty(0, dtype=torch.long)
        self._positions_BT = torch.empty(0, dtype=torch.long)
        self._view = 0

    @property
    def token_bytes(self) -> int:
        """Bytes that one token of one row takes, over all layers."""
        size = self._stacks[0].element_size()
        return sum(shape.heads * (shape.key_width + shape.value_width) * size for shape in self._shapes.values())

    def aim(self, rows: slice | torch.Tensor, rows_B1: torch.Tensor, positions_BT: torch.Tensor, view: int) -> None:
        """Sets what the next forward writes (``positions_BT`` of ``rows_B1``) and reads (the first ``view`` tokens of
        ``rows``).

        A slice of rows is read in place; an index [B] is copied out.
        """
        self._rows, self._rows_B1, self._positions_BT, self._view = rows, rows_B1, positions_BT, view

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention layers, with [B, kv_head, T, head_dim]."""
        keys, values = self._layers[layer_idx]
        keys[self._rows_B1, :, self._positions_BT] = key_states.transpose(1, 2)
        values[self._rows_B1, :, self._positions_BT] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._view], values[self._rows, :, : self._view]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._view - self._positions_BT.shape[-1]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self._view, 0

    def __len__(self) -> int:
        return len(self._shapes)

    def __bool__(self) -> bool:
        return True

    # ------------------------------------------------------------------ rows

    def resize(self, rows: int, tokens: int) -> None:
        """Holds ``rows`` rows of ``tokens`` tokens from now on; what fits of the content stays."""
        r, t = min(rows, self.rows), min(tokens, self.tokens)
        for i, old in enumerate(self._stacks):
            layers, _, heads, _, width = old.shape
            new = old.new_zeros((layers, rows + self._spare if rows else 0, heads, tokens, width))
            new[:, :r, :, :t] = old[:, :r, :, :t]
            self._stacks[i] = new
        self.rows, self.tokens = rows, tokens
        self._changed()

    def free(self) -> None:
        """Gives the memory of all rows back."""
        self._stacks = [held[:, :0, :, :0].clone() for held in self._stacks]
        self.rows = self.tokens = 0
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        for g, group in enumerate(self._groups):
            keys, values = self._stacks[2 * g], self._stacks[2 * g + 1]
            self._layers |= {layer: (keys[i], values[i]) for i, layer in enumerate(group)}

    def move(self, source: int, target: int, length: int) -> None:
        for held in self._stacks:
            held[:, target, :, :length] = held[:, source, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        for held in self._stacks:
            kept = held[:, a, :, :length].clone()
            held[:, a, :, :length] = held[:, b, :, :length]
            held[:, b, :, :length] = kept

    def share(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copies the first ``length`` tokens of a row to others."""
        index = torch.tensor(targets, device=self._stacks[0].device)
        for held in self._stacks:
            held[:, index, :, :length] = held[:, source : source + 1, :, :length]

    def save(self, row: int, length: int) -> Prefix:
        return [held[:, row, :, :length].clone() for held in self._stacks]

    def load(self, row: int, prefix: Prefix, length: int) -> None:
        for held, kept in zip(self._stacks, prefix, strict=True):
            held[:, row, :, :length] = kept[:, :, :length]


def _alike(shapes: Mapping[int, LayerShape]) -> list[list[int]]:
    """Layers grouped by shape, in order."""
    groups: dict[LayerShape, list[int]] = {}
    for layer, shape in shapes.items():
        groups.setdefault(shape, []).append(layer)
    return list(groups.values())


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
        """(key, n): the entry that shares the longest prefix with ``ids``, and its length; (-1, 0) if none shares
        any."""
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
        for key in [
            k for k, e in self._entries.items() if len(e.ids) <= len(ids) and common_prefix(e.ids, ids) == len(e.ids)
        ]:
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
