"""Learning: what a policy is opened with that is to learn. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from agentlightning.learning.objective import ObjectiveSettings


@dataclass(frozen=True, slots=True)
class Learning:
    """``total_steps`` is how long the learning rate's schedule is."""

    objective: ObjectiveSettings
    total_steps: int
