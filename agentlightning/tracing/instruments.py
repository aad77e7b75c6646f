"""What listens in an agent's process, and when: each instrument as soon as the library that it belongs to is imported,
so that a program without it pays nothing.

An instrument that fails is one line in the log, never the attempt's fault.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from agentlightning.tracing import agentscope, http_client, opentelemetry

logger = logging.getLogger("agentlightning")

Instrument = Callable[[Any], None]

INSTRUMENTS: dict[str, Instrument] = {
    "httpx": http_client.listen,
    "httpx2": http_client.listen,
    "agentscope.agent": agentscope.listen,
    opentelemetry.API: opentelemetry.stand_in,
    opentelemetry.SDK: opentelemetry.listen_to_providers,
}


def instrument() -> None:
    """Listens in this process from now on, once."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    waiting = {name: partial(_safely, name, act) for name, act in INSTRUMENTS.items()}
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(waiting))


def _safely(name: str, act: Instrument, module: Any) -> None:
    try:
        act(module)
    except Exception as error:  # noqa: BLE001  # other people's modules; the agent goes on without names
        logger.warning(
            "the agents of %s cannot be told apart by its spans (%s: %s): name them in gateway.agents",
            name.partition(".")[0],
            type(error).__name__,
            error,
        )


class _AfterImport(MetaPathFinder):
    """Has something done once a module has been imported, however it is found."""

    def __init__(self, waiting: dict[str, Instrument]) -> None:
        self._waiting = waiting

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not self)
        specs: Iterator[ModuleSpec | None] = (find(fullname, path, target) for find in others if find is not None)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._act)
        return spec

    def _act(self, module: ModuleType) -> None:
        act = self._waiting.pop(module.__name__, None)
        if act is not None:
            act(module)


class _Then(Loader):
    """A module's own loader, and then something else. It stands in the module's spec only until that is loaded: a spec
    may also be asked for alone."""

    def __init__(self, loader: Loader, act: Instrument) -> None:
        self._loader = loader
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)
