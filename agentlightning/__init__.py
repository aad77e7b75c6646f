"""Agent Lightning trains any LLM agent while it keeps running as its author wrote it.

This module holds the public names and loads each one when it is first used, so that ``import agentlightning`` stays
light where agents run: it may import nothing of the package, and nothing from outside the standard library, by itself.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from agentlightning.agent.calling import LitAgent, llm_rollout, prompt_rollout, rollout
    from agentlightning.agent.emitters import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        find_final_reward,
        operation,
        reward,
    )
    from agentlightning.agent.resources import LLM, Dataset, NamedResources, PromptTemplate, ProxyLLM
    from agentlightning.agent.rewards import emit_reward
    from agentlightning.agent.rollouts import Attempt, Rollout, RolloutConfig
    from agentlightning.agent.task_files import load_tasks
    from agentlightning.agent.tasks import split
    from agentlightning.agent.triplets import Triplet
    from agentlightning.algorithms.grpo import GRPO
    from agentlightning.compat import tracers as tracer  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from agentlightning.compat.adapters import (
        Adapter,
        LlmProxyTraceToTriplet,
        TraceAdapter,
        TracerTraceToTriplet,
        TraceToMessages,
        TripletExporter,
    )
    from agentlightning.compat.command_line import lightning_cli
    from agentlightning.compat.first_version import DevTaskLoader
    from agentlightning.compat.logging import setup_logging
    from agentlightning.compat.own_algorithm import Algorithm, Baseline, FastAlgorithm, algo
    from agentlightning.compat.runner import LitAgentRunner
    from agentlightning.compat.store import InMemoryLightningStore, LightningStore
    from agentlightning.compat.tracers import AgentOpsTracer, OtelTracer, Tracer
    from agentlightning.compat.trainer import Trainer
    from agentlightning.compat.types import Hook
    from agentlightning.compat.verl import VERL
    from agentlightning.logs import configure_logger
    from agentlightning.settings.fields import RunConfig
    from agentlightning.tracing.spans import Span
    from agentlightning.views.result import FitResult

__version__ = "0.3.1"
# Above 0.3.0, which is another package of this name on the public index: an upgrade would replace a version below it.
# Below 0.4, which programs for this name require.

__all__ = [
    "GRPO",
    "LLM",
    "VERL",
    "Adapter",
    "AgentOpsTracer",
    "Algorithm",
    "Attempt",
    "Baseline",
    "Dataset",
    "DevTaskLoader",
    "FastAlgorithm",
    "FitResult",
    "Hook",
    "InMemoryLightningStore",
    "LightningStore",
    "LitAgent",
    "LitAgentRunner",
    "LlmProxyTraceToTriplet",
    "NamedResources",
    "OtelTracer",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RolloutConfig",
    "RunConfig",
    "Span",
    "TraceAdapter",
    "TraceToMessages",
    "Tracer",
    "TracerTraceToTriplet",
    "Trainer",
    "Triplet",
    "TripletExporter",
    "__version__",
    "algo",
    "configure_logger",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "lightning_cli",
    "llm_rollout",
    "load_tasks",
    "operation",
    "prompt_rollout",
    "reward",
    "rollout",
    "setup_logging",
    "split",
]

_HOME = {
    "Algorithm": "compat.own_algorithm",
    "Baseline": "compat.own_algorithm",
    "FastAlgorithm": "compat.own_algorithm",
    "algo": "compat.own_algorithm",
    "InMemoryLightningStore": "compat.store",
    "LightningStore": "compat.store",
    "LitAgentRunner": "compat.runner",
    "DevTaskLoader": "compat.first_version",
    "lightning_cli": "compat.command_line",
    "VERL": "compat.verl",
    "GRPO": "algorithms.grpo",
    "LLM": "agent.resources",
    "Adapter": "compat.adapters",
    "AgentOpsTracer": "compat.tracers",
    "Attempt": "agent.rollouts",
    "Dataset": "agent.resources",
    "FitResult": "views.result",
    "Hook": "compat.types",
    "LitAgent": "agent.calling",
    "LlmProxyTraceToTriplet": "compat.adapters",
    "NamedResources": "agent.resources",
    "OtelTracer": "compat.tracers",
    "PromptTemplate": "agent.resources",
    "ProxyLLM": "agent.resources",
    "Rollout": "agent.rollouts",
    "RolloutConfig": "agent.rollouts",
    "RunConfig": "settings.fields",
    "Span": "tracing.spans",
    "TraceAdapter": "compat.adapters",
    "TraceToMessages": "compat.adapters",
    "Tracer": "compat.tracers",
    "TracerTraceToTriplet": "compat.adapters",
    "Trainer": "compat.trainer",
    "Triplet": "agent.triplets",
    "TripletExporter": "compat.adapters",
    "configure_logger": "logs",
    "emit_annotation": "agent.emitters",
    "emit_exception": "agent.emitters",
    "emit_message": "agent.emitters",
    "emit_object": "agent.emitters",
    "emit_reward": "agent.rewards",
    "find_final_reward": "agent.emitters",
    "llm_rollout": "agent.calling",
    "load_tasks": "agent.task_files",
    "operation": "agent.emitters",
    "prompt_rollout": "agent.calling",
    "reward": "agent.emitters",
    "rollout": "agent.calling",
    "setup_logging": "compat.logging",
    "split": "agent.tasks",
}
"""The module, inside the package, that each public name comes from."""


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    sentence = None
    if not name.startswith("_"):
        from agentlightning.spellings.paths import why_no_module

        sentence = why_no_module(f"{__name__}.{name}")
    raise AttributeError(sentence or f"module {__name__!r} has no attribute {name!r}", name=name)


class _Absent:
    """Asked when Python has found no such module of this package: one that programs import and that is not here is
    refused with a sentence."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        from agentlightning.spellings.paths import spec_of

        return spec_of(fullname)


sys.meta_path.append(_Absent)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
