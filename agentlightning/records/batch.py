"""Batch: what the learner gets. Trees of tokens with named columns on each sampled token that is trained. Imports no
torch."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentlightning.nouns import KeptIds


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar that a node's tokens were drawn under. The ids it allowed are not recorded: they follow from its text
    and from what was sampled.

    ``before`` are the tokens of the same sample that lie in nodes above.
    """

    grammar: str
    stop_token_ids: tuple[int, ...]
    before: array[int]


@dataclass(frozen=True, slots=True)
class TrainNode:
    """A node of a tree to train on: the tokens it adds to its parent's path.

    ``columns`` are what the objective reads of each token (``advantage``, ``return``, ...; learning/objective.py), one
    entry per token, and empty where nothing of the node is trained (given text, or masked). All trained nodes of a
    batch have the same ones. A token with a NaN is masked although others of its node are trained. ``logprobs``,
    ``log_kept`` and ``kept`` are as in nouns.Segment and present on every sampled node; where log_kept comes without
    kept, ``constraint`` says what cut the support. ``unit`` numbers the rollout within the batch, for losses with
    sequence terms. ``temperature`` is the one the tokens were sampled at. ``target``: the user gave the tokens as what
    is to be learned; nobody sampled them, and they have no logprobs.
    """

    parent: int
    """-1 for a root; else the index of an earlier node of the same tree."""
    token_ids: array[int]
    sampled: bool
    columns: Mapping[str, array[float]] = field(default_factory=dict[str, "array[float]"])
    logprobs: array[float] | None = None
    log_kept: array[float] | None = None
    kept: KeptIds | None = None
    version: int = 0
    unit: int = 0
    temperature: float = 1.0
    constraint: Constraint | None = None
    target: bool = False

    @property
    def trained(self) -> list[int]:
        """The places of the tokens that are not masked."""
        if not self.columns:
            return []
        masked = {t for values in self.columns.values() for t, value in enumerate(values) if math.isnan(value)}
        return [t for t in range(len(self.token_ids)) if t not in masked]


@dataclass(frozen=True, slots=True)
class TrainTree:
    """One rollout's tokens."""

    nodes: tuple[TrainNode, ...]
    rollout_id: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's data. Each group holds trees that are likely to share a prompt, and is packed together."""

    groups: tuple[tuple[TrainTree, ...], ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """|delta logprob| between sampler and learner over the sampled tokens that are trained, and the k3 estimate of the
    KL, before the first optimizer step."""

    max: float
    mean: float
    k3: float
    tokens: int


@dataclass(frozen=True, slots=True)
class LearnerStats:
    """What one `Learner.step` did. Times in seconds, memory in bytes, tokens as counts."""

    loss: float
    grad_norm: float
    lr: float
    trained_tokens: int
    forward_tokens: int
    """Tokens forwarded with the layout taken."""
    flat_tokens: int
    """Tokens the flat layout would have forwarded."""
    rows: int
    tree_groups: int
    flat_groups: int
    parity: Parity | None
    """None where no sampled token was trained, so that there was nothing to measure it on."""
    statistics: Mapping[str, float]
    """What the objective measured, by name, and ``entropy``: the mean negative logprob of the sampled tokens that were
    trained, a one-sample estimate of the policy's entropy, in nats."""
    peak_memory: int
    seconds: float
    target_tokens: int = 0
    """Trained tokens that users gave as targets; they are not among the ``trained_tokens``."""
