"""Assignment: one attempt as a runner is handed it: the rollout it is a try at, where its calls go, and what the agent
is handed.

It travels as JSON, to a worker and to an agent's process. Only durations are in it, for clocks differ between machines.
It knows no store and no gateway.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, cast

from agentlightning.agent.calling import Handed
from agentlightning.agent.resources import LLM, MAIN, ExternalLLM, NamedResources, ProxyLLM
from agentlightning.agent.rollouts import Attempt, Rollout, RolloutConfig
from agentlightning.nouns import Json, Mode
from agentlightning.runners.tokenizer import load_tokenizer

MarkTrainable = Callable[[str], None]
"""Is told the name of an agent that an attempt marks as trainable."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an attempt's calls go. ``path`` is ``/a/KEY``; ``address`` (``http://HOST:PORT``) is how whoever runs the
    attempt reaches the gateway, and empty until that is known."""

    path: str
    key: str
    model: str
    address: str = ""

    @property
    def root_url(self) -> str:
        """For clients that append ``/v1/...``."""
        return f"{self.address}{self.path}"

    @property
    def base_url(self) -> str:
        """For clients that append ``/chat/completions``."""
        return f"{self.root_url}/v1"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt, as a desk leases it and a process is sent it: the rollout it is a try at, the endpoint that is good
    for it, what the agent is handed besides, and durations. ``seconds_left`` is how long the agent may run,
    ``lease_seconds`` how long a runner may give no sign of life."""

    rollout: Rollout
    endpoint: Endpoint
    sampling: Mapping[str, Json] = field(default_factory=dict[str, Json])
    resources: NamedResources = field(default_factory=NamedResources)
    tokenizer: str = ""
    """The folder or hub id of the model whose tokenizer agents may take; "" where the run has none."""
    seconds_left: float = 300.0
    lease_seconds: float = 60.0

    def __post_init__(self) -> None:
        assert self.rollout.attempt is not None and self.rollout.mode is not None

    @property
    def attempt(self) -> Attempt:
        return cast(Attempt, self.rollout.attempt)

    @property
    def attempt_id(self) -> str:
        return self.attempt.attempt_id

    @property
    def mode(self) -> Mode:
        return Mode(self.rollout.mode)

    @property
    def seed(self) -> int:
        """What the agent draws from: another try draws anew."""
        return self.rollout.seed + self.attempt.sequence_id

    def reached_at(self, address: str) -> Assignment:
        """The same, for somebody who reaches the gateway at ``address``."""
        return replace(self, endpoint=replace(self.endpoint, address=address))

    def to_json(self) -> dict[str, Json]:
        rollout = {each.name: getattr(self.rollout, each.name) for each in fields(self.rollout)}
        return {
            "rollout": {**rollout, "config": asdict(self.rollout.config), "attempt": asdict(self.attempt)},
            "endpoint": asdict(self.endpoint),
            "sampling": dict(self.sampling),
            "resources": self.resources.to_json(),
            "tokenizer": self.tokenizer,
            "seconds_left": self.seconds_left,
            "lease_seconds": self.lease_seconds,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Assignment:
        rollout: dict[str, Any] = dict(value["rollout"])
        rollout.update(config=RolloutConfig(**rollout["config"]), attempt=Attempt(**rollout["attempt"]))
        return cls(
            Rollout(**rollout),
            Endpoint(**value["endpoint"]),
            value["sampling"],
            NamedResources.from_json(value["resources"]),
            value["tokenizer"],
            value["seconds_left"],
            value["lease_seconds"],
        )

    def handed(
        self, declared: LLM | None = None, mark: MarkTrainable | None = None, tokenizer: LLM | None = None
    ) -> Handed:
        """What the agent can be handed. ``declared`` is what ``@rollout(model=...)`` named, ``tokenizer`` what
        ``@rollout(tokenizer=...)`` did; all models get the attempt's endpoint. ``mark`` is told the agents that it
        marks as trainable."""

        def proxy(model: str, parameters: Mapping[str, Json]) -> ProxyLLM:
            return ProxyLLM(
                endpoint=self.endpoint.base_url,
                model=model,
                sampling_parameters=dict(parameters),
                api_key=self.endpoint.key,
                name=model,
                rollout_id=self.rollout.rollout_id,
                attempt_id=self.attempt_id,
            )

        def own(given: LLM | None) -> ProxyLLM:
            parameters = given.sampling_parameters if given is not None else {}
            return proxy(self.endpoint.model, {**self.sampling, **parameters})

        external = {name: llm for name, llm in self.resources.llms() if isinstance(llm, ExternalLLM)}
        trained = {name: own(llm) for name, llm in self.resources.llms() if name not in external}
        resources = NamedResources(
            copy.deepcopy({name: value for name, value in self.resources.items() if not isinstance(value, LLM)})
        )
        resources.update(trained)
        resources.update({name: proxy(name, llm.sampling_parameters) for name, llm in external.items()})
        llm = trained.get(MAIN) or next(iter(trained.values()), None)
        if declared is not None or llm is None:
            # Where there is no policy, the endpoint names the external model that stands in for it.
            outside = external.get(self.endpoint.model)
            llm = own(declared) if outside is None else proxy(self.endpoint.model, given_parameters(declared, outside))
        resources.setdefault(MAIN, llm)
        task = copy.deepcopy(self.rollout.input)  # an agent may change its task; a grader must not see that
        now = time.time()  # of the machine that the agent runs on: no clock's times travel
        view = replace(self.rollout, input=task, start_time=now, attempt=replace(self.attempt, start_time=now))
        if mark is not None:
            view.marks_go_to(mark)
        named = self.tokenizer or (tokenizer.model if tokenizer is not None else "")
        return Handed(task, llm, resources, view, partial(load_tokenizer, named) if named else None)

    def environment(self) -> dict[str, str]:
        """The variables an attempt's process gets, under every name that clients read a base URL and a key from."""
        base_url, root_url, key = self.endpoint.base_url, self.endpoint.root_url, self.endpoint.key
        return {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": root_url,
            "ANTHROPIC_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": root_url,
            "GEMINI_API_KEY": key,
            "AGENTLIGHTNING_ENDPOINT": root_url,
            "AGENTLIGHTNING_ATTEMPT": self.attempt_id,
        }


def given_parameters(declared: LLM | None, outside: LLM) -> dict[str, Json]:
    """What an agent is handed for somebody else's model: the run's own sampling settings say nothing of that."""
    return {**outside.sampling_parameters, **(declared.sampling_parameters if declared is not None else {})}


def placeholder(url: str = "", name: str = "") -> Assignment:
    """An assignment of no attempt, for what has to look like one's surroundings."""
    rollout = Rollout(rollout_id="", mode=Mode.DEV, attempt=Attempt(attempt_id=name))
    return Assignment(rollout, Endpoint("", name, name, url))


ENDPOINT_VARIABLES = frozenset(placeholder().environment())
"""The variables of ``Assignment.environment``, which nobody else may set."""
