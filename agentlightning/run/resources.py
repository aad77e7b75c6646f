"""RunResources: the Resources port over the store: versions of what agents are handed, and which of them is current."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentlightning.agent.resources import NamedResources
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

    @classmethod
    async def open(cls, store: Store, run_id: str, given: NamedResources) -> RunResources:
        """Records what the user gave as the current version."""
        return cls(store, run_id, await store.put_resources(run_id, given.to_json()))

    @property
    def current(self) -> int:
        return self._current

    async def publish(self, values: Mapping[str, Json]) -> int:
        below = await self.values()
        self._latest = await self._store.put_resources(self._run_id, {**below, **NamedResources(values).to_json()})
        return self._latest

    async def promote(self, version: int) -> None:
        if not 1 <= version <= self._latest:
            raise ConfigError(f"resources have no version {version}: there are 1 to {self._latest}")
        self._current = version

    async def values(self) -> Mapping[str, Json]:
        """The current version, as it is recorded."""
        return await self._store.get_resources(self._run_id, self._current)
