"""Served: a trainable model as the gateway serves it, and as one request asks for it. Knows nothing of sessions and
wires."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentlightning.engines.base import Engine
from agentlightning.templates.base import Template
from agentlightning.types import Json

logger = logging.getLogger("agentlightning.gateway")


@dataclass(frozen=True, slots=True)
class Served:
    """A trainable model as the gateway serves it. ``model_names`` are further names that agents may call it by."""

    name: str
    engine: Engine
    template: Template
    model_names: tuple[str, ...] = ()

    def under(self, kwargs: Mapping[str, Json], notices: Notices) -> Served:
        """The policy as a request with these `chat_template_kwargs` is served by it. What the template takes no notice
        of is warned of once. Raises TemplateError."""
        if not kwargs:
            return self
        for name in self.template.untaken(kwargs):
            notices.once(
                ("kwargs", self.name, name),
                f"chat_template_kwargs.{name}: the chat template of {self.name!r} takes no {name!r}, and renders as "
                "without it",
            )
        return replace(self, template=self.template.under(kwargs))


class Notices:
    """Warnings that are worth saying once, a thousand of them at most: a server may run for days."""

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()

    def once(self, key: tuple[str, ...], text: str) -> None:
        if key not in self._said and len(self._said) < 1000:
            self._said.add(key)
            logger.warning(text)
