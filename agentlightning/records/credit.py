"""Credit: what a step's training did with every sampled token of an attempt, and the form in which it is stored.

A token was trained with a weight, or masked for a named reason. Both are kept per node: one weight where all trained
tokens of a node have the same, else one for each, and runs of masked tokens with their reasons. Whoever shows credit
reads this; nobody works it out a second time. Pure.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agentlightning.errors import AgentLightningError

VERSION = 1
"""The first byte of the stored form."""


class CreditUnreadable(AgentLightningError):
    """Stored credit is of a form that this version does not know, or was cut short."""


@dataclass(frozen=True, slots=True)
class MaskedRun:
    """``count`` tokens of a node from ``start`` on, masked for one reason."""

    start: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeCredit:
    """One sampled node. Make it with ``of``.

    ``node`` is its id in the attempt's tree, ``tokens`` how many it adds. ``weights`` are those of its trained tokens
    in order, a single one where all are equal to the bit, none where no token is trained. ``masked`` are in order and
    do not touch where their reasons are equal.
    """

    node: int
    tokens: int
    weights: array[float]
    masked: tuple[MaskedRun, ...] = ()

    @classmethod
    def of(cls, node: int, tokens: int, weights: Sequence[float], masked: Iterable[MaskedRun] = ()) -> NodeCredit:
        """From one weight for each trained token, or a single one for all of them. Raises ValueError where weights and
        masked tokens do not make up the node, or a weight is not a finite number."""
        runs: list[MaskedRun] = []
        end = 0
        for run in masked:
            if run.start < end or run.count < 1 or run.start + run.count > tokens:
                raise ValueError(f"node {node} of {tokens} tokens can not have {run} masked after token {end}")
            if runs and run.start == end and run.reason == runs[-1].reason:
                runs[-1] = MaskedRun(runs[-1].start, runs[-1].count + run.count, run.reason)
            else:
                runs.append(run)
            end = run.start + run.count
        trained = tokens - sum(run.count for run in runs)
        values = array("f", weights)
        if len(values) != trained and (len(values) != 1 or not trained):
            raise ValueError(f"node {node} has {trained} trained tokens and {len(values)} weights")
        if not all(map(math.isfinite, values)):
            raise ValueError(f"node {node} has a weight that is not a finite number")
        if len(values) > 1 and values.tobytes() == values[:1].tobytes() * len(values):
            values = values[:1]
        return cls(node, tokens, values, tuple(runs))

    @property
    def trained(self) -> int:
        """Tokens that have a weight."""
        return self.tokens - sum(run.count for run in self.masked) if self.masked else self.tokens

    @property
    def why(self) -> str | None:
        """The reason where the node is masked as a whole for a single one."""
        whole = len(self.masked) == 1 and self.masked[0].count == self.tokens
        return self.masked[0].reason if whole else None

    def masked_as(self, reason: str) -> NodeCredit:
        """The same with its trained tokens masked."""
        runs: list[MaskedRun] = []
        at = 0
        for run in (*self.masked, MaskedRun(self.tokens, 0, reason)):
            runs += [MaskedRun(at, run.start - at, reason)] if run.start > at else []
            runs += [run] if run.count else []
            at = run.start + run.count
        return NodeCredit.of(self.node, self.tokens, (), runs)

    def per_token(self) -> array[float]:
        """One weight for each token, NaN where it is masked."""
        every = self.weights * self.tokens if len(self.weights) == 1 else self.weights
        if not self.masked:
            return every[: self.tokens]
        out = array("f")
        taken = 0
        for run in self.masked:
            before = run.start - len(out)
            out += every[taken : taken + before]
            taken += before
            out += array("f", [math.nan]) * run.count
        return out + every[taken : taken + self.tokens - len(out)]


@dataclass(frozen=True)
class AttemptCredit:
    """All sampled nodes of an attempt, in the order of its tree, and apart from them those that the user gave as
    targets, ``given``. ``sampled == trained + sum(masked.values())``, in sampled tokens."""

    nodes: tuple[NodeCredit, ...]
    given: tuple[NodeCredit, ...] = ()

    @cached_property
    def by_node(self) -> Mapping[int, NodeCredit]:
        return {node.node: node for node in (*self.nodes, *self.given)}

    def part(self, nodes: Collection[int]) -> AttemptCredit:
        """That of some nodes, by their ids."""
        sampled, given = ([one for one in part if one.node in nodes] for part in (self.nodes, self.given))
        return AttemptCredit(tuple(sampled), tuple(given))

    @property
    def sampled(self) -> int:
        return sum(node.tokens for node in self.nodes)

    @property
    def trained(self) -> int:
        return sum(node.trained for node in self.nodes)

    @property
    def masked(self) -> dict[str, int]:
        """Tokens by reason."""
        counted: Counter[str] = Counter()
        for node in self.nodes:
            for run in node.masked:
                counted[run.reason] += run.count
        return dict(counted)

    def encode(self) -> bytes:
        """The stored form.

        A version byte; the reasons (a count, then each as a length and UTF-8); the number of nodes. Of each node: its
        id, its tokens, the number of its weights and of its masked runs, the weights as little-endian float32, and of
        each run the tokens since the one before, its length and its reason's place. Then, where there are any, the
        number of nodes that were given and the same of each. Numbers are unsigned LEB128.
        """
        every = (*self.nodes, *self.given)
        reasons = {reason: place for place, reason in enumerate(AttemptCredit(every).masked)}
        out = bytearray([VERSION])
        _put(out, len(reasons))
        for reason in reasons:
            text = reason.encode()
            _put(out, len(text))
            out += text
        for part in (self.nodes, self.given) if self.given else (self.nodes,):
            _put(out, len(part))
            for node in part:
                _put_node(out, node, reasons)
        return bytes(out)

    @classmethod
    def decode(cls, blob: bytes) -> AttemptCredit:
        """Reads what ``encode`` wrote. Raises CreditUnreadable."""
        if not blob or blob[0] != VERSION:
            form = f"form {blob[0]}" if blob else "no form"
            raise CreditUnreadable(
                f"stored credit has {form}, and this version reads form {VERSION}: it was made by another one"
            )
        try:
            reader = _Reader(blob)
            reasons = [reader.take(reader.number()).decode() for _ in range(reader.number())]
            nodes = _nodes(reader, reasons)
            given = () if reader.at_end else _nodes(reader, reasons, at_least=1)
            reader.end()
            return cls(nodes, given)
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            raise CreditUnreadable(f"stored credit of {len(blob)} bytes is damaged: {error}") from error


def join(parts: Iterable[AttemptCredit]) -> AttemptCredit:
    """The credit of one attempt from that of each of its policies."""
    parts = list(parts)

    def ordered(nodes: Iterable[NodeCredit]) -> tuple[NodeCredit, ...]:
        return tuple(sorted(nodes, key=lambda node: node.node))

    return AttemptCredit(
        ordered(node for part in parts for node in part.nodes), ordered(node for part in parts for node in part.given)
    )


class _Reader:
    """Reads the stored form from after its version byte on."""

    def __init__(self, blob: bytes) -> None:
        self._blob, self._at = blob, 1

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._blob[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, count: int) -> bytes:
        taken = self._blob[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("it ends too early")
        self._at += count
        return taken

    @property
    def at_end(self) -> bool:
        return self._at == len(self._blob)

    def end(self) -> None:
        if not self.at_end:
            raise ValueError(f"{len(self._blob) - self._at} bytes follow its end")


def _nodes(reader: _Reader, reasons: Sequence[str], at_least: int = 0) -> tuple[NodeCredit, ...]:
    count = reader.number()
    if count < at_least:
        raise ValueError("a part without nodes follows its end")
    nodes: list[NodeCredit] = []
    for _ in range(count):
        node, tokens, weights, runs = (reader.number() for _ in range(4))
        values = array("f")
        values.frombytes(reader.take(4 * weights))
        masked: list[MaskedRun] = []
        end = 0
        for _ in range(runs):
            start = end + reader.number()
            masked.append(MaskedRun(start, reader.number(), reasons[reader.number()]))
            end = start + masked[-1].count
        nodes.append(NodeCredit.of(node, tokens, _little_endian(values), masked))
    return tuple(nodes)


def _put_node(out: bytearray, node: NodeCredit, reasons: Mapping[str, int]) -> None:
    for value in (node.node, node.tokens, len(node.weights), len(node.masked)):
        _put(out, value)
    out += _little_endian(node.weights).tobytes()
    end = 0
    for run in node.masked:
        for value in (run.start - end, run.count, reasons[run.reason]):
            _put(out, value)
        end = run.start + run.count


def _put(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _little_endian(values: array[float]) -> array[float]:
    if sys.byteorder == "little":
        return values
    swapped = array("f", values)
    swapped.byteswap()
    return swapped
