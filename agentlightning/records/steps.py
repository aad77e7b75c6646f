"""Steps of groups: which step each group belongs to. A rollout carries its group's number and no step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentlightning.nouns import Intent, Mode, Rollout, StepRecord


@dataclass(frozen=True, slots=True)
class StepsOfGroups:
    """The step of each group of a run, by mode and number. ``running`` is the step that is being made: training groups
    that no step and no intent lists are its."""

    by_group: Mapping[tuple[Mode, int], int]
    running: int

    @classmethod
    def of(cls, steps: Iterable[StepRecord], intents: Iterable[Intent]) -> StepsOfGroups:
        """From what the store has of a run. Where both list a group, the step that ended says it."""
        ended = list(steps)
        by_group = {(intent.mode, group): intent.step for intent in intents for group in intent.groups}
        by_group.update({(Mode.TRAIN, group): step.step for step in ended for group in step.groups})
        return cls(by_group, max((step.step for step in ended), default=0) + 1)

    def step_of(self, rollout: Rollout) -> int:
        """The step that the rollout is, or is going to be, trained in; of a validation the step whose weights it
        scored; 0 where it belongs to none."""
        otherwise = self.running if rollout.mode is Mode.TRAIN else 0
        return self.by_group.get((rollout.mode, rollout.group), otherwise)
