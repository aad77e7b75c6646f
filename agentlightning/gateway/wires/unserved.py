"""Wires that this version does not serve: each answers 404 in its own error shape with the sentence that says what to set instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentlightning.gateway.wires.base import CallError
from agentlightning.gateway.wires.gemini import gemini_error
from agentlightning.gateway.wires.openai import openai_error

_SERVED = "This endpoint serves OpenAI's chat/completions, responses and completions, Anthropic's messages, and Gemini's generateContent"


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
        return CallError(404, f"{self.name} is not served by this version. {_SERVED}: {self.advice}", code="not_served")


UNSERVED = (
    Unserved(
        "This method of the Gemini API",
        re.compile(r"(?:.*/)?models/.+:(?:predict|embed|batch|asyncBatch|generate|count|rawPredict)\w*"),
        "of the Gemini API use generateContent, streamGenerateContent and countTokens; a policy makes no embeddings.",
        gemini_error,
    ),
    Unserved(
        "Gemini's Interactions API",
        re.compile(r"interactions(?:/.*)?"),
        "of the Gemini API use generateContent, which is sent the whole history.",
        gemini_error,
    ),
    Unserved(
        "Gemini's cached content",
        re.compile(r"cachedContents(?:/.*)?"),
        "send the contents themselves; the tokens of earlier turns are kept in any case.",
        gemini_error,
    ),
    Unserved(
        "The Embeddings API",
        re.compile(r"embeddings"),
        "a policy makes no embeddings; point your embedding client at a provider of its own.",
        openai_error,
    ),
)
