"""TaskOrder: the order in which a run goes through its tasks, which follows from its seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from agentlightning.nouns import Json
from agentlightning.text import derive_seed


class TaskOrder:
    """An endless, seeded order of tasks in which every pass over them is shuffled anew. ``taken`` counts those taken so
    far; a resumed run sets it."""

    def __init__(self, tasks: Sequence[Json], seed: int) -> None:
        self._tasks = tasks
        self._seed = seed
        self.taken = 0

    def __len__(self) -> int:
        """How many different tasks there are."""
        return len(self._tasks)

    def take(self, count: int) -> list[Json]:
        """The next ``count`` tasks."""
        taken: list[Json] = []
        for position in range(self.taken, self.taken + count):
            epoch, offset = divmod(position, len(self._tasks))
            taken.append(self._tasks[_shuffled(len(self._tasks), derive_seed(self._seed, "order", epoch))[offset]])
        self.taken += count
        return taken


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int) -> tuple[int, ...]:
    """A seeded permutation of range(count)."""
    return tuple(random.Random(seed).sample(range(count), count))
