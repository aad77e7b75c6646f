"""What opening a run needs of a policy, besides the port that its algorithm is handed. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from agentlightning.engines.local.cores import Machine, Reading
from agentlightning.learning.objective import ObjectiveSettings
from agentlightning.settings.fields import RunConfig

if TYPE_CHECKING:
    from agentlightning.engines.local.scheduler import Load
    from agentlightning.gateway.served import Served
    from agentlightning.records.progress import Progress


@dataclass(frozen=True, slots=True)
class Learning:
    """What a policy is opened with that is to learn. ``total_steps`` is how long the learning rate's schedule is."""

    objective: ObjectiveSettings
    total_steps: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a policy is opened in: who is told how it gets on, the machine, and what that looked like a moment ago.
    ``say`` tells the user a line, from any thread."""

    progress: Progress
    machine: Machine
    began: Reading
    say: Callable[[str], None]


class OpenedPolicy(Protocol):
    """A policy as the run that opened it has it. Its class also satisfies ``Policy`` of algorithms/ports.py."""

    @classmethod
    async def open(cls, name: str, config: RunConfig, surroundings: Surroundings, learning: Learning | None) -> Self:
        """Loads the model and starts what samples it; with ``learning`` also what trains it.

        Raises ModelError, ConfigError or MissingExtra, in one line, where that cannot be.
        """
        ...

    @property
    def served(self) -> Served:
        """What the gateway samples with."""
        ...

    def busy(self) -> Load:
        """What it has in hand just now, and how many tokens it has drawn."""
        ...

    async def close(self) -> None:
        """Ends sampling: what is live or waiting fails by name."""
        ...
