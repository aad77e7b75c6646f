"""Scan: what can be learned about an agent's module by importing it: the clients it makes, the variables it reads, the libraries it loads.

This is what lets the dev report name the cause when no call reaches the endpoint, and what lets the process runner load heavy libraries once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from agentlightning.loading import AgentSource, is_library
from agentlightning.runners.job import ENDPOINT_VARIABLES
from agentlightning.types import Json


@dataclass(frozen=True, slots=True)
class ClientFound:
    """A client object that a module made when it was imported: its name there, its class, and the base URL it was made with."""

    name: str
    kind: str
    base_url: str

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EnvironmentRead:
    """A read of an endpoint variable while the user's module was imported, at ``file.py:12`` of the user's code."""

    variable: str
    place: str

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


class EnvironmentReads:
    """While entered, notes who reads the endpoint variables: the user's modules (``by_user``), or libraries as they are imported (``libraries``)."""

    def __init__(self, source: AgentSource) -> None:
        self.by_user: list[EnvironmentRead] = []
        self.libraries: set[str] = set()
        self._package = source.package
        self._real: Any = None

    def __enter__(self) -> EnvironmentReads:
        note = self._note
        self._real = real = type(os.environ)

        class Noting(real):  # the mapping itself stays the one that everybody holds; only what a read does is changed
            def __getitem__(self, key: Any) -> Any:
                if key in ENDPOINT_VARIABLES:
                    note(key, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
                return super().__getitem__(key)

        os.environ.__class__ = Noting
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = self._real

    def _note(self, variable: str, frame: FrameType | None) -> None:
        importing: set[str] = set()
        while frame is not None:
            if not is_library(frame.f_code.co_filename) or _top(frame) == self._package:
                break
            if frame.f_code.co_name == "<module>":
                importing.add(_top(frame))
            frame = frame.f_back
        self.libraries |= importing
        if frame is not None and not importing:
            read = EnvironmentRead(variable, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if read not in self.by_user:
                self.by_user.append(read)


def _top(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def find_clients(source: AgentSource, modules: Iterable[ModuleType] | None = None) -> list[ClientFound]:
    """Objects with a base URL that the user's modules hold at their top level."""
    if modules is None:
        modules = [module for module in list(sys.modules.values()) if _is_users(module, source)]
    found: list[ClientFound] = []
    for module in modules:
        for name, value in list(vars(module).items()):
            url = _base_url(value)
            if url is not None and not name.startswith("__"):
                found.append(ClientFound(name, f"{type(value).__module__.split('.')[0]}.{type(value).__qualname__}", url))
    return list(dict.fromkeys(found))


def _is_users(module: ModuleType, source: AgentSource) -> bool:
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    return (
        isinstance(file, str) and not name.startswith("agentlightning.") and (not is_library(file) or name.split(".")[0] == source.package)
    )


def _base_url(value: object) -> str | None:
    """The base URL of a client object, by the attribute names that clients use. Values of ours (LLM) have none of them."""
    if isinstance(value, type | ModuleType):
        return None
    holder = cast("dict[str, object]", getattr(value, "__dict__", {}))
    for name in ("base_url", "_base_url", "openai_api_base", "api_base"):
        url = holder.get(name)
        if url is not None and str(url).startswith(("http://", "https://")):
            return str(url)
    return None


def proxies_in(environment: Mapping[str, str]) -> list[str]:
    """Names of proxy variables that are set."""
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return [name for name in names if environment.get(name)]


def heavy_modules(before: set[str], source: AgentSource, reading: set[str]) -> tuple[list[str], list[str]]:
    """Library modules that importing the agent loaded, in order, and the packages among them that must not be loaded ahead of an attempt.

    Those are the ones that read an endpoint variable while they were imported: loaded once for all, they would keep a wrong value.
    """
    tainted = reading - {source.package}
    names: list[str] = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        top = name.split(".")[0]
        if name in before or not isinstance(file, str) or not is_library(file):
            continue
        if top not in tainted and top not in (source.package, "__main__", "__mp_main__", "agentlightning"):
            names.append(name)
    return names, sorted(tainted)
