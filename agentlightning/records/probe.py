"""Probe: what was found out about an agent before it ran, by importing it and reading its text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from agentlightning.nouns import Json, Mode

Isolation = Literal["thread", "process"]

PLACEHOLDER = "http://127.0.0.1:9/a/placeholder"
"""What stands for an attempt's endpoint while an agent is imported to be checked: nothing listens there."""


@dataclass(frozen=True, slots=True)
class ClientFound:
    """A client object that a module made when it was imported: its name there, its class, and the base URL it was made
    with.

    ``place`` is the line that makes it (``file.py:12``), ``origin`` where that URL stands, where it is not in the
    module itself: a line of a ``.env`` file, or a variable.
    """

    name: str
    kind: str
    base_url: str
    place: str = ""
    origin: str = ""

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Something that the user's text says: ``what``, at ``place`` (``file.py:12``), and where a value that it reads
    came from (``origin``)."""

    place: str
    what: str
    origin: str = ""

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AgentProbe:
    """What is known of an agent before it runs: its ``modes`` and ``parameters``, and what may lead its calls past the
    endpoint.

    That is: ``clients`` made at import, ``settings`` in its text (a hard-coded base URL), ``caches`` that may answer
    instead of a call, and ``proxies``. ``trained_agents`` is what a `LitAgent` sets. ``modules`` are libraries worth
    loading once for all attempts, ``tainted`` those that must not be.
    """

    name: str
    isolation: Isolation
    modes: frozenset[Mode]
    parameters: frozenset[str]
    needs_template: bool
    clients: tuple[ClientFound, ...] = ()
    settings: tuple[CodePlace, ...] = ()
    caches: tuple[CodePlace, ...] = ()
    proxies: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    tainted: tuple[str, ...] = ()
    trained_agents: str | None = None
