"""Messages as the record and its spans have them, in the form of OpenTelemetry's conventions for generative AI, and as
Chat Completions writes them. Pure; the standard library alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from agentlightning.nouns import Json, Message


def message_json(message: Message, finish: str | None = None) -> dict[str, Json]:
    """A message as OpenTelemetry's conventions have it."""
    parts: list[dict[str, Json]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    elif message.content:
        parts.append({"type": "text", "content": message.content})
    for call in message.tool_calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
    named = {} if message.name is None else {"name": message.name}
    ended = {} if finish is None else {"finish_reason": finish}
    return {"role": message.role, "parts": parts, **named, **ended}


def chat_message(message: Mapping[str, Json]) -> dict[str, Json]:
    """A message of those conventions as Chat Completions writes it."""
    parts = cast("Sequence[Mapping[str, Json]]", message["parts"])

    def text(kind: str, field: str = "content") -> str:
        return "".join(str(part[field]) for part in parts if part["type"] == kind)

    role = message["role"]
    answer = next((part for part in parts if part["type"] == "tool_call_response"), None)
    made: dict[str, Json] = {"role": role, "content": text("text") if answer is None else answer["response"]}
    if answer is not None:
        made["tool_call_id"] = answer["id"]
    if message.get("name") is not None:
        made["name"] = message["name"]
    if reasoning := text("reasoning"):
        made["reasoning_content"] = reasoning
    calls = [
        {"id": part["id"], "type": "function", "function": {"name": part["name"], "arguments": part["arguments"]}}
        for part in parts
        if part["type"] == "tool_call"
    ]
    if calls:
        made |= {"tool_calls": calls, "content": made["content"] or None}
    return made
