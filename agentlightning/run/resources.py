"""RunResources: the Resources port over the store: versions of what agents are handed, and which of them is current."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentlightning.agent.resources import LLM, POLICY, NamedResources, refuse_clash
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json

if TYPE_CHECKING:
    from agentlightning.store.base import Store


class RunResources:
    """See `Resources`. Made by `open`."""

    def __init__(self, store: Store, run_id: str, current: int) -> None:
        self._store = store
        self._run_id = run_id
        self._current = self._latest = current
        self._external: dict[int, dict[str, LLM]] = {}

    @classmethod
    async def open(cls, store: Store, run_id: str, given: NamedResources) -> RunResources:
        """Records what the user gave as the current version."""
        return cls(store, run_id, await store.put_resources(run_id, given.to_json()))

    @property
    def current(self) -> int:
        return self._current

    async def publish(self, values: Mapping[str, Json]) -> int:
        given, below = NamedResources(values), await self.values()
        kept = {name: llm for name, llm in self.external(self._current).items() if name not in values}
        external = {**kept, **given.external()}
        refuse_clash(external, {POLICY})
        self._latest = await self._store.put_resources(self._run_id, {**below, **given.to_json()})
        self.keep(self._latest, external)
        return self._latest

    async def promote(self, version: int) -> None:
        if not 1 <= version <= self._latest:
            raise ConfigError(f"resources have no version {version}: there are 1 to {self._latest}")
        self._current = version

    def keep(self, version: int, external: Mapping[str, LLM]) -> None:
        """Where the external models of a version are called, which is not recorded: this process knows it."""
        self._external[version] = dict(external)

    def external(self, version: int) -> Mapping[str, LLM]:
        """Those of a published version."""
        return self._external.get(version, {})

    async def values(self) -> Mapping[str, Json]:
        """The current version, as it is recorded."""
        return await self._store.get_resources(self._run_id, self._current)
