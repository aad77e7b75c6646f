"""Said: what an attempt says of its agents while it runs, which ones it marks as trainable and which one made a call.

It is told as it becomes known, by any thread or over a process's pipe, so that it is there also where the agent then
hangs or dies. What comes from a process is checked here, and bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentlightning.nouns import Json
from agentlightning.tracing.names import LONGEST_ID, MOST


@dataclass(slots=True)
class Said:
    """What was said, in order: names of agents that are ``marked``, and (reply id, name, how) of those that ``named``
    calls. It comes from the agent's side: names are cleaned, and ids looked up, by whoever uses them."""

    marked: list[str] = field(default_factory=list[str])
    named: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def mark(self, name: str, /) -> None:
        """An agent is marked as trainable."""
        self.marked.append(name)

    def name(self, reply_id: str, name: str, how: str, /) -> None:
        """The agent that asked for a reply, and which attribute or callback gave the name."""
        if len(self.named) < MOST:
            self.named.append((reply_id[:LONGEST_ID], name, how))

    def hear(self, message: Any) -> None:
        """What a process sent. Raises ValueError for what none of ours sends."""
        match message:
            case {"mark": str(name)}:
                self.mark(name)
            case {"name": [str(reply_id), str(name), str(how)]}:
                self.name(reply_id, name, how)
            case _:
                raise ValueError(f"no message of an agent's process: {message!r:.100}")


def mark_message(name: str) -> dict[str, Json]:
    return {"mark": name}


def name_message(reply_id: str, name: str, how: str) -> dict[str, Json]:
    return {"name": [reply_id, name, how]}
