"""Agent Lightning trains any LLM agent while it keeps running as its author wrote it.

This module holds the public names and loads each one when it is first used, so that ``import agentlightning`` stays light where agents run:
it may import nothing of the package, and nothing from outside the standard library, by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentlightning.agent import LitAgent, llm_rollout, prompt_rollout, rollout
    from agentlightning.algorithms.grpo import GRPO
    from agentlightning.config import RunConfig
    from agentlightning.logs import configure_logger
    from agentlightning.resources import LLM, Dataset, NamedResources, PromptTemplate, ProxyLLM
    from agentlightning.rewards import emit_reward
    from agentlightning.task_files import load_tasks
    from agentlightning.trainer import FitResult, Trainer
    from agentlightning.types import Attempt, Rollout

__version__ = "0.3.0.dev0"

__all__ = [
    "GRPO",
    "LLM",
    "Attempt",
    "Dataset",
    "FitResult",
    "LitAgent",
    "NamedResources",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RunConfig",
    "Trainer",
    "__version__",
    "configure_logger",
    "emit_reward",
    "llm_rollout",
    "load_tasks",
    "prompt_rollout",
    "rollout",
]

_HOME = {
    "GRPO": "algorithms.grpo",
    "LLM": "resources",
    "Attempt": "types",
    "Dataset": "resources",
    "FitResult": "trainer",
    "LitAgent": "agent",
    "NamedResources": "resources",
    "PromptTemplate": "resources",
    "ProxyLLM": "resources",
    "Rollout": "types",
    "RunConfig": "config",
    "Trainer": "trainer",
    "configure_logger": "logs",
    "emit_reward": "rewards",
    "llm_rollout": "agent",
    "load_tasks": "task_files",
    "prompt_rollout": "agent",
    "rollout": "agent",
}
"""The module, inside the package, that each public name comes from."""

_NOT_YET = {
    "AgentOpsTracer": "leave the tracer out: the endpoint records every call",
    "OtelTracer": "leave the tracer out: the endpoint records every call",
    "RolloutConfig": "deadlines and attempts are settings of the run (RunConfig.runner)",
    "Span": "rollouts are recorded as trace trees; return a number from the agent or call emit_reward",
    "Triplet": "return a number from the agent or call emit_reward; the endpoint records the tokens",
    "VERL": "use GRPO(...) and RunConfig for its settings",
    "emit_annotation": "only rewards can be emitted (emit_reward)",
    "emit_exception": "raise it: the rollout fails with its traceback",
    "emit_message": "only rewards can be emitted (emit_reward)",
    "emit_object": "only rewards can be emitted (emit_reward)",
    "reward": "return the number from the agent or call emit_reward",
}
"""Names that programs written for this package import and that have no part behind them yet, with what to do instead."""


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _NOT_YET:
        # An AttributeError would lose the sentence: `from agentlightning import X` replaces its text.
        raise ImportError(f"agentlightning {__version__} has no {name} yet: {_NOT_YET[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
