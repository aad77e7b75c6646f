"""Traces: finished rollouts with everything that was recorded of them."""

from __future__ import annotations

from dataclasses import dataclass

from agentlightning.nouns import Attempt, Call, Node, Reward, Rollout, SpanRecord


@dataclass(frozen=True, slots=True)
class AttemptTrace:
    """One attempt with what was recorded of it. ``spans`` are what its agent told, in the order in which they began."""

    attempt: Attempt
    calls: tuple[Call, ...]
    nodes: tuple[Node, ...]
    rewards: tuple[Reward, ...] = ()
    spans: tuple[SpanRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A finished rollout with all its attempts, the one that counts last."""

    rollout: Rollout
    attempts: tuple[AttemptTrace, ...]

    @property
    def scored(self) -> bool:
        """Whether it has a final reward. A failure has none unless ``failure_reward`` names its reason."""
        return self.rollout.reward is not None


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task whose rewards are compared. ``number`` is its place in the run's order."""

    number: int
    traces: tuple[Trace, ...]
