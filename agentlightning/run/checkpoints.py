"""Checkpoints: those of one run, in its folder: which step is saved, which are kept, and which is the best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentlightning.algorithms.ports import Policy
from agentlightning.nouns import Json
from agentlightning.settings.fields import CheckpointConfig

if TYPE_CHECKING:
    from agentlightning.learning.checkpoints import Checkpoint


class Checkpoints:
    """``folder`` holds them. ``saved`` is the step of the latest that this process made or loaded, 0 without one;
    ``path`` is where it lies."""

    def __init__(self, folder: Path, policy: Policy, config: CheckpointConfig) -> None:
        self.folder = folder
        self.config = config
        self.policy = policy
        self.saved = 0
        self.path: Path | None = None

    async def save(self, step: int, score: float | None, extra: Mapping[str, Json]) -> Path:
        """Saves the policy, and removes what is no longer kept. Raises StoreError."""
        self.path = await self.policy.save(self.folder, step=step, score=score, extra=extra)
        self.saved = step
        self._prune()
        return self.path

    async def load(self) -> Checkpoint | None:
        """Takes over the latest checkpoint and says what it holds; None where there is none."""
        from agentlightning.learning import checkpoints

        latest = checkpoints.latest(self.folder)
        if latest is not None:
            await self.policy.load(latest.path)
            self.saved, self.path = latest.step, latest.path
        return latest

    def scored(self, step: int, score: float) -> None:
        """Gives the checkpoint of a step its score, where it was saved before that was known."""
        from agentlightning.learning import checkpoints

        if not step or self.saved != step:
            return
        latest = checkpoints.latest(self.folder)
        if latest is not None and latest.step == step:
            checkpoints.set_score(latest, score)
            self._prune()

    def best(self) -> Path | None:
        """The one with the highest score; None where none has a score."""
        from agentlightning.learning import checkpoints

        best = checkpoints.best(self.folder)
        return best.path if best is not None else None

    def _prune(self) -> None:
        from agentlightning.learning import checkpoints

        checkpoints.prune(self.folder, self.config.keep, self.config.best)
