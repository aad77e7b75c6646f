"""Which agents of a program are trained in an attempt. Pure: what was chosen and an agent's name in, yes or no out.

Two things choose: ``trained_agents``, for the whole run, and what the attempt marked itself,
``rollout.mark_agent_as_trainable(...)``. An agent that either of them names is trained; where neither says anything,
all are. Credit, `agl dev` and `agl show` all ask here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from agentlightning.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainedAgents:
    """``pattern`` is the run's ``trained_agents``, ``marked`` the names that the attempt marked. ``whole``: an agent
    has just the pattern for its name, so that it means that agent alone."""

    pattern: str | None = None
    marked: tuple[str, ...] = ()
    whole: bool = False

    @property
    def everyone(self) -> bool:
        """Whether nothing was chosen, so that all are trained."""
        return self.pattern is None and not self.marked

    def among(self, agents: Iterable[str | None]) -> TrainedAgents:
        """The same where these are the agents that made calls: a pattern that is the name of one of them means that
        agent alone, and is searched in their names else."""
        return replace(self, whole=self.pattern is not None and self.pattern in set(agents))

    def trains(self, agent: str | None) -> bool:
        """Whether calls of the agent of this name are trained. A mark is a whole name; the pattern is a name, or a
        regular expression that is searched in names, so that ``write`` also finds ``rewrite_query``."""
        name = agent or ""
        if self.everyone or name in self.marked:
            return True
        if self.pattern is None:
            return False
        return name == self.pattern or (not self.whole and re.search(self.pattern, name) is not None)

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


def as_search(pattern: str | None, agents: Iterable[str | None]) -> str | None:
    """The pattern that, searched in names, finds what ``pattern`` means where these are the agents that made calls: for
    one that is the name of one of them, a pattern for just that name."""
    return f"^{re.escape(pattern)}\\Z" if pattern is not None and pattern in set(agents) else pattern


def check_pattern(pattern: object, where: str, name: str = "trained_agents") -> str:
    """What is to choose agents: a name, or a regular expression. Raises ConfigError, which names ``where`` it is set
    and under which ``name``, for what cannot be either."""
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(
            f"{where}: {name}={pattern!r} is no text: expected an agent's name or a regular expression, e.g. "
            "'planner|critic'"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{where}: {name}={pattern!r} is no regular expression: {error}") from error
    return pattern


def chosen_by_adapter(adapter: object) -> str | None:
    """The ``trained_agents`` that an adapter's ``agent_match`` is: of a mapping, ``{"agent_match": "write"}``, or of an
    object with that attribute. None is all agents.

    Raises ConfigError for a mapping with other keys, for what has no ``agent_match``, and for one that is no pattern.
    """
    where = f"Trainer(adapter={adapter!r:.200})"
    if isinstance(adapter, Mapping):
        given = cast("Mapping[object, object]", adapter)
        if unknown := [key for key in given if key != "agent_match"]:
            raise ConfigError(
                f"{where}: {unknown[0]!r} is no setting of an adapter here: a mapping may have 'agent_match', the "
                "agents that are trained"
            )
        match = given.get("agent_match")
    elif hasattr(adapter, "agent_match"):
        match = getattr(adapter, "agent_match", None)
    elif adapter is None:
        match = None
    else:
        raise ConfigError(f"{where} has no agent_match: pass {{'agent_match': 'NAME or pattern'}}, or leave it out")
    return None if match is None else check_pattern(match, where, "agent_match")
