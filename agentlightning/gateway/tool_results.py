"""Results of an attempt's tool calls that report an error, as they come back with its later requests.

A result is an error where its API says so (Messages' ``is_error``, a Responses output that is no ``completed`` one,
Gemini's ``error`` in place of an output), or where its text is a tool result of the Model Context Protocol with
``isError``. What a result's words mean is nobody's business here. Knows nothing of rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.base import WireRequest
from agentlightning.nouns import Message


class ToolResults:
    """Which tool calls of an attempt were made and have had no result yet."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def made(self, message: Message) -> None:
        """The model asked for these tool calls."""
        self._open.update([call.id for call in message.tool_calls])

    def failed(self, request: WireRequest) -> list[str]:
        """The tool calls whose result this request is the first to bring, and brings as an error. A history brings each
        result again and again: it counts once."""
        results = [
            message for message in request.messages if message.role == "tool" and message.tool_call_id in self._open
        ]
        failed: list[str] = []
        for result in results:
            id = cast("str", result.tool_call_id)
            if id in self._open and (id in request.failed_tools or is_mcp_error(result.content)):
                failed.append(id)
            self._open.discard(id)
        return failed


def is_mcp_error(text: str) -> bool:
    """Whether a text is a whole ``CallToolResult`` with ``isError``, as programs pass on that hand the model what the
    server sent. Model Context Protocol, revision 2025-06-18, server features, tools, "Error handling"."""
    if '"isError"' not in text or not text.lstrip().startswith("{"):
        return False
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    result = cast("Mapping[str, Any]", value)
    return result.get("isError") is True and isinstance(result.get("content"), list)
