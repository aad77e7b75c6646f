"""Algorithms, one file each, and the table of them."""

from __future__ import annotations

from agentlightning.algorithms.base import Algorithm
from agentlightning.algorithms.grpo import GRPO
from agentlightning.algorithms.policy_gradient import PolicyGradient

ALGORITHMS: dict[str, type[Algorithm]] = {GRPO.name: GRPO}
"""The settings class that a run's ``[algorithm]`` table is read with, by the name in it."""

__all__ = ["ALGORITHMS", "GRPO", "Algorithm", "PolicyGradient"]
