"""Wires that this version does not serve: each answers 404 in its own error shape with the sentence that says what to set instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from agentlightning.gateway.wires.base import CallError
from agentlightning.gateway.wires.chat_completions import openai_error

_CHAT = "This endpoint serves Chat Completions (POST {base}/chat/completions, JSON and streaming)"


def anthropic_error(error: CallError) -> bytes:
    kinds = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": error.message}})


def gemini_error(error: CallError) -> bytes:
    kinds = {401: "UNAUTHENTICATED", 404: "NOT_FOUND"}
    kind = kinds.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
    return orjson.dumps({"error": {"code": error.status, "message": error.message, "status": kind}})


@dataclass(frozen=True, slots=True)
class Unserved:
    """A wire by the paths it owns. ``advice`` says what to set instead."""

    name: str
    paths: re.Pattern[str]
    advice: str
    error: Callable[[CallError], bytes]

    def owns(self, path: str) -> bool:
        return self.paths.fullmatch(path) is not None

    def refusal(self) -> CallError:
        return CallError(
            404, f"{self.name} is not served by this version. {_CHAT.format(base='OPENAI_BASE_URL')}: {self.advice}", code="not_served"
        )


UNSERVED = (
    Unserved(
        "The Responses API",
        re.compile(r"responses(/.*)?|conversations(/.*)?"),
        "set your client to it, e.g. client.chat.completions.create with openai, set_default_openai_api('chat_completions') with openai-agents, "
        "OpenAIChatCompletionClient with agent-framework, openai.chat(model) with the ai SDK.",
        openai_error,
    ),
    Unserved(
        "The Messages API",
        re.compile(r"messages(/.*)?"),
        "set your agent's provider to OpenAI-compatible with base_url=OPENAI_BASE_URL.",
        anthropic_error,
    ),
    Unserved(
        "The Gemini API",
        re.compile(r"models/.*:\w+"),
        "set your agent's model to an OpenAI-compatible one with base_url=OPENAI_BASE_URL (LiteLlm('openai/NAME') with google-adk).",
        gemini_error,
    ),
    Unserved(
        "The legacy Completions API",
        re.compile(r"completions"),
        "send messages instead of a prompt (model_type='chat' with dspy).",
        openai_error,
    ),
    Unserved(
        "The Embeddings API",
        re.compile(r"embeddings"),
        "a policy makes no embeddings; point your embedding client at a provider of its own.",
        openai_error,
    ),
)
