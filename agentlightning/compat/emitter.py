"""``agentlightning.emitter`` and ``agentlightning.reward`` as programs import them: what an agent emits, and what is
found of it in spans."""

from __future__ import annotations

from agentlightning.agent.emitters import (
    Operation,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    is_reward_span,
    operation,
    reward,
)
from agentlightning.agent.rewards import emit_reward

OperationContext = Operation

__all__ = [
    "OperationContext",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_reward_value",
    "is_reward_span",
    "operation",
    "reward",
]
