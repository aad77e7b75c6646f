"""Which agents of a program are trained in an attempt. Pure: what was chosen and an agent's name in, yes or no out.

Two things choose: ``trained_agents``, for the whole run, and what the attempt marked itself,
``rollout.mark_agent_as_trainable(...)``. An agent that either of them names is trained; where neither says anything,
all are. Credit, `agl dev` and `agl show` all ask here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainedAgents:
    """``pattern`` is the run's ``trained_agents``, ``marked`` the names that the attempt marked."""

    pattern: str | None = None
    marked: tuple[str, ...] = ()

    @property
    def everyone(self) -> bool:
        """Whether nothing was chosen, so that all are trained."""
        return self.pattern is None and not self.marked

    def trains(self, agent: str | None) -> bool:
        """Whether calls of the agent of this name are trained. A mark is a whole name; the pattern is a name or a
        regular expression for whole names."""
        name = agent or ""
        if self.everyone or name in self.marked:
            return True
        return self.pattern is not None and (name == self.pattern or re.fullmatch(self.pattern, name) is not None)

    def __str__(self) -> str:
        """In words: ``trained_agents='planner' and marked: critic``."""
        parts = [f"trained_agents={self.pattern!r}"] if self.pattern is not None else []
        parts += [f"marked: {', '.join(self.marked)}"] if self.marked else []
        return " and ".join(parts) or "all agents"


def together(chosen: Iterable[TrainedAgents]) -> TrainedAgents:
    """What several attempts of one run chose."""
    known = list(chosen)
    marked = dict.fromkeys(name for one in known for name in one.marked)
    return TrainedAgents(next((one.pattern for one in known if one.pattern is not None), None), tuple(marked))
