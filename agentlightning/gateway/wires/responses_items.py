"""Items of the Responses API: the items of a request as messages, and messages as items whose ids find them again.

An item's id names the call or the conversation that it belongs to and its place there, so that no table of items is
kept: ``msg_CALL_0`` is of a call's output, ``msg_CALL_in_3`` of the history that it answered, ``msg_CONVERSATION_at_3``
of a conversation. Pure translation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agentlightning.gateway.wires.base import CallError, Choice, Conversation, EarlierReplies, Reply, WireRequest
from agentlightning.gateway.wires.fields import arguments_text, bad, needed_text, objects, shown
from agentlightning.gateway.wires.round_trip import sealed, unsealed
from agentlightning.nouns import FinishReason, Json, Message, ToolCall

CALL = "resp_"
CONVERSATION = "conv_"

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

Item = dict[str, Json]

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_ID = re.compile(r"(?:msg|rs|fc|fco)_([0-9a-f]{24})_(?:(in|at)_)?[0-9]+")

MAX_HISTORIES = 32
"""Histories (those that calls answered, and conversations) whose items one request may refer to: each has to be read
from its beginning."""


# --------------------------------------------------------------------------- items -> messages


@dataclass(slots=True)
class _Turn:
    """The assistant's turn that is being read. Its items may come in any order; ``call`` is the call that sampled it,
    where an id said so."""

    call: str | None = None
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    spoke: bool = False

    def ends_before(self, kind: str, call: str | None) -> bool:
        """Whether an item begins another turn. A reply has one message item at most, and its reasoning comes before the
        rest of it."""
        if call is not None and self.call is not None:
            return call != self.call
        return (self.spoke and kind in ("message", "reasoning")) or (bool(self.calls) and kind == "reasoning")

    def message(self) -> Message:
        return Message("assistant", "".join(self.texts), tuple(self.calls), None, None, "".join(self.thoughts) or None)


def read_items(value: Any, earlier: EarlierReplies, where: str) -> tuple[Message, ...]:
    """The messages in a list of items: all of one turn of the assistant's (reasoning, text, calls) is one message.
    Raises CallError."""
    if not isinstance(value, list):
        raise bad(f"{where} must be a string or a list of items, not {shown(value)}", where)
    messages: list[Message] = []
    turn: _Turn | None = None
    kept = _Kept(earlier)
    for i, raw in enumerate(cast("list[Any]", value)):
        place = f"{where}[{i}]"
        item, kind, role = _recognised(raw, kept, place)
        if role != "assistant":
            if turn is not None:
                messages.append(turn.message())
                turn = None
            messages.append(
                _output(item, place)
                if kind == "function_call_output"
                else Message(role, _content(item, role, place)[0])
            )
            continue
        call = _sampled_by(item.get("id"))
        if turn is not None and turn.ends_before(kind, call):
            messages.append(turn.message())
            turn = None
        turn = turn or _Turn()
        turn.call = turn.call or call
        if kind == "function_call":
            turn.calls.append(_call(item, place))
        elif kind == "reasoning":
            turn.thoughts.append(_reasoning(item, place))
        else:
            text, thoughts = _content(item, role, place)
            turn.texts.append(text)
            turn.thoughts.append(thoughts)
            turn.spoke = True
    if turn is not None:
        messages.append(turn.message())
    return tuple(messages)


def _recognised(raw: Any, kept: _Kept, place: str) -> tuple[Mapping[str, Any], str, str]:
    """An item (what it refers to, where it is a reference), its type and whose it is: a role, or `tool` for a call's
    output."""
    if not isinstance(raw, dict):
        raise bad(f"{place} must be an object, not {shown(raw)}", place)
    item = cast("Mapping[str, Any]", raw)
    kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
    if kind == "item_reference":
        item = kept.find(item.get("id"), place)
        kind = item["type"]
    if kind == "message":
        role = item.get("role")
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise bad(f"{place}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", f"{place}.role")
        return item, "message", known
    if kind == "function_call" or kind == "reasoning":
        return item, kind, "assistant"
    if kind == "function_call_output":
        return item, kind, "tool"
    raise bad(
        f"{place} is of type {shown(kind)}, which is not supported: this model reads messages, reasoning, function "
        "calls and their outputs",
        f"{place}.type",
        "unsupported_item",
    )


def _sampled_by(item_id: Any) -> str | None:
    found = _ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return found[1] if found is not None and found[2] is None else None


def _call(item: Mapping[str, Any], place: str) -> ToolCall:
    call_id = item.get("call_id") or item.get("id")
    arguments = arguments_text(item.get("arguments"), f"{place}.arguments")
    return ToolCall(call_id if isinstance(call_id, str) else "", needed_text(item, "name", place), arguments)


def failed_outputs(value: Json) -> frozenset[str]:
    """The ids of the calls whose outputs in a list of items have a status that is none of success."""
    return frozenset(
        [
            item["call_id"]
            for item in objects(value)
            if item.get("type") == "function_call_output"
            and item.get("status") in ("incomplete", "failed")
            and isinstance(item.get("call_id"), str)
        ]
    )


def _output(item: Mapping[str, Any], place: str) -> Message:
    output, call_id = item.get("output"), item.get("call_id")
    text = output if isinstance(output, str) else "" if output is None else _parts(output, "tool", f"{place}.output")[0]
    return Message("tool", text, (), call_id if isinstance(call_id, str) else None)


def _content(item: Mapping[str, Any], role: str, place: str) -> tuple[str, str]:
    """Text and reasoning of a message."""
    content = item.get("content")
    if isinstance(content, str):
        return content, ""
    return ("", "") if content is None else _parts(content, role, f"{place}.content")


def _parts(content: Any, role: str, where: str) -> tuple[str, str]:
    """Text and reasoning in a list of parts. Paragraphs of a prompt stay apart; the pieces of an answer are one
    text."""
    if not isinstance(content, list):
        raise bad(f"{where} must be a string or a list of parts, not {shown(content)}", where)
    texts: list[str] = []
    thoughts: list[str] = []
    for j, raw in enumerate(cast("list[Any]", content)):
        place = f"{where}[{j}]"
        if not isinstance(raw, dict):
            raise bad(f"{place} must be an object, not {shown(raw)}", place)
        part = cast("Mapping[str, Any]", raw)
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text"):
            texts.append(needed_text(part, "text", place))
        elif kind == "refusal":
            texts.append(needed_text(part, "refusal", place))
        elif kind == "reasoning_text" and role == "assistant":
            thoughts.append(needed_text(part, "text", place))
        else:
            raise bad(
                f"{place} is of type {shown(kind)}, which is not supported: this model reads text",
                f"{place}.type",
                "unsupported_content",
            )
    return ("" if role == "assistant" else "\n").join(texts), "".join(thoughts)


def _reasoning(item: Mapping[str, Any], place: str) -> str:
    """The text of a reasoning item: as it was given out, unsealed, or (from clients that move it there) in the
    summary."""
    for name in ("content", "summary"):
        pieces = item.get(name)
        if pieces is not None and not isinstance(pieces, list):
            raise bad(f"{place}.{name} must be a list of parts, not {shown(pieces)}", f"{place}.{name}")
    told = _texts(item, "content", place)
    return told or unsealed(item.get("encrypted_content")) or _texts(item, "summary", place)


def _texts(item: Mapping[str, Any], name: str, place: str) -> str:
    texts: list[str] = []
    for j, raw in enumerate(cast("list[Any]", item.get(name) or [])):
        if not isinstance(raw, dict):
            raise bad(f"{place}.{name}[{j}] must be an object, not {shown(raw)}", f"{place}.{name}[{j}]")
        texts.append(needed_text(cast("Mapping[str, Any]", raw), "text", f"{place}.{name}[{j}]"))
    return "".join(texts)


# --------------------------------------------------------------------------- messages -> items


def message_item(item_id: str, text: str, status: str, logprobs: Sequence[Json] = ()) -> Item:
    part: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": [part]}


def reasoning_item(item_id: str, text: str, status: str, *, seal: bool = False) -> Item:
    item: Item = {
        "id": item_id,
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": status,
    }
    return {**item, "encrypted_content": sealed(text)} if seal else item


def call_item(item_id: str, call: ToolCall) -> Item:
    return {
        "id": item_id, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments,
        "status": "completed",
    }  # fmt: skip


def first_ids(call_id: str) -> tuple[str, str]:
    """The ids of a reply's reasoning and of its text."""
    call = call_id.removeprefix(CALL)
    return f"rs_{call}_0", f"msg_{call}_0"


def seals(request: WireRequest) -> bool:
    return ENCRYPTED in request.asked.get("include", ())


def output_items(request: WireRequest, reply: Reply) -> list[Item]:
    """The items of a reply: reasoning, text, calls. Text is left out where there is something else and no text."""
    choice = reply.choices[0]
    message = choice.message
    thought_id, text_id = first_ids(reply.id)
    cut = "incomplete" if choice.finish is FinishReason.LENGTH and not message.tool_calls else "completed"
    speaks = bool(message.content) or not (message.tool_calls or (message.reasoning and cut == "incomplete"))
    items: list[Item] = []
    if message.reasoning:
        status = "completed" if speaks else cut
        items.append(reasoning_item(thought_id, message.reasoning, status, seal=seals(request)))
    if speaks:
        items.append(message_item(text_id, message.content, cut, _logprobs(choice) if request.options.logprobs else ()))
    items += [call_item(f"fc_{reply.id.removeprefix(CALL)}_{i}", call) for i, call in enumerate(message.tool_calls)]
    return items


def _logprobs(choice: Choice) -> list[Json]:
    """Of all tokens that were sampled, in their order. Part of a character has no text of its own: its bytes are
    unknown here."""
    return [
        {
            "token": text,
            "logprob": logprob,
            "bytes": [] if "\ufffd" in text else list(text.encode("utf-8", "surrogatepass")),
            "top_logprobs": [],
        }
        for text, logprob in zip(choice.token_texts, choice.logprobs, strict=True)
    ]


def listed(messages: Sequence[Message], stem: str) -> list[Item]:
    """Messages as items, each with its place in the list in its id."""
    items: list[Item] = []

    def next_id(kind: str) -> str:
        return f"{kind}_{stem}_{len(items)}"

    for message in messages:
        if message.role == "tool":
            output: Item = {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
            items.append({"id": next_id("fco"), **output, "status": "completed"})
        elif message.role == "assistant":
            if message.reasoning:
                items.append(reasoning_item(next_id("rs"), message.reasoning, "completed"))
            if message.content or not message.tool_calls:
                items.append(message_item(next_id("msg"), message.content, "completed"))
            for call in message.tool_calls:
                items.append(call_item(next_id("fc"), call))
        else:
            part: Item = {"type": "input_text", "text": message.content}
            items.append(
                {
                    "id": next_id("msg"),
                    "type": "message",
                    "role": message.role,
                    "content": [part],
                    "status": "completed",
                }
            )
    return items


def input_items(reply: Reply, earlier: EarlierReplies) -> list[Item]:
    """The whole history that a kept call answered, but for its instructions."""
    return listed(earlier.history(reply.id)[:-1], f"{reply.id.removeprefix(CALL)}_in")


def conversation_messages(conversation: Conversation, earlier: EarlierReplies) -> tuple[Message, ...]:
    return (
        (*earlier.history(conversation.last), *conversation.added)
        if conversation.last is not None
        else conversation.added
    )


def conversation_items(conversation: Conversation, earlier: EarlierReplies) -> list[Item]:
    return listed(conversation_messages(conversation, earlier), f"{conversation.id.removeprefix(CONVERSATION)}_at")


class _Kept:
    """The items that one request may refer to. A history is made into items once, however many of them are asked
    for."""

    def __init__(self, earlier: EarlierReplies) -> None:
        self._earlier = earlier
        self._items: dict[tuple[str, str | None], dict[Json, Item]] = {}
        self._histories = 0

    def find(self, item_id: Any, place: str) -> Item:
        """The item that was given out under an id. Raises CallError where it is not here."""
        found = _ID.fullmatch(item_id) if isinstance(item_id, str) else None
        item = self._beside(found[1], found[2], place).get(item_id) if found is not None else None
        if item is None:
            raise CallError(
                404,
                f"{place} refers to item {shown(item_id)}, which is not here: it belongs to another attempt, or its "
                "response was not stored (store=false); send the item itself",
                param=place,
                code="item_not_found",
            )
        return item

    def _beside(self, owner: str, kind: str | None, place: str) -> Mapping[Json, Item]:
        items = self._items.get((owner, kind))
        if items is None:
            self._histories += kind is not None
            if self._histories > MAX_HISTORIES:
                raise bad(
                    f"{place} refers to one more than {MAX_HISTORIES} histories: send the item itself",
                    place,
                    "too_many_references",
                )
            items = self._items[owner, kind] = {item["id"]: item for item in _beside(owner, kind, self._earlier)}
        return items


def _beside(owner: str, place: str | None, earlier: EarlierReplies) -> Sequence[Item]:
    if place == "at":
        conversation = earlier.conversations.get(CONVERSATION + owner)
        return conversation_items(conversation, earlier) if conversation is not None else ()
    kept = earlier.call(CALL + owner)
    if kept is None:
        return ()
    return input_items(kept[1], earlier) if place == "in" else output_items(*kept)
