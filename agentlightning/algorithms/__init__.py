"""Algorithms, one file each. ``by_name`` finds the settings class that a run's ``[algorithm]`` table is read with."""

from __future__ import annotations

from agentlightning.algorithms.base import Algorithm
from agentlightning.algorithms.grpo import GRPO
from agentlightning.algorithms.policy_gradient import PolicyGradient
from agentlightning.errors import ConfigError
from agentlightning.spellings.absent import why

ALGORITHMS: dict[str, type[Algorithm]] = {GRPO.name: GRPO}


def by_name(name: str) -> type[Algorithm]:
    """The algorithm of that name. Raises ConfigError that lists the known ones."""
    if name not in ALGORITHMS:
        if sentence := why(name):
            raise ConfigError(f"algorithm {name!r}: {sentence}")
        raise ConfigError(f"algorithm {name!r} is not known; known: {', '.join(sorted(ALGORITHMS))}")
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "GRPO", "Algorithm", "PolicyGradient", "by_name"]
