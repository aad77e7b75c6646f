"""Packing: from trees of tokens to the rows a model forwards, and the list of the tokens that are trained.

Pure: no model, no device, no loss. A *path* is what a model sees: the tokens from a root to a trained token. The flat
layout forwards one row per path; the tree layout forwards a trie of the group's paths, in which equal beginnings exist
once. Both list each trained token once, so both give the same loss and gradient. What no trained token depends on is
not forwarded at all.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from agentlightning.errors import RunFailed
from agentlightning.records.batch import Batch, TrainNode, TrainTree

Supports = Callable[[TrainNode], "np.ndarray[Any, np.dtype[np.int32]]"]
"""The ids that a node's constraint allowed at each of its tokens, [T, words], 32 ids a word (engines/grammar.py)."""

MAX_PADDING = 0.25
"""Flat rows are forwarded together while at most this share of the block is padding."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a forward costs, in multiply-adds: ``token`` per token (all matrices it passes), ``pair`` per pair of tokens
    that attention computes.

    A causal row of T tokens computes T*T/2 pairs. A tree's row computes, for each block of about ``block`` queries, all
    pairs with the keys that any of them sees; ``block`` None: all T*T, the kernels do not skip what a mask hides.
    """

    token: float
    pair: float
    block: int | None = None

    def causal(self, rows: int, length: int) -> float:
        """The cost of ``rows`` causal rows padded to ``length`` tokens."""
        return rows * (length * self.token + length * length / 2 * self.pair)

    def tree(self, spans: Sequence[Span]) -> float:
        """The cost of a tree's row."""
        pairs = sum(
            (span.stop - span.start) * (span.stop - span.start + sum(b - a for a, b in span.above)) for span in spans
        )
        return spans[-1].stop * self.token + pairs * self.pair


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a tree's row, ``start..stop - 1``, and the runs of tokens before it that its tokens may see: the
    path above its first."""

    start: int
    stop: int
    above: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """Every trained token of a batch, once. CPU tensors; ``_E`` runs over the tokens, group by group.

    ``columns_E`` are the batch's own, by name; none where nothing is trained. ``logprobs_E`` is what the sampler
    recorded under the full softmax at ``temperatures_E``, ``log_kept_E`` the log mass of the kept support (0 where
    nothing was cut), so that ``logprobs_E - log_kept_E`` is the behaviour's logprob. float64, so that no model's
    precision is cut. Of ``target_E``, which users gave, nobody knows them: NaN. ``sets_SW`` are the different sets of
    ids that grammars allowed, as bits of int32 words.
    """

    targets_E: Tensor
    columns_E: Mapping[str, Tensor]
    logprobs_E: Tensor
    log_kept_E: Tensor
    temperatures_E: Tensor
    units_E: Tensor
    target_E: Tensor
    sets_SW: Tensor

    @property
    def behaviour_E(self) -> Tensor:
        return self.logprobs_E - self.log_kept_E


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that are forwarded at once, and what the head computes of them.

    ``positions_BT`` is a token's depth on its path. ``ends_T`` is None for causal rows, padded at their ends; else
    there is one row in depth-first order and the tokens below token s are ``s..ends_T[s] - 1``, which is its whole
    mask: t sees s where ``s <= t < ends_T[s]``. ``spans`` cut that row for attention.

    The head computes ``U`` distributions: that of the token at flat place ``places_U`` (row * T + column) at
    ``temperatures_U``. Entry e of the block is the trained token ``entries_E[e]``, drawn from distribution
    ``rows_E[e]``; ``rows_E`` ascends. Where its support was cut, the kept ids are those ``kept_ids_K`` whose
    ``kept_entries_K`` is e; where a grammar alone cut it, e is in ``set_entries_G`` and they are set ``sets_G`` of
    ``Trained.sets_SW``.
    """

    token_ids_BT: Tensor
    positions_BT: Tensor
    ends_T: Tensor | None
    spans: tuple[Span, ...]
    tokens: int
    """Without the padding."""
    places_U: Tensor
    temperatures_U: Tensor
    rows_E: Tensor
    entries_E: Tensor
    kept_ids_K: Tensor
    kept_entries_K: Tensor
    set_entries_G: Tensor
    sets_G: Tensor


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """A group's blocks. Its trained tokens are the entries ``start..stop - 1``; ``flat_tokens`` is what the flat layout
    would have forwarded."""

    blocks: tuple[Block, ...]
    layout: Literal["tree", "flat"]
    start: int
    stop: int
    flat_tokens: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed batch: the groups that have anything to train, and all their trained tokens."""

    groups: tuple[PackedGroup, ...]
    trained: Trained


def pack(
    batch: Batch,
    *,
    layout: Literal["auto", "tree", "flat"],
    max_row_tokens: int,
    cost: Cost,
    max_tree_depth: int | None = None,
    supports: Supports | None = None,
) -> Packed:
    """Packs every group, as ``layout`` says or, for ``auto``, as the counted cost says.

    Groups and their trees are put in the order of their rollout ids first, so that a batch gives the same bits in
    whatever order its rollouts finished. ``max_tree_depth`` is where the model's own mask would differ from a tree's (a
    sliding window). ``supports`` is asked once for each node with a constraint and trained tokens.

    Raises RunFailed when a path is longer than ``max_row_tokens`` (or, with layout ``tree``, than ``max_tree_depth``),
    ValueError when a tree breaks the contract of records/batch.py.
    """
    table = _Table(supports)
    groups: list[PackedGroup] = []
    for trees in sorted(
        (sorted(group, key=_rollout) for group in batch.groups), key=lambda group: [_rollout(tree) for tree in group]
    ):
        start = len(table.targets)
        paths = [path for tree in trees for path in _paths(_Needed(tree, table), max_row_tokens)]
        if not paths:
            continue
        depth = max(path.length for path in paths)
        if layout == "tree" and max_tree_depth is not None and depth > max_tree_depth:
            raise RunFailed(
                f"learner.layout='tree' with a path of {depth} tokens: the model's sliding window of {max_tree_depth} "
                "tokens is not part of a tree's mask; use 'auto' or 'flat'"
            )
        flat = layout == "flat" or (max_tree_depth is not None and depth > max_tree_depth)
        flat_rows = _flat_rows(paths, max_row_tokens)
        tree_rows = [] if flat else [_Tree(row, cost.block) for row in _tree_rows(paths, max_row_tokens)]
        if layout == "auto" and not flat:
            flat_cost = sum(cost.causal(len(rows), rows[0].length) for rows in flat_rows)
            flat = flat_cost <= sum(
                cost.causal(1, len(row.ids)) if row.chain else cost.tree(row.spans) for row in tree_rows
            )
        done: set[tuple[int, int]] = set()
        blocks = (
            [_flat_block(rows, done, table) for rows in flat_rows] if flat else [row.block(table) for row in tree_rows]
        )
        flat_tokens = sum(path.length for path in paths)
        groups.append(PackedGroup(tuple(blocks), "flat" if flat else "tree", start, len(table.targets), flat_tokens))
    return Packed(tuple(groups), table.done())


def _rollout(tree: TrainTree) -> str:
    return tree.rollout_id


# --------------------------------------------------------------------------- what of a tree is needed


@dataclass(slots=True)
class _Table:
    """The trained tokens, while they are collected. ``sets`` numbers the different sets of ids, as bytes; ``set_of``
    has the number of an entry's."""

    supports: Supports | None
    targets: list[int] = field(default_factory=list[int])
    columns: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    logprobs: list[float] = field(default_factory=list[float])
    log_kept: list[float] = field(default_factory=list[float])
    temperatures: list[float] = field(default_factory=list[float])
    units: list[int] = field(default_factory=list[int])
    given: list[bool] = field(default_factory=list[bool])
    kept: dict[int, array[int]] = field(default_factory=dict[int, "array[int]"])
    sets: dict[bytes, int] = field(default_factory=dict[bytes, int])
    set_of: dict[int, int] = field(default_factory=dict[int, int])

    def add_all(self, tree: TrainTree, node: TrainNode, places: Sequence[int]) -> list[tuple[int, int]]:
        """Lists the tokens at ``places`` of a node and returns them as (place, entry)."""
        if places:
            self._add_columns(tree, node, places)
        added = [(t, self._add(node, t)) for t in places]
        if added and node.log_kept is not None and node.kept is None:
            if self.supports is None:
                raise RunFailed(
                    f"rollout {tree.rollout_id} was sampled under a grammar, and this learner was made without "
                    "`grammars` to replay it"
                )
            words_TW = self.supports(node)
            for t, entry in added:
                self.set_of[entry] = self.sets.setdefault(words_TW[t].tobytes(), len(self.sets))
        return added

    def _add_columns(self, tree: TrainTree, node: TrainNode, places: Sequence[int]) -> None:
        if not self.targets:
            self.columns = {name: [] for name in node.columns}
        if node.columns.keys() != self.columns.keys():
            raise ValueError(
                f"rollout {tree.rollout_id} has the columns {', '.join(node.columns)}, and others of its batch have "
                f"{', '.join(self.columns)}"
            )
        for name, values in node.columns.items():
            self.columns[name] += [values[t] for t in places]

    def _add(self, node: TrainNode, t: int) -> int:
        assert node.logprobs is not None or node.target
        entry = len(self.targets)
        self.targets.append(node.token_ids[t])
        self.logprobs.append(math.nan if node.logprobs is None else node.logprobs[t])
        self.given.append(node.target)
        self.temperatures.append(node.temperature if node.temperature > 0 else 1.0)
        self.units.append(node.unit)
        self.log_kept.append(0.0 if node.log_kept is None else node.log_kept[t])
        if node.kept is not None:
            self.kept[entry] = node.kept.ids[node.kept.offsets[t] : node.kept.offsets[t + 1]]
        return entry

    def done(self) -> Trained:
        return Trained(
            targets_E=torch.tensor(self.targets, dtype=torch.long),
            columns_E={name: torch.tensor(values, dtype=torch.float64) for name, values in self.columns.items()},
            logprobs_E=torch.tensor(self.logprobs, dtype=torch.float64),
            log_kept_E=torch.tensor(self.log_kept, dtype=torch.float64),
            temperatures_E=torch.tensor(self.temperatures, dtype=torch.float64),
            units_E=torch.tensor(self.units, dtype=torch.long),
            target_E=torch.tensor(self.given, dtype=torch.bool),
            sets_SW=torch.frombuffer(bytearray(b"".join(self.sets)), dtype=torch.int32).view(len(self.sets), -1)
            if self.sets
            else _NO_SETS,
        )


_NO_SETS = torch.empty(0, 0, dtype=torch.int32)


class _Needed:
    """A tree cut down to what its trained tokens depend on.

    ``keep[n]`` is how many of node n's tokens are inputs, None where neither it nor a node below it is trained.
    ``entries[n]`` are node n's trained tokens as (place in the node, entry). The last trained token of a path is
    predicted but never an input.
    """

    def __init__(self, tree: TrainTree, table: _Table) -> None:
        nodes = tree.nodes
        self.tree = tree
        self.depth: list[int] = []
        self.entries: list[list[tuple[int, int]]] = []
        self.children: list[list[int]] = [[] for _ in nodes]
        self.roots: list[int] = []
        for index, node in enumerate(nodes):
            if not -1 <= node.parent < index:
                raise ValueError(
                    f"rollout {tree.rollout_id}: node {index} names parent {node.parent}, which is not before it"
                )
            before = 0 if node.parent < 0 else self.depth[node.parent] + len(nodes[node.parent].token_ids)
            self.depth.append(before)
            (self.roots if node.parent < 0 else self.children[node.parent]).append(index)
            _check(tree, index, node)
            # The first token of a path has nothing that predicts it.
            self.entries.append(table.add_all(tree, node, [t for t in node.trained if before + t > 0]))
        self.keep: list[int | None] = [entries[-1][0] if entries else None for entries in self.entries]
        for index in range(len(nodes) - 1, -1, -1):
            if any(self.keep[child] is not None for child in self.children[index]):
                self.keep[index] = len(nodes[index].token_ids)


def _check(tree: TrainTree, index: int, node: TrainNode) -> None:
    if not node.columns:
        return
    where = f"rollout {tree.rollout_id}: node {index}"
    count = len(node.token_ids)
    if not node.sampled and not node.target:
        raise ValueError(
            f"{where} has columns and was not sampled: only sampled tokens, and given targets, are trained"
        )
    if any(len(values) != count for values in node.columns.values()):
        raise ValueError(f"{where} has {count} tokens and not as many in each of its columns")
    if node.sampled and (node.logprobs is None or len(node.logprobs) != count):
        raise ValueError(f"{where} has {count} tokens and not as many logprobs")
    if (node.log_kept is None) != (node.kept is None) and (node.log_kept is None or node.constraint is None):
        raise ValueError(
            f"{where} has only one of log_kept and kept: the new logprob cannot be renormalised over the kept tokens"
        )
    if (node.log_kept is not None and len(node.log_kept) != count) or (
        node.kept is not None and len(node.kept.offsets) - 1 != count
    ):
        raise ValueError(f"{where} has {count} tokens and not as many log_kept and kept supports")


@dataclass(frozen=True, slots=True)
class _Path:
    """A path to a last trained token: the nodes on it, and its tokens (``length`` of them are inputs)."""

    needed: _Needed
    nodes: tuple[int, ...]
    length: int


def _paths(needed: _Needed, max_row_tokens: int) -> Iterable[_Path]:
    """The needed paths of a tree, depth first, so that neighbours share most."""
    stack: list[tuple[int, tuple[int, ...]]] = [(root, (root,)) for root in reversed(needed.roots)]
    while stack:
        index, nodes = stack.pop()
        keep = needed.keep[index]
        if keep is None:
            continue
        below = [child for child in needed.children[index] if needed.keep[child] is not None]
        stack.extend((child, (*nodes, child)) for child in reversed(below))
        if not below:
            length = needed.depth[index] + keep
            if length > max_row_tokens:
                raise RunFailed(
                    f"rollout {needed.tree.rollout_id}: a path of {length} tokens is longer than "
                    f"learner.max_row_tokens={max_row_tokens}; raise it, leave such rows out "
                    "(algorithm.credit.max_row_length), or give the agent's conversations a limit"
                )
            yield _Path(needed, nodes, length)


# --------------------------------------------------------------------------- rows


class _Row:
    """A trie of paths under construction. Slots are tokens in the order they were added: parents before children."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.entries: list[tuple[int, int]] = []
        """(slot of the predictor, entry)"""
        self._next: dict[tuple[int, int], int] = {}
        self._slots: dict[tuple[int, int], int] = {}

    @property
    def chain(self) -> bool:
        """Whether it is a single path, which needs no mask."""
        return all(parent == slot - 1 for slot, parent in enumerate(self.parents))

    def fits(self, path: _Path, cap: int) -> bool:
        """Whether the row would still hold at most ``cap`` tokens with the path."""
        if len(self.ids) + path.length <= cap:
            return True
        slot, matched = -1, 0
        for token in _tokens(path):
            found = self._next.get((slot, token))
            if found is None:
                break
            slot, matched = found, matched + 1
        return len(self.ids) + path.length - matched <= cap

    def add(self, path: _Path, done: set[tuple[int, int]]) -> None:
        """Adds a path. The trained tokens of nodes in ``done`` are another row's; those added here join it."""
        slot = -1
        needed = path.needed
        for index in path.nodes:
            key = (id(needed), index)
            if key in self._slots:
                slot = self._slots[key]
                continue
            ids = needed.tree.nodes[index].token_ids[: needed.keep[index]]
            before = slot
            slots = [slot := self._step(slot, token) for token in ids]
            self._slots[key] = slot
            if key not in done:
                done.add(key)
                self.entries += [(slots[t - 1] if t else before, entry) for t, entry in needed.entries[index]]

    def _step(self, slot: int, token: int) -> int:
        key = (slot, token)
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = len(self.ids)
            self.ids.append(token)
            self.parents.append(slot)
        return found


def _tokens(path: _Path) -> Iterable[int]:
    for index in path.nodes:
        yield from path.needed.tree.nodes[index].token_ids[: path.needed.keep[index]]


def _tree_rows(paths: Sequence[_Path], cap: int) -> list[_Row]:
    """Fills rows with paths in order, a new one where the next path would not fit. What two rows share is forwarded in
    both, and trained in the first."""
    rows = [_Row()]
    done: set[tuple[int, int]] = set()
    for path in paths:
        if not rows[-1].fits(path, cap):
            rows.append(_Row())
        rows[-1].add(path, done)
    return rows


def _flat_rows(paths: Sequence[_Path], cap: int) -> list[list[_Path]]:
    """Paths of like length together, longest first, a block's padded tokens at most ``cap``."""
    blocks: list[list[_Path]] = []
    for path in sorted(paths, key=lambda path: -path.length):
        block = blocks[-1] if blocks else []
        longest = block[0].length if block else 0
        if block and (len(block) + 1) * longest <= cap and path.length >= (1 - MAX_PADDING) * longest:
            block.append(path)
        else:
            blocks.append([path])
    return blocks


# --------------------------------------------------------------------------- blocks


class _Tree:
    """A row's slots in depth-first order, cut into spans. ``ends[s]`` is where the tokens below s end."""

    def __init__(self, row: _Row, span_tokens: int | None) -> None:
        self.chain = row.chain
        count = len(row.ids)
        size = [1] * count
        for slot in range(count - 1, -1, -1):
            if row.parents[slot] >= 0:
                size[row.parents[slot]] += size[slot]
        place = [0] * count
        free = [0] * (count + 1)  # where the next child of a slot goes; the last is for the roots
        self.ids, self.ends, self.parents, self.positions = ([0] * count for _ in range(4))
        for slot, parent in enumerate(row.parents):
            at = place[slot] = free[parent]
            free[parent] += size[slot]
            free[slot] = at + 1
            self.ids[at], self.ends[at], self.parents[at] = (
                row.ids[slot],
                at + size[slot],
                place[parent] if parent >= 0 else -1,
            )
            self.positions[at] = self.positions[place[parent]] + 1 if parent >= 0 else 0
        self.entries = [(place[slot], entry) for slot, entry in row.entries]
        self.spans = tuple(self._spans(span_tokens or count))

    def _spans(self, tokens: int) -> Iterable[Span]:
        """Cuts after about ``tokens`` tokens, earlier where a branch begins and half of that is reached."""
        start, count = 0, len(self.ids)
        for at in range(1, count + 1):
            branches = at < count and self.parents[at] != at - 1
            if at == count or at - start >= (tokens / 2 if branches else tokens):
                yield Span(start, at, self._above(start))
                start = at

    def _above(self, at: int) -> tuple[tuple[int, int], ...]:
        """The path above a token as runs of neighbours, from the root."""
        runs: list[tuple[int, int]] = []
        at = self.parents[at]
        while at >= 0:
            stop = at + 1
            while self.parents[at] == at - 1 >= 0:
                at -= 1
            runs.append((at, stop))
            at = self.parents[at]
        return tuple(reversed(runs))

    def block(self, table: _Table) -> Block:
        ends_T = None if self.chain else torch.tensor(self.ends)
        return _block([self.ids], self.entries, ends_T, torch.tensor(self.positions)[None], table, self.spans)


def _flat_block(paths: Sequence[_Path], done: set[tuple[int, int]], table: _Table) -> Block:
    length = paths[0].length
    rows: list[list[int]] = []
    entries: list[tuple[int, int]] = []
    for number, path in enumerate(paths):
        row = _Row()
        row.add(path, done)
        rows.append(row.ids)
        entries += [(number * length + slot, entry) for slot, entry in row.entries]
    return _block(rows, entries, None, torch.arange(length).expand(len(rows), length), table)


def _block(
    rows: list[list[int]],
    entries: list[tuple[int, int]],
    ends_T: Tensor | None,
    positions_BT: Tensor,
    table: _Table,
    spans: tuple[Span, ...] = (),
) -> Block:
    length = len(rows[0])
    wanted = sorted((place, table.temperatures[entry], entry) for place, entry in entries)
    distributions = sorted({(place, temperature) for place, temperature, _ in wanted})
    row_of = {key: row for row, key in enumerate(distributions)}
    kept_ids, kept_entries = array("i"), array("i")
    constrained = [
        (number, table.set_of[entry]) for number, (_, _, entry) in enumerate(wanted) if entry in table.set_of
    ]
    for number, (_, _, entry) in enumerate(wanted):
        if (ids := table.kept.get(entry)) is not None:
            kept_ids.extend(ids)
            kept_entries.extend(array("i", [number]) * len(ids))
    return Block(
        token_ids_BT=torch.tensor([ids + [0] * (length - len(ids)) for ids in rows], dtype=torch.long),
        positions_BT=positions_BT,
        ends_T=ends_T,
        spans=spans,
        tokens=sum(len(ids) for ids in rows),
        places_U=torch.tensor([place for place, _ in distributions], dtype=torch.long),
        temperatures_U=torch.tensor([temperature for _, temperature in distributions], dtype=torch.float64),
        rows_E=torch.tensor([row_of[place, temperature] for place, temperature, _ in wanted], dtype=torch.long),
        entries_E=torch.tensor([entry for _, _, entry in wanted], dtype=torch.long),
        kept_ids_K=_long(kept_ids),
        kept_entries_K=_long(kept_entries),
        set_entries_G=torch.tensor([number for number, _ in constrained], dtype=torch.long),
        sets_G=torch.tensor([number for _, number in constrained], dtype=torch.long),
    )


def _long(values: array[int]) -> Tensor:
    return torch.frombuffer(values, dtype=torch.int32).long() if values else torch.empty(0, dtype=torch.long)
