"""Equality: what counts as the same message, the same turn and the same tools when a history comes back. Pure.

Only here is it decided. Nothing compares rendered strings, and ids never make two messages equal (ruling 1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

import orjson

from agentlightning.nouns import Message, Tool

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""What two messages must share to be the same turn: role, stripped text, and the tool calls' names and canonical
arguments."""


def canonical_arguments(raw: str) -> str:
    """A form of tool arguments that is equal exactly where the JSON values are (1.0 is 1, key order and escapes do not
    matter).

    Arguments that are no JSON stay as they are.
    """
    try:
        # orjson rounds integers beyond 64 bits; an edited digit must not pass for the same number.
        value = json.loads(raw, parse_constant=_refuse) if _LONG_NUMBER.search(raw) else orjson.loads(raw)
        value = _integral(value)
    except (ValueError, RecursionError):
        return "raw " + raw.strip()
    try:
        return "json " + orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return "json " + json.dumps(value, sort_keys=True)


_LONG_NUMBER = re.compile(r"[0-9]{19}")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _integral(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_integral(item) for item in cast("list[Any]", value)]
    return value


def equality_key(message: Message) -> Key:
    """Ids, names and reasoning are left out: ids only pick among candidates, names are often dropped, and reasoning may
    be missing."""
    calls = (
        tuple([(call.name, canonical_arguments(call.arguments)) for call in message.tool_calls])
        if message.tool_calls
        else ()
    )
    return message.role, message.content.strip(), calls


def stopped_key(message: Message, stop_string: str | None) -> Key | None:
    """The key of a turn whose client put back the stop string that cut it: the text is then all that was sampled."""
    if stop_string is None or message.tool_calls:
        return None
    return message.role, (message.content + stop_string).strip(), ()


def same_reasoning(theirs: Message, recorded: Message) -> bool:
    """A client may drop reasoning; it may not change it."""
    return not theirs.reasoning or theirs.reasoning.strip() == (recorded.reasoning or "").strip()


def tools_key(tools: Sequence[Tool]) -> bytes:
    """Equal for equal names, descriptions and schemas in the same order; the order of a schema's keys does not
    matter."""
    if not tools:
        return b""
    listed = [(tool.name, tool.description, dict(tool.parameters)) for tool in tools]
    try:
        return orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a number beyond 64 bits
        return json.dumps(listed, sort_keys=True).encode("utf-8", "surrogatepass")


# --------------------------------------------------------------------------- a turn in parts

MOST_PARTS = 32
"""Messages in a row that are looked at as the parts of one turn and its results."""


def in_call_order(results: Sequence[Message], turn: Message) -> list[Message]:
    """The results that follow a turn, in the order of its calls: parallel calls end in any order, and many templates
    show no ids. A result under an id that is none of the turn's stays where it is."""
    places = {call.id: i for i, call in enumerate(turn.tool_calls)}
    found = [i for i, result in enumerate(results) if result.tool_call_id in places]
    ordered = list(results)
    for i, result in zip(
        found, sorted((results[i] for i in found), key=lambda each: places[each.tool_call_id or ""]), strict=True
    ):
        ordered[i] = result
    return ordered


def parts_of_a_turn(messages: Sequence[Message], start: int) -> int:
    """Where the messages end that may be one turn, beginning at ``start``: calls, and one text before or after them, in
    messages of the same speaker; calls perhaps with their results behind them, and then no text any more. ``start + 1``
    where the turn can have no other part."""
    first = messages[start]
    said = bool(first.content.strip())
    ids = {call.id for call in first.tool_calls}
    end = last = start + 1
    answered = False
    while end < min(start + MOST_PARTS, len(messages)):
        message = messages[end]
        if message.role == "assistant":
            if message.name not in (None, first.name) or ((said or answered) and message.content.strip()):
                break
            said = said or bool(message.content.strip())
            ids.update(call.id for call in message.tool_calls)
            last = end + 1
        elif message.role != "tool" or message.tool_call_id not in ids:
            break
        else:
            answered = True
        end += 1
    return last


def joined(parts: Sequence[Message]) -> list[Message]:
    """The turn that came in these parts as one message, and the results that stood between them."""
    said = [part for part in parts if part.role == "assistant"]
    if len(said) == 1:
        return list(parts)
    calls = tuple([call for part in said for call in part.tool_calls])
    reasoning = "".join([part.reasoning or "" for part in said])
    turn = Message("assistant", "".join([part.content for part in said]), calls, None, said[0].name, reasoning or None)
    return [turn, *(part for part in parts if part.role == "tool")]
