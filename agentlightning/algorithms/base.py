"""Algorithm: decides which rollouts to ask for and what to do with them.

An algorithm is a settings class (so that a run's file, flags and Python say the same) with one coroutine, ``fit``, that
works through the ports of a run (ports.py). The policy-gradient family shares one loop (policy_gradient.py) and differs
in a hook of a few lines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from agentlightning.errors import ConfigError
from agentlightning.settings.fields import RunConfig, Settings

if TYPE_CHECKING:
    from agentlightning.algorithms.ports import Run
    from agentlightning.learning.objective import ObjectiveSettings


class Algorithm(Settings, ABC):
    """Base of all algorithms."""

    name: ClassVar[str]
    trains_weights: ClassVar[bool] = False
    """Whether it needs a policy. Where it does not, no model is loaded, and agents call external models alone."""

    needs_llm: ClassVar[bool] = True
    """Whether there has to be something that agents can call through the endpoint."""

    @abstractmethod
    def check(self, config: RunConfig) -> None:
        """Raises ConfigError for a combination of settings from which nothing could be learned. Called before anything
        loads."""

    def total_steps(self, config: RunConfig, tasks: int) -> int:
        """Steps of a whole run over that many tasks: as set, else one for each epoch."""
        return config.steps or config.epochs

    def objective(self) -> ObjectiveSettings:
        """What its policy is to minimise, where it trains one."""
        raise ConfigError(f"algorithm {self.name!r} trains weights and names no objective: write objective()")

    @abstractmethod
    async def fit(self, run: Run) -> None:
        """Drives the run from its last durable step to its end."""
