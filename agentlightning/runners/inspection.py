"""Inspection: what can be learned about an agent's module by importing it: the clients it makes, the fixed addresses it
names, the libraries it loads.

This is what lets the dev report name the cause when no call reaches the endpoint, and what lets the process runner load
heavy libraries once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from agentlightning.agent.loading import AgentSource, is_library
from agentlightning.records.probe import ClientFound
from agentlightning.runners.assignment import ENDPOINT_VARIABLES
from agentlightning.runners.source_code import SourceText, origin_of


class EnvironmentReads:
    """While entered, notes which libraries read an endpoint variable as they are imported. ``libraries`` are their
    top-level names, and their importers'."""

    def __init__(self, source: AgentSource) -> None:
        self._package = source.package
        self._read: dict[tuple[str, int], tuple[set[str], set[str]]] = {}
        self._real: Any = None

    @property
    def libraries(self) -> set[str]:
        # A place that reads many of them copies the whole environment, and means none of them.
        return set[str]().union(
            *(importing for names, importing in self._read.values() if len(names) < len(ENDPOINT_VARIABLES) // 2)
        )

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
        """Walks out from the read to the user's code: whose import it was made in is on the way."""
        importing: set[str] = set()
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        while frame is not None and is_library(frame.f_code.co_filename) and _top(frame) != self._package:
            if frame.f_code.co_name == "<module>":
                importing.add(_top(frame))
            frame = frame.f_back
        names, packages = self._read.setdefault(place, (set(), set()))
        names.add(variable)
        packages |= importing


def _top(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def user_modules(source: AgentSource) -> list[ModuleType]:
    """Loaded modules that are the user's."""
    return [module for module in list(sys.modules.values()) if _is_users(module, source)]


def _is_users(module: ModuleType, source: AgentSource) -> bool:
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if not isinstance(file, str) or name.startswith("agentlightning."):
        return False
    return name.split(".")[0] == source.package or not is_library(file)


def find_clients(modules: Iterable[ModuleType]) -> list[ClientFound]:
    """Objects with a base URL that modules hold at their top level. One that the text gives another base URL before it
    is used is none."""
    found: list[ClientFound] = []
    for module in modules:
        texts = SourceText.all_of(module)
        readdressed = {name for text in texts for name in text.readdressed}
        for name, value in list(vars(module).items()):
            url = _base_url(value)
            if url is None or name.startswith("__") or name in readdressed:
                continue
            kind = f"{type(value).__module__.split('.')[0]}.{type(value).__qualname__}"
            place = next((place for text in texts if (place := text.place_of(name))), "")
            folder = texts[0].folder if texts else Path.cwd()
            found.append(ClientFound(name, kind, url, place, origin_of(folder, value=url)))
    return list(dict.fromkeys(found))


def _base_url(value: object) -> str | None:
    """The base URL of a client object, by the attribute names that clients use. Values of ours (LLM) have none of
    them."""
    if isinstance(value, type | ModuleType):
        return None
    holder = cast("dict[str, object]", getattr(value, "__dict__", {}))
    for name in ("base_url", "_base_url", "openai_api_base", "api_base"):
        url = holder.get(name)
        if url is not None and str(url).startswith(("http://", "https://")):
            return str(url)
    return None


def heavy_modules(before: set[str], source: AgentSource, reading: set[str]) -> tuple[list[str], list[str]]:
    """Library modules that importing the agent loaded, in order, and the packages among them that must not be loaded
    ahead of an attempt.

    Those are the ones that read an endpoint variable while they were imported: loaded once for all, they would keep a
    wrong value.
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
