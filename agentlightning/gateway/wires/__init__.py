"""The APIs that agents speak, one file each. The order is the order in which they are asked whether a path is theirs."""

from __future__ import annotations

from agentlightning.gateway.wires.base import Wire
from agentlightning.gateway.wires.chat_completions import ChatCompletions
from agentlightning.gateway.wires.completions import Completions
from agentlightning.gateway.wires.gemini import Gemini
from agentlightning.gateway.wires.messages import Messages
from agentlightning.gateway.wires.responses import Responses
from agentlightning.gateway.wires.unserved import UNSERVED, Unserved

CHAT = ChatCompletions()

WIRES: tuple[Wire, ...] = (CHAT, Gemini(), Responses(), Messages(), Completions())


def find_wire(path: str) -> Wire | Unserved | None:
    """The wire that a path belongs to, served or not; None for a path that belongs to none."""
    for wire in WIRES:
        if wire.owns(path):
            return wire
    for unserved in UNSERVED:
        if unserved.owns(path):
            return unserved
    return None
