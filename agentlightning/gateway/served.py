"""Served: a trainable model as the gateway serves it, and as one request asks for it. Knows nothing of sessions and
wires."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from agentlightning.engines.base import Engine
from agentlightning.nouns import Json
from agentlightning.templates.base import Template

logger = logging.getLogger("agentlightning.gateway")


@dataclass(frozen=True, slots=True)
class Served:
    """A trainable model as the gateway serves it. ``model_names`` are further names that agents may call it by."""

    name: str
    engine: Engine
    template: Template
    model_names: tuple[str, ...] = ()

    def with_kwargs(self, kwargs: Mapping[str, Json], notices: Notices) -> Served:
        """The policy as a request with these `chat_template_kwargs` is served by it. What the template takes no notice
        of is warned of once. Raises TemplateError."""
        if not kwargs:
            return self
        for name in self.template.unused_kwargs(kwargs):
            notices.once(
                ("kwargs", self.name, name),
                f"chat_template_kwargs.{name}: the chat template of {self.name!r} takes no {name!r}, and renders as "
                "without it",
            )
        return replace(self, template=self.template.with_kwargs(kwargs))


class Notices:
    """Warnings that are worth saying once, a thousand of them at most: a server may run for days."""

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()

    def once(self, key: tuple[str, ...], text: str) -> None:
        if key not in self._said and len(self._said) < 1000:
            self._said.add(key)
            logger.warning(text)


class PoliciesByName:
    """Which policy a model name means for one attempt: its own, that of a resource of this name, else the default one,
    which is the first."""

    def __init__(self, policies: Mapping[str, Served], resources: Mapping[str, Json], notices: Notices) -> None:
        self._policies = policies
        self._resources = resources
        self._notices = notices
        self._by_model: dict[str, Served] = {}

    def of(self, model: str) -> Served:
        """The policy that calls to this model go to; one warning where it has it only by default."""
        policy = self._by_model.get(model)
        if policy is None:
            policy, meant = self._look_up(model)
            if model and not meant:
                self._notices.once(("model", model), f"no policy is called {model!r}: its calls go to {policy.name!r}")
            self._by_model[model] = policy
        return policy

    def name_of(self, model: str) -> str:
        """The name of that policy, for a call that does not go to it; "" where there is no policy at all."""
        return self._look_up(model)[0].name if self._policies else ""

    def _look_up(self, model: str) -> tuple[Served, bool]:
        """The policy, and whether it is meant by the name."""
        for policy in self._policies.values():
            if model == policy.name or model in policy.model_names:
                return policy, True
        default = next(iter(self._policies.values()))
        resource = self._resources.get(model)
        if isinstance(resource, dict):
            named = cast("dict[str, Json]", resource).get("policy")
            if isinstance(named, str) and named in self._policies:
                return self._policies[named], True
        return default, False
