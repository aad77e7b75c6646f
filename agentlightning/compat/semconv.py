"""``agentlightning.semconv`` as programs import it: the names of spans and of their attributes."""

from __future__ import annotations

from enum import StrEnum

from agentlightning.agent import emitters
from agentlightning.agent.rewards import REWARD
from agentlightning.tracing import spans

AGL_ANNOTATION = emitters.ANNOTATION
AGL_EXCEPTION = emitters.EXCEPTION
AGL_MESSAGE = emitters.MESSAGE
AGL_OBJECT = emitters.OBJECT
AGL_OPERATION = emitters.OPERATION
AGL_REWARD = REWARD

__all__ = [
    "AGL_ANNOTATION",
    "AGL_EXCEPTION",
    "AGL_MESSAGE",
    "AGL_OBJECT",
    "AGL_OPERATION",
    "AGL_REWARD",
    "LightningResourceAttributes",
    "LightningSpanAttributes",
    "RewardAttributes",
]


class LightningResourceAttributes(StrEnum):
    """What a span's resource says of it."""

    ROLLOUT_ID = spans.ROLLOUT_ID
    ATTEMPT_ID = spans.ATTEMPT_ID


class LightningSpanAttributes(StrEnum):
    """Attributes of spans, and what their names begin with."""

    REWARD = REWARD
    MESSAGE_BODY = f"{emitters.MESSAGE}.body"
    OBJECT_TYPE = f"{emitters.OBJECT}.type"
    OBJECT_LITERAL = f"{emitters.OBJECT}.literal"
    OBJECT_JSON = f"{emitters.OBJECT}.json"
    OPERATION_NAME = f"{emitters.OPERATION}.name"
    OPERATION_INPUT = f"{emitters.OPERATION}.input"
    OPERATION_OUTPUT = f"{emitters.OPERATION}.output"


class RewardAttributes(StrEnum):
    """What follows a reward's place: ``agentlightning.reward.0.value``."""

    REWARD_NAME = "name"
    REWARD_VALUE = "value"
