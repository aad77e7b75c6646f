"""Batch: what the learner gets. Trees of tokens with a weight on each sampled token that is trained. Imports no
torch."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from agentlightning.types import KeptIds


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

    ``weights`` has one entry per token, the token's advantage, and is None where nothing of the node is trained (given
    text, or masked). A token of weight NaN is masked although others of its node are trained. ``logprobs``,
    ``log_kept`` and ``kept`` are as in types.Segment and present on every sampled node; where log_kept comes without
    kept, ``constraint`` says what cut the support. ``unit`` numbers the rollout within the batch, for losses with
    sequence terms. ``temperature`` is the one the tokens were sampled at.
    """

    parent: int
    """-1 for a root; else the index of an earlier node of the same tree."""
    token_ids: array[int]
    sampled: bool
    weights: array[float] | None = None
    logprobs: array[float] | None = None
    log_kept: array[float] | None = None
    kept: KeptIds | None = None
    version: int = 0
    unit: int = 0
    temperature: float = 1.0
    constraint: Constraint | None = None


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
    """|delta logprob| between sampler and learner over the trained tokens, and the k3 estimate of the KL, before the
    first optimizer step."""

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
    """None where no token was trained, so that there was nothing to measure it on."""
    ratio_mean: float
    clip_fraction: float
    entropy: float
    """Mean negative logprob of the trained tokens: a one-sample estimate of the policy's entropy, in nats."""
    peak_memory: int
    seconds: float
