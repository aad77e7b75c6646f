"""Ports: what a run hands to its algorithm, as protocols.

An algorithm decides which rollouts to ask for and what to learn from them; the ports do the rest. Whoever runs it
builds the real ones (run/, policies/); a test of an algorithm scripts them. What they hand over are records. This
module imports nothing of what is behind a port.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentlightning.errors import ConfigError
from agentlightning.nouns import CreditRow, Json, Mode, Rollout
from agentlightning.settings.fields import RunConfig

if TYPE_CHECKING:
    from agentlightning.algorithms.task_order import TaskOrder
    from agentlightning.learning.objective import ObjectiveSettings
    from agentlightning.records.batch import Batch, LearnerStats
    from agentlightning.records.ledger import Ledger
    from agentlightning.records.probe import AgentProbe
    from agentlightning.records.traces import Group


class StopRequested(Exception):
    """The run was asked to end early (Ctrl-C or ``max_time``), in the words of its message.

    Raised where an algorithm waits for rollouts, so never within a durable step. An algorithm lets it pass.
    """


class Rollouts(Protocol):
    """Runs the agent on tasks. Asking and taking are two things, so that an algorithm may ask ahead of what it learns
    from."""

    @property
    def outstanding(self) -> int:
        """Groups of mode ``train`` that were asked for and not taken yet. A resumed run begins with those of the run it
        goes on with, so an algorithm that asks ahead asks until there are enough."""
        ...

    @property
    def probe(self) -> AgentProbe | None:
        """What was found out about the agent before it ran: of use to say why none of its calls came."""
        ...

    async def ask(
        self, tasks: Sequence[Json], size: int, mode: Mode = Mode.TRAIN, *, resources: int | None = None
    ) -> Sequence[Rollout]:
        """Queues a group of ``size`` rollouts for each task, durably, and returns them at once as they are queued. The
        groups get the next numbers of their mode.

        The agent is handed version ``resources`` of the resources, by default the current one as it is now. A group
        that the record holds from before a resume is not run again.
        """
        ...

    async def next(self) -> Group:
        """A group that was asked for and is finished, each once; of several the one that was asked for first. Waits for
        one where none is.

        A rollout is finished when it succeeded, failed for good, or was cancelled because its group went on without it.
        Raises StopRequested, and RunFailed where nothing is asked for or nothing can be run any more.
        """
        ...

    async def sample(
        self, tasks: Sequence[Json], size: int, mode: Mode = Mode.TRAIN, *, resources: int | None = None
    ) -> list[Group]:
        """Asks, and waits for just these groups: in the order of their tasks. Groups of mode ``val`` hold rewards and
        no attempts."""
        ...

    def mix_modes(self) -> None:
        """From now on whatever is asked for is run, and not those of one mode at a time."""
        ...

    def take_late(self) -> tuple[int, int]:
        """How many calls and rewards came after their attempt had ended, since this was last asked."""
        ...


class Policy(Protocol):
    """A trainable model: what samples under its name, and what learns."""

    @property
    def version(self) -> int:
        """Of the weights that are sampled now. It only grows."""
        ...

    @property
    def learned_from(self) -> int:
        """The version that the last ``learn`` began with: a token's staleness is this minus its own version."""
        ...

    async def learn(self, batch: Batch, objective: ObjectiveSettings) -> LearnerStats:
        """Trains on the batch, and returns when the new version is what is sampled. A batch without groups leaves the
        version as it is.

        Raises RunFailed where the loss or its gradient is not finite, before any weight changes by it.
        """
        ...

    async def score(self, batch: Batch, what: Collection[str]) -> Batch:
        """The batch with the named columns filled: what this model makes of its tokens. Raises ConfigError for a column
        that it cannot fill."""
        ...

    async def save(self, folder: Path, *, step: int, score: float | None, extra: Mapping[str, Json]) -> Path:
        """Writes a checkpoint of the weights and the training state into ``folder``, whole or not at all, and returns
        its path. Raises StoreError."""
        ...

    async def load(self, checkpoint: Path) -> None:
        """Takes over weights, training state and version from a checkpoint. Raises StoreError, or ConfigError where it
        belongs to another model."""
        ...


class Journal(Protocol):
    """Makes steps durable and shows them; says where a run goes on and when it ends."""

    @property
    def total_steps(self) -> int:
        """Of the whole run."""
        ...

    @property
    def last_step(self) -> int:
        """The last durable step, 0 before the first: a run goes on with the one after it."""
        ...

    async def intend(self, step: int, groups: Sequence[Group]) -> None:
        """Notes, durably, what a step is about to learn from: where the run is resumed before a checkpoint of it,
        ``next`` gives these groups in this order."""
        ...

    async def commit(
        self,
        step: int,
        metrics: dict[str, Json],
        ledger: Ledger,
        groups: Sequence[Group],
        credit: Sequence[CreditRow] = (),
    ) -> None:
        """Makes a step durable with its credit, then shows it. ``metrics`` is its JSON line, with at least ``step`` and
        ``reward``; ``groups`` are those that end in it. Raises StoreError."""
        ...

    async def validate(self, step: int) -> None:
        """Scores what the step left on the validation tasks, where that is due. Step 0 is before the first. Raises
        StopRequested, and RunFailed where no rollout was scored."""
        ...

    async def checkpoint(self, step: int) -> None:
        """Saves the policy where that is due."""
        ...

    def should_stop(self) -> bool:
        """Whether the last durable step reached what the run was to stop at."""
        ...

    async def finish(self) -> None:
        """The last checkpoint and the last validation, whose score the checkpoint gets."""
        ...


class Resources(Protocol):
    """The named things that agents are handed besides their task, in versions."""

    @property
    def current(self) -> int:
        """The version that a rollout gets which is asked for without one."""
        ...

    async def publish(self, values: Mapping[str, Json]) -> int:
        """Stores a new version, the current one with ``values`` laid over it, and returns its number. Whoever does not
        ask for it gets what they got before.

        A value is an LLM, a PromptTemplate or JSON. Raises ConfigError for any other.
        """
        ...

    async def promote(self, version: int) -> None:
        """Makes a published version the current one. Raises ConfigError for a version that there is not."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """What an algorithm is handed. ``policies`` is empty where it trains no weights."""

    config: RunConfig
    tasks: TaskOrder
    rollouts: Rollouts
    journal: Journal
    resources: Resources
    policies: Mapping[str, Policy] = field(default_factory=dict[str, "Policy"])

    @property
    def policy(self) -> Policy:
        """The policy, where there is one. Raises ConfigError where the algorithm declares none."""
        for policy in self.policies.values():
            return policy
        raise ConfigError(
            "this run has no policy, since its algorithm declares that it trains no weights: set trains_weights = True "
            "in its class"
        )
