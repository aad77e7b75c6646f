"""Compaction: a history that has grown past the model's context, shortened by a function of the user's, and the
shortened histories that later requests go on from.

The client goes on sending its whole history. What it begins with is recognised, message by message, and the shortened
one stands in its place, so that later turns continue the tokens that were recorded behind it. Where the function runs
is its runner's business; here is decided what it is asked, what it may answer, and what becomes of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Protocol, cast

from agentlightning.errors import CompactionError
from agentlightning.gateway.equality import Key, equality_key
from agentlightning.gateway.wires.base import CallError, WireRequest
from agentlightning.gateway.wires.chat_completions import read_messages
from agentlightning.nouns import Json, Message, Tool, ToolCall

CountTokens = Callable[[Json], Awaitable[int]]
"""How many tokens the prompt of such messages has. Raises ValueError for what are no messages."""

LONGEST_REPLY = 4
"""The part of the context, one in so many, that a prompt has to leave free for its reply at most."""


class Compact(Protocol):
    """The user's function, wherever it runs."""

    async def __call__(self, asked: Mapping[str, Json], count: CountTokens) -> Json:
        """What it makes of ``messages``, given also ``tools``, both as Chat Completions writes them, ``limit``, the
        tokens that they should have at most, and a ``seed``. Raises CompactionError."""
        ...


def room_for_reply(max_tokens: int, context_length: int) -> int:
    """Tokens that a prompt has to leave free."""
    return max(1, min(max_tokens, context_length // LONGEST_REPLY))


class Compactions:
    """The shortened histories of one attempt, by what their clients go on sending."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Held while one is made, so that equal requests that come together share it."""
        self._made: dict[tuple[str, int], list[tuple[tuple[Key, ...], tuple[Message, ...]]]] = {}

    def applied(self, messages: tuple[Message, ...], policy: str) -> tuple[Message, ...]:
        """The history with the longest beginning that was shortened in its shortened form."""
        if not self._made:
            return messages
        keys, chains = _chained(messages)
        for end in range(len(messages), 0, -1):
            for begins, shortened in reversed(self._made.get((policy, chains[end]), ())):
                if begins == keys[:end]:
                    return (*shortened, *messages[end:])
        return messages

    def note(self, messages: Sequence[Message], shortened: tuple[Message, ...], policy: str) -> None:
        """From now on ``shortened`` stands for histories that begin with ``messages``."""
        keys, chains = _chained(messages)
        self._made.setdefault((policy, chains[-1]), []).append((keys, shortened))


def _chained(messages: Sequence[Message]) -> tuple[tuple[Key, ...], list[int]]:
    """What each message is compared by, and a hash of each beginning of them, the empty one first."""
    keys = tuple([equality_key(message) for message in messages])
    return keys, [*accumulate(keys, lambda chain, key: hash((chain, key)), initial=0)]


# --------------------------------------------------------------------------- what goes out and what comes back


def as_chat(message: Message) -> dict[str, Json]:
    """A message as Chat Completions writes it."""
    told: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for name, value in (
        ("tool_call_id", message.tool_call_id),
        ("name", message.name),
        ("reasoning_content", message.reasoning),
    ):
        if value is not None:
            told[name] = value
    return told


def tools_as_chat(tools: Sequence[Tool]) -> list[Json]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def as_messages(value: Json) -> tuple[Message, ...]:
    """Raises ValueError for what are no messages."""
    try:
        return read_messages(value)
    except CallError as error:
        raise ValueError(error.message) from error


def checked(value: Json, before: Sequence[Message]) -> tuple[Message, ...]:
    """What came back as messages; one that was handed over and comes back as it was is that very one. Raises
    CompactionError where it is no history that a model could be given."""
    try:
        messages = as_messages(value)
    except ValueError as error:
        raise CompactionError(f"returned what is no history: {error}") from error
    kept = {_identity(message): message for message in before}
    messages = tuple([kept.get(_identity(message), message) for message in messages])
    if messages == tuple(before):
        raise CompactionError("returned the history as it was")
    _check_pairs(messages, before)
    return messages


def _identity(message: Message) -> tuple[object, ...]:
    calls = tuple([(call.id, call.name, call.arguments) for call in message.tool_calls])
    return (message.role, message.content, calls, message.tool_call_id, message.name, message.reasoning)


def _check_pairs(messages: Sequence[Message], before: Sequence[Message]) -> None:
    """Raises CompactionError where a tool result follows no call of its id, or a call lost the result that it had."""
    answered = {message.tool_call_id for message in before if message.role == "tool"}
    open_calls: dict[str, ToolCall] = {}
    waiting: list[tuple[int, ToolCall]] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            if open_calls.pop(message.tool_call_id or "", None) is None:
                raise CompactionError(
                    f"returned a tool result without its call: messages[{place}], {message.tool_call_id!r}; drop both "
                    "or keep both"
                )
            continue
        _check_answered(waiting, open_calls, answered)
        open_calls = {call.id: call for call in message.tool_calls}
        waiting = [(place, call) for call in message.tool_calls]
    _check_answered(waiting, open_calls, answered)


def _check_answered(
    waiting: Sequence[tuple[int, ToolCall]], still_open: Mapping[str, ToolCall], answered: set[str | None]
) -> None:
    for place, call in waiting:
        if call.id in still_open and call.id in answered:
            raise CompactionError(
                f"returned a tool call without its result: messages[{place}], {call.id!r}; drop both or keep both"
            )


def with_messages(request: WireRequest, messages: tuple[Message, ...]) -> WireRequest:
    """The request with its history shortened. What is left of its own preface stays that."""
    own = request.links.preface
    while request.messages[:own] != messages[:own]:
        own -= 1
    return replace(request, messages=messages, links=replace(request.links, preface=own))


def asked_of(messages: Sequence[Message], tools: Sequence[Tool], limit: int, seed: int) -> dict[str, Json]:
    return {
        "messages": cast("Json", [as_chat(message) for message in messages]),
        "tools": tools_as_chat(tools),
        "limit": limit,
        "seed": seed,
    }
