"""Scheme: how rewards reach the calls of a rollout, as the terms of a sum.

A term says what is compared, rollouts or calls, and what each is worth before it is compared. An algorithm's rule makes
advantages of what is compared (credit/step.py); where there are several terms, a call's advantage is the weighted sum
of what it has in each of them. A scheme is one file with an object of this kind, listed in ``__init__.py``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentlightning.nouns import Call
from agentlightning.records.traces import AttemptTrace, Trace

ROLLOUT, CALLS = "rollout", "calls"
"""Whose rewards a term reads."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A scored rollout as a term sees it: its trace, the attempt that counts, and its calls to policies in their order.
    Where agents are told apart, it is the episode of one ``agent``, with that one's calls alone."""

    trace: Trace
    attempt: AttemptTrace
    calls: Sequence[Call]
    agent: str | None = None


Worth = float | Mapping[int, float]
"""What an episode is worth: one number for all of it, or one for each call, by index. A call that is left out has
none."""


@dataclass(frozen=True, slots=True)
class Term:
    """``reads`` names whose rewards it reads: those of the ``rollout``, of its ``calls``, or both."""

    worth: Callable[[Episode], Worth]
    reads: tuple[str, ...]
    weight: float = 1.0

    @property
    def per_call(self) -> bool:
        return CALLS in self.reads


class Weights(Protocol):
    """What schemes read of ``[algorithm.credit]`` (credit/settings.py says what each is)."""

    @property
    def discount(self) -> float: ...
    @property
    def episode_weight(self) -> float: ...
    @property
    def call_weight(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Scheme:
    """``settings`` are those of ``[algorithm.credit]`` that it reads and others may not."""

    terms: Callable[[Weights], Sequence[Term]]
    settings: tuple[str, ...] = ()
