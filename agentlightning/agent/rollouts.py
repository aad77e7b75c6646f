"""Rollout, Attempt, RolloutConfig: what an agent is told of the execution it is part of. Users build them, and agents
are handed one. They are no records: what is stored is in nouns.py, and changing one of these changes nothing there.

Runs where agents run: the standard library alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentlightning.agent.plain import Plain
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json
from agentlightning.text import LONGEST_NAME, clean_name

MODES = ("train", "val", "test", "dev")
ROLLOUT_STATUS = ("queuing", "preparing", "running", "succeeded", "failed", "cancelled", "requeuing")
ATTEMPT_STATUS = ("preparing", "running", "succeeded", "failed", "timeout", "unresponsive", "cancelled")


@dataclass(kw_only=True)
class RolloutConfig(Plain):
    """How one rollout is run: the seconds that an attempt has, those that it may give no sign of life, how often it is
    tried, and after which ends of an attempt it is tried again. None: what the run has for all."""

    timeout_seconds: float | None = None
    unresponsive_seconds: float | None = None
    max_attempts: int = 1
    retry_condition: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "unresponsive_seconds"):
            value: Any = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value) and value > 0):
                raise ConfigError(f"RolloutConfig({name}={value!r}): expected seconds above 0, or None")
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigError(f"RolloutConfig(max_attempts={self.max_attempts!r}): expected a whole number, at least 1")
        for status in self.retry_condition:
            _check_word(status, ATTEMPT_STATUS, "RolloutConfig(retry_condition=[...])")


@dataclass(kw_only=True)
class Attempt(Plain):
    """One try at a rollout. ``sequence_id`` counts from 1, times are Unix time in seconds."""

    attempt_id: str
    sequence_id: int = 1
    rollout_id: str = ""
    start_time: float | None = None
    end_time: float | None = None
    status: str = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.status = _check_word(self.status, ATTEMPT_STATUS, "Attempt(status=...)")


@dataclass(kw_only=True)
class Rollout(Plain):
    """One execution of an agent on a task, ``input``. ``mode`` is text: train, val, test or dev.

    What an agent is handed has all of it: ``attempt`` is the one that it runs in, ``resources_id`` the version of the
    resources, ``group`` the number of its group in the run, ``index`` its place in that, and ``seed`` differs for every
    rollout of a run. ``start_time`` is then when it was handed over, by the clock of the machine that it runs on.
    """

    rollout_id: str
    input: Json = None
    start_time: float | None = None
    end_time: float | None = None
    mode: str | None = None
    resources_id: str | None = None
    status: str = "queuing"
    config: RolloutConfig = field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None
    attempt: Attempt | None = None
    group: int = 0
    index: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode is not None:
            self.mode = _check_word(self.mode, MODES, "Rollout(mode=...)")
        self.status = _check_word(self.status, ROLLOUT_STATUS, "Rollout(status=...)")

    @property
    def id(self) -> str:
        return self.rollout_id

    @property
    def task(self) -> Json:
        return self.input

    @property
    def attempt_id(self) -> str | None:
        return None if self.attempt is None else self.attempt.attempt_id

    def mark_agent_as_trainable(self, agent: str) -> None:
        """Has the calls of the agent of this name trained in this rollout, those it made before and those it makes
        later.

        The first mark leaves the other agents out, but for those that ``trained_agents`` names; each further one adds
        an agent. It is recorded with the attempt's result, and works in the agent and in threads it started. Raises
        ConfigError for what is no agent's name, and where no attempt runs.
        """
        mark = self.__dict__.get("_mark")
        if mark is None:
            raise ConfigError(
                f"mark_agent_as_trainable({agent!r}) was called outside any attempt: call it on the rollout that the "
                "agent is handed"
            )
        mark(_agent_name(agent))

    def marks_go_to(self, mark: Callable[[str], None]) -> None:
        """``mark`` is told the name of each agent that is marked as trainable from now on. It is none of the fields:
        what is shown, compared, copied or pickled is who runs, not the way to its runner."""
        self.__dict__["_mark"] = mark

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mark"}


def _check_word(word: object, known: tuple[str, ...], where: str) -> str:
    text = str(getattr(word, "value", word)) if isinstance(word, str) else ""  # an enum of texts too
    if text not in known:
        raise ConfigError(f"{where}: {word!r} is none of {', '.join(known)}")
    return text


def _agent_name(name: object) -> str:
    kept = name.strip() if isinstance(name, str) else ""
    if not kept or clean_name(kept) != kept:
        raise ConfigError(
            f"mark_agent_as_trainable({name!r:.60}): expected the name that an agent's calls are recorded under, one "
            f"line of text without '/', at most {LONGEST_NAME} characters"
        )
    return kept
