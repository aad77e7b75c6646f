"""``agentlightning.algorithm`` as programs import it."""

from __future__ import annotations

from agentlightning.algorithms import GRPO
from agentlightning.compat.own_algorithm import Algorithm, Baseline, FastAlgorithm, algo
from agentlightning.compat.verl import VERL

__all__ = ["GRPO", "VERL", "Algorithm", "Baseline", "FastAlgorithm", "algo"]
