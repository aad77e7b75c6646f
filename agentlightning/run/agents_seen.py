"""Whether ``trained_agents`` finds anybody, told at the first rollout and not only at the end of a step.

A run goes on: the agents that were chosen may make calls in other rollouts. A step in which none does ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from agentlightning.agent.trained_agents import TrainedAgents
from agentlightning.nouns import Mode
from agentlightning.records.attempts import AttemptReport
from agentlightning.records.usage import MAX_NOTED


class AgentsSeen:
    """Is shown the attempts of a run as they end; ``say`` is told once, where none of the first one's agents is one of
    ``trained_agents``."""

    def __init__(self, trained_agents: str | None, say: Callable[[str], None]) -> None:
        self._pattern = trained_agents
        self._say = say
        self._looked = trained_agents is None

    def __call__(self, report: AttemptReport) -> None:
        names = tuple(report.usage.agents)
        if self._looked or report.rollout.mode is not Mode.TRAIN or not names:
            return
        self._looked = True
        chosen = TrainedAgents(self._pattern, report.result.marked).among(names)
        if len(names) < MAX_NOTED and not any(chosen.trains(name) for name in names):
            self._say(
                f"no call of the first rollout is of an agent that was chosen to be trained ({chosen}); its calls came "
                f"from {', '.join(sorted(names))}"
            )
