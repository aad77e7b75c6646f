"""``agentlightning.algorithm`` as programs import it."""

from __future__ import annotations

from agentlightning.algorithms import GRPO, Algorithm
from agentlightning.compat.verl import VERL

__all__ = ["GRPO", "VERL", "Algorithm"]
