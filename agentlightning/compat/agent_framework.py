"""Agent Framework's lab package: what it gets from here, whoever's file answers to its name.

PyPI's ``agent-framework-lab`` has a module ``agent_framework_lab_lightning`` with a tracer over our ``AgentOpsTracer``.
Programs also import ``init`` and our own public names from it, which no published version has: `complete` adds them
while that module's body runs. Where the package is not installed, ``aside/agent_framework_lab_lightning.py`` answers.
This file imports the framework only when it is to be turned on.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import agentlightning
from agentlightning.errors import ConfigError, MissingExtra

FRAMEWORK = "agent_framework"
LAB = "agent_framework_lab_lightning"
HANDS_ON = "agent_framework.lab.lightning"
"""The lab's other name for its module, which it has import from the first."""


def init() -> None:
    """Turns on Agent Framework's OpenTelemetry in this process, so that its spans tell which agent made a call.

    Versions from 1.0.0b251223 on have a function for it, older ones a setting. Raises MissingExtra where the framework
    is not installed, ConfigError where it has neither.
    """
    try:
        observability = import_module(f"{FRAMEWORK}.observability")
    except ModuleNotFoundError as error:
        if error.name not in (FRAMEWORK, f"{FRAMEWORK}.observability"):
            raise
        raise MissingExtra(
            "init() turns on Agent Framework's telemetry, and the framework is not installed: pip install "
            "agent-framework-core"
        ) from error
    enable = getattr(observability, "enable_instrumentation", None)
    settings: Any = getattr(observability, "OBSERVABILITY_SETTINGS", None)
    if callable(enable):
        enable()
    elif hasattr(settings, "enable_otel"):
        settings.enable_otel = True
    else:
        raise ConfigError(
            f"init(): {observability.__name__} has neither enable_instrumentation() nor "
            "OBSERVABILITY_SETTINGS.enable_otel, so its telemetry cannot be turned on: pip install "
            "'agent-framework-core>=1.0.0b251001'"
        )


def complete(module: str) -> None:
    """Gives the lab's module ``init`` and our public names, as far as it has none of its own.

    ``AgentOpsTracer`` calls this with the module of each class derived from it: the lab derives one, and its module is
    half made then and in ``sys.modules``, and so is the other that hands it on where a program began with that. Any
    other module is left as it is.
    """
    if module != LAB:
        return
    for name in (LAB, HANDS_ON):
        if name in sys.modules:
            names = vars(sys.modules[name])
            names.setdefault("init", init)
            names.setdefault("__getattr__", public)


def public(name: str) -> object:
    """One of the package's public names, for ``from agent_framework_lab_lightning import rollout``."""
    if name.startswith("__"):
        raise AttributeError(f"module {LAB!r} has no attribute {name!r}", name=name)
    return getattr(agentlightning, name)
