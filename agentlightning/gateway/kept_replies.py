"""The replies of one attempt that later requests may refer to by id, and the conversations that an agent keeps
here.

Holds no message twice: a call's history is read off the trace tree. Belongs to the gateway's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentlightning.gateway.tree import Leaf
from agentlightning.gateway.wires.base import Conversation, Reply, WireRequest
from agentlightning.nouns import Message


@dataclass(frozen=True, slots=True)
class _Kept:
    request: WireRequest
    reply: Reply
    leaf: Leaf


class KeptReplies:
    """Satisfies `EarlierReplies`. ``keep`` is called once for each recorded call that asked for it."""

    def __init__(self) -> None:
        self.conversations: dict[str, Conversation] = {}
        self._kept: dict[str, _Kept] = {}

    def keep(self, request: WireRequest, reply: Reply, leaf: Leaf) -> None:
        self._kept[reply.id] = _Kept(replace(request, messages=request.messages[: request.links.preface]), reply, leaf)
        conversation = self.conversations.get(request.links.conversation or "")
        if conversation is None:
            return
        if self._length(conversation) == request.links.from_conversation:
            conversation.last, conversation.added = reply.id, ()
        else:  # it grew while this call was sampled: what the call adds comes after that
            conversation.added += self.history(reply.id)[request.links.from_conversation :]

    def call(self, call_id: str) -> tuple[WireRequest, Reply] | None:
        kept = self._kept.get(call_id)
        return (kept.request, kept.reply) if kept is not None else None

    def leaf(self, call_id: str | None) -> Leaf | None:
        """The sample that a kept reply is; None where none is named."""
        kept = self._kept.get(call_id) if call_id is not None else None
        return kept.leaf if kept is not None else None

    def history(self, call_id: str) -> tuple[Message, ...]:
        kept = self._kept[call_id]
        messages: list[Message] = []
        for leaf in kept.leaf.path():
            messages += [*leaf.given, leaf.message]
        return tuple(messages[kept.request.links.preface :])

    def forget(self, call_id: str) -> bool:
        if call_id not in self._kept:
            return False
        for conversation in self.conversations.values():
            if conversation.last == call_id:
                conversation.added = (*self.history(call_id), *conversation.added)
                conversation.last = None
        del self._kept[call_id]
        return True

    def _length(self, conversation: Conversation) -> int:
        kept = self._kept.get(conversation.last or "")
        said = kept.leaf.position + 1 - kept.request.links.preface if kept is not None else 0
        return said + len(conversation.added)
