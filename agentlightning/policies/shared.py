"""SharedPolicy: a policy whose engine and learner work on the same weights, in this process, on the engine's compute
thread. Loads torch.

Nothing else in a run names the engine or the learner: a run asks the policy to learn, and the gateway is handed what
samples. Knows no stores, rewards or algorithms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from agentlightning.engines.grammar import Grammars
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.engines.local.thread_count import long_spins
from agentlightning.engines.local.threads import Threads
from agentlightning.engines.models import LoadedModel, load_model
from agentlightning.errors import ConfigError
from agentlightning.gateway.served import Served
from agentlightning.learning import checkpoints
from agentlightning.learning.learner import Learner
from agentlightning.learning.objective import ObjectiveSettings
from agentlightning.nouns import Json
from agentlightning.policies.base import Learning, Surroundings
from agentlightning.settings.fields import RunConfig
from agentlightning.templates import load_template

if TYPE_CHECKING:
    from agentlightning.engines.local.scheduler import Load
    from agentlightning.records.batch import Batch, LearnerStats
    from agentlightning.records.progress import Progress


class SharedPolicy:
    """A policy on one set of weights, an `OpenedPolicy`. Made by `open`; ``close`` it. Without a learner it only
    samples.

    ``served`` is what the gateway samples with. While weights change nothing is sampled: live requests end first, and
    waiting ones are sampled from the new version.
    """

    def __init__(
        self,
        model: LoadedModel,
        engine: LocalEngine,
        served: Served,
        progress: Progress,
        learner: Learner | None = None,
        learning: Learning | None = None,
    ) -> None:
        self.served = served
        self._model = model
        self._engine = engine
        self._learner = learner
        self._learning = learning
        self._progress = progress
        self._learned_from = engine.version(served.name)

    @classmethod
    async def open(cls, name: str, config: RunConfig, surroundings: Surroundings, learning: Learning | None) -> Self:
        """Loads the model and starts what samples it; with ``learning`` also what trains it.

        Raises ModelError, ConfigError or MissingExtra, in one line, where that cannot be.
        """
        threads = Threads(config.threads, say=surroundings.say, machine=surroundings.machine, since=surroundings.began)
        if threads.count > 1 and (note := long_spins()) is not None:
            surroundings.progress.message(note)
        model = await asyncio.to_thread(load_model, config.model, threads)
        template = load_template(
            model.tokenizer,
            tool_format=config.model.tool_format,
            stop_token_ids=model.stop_token_ids,
            keep_reasoning=config.model.keep_reasoning,
            reasoning_tags=config.model.reasoning_tags,
        )
        engine = LocalEngine(
            model.model,
            model.tokenizer,
            config.engine,
            policy=name,
            context_length=model.context_length,
            deterministic=config.deterministic,
            threads=threads,
        )

        def make(learning: Learning) -> Learner:
            vocabulary = cast("int", cast("Any", model.model).get_input_embeddings().weight.shape[0])
            return Learner(
                model.model,
                config.learner,
                learning.objective,
                seed=config.seed,
                total_steps=learning.total_steps,
                threads=threads,
                grammars=Grammars(model.tokenizer, vocabulary),
            )

        await engine.start()
        try:
            learner = None if learning is None else await engine.run_exclusive(lambda: make(learning))
        except BaseException:
            await engine.close()
            raise
        return cls(model, engine, Served(name, engine, template), surroundings.progress, learner, learning)

    async def close(self) -> None:
        """Ends sampling: what is live or waiting fails by name."""
        await self._engine.close()

    # ------------------------------------------------------------------ the port

    @property
    def version(self) -> int:
        return self._engine.version(self.served.name)

    @property
    def learned_from(self) -> int:
        return self._learned_from

    async def learn(self, batch: Batch, objective: ObjectiveSettings) -> LearnerStats:
        learner = self._trained()
        if self._learning is None or objective != self._learning.objective:
            raise ConfigError(
                f"policy {self.served.name!r} was opened to minimise {self._learning and self._learning.objective!r}, "
                f"and is to learn from {objective!r}: a policy has one objective in this version"
            )
        self._progress.phase("training")
        self._learned_from = self.version
        if not batch.groups:
            return await self._engine.run_exclusive(lambda: learner.step(batch))
        return await self._engine.update(lambda: learner.step(batch), release_memory=True)

    async def score(self, batch: Batch, what: Collection[str]) -> Batch:
        if not what:
            return batch
        raise ConfigError(
            f"policy {self.served.name!r} cannot fill {', '.join(map(repr, sorted(what)))}: no column of a batch is "
            "computed by a policy in this version; use an objective that needs none"
        )

    async def save(self, folder: Path, *, step: int, score: float | None, extra: Mapping[str, Json]) -> Path:
        learner = self._trained()
        saved = await self._engine.run_exclusive(
            lambda: checkpoints.save(
                folder, learner, self._model.tokenizer, step=step, version=self.version, score=score, extra=extra
            )
        )
        return saved.path

    async def load(self, checkpoint: Path) -> None:
        learner = self._trained()
        found = next((each for each in checkpoints.complete(checkpoint.parent) if each.path == checkpoint), None)
        if found is None:
            raise ConfigError(f"{checkpoint} is no complete checkpoint")
        await self._engine.set_version(found.version, lambda: checkpoints.load_state(found, learner))

    def _trained(self) -> Learner:
        if self._learner is None:
            raise ConfigError(f"policy {self.served.name!r} was opened to be sampled alone: it has nothing that learns")
        return self._learner

    # ------------------------------------------------------------------ for a display

    def busy(self) -> Load:
        """What it has in hand just now, and how many tokens it has drawn."""
        return self._engine.load
