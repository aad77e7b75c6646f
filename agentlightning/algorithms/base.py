"""Algorithm: decides which rollouts to ask for and what to do with them.

An algorithm is a settings class (so that a run's file, flags and Python say the same) with one coroutine, ``fit``, that
drives a Run. The policy-gradient family shares one loop (policy_gradient.py) and differs in a hook of a few lines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from agentlightning.settings.fields import RunConfig, Settings

if TYPE_CHECKING:
    from agentlightning.run.active import Run


class Algorithm(Settings, ABC):
    """Base of all algorithms."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, config: RunConfig) -> None:
        """Raises ConfigError for a combination of settings from which nothing could be learned. Called before anything
        loads."""

    @abstractmethod
    async def fit(self, run: Run) -> None:
        """Drives the run from its last durable step to its end."""
