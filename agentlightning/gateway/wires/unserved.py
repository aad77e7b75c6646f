"""Wires that this version does not serve: each answers 404 in its own error shape with the sentence that says what to
set instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentlightning.gateway.wires.base import CallError
from agentlightning.gateway.wires.gemini import gemini_error
from agentlightning.gateway.wires.messages import anthropic_error
from agentlightning.gateway.wires.openai import openai_error

_SERVED = (
    "This endpoint serves OpenAI's chat/completions, responses and completions, Anthropic's messages, and "
    "Gemini's generateContent"
)


@dataclass(frozen=True, slots=True)
class Unserved:
    """A wire by the paths it owns. ``advice`` says what to set instead. ``shared``: several APIs have such a path, so
    that the client says which one is meant."""

    name: str
    paths: re.Pattern[str]
    advice: str
    error: Callable[[CallError], bytes]
    shared: bool = False

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
        "A stored chat completion",
        re.compile(
            r"chat/completions/(?!(?:chat|completions|responses|messages|models|embeddings)(?:/|$))[^/]+(?:/messages)?"
        ),
        "completions are recorded for training and not kept for their agent; responses are, at responses/ID.",
        openai_error,
    ),
    Unserved(
        "The legacy Text Completions of Anthropic",
        re.compile(r"complete"),
        "use messages.",
        anthropic_error,
    ),
    Unserved(
        "The Files API",
        re.compile(r"files(?:/.*)?|uploads(?:/.*)?|upload/.*"),
        "put the text of a file into a message.",
        openai_error,
        shared=True,
    ),
    Unserved(
        "The Batch API",
        re.compile(r"batches(?:/.*)?"),
        "send each request by itself, as many at a time as you like.",
        openai_error,
        shared=True,
    ),
    Unserved(
        "The Realtime API",
        re.compile(r"realtime(?:/.*)?"),
        "use responses or chat/completions with stream=true.",
        openai_error,
    ),
    Unserved(
        "This API of OpenAI's",
        re.compile(
            r"(?:audio|images|videos|moderations|fine_tuning|vector_stores|assistants|threads|evals|containers|skills|chatkit|graders)(?:/.*)?"
        ),
        "a policy reads and writes text; point a client of its own at a provider for the rest.",
        openai_error,
        shared=True,
    ),
    Unserved(
        "This API",
        re.compile(
            r"rerank|score|pooling|classify|tokenize|detokenize|generate|api/(?:chat|generate|embed|embeddings|tags|show)"
        ),
        "messages/count_tokens, responses/input_tokens and models/NAME:countTokens count tokens.",
        openai_error,
    ),
    Unserved(
        "The Embeddings API",
        re.compile(r"embeddings"),
        "a policy makes no embeddings; point your embedding client at a provider of its own.",
        openai_error,
    ),
)

TAKES = {
    "chat/completions": "it takes POST; completions are recorded for training and not listed for their agent",
    "responses": "it takes POST; one that was made is at responses/ID",
}
"""What paths that are served take, for those who ask otherwise."""
