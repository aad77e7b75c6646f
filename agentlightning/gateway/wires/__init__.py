"""The APIs that agents speak, one file each. The order is the order in which they are asked whether a path is
theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from agentlightning.gateway.wires.base import EarlierReplies, Target, Wire, WireRequest
from agentlightning.gateway.wires.chat_completions import ChatCompletions
from agentlightning.gateway.wires.completions import Completions
from agentlightning.gateway.wires.extra_settings import with_extra_settings
from agentlightning.gateway.wires.fields import Rounded, exactly
from agentlightning.gateway.wires.gemini import Gemini
from agentlightning.gateway.wires.messages import Messages
from agentlightning.gateway.wires.responses import Responses
from agentlightning.gateway.wires.unserved import UNSERVED, Unserved
from agentlightning.nouns import Json

CHAT, GEMINI, MESSAGES = ChatCompletions(), Gemini(), Messages()

WIRES: tuple[Wire, ...] = (CHAT, GEMINI, Responses(), MESSAGES, Completions())


def find_wire(path: str) -> Wire | Unserved | None:
    """The wire that a path belongs to, served or not; None for a path that belongs to none."""
    for wire in WIRES:
        if wire.owns(path):
            return wire
    for unserved in UNSERVED:
        if unserved.owns(path):
            return unserved
    return None


def wire_of_client(path: str, headers: Mapping[str, str]) -> Wire:
    """The API that a client speaks, where its path belongs to several or to none. ``path`` is the whole one; header
    names are looked up as `Mapping` does."""
    if "x-goog-api-key" in headers or "/v1beta/" in path or "/v1beta1/" in path:
        return GEMINI
    return MESSAGES if "anthropic-version" in headers else CHAT


_HISTORIES = ("messages", "contents", "input")
_WRAPPED = ("generateContentRequest", "generate_content_request")


def read_request(
    wire: Wire, target: Target, parsed: Mapping[str, Json], body: bytes, earlier: EarlierReplies
) -> WireRequest:
    """What ``wire`` makes of a request, whose history is read again with all digits of its numbers where the usual way
    loses some. Raises CallError."""
    try:
        request = wire.request(target, parsed, earlier)
    except Rounded:
        request = wire.request(target, _with_history(parsed, cast("Mapping[str, Json]", exactly(body))), earlier)
    return with_extra_settings(wire.name, request, parsed)


def _with_history(parsed: Mapping[str, Json], exact: Mapping[str, Json]) -> Mapping[str, Json]:
    changed = {name: exact[name] for name in _HISTORIES if name in exact}
    changed |= {
        name: _with_history(parsed[name], exact[name]) for name in _WRAPPED if isinstance(parsed.get(name), dict)
    }
    return {**parsed, **changed}
