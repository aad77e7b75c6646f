"""Requests of every wire, and ways to spoil them: their structure (keys, items, types, places), and then their
bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from agentlightning.gateway.wires import WIRES, find_wire
from agentlightning.gateway.wires.base import Target
from tests.gateway.recorded import fullest

PLACE = "PLACE"
"""Where a seed's author, tools and model say something of their own."""

THEIRS = "THEIR-RESPONSE-ID"
"""Stands for the id of another attempt's response, which a client might have come by."""


# --------------------------------------------------------------------------- seeds


@dataclass(frozen=True)
class Seed:
    path: str
    body: dict[str, Any]
    method: str = "POST"

    @property
    def target(self) -> Target:
        path, _, query = self.path.partition("?")
        return Target(self.method, path, dict(pair.split("=") for pair in query.split("&")) if query else {})


SCHEMA = {
    "type": "object",
    "properties": {"PLACE": {"type": "string", "description": "PLACE", "enum": ["PLACE"]}},
    "required": ["PLACE"],
}
ARGUMENTS = '{"PLACE": "PLACE"}'
FUNCTION = {"name": "f", "description": "PLACE", "parameters": SCHEMA}
SETTINGS = {"temperature": 0.5, "top_p": 0.9, "stream": False, "metadata": {"a": "b"}}
OPENAI = {**SETTINGS, "model": "m", "seed": 5, "top_k": 3, "stop": ["zz"], "user": "u", "n": 2}

CHAT = Seed(
    "chat/completions",
    {
        **OPENAI, "max_tokens": 40, "logprobs": True, "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "auto",
        "response_format": {"type": "text"}, "stream_options": {"include_usage": True}, "parallel_tool_calls": True,
        "return_token_ids": True,
        "messages": [
            {"role": "system", "content": "PLACE"},
            {"role": "user", "content": [{"type": "text", "text": "PLACE"}], "name": "PLACE"},
            {"role": "assistant", "content": None, "reasoning_content": "PLACE", "tool_calls": [{"id": "c1",
            "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "PLACE", "name": "f"},
            {"role": "assistant", "content": "PLACE", "refusal": None},
            {"role": "user", "content": "PLACE"},
        ],
    },
)  # fmt: skip
RESPONSES = Seed(
    "responses",
    {
        **{name: value for name, value in OPENAI.items() if name != "n"}, "max_output_tokens": 40,
        "instructions": "PLACE", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "store": True,
        "text": {"format": {"type": "text"}}, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"}, "truncation": "disabled", "previous_response_id": None,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "PLACE"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "PLACE"}],
            "encrypted_content": None},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": ARGUMENTS,
            "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "PLACE"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "PLACE", "annotations": []}]},
            {"type": "message", "role": "user", "content": "PLACE"},
        ],
    },
)  # fmt: skip
MESSAGES = Seed(
    "messages",
    {
        "model": "m", "max_tokens": 40, "system": [{"type": "text", "text": "PLACE",
        "cache_control": {"type": "ephemeral"}}], "stop_sequences": ["zz"], "temperature": 0.5, "top_p": 0.9,
        "top_k": 3, "stream": False,
        "tools": [{"name": "f", "description": "PLACE", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
        "messages": [
            {"role": "user", "content": "PLACE"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "PLACE", "signature": "s"},
            {"type": "text", "text": "PLACE"}, {"type": "tool_use", "id": "c1", "name": "f",
            "input": {"PLACE": "PLACE"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text",
            "text": "PLACE"}], "is_error": False}, {"type": "text", "text": "PLACE"}]},
        ],
    },
)  # fmt: skip
GEMINI = Seed(
    "models/m:generateContent",
    {
        "systemInstruction": {"parts": [{"text": "PLACE"}]}, "tools": [{"functionDeclarations": [{**FUNCTION,
        "parameters": {**SCHEMA, "type": "OBJECT", "nullable": True}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": []}},
        "safetySettings": [{"category": "c", "threshold": "t"}],
        "generationConfig": {
            "temperature": 0.5, "topP": 0.9, "topK": 3, "maxOutputTokens": 40, "candidateCount": 2,
            "stopSequences": ["zz"], "seed": 5, "responseMimeType": "text/plain", "responseLogprobs": True,
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 5}, "presencePenalty": 0,
        },
        "contents": [
            {"role": "user", "parts": [{"text": "PLACE"}]},
            {"role": "model", "parts": [{"text": "PLACE", "thought": True}, {"text": "PLACE"},
            {"functionCall": {"id": "c1", "name": "f", "args": {"PLACE": "PLACE"}},
            "thoughtSignature": "YWdsLzEgaG0="}]},
            {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "f", "response": {"PLACE": "PLACE"}}},
            {"text": "PLACE"}]},
        ],
    },
)  # fmt: skip
COMPLETIONS = Seed("completions", {**OPENAI, "max_tokens": 40, "prompt": "PLACE", "echo": False, "logprobs": 1,
"stream_options": {"include_usage": True}, "return_token_ids": True})  # fmt: skip


def streamed(seed: Seed) -> Seed:
    return Seed(seed.path, {**seed.body, "stream": True}, seed.method)


OURS = (
    CHAT,
    streamed(CHAT),
    RESPONSES,
    streamed(RESPONSES),
    Seed("responses", {"model": "m", "previous_response_id": THEIRS, "input": [{"type": "item_reference", "id": THEIRS},
    {"role": "user", "content": "PLACE"}]}),
    Seed("responses", {"model": "m", "conversation": {"id": THEIRS}, "input": "PLACE"}),
    Seed("responses/input_tokens", RESPONSES.body),
    Seed(f"responses/{THEIRS}", {}, "GET"),
    Seed(f"responses/{THEIRS}/input_items?limit=5&order=asc", {}, "GET"),
    Seed(f"responses/{THEIRS}", {}, "DELETE"),
    Seed("conversations", {"metadata": {"a": "b"}, "items": [{"type": "message", "role": "user", "content": "PLACE"}]}),
    Seed("conversations/conv_1/items", {"items": [{"type": "message", "role": "user", "content": "PLACE"}]}),
    MESSAGES,
    streamed(MESSAGES),
    Seed("messages/count_tokens", MESSAGES.body),
    GEMINI,
    Seed("models/m:streamGenerateContent?alt=sse", GEMINI.body),
    Seed("models/m:streamGenerateContent", GEMINI.body),
    Seed("models/m:countTokens", {"generateContentRequest": GEMINI.body}),
    COMPLETIONS,
    streamed(COMPLETIONS),
    Seed("completions", {"model": "m", "prompt": [5, 6, 7], "max_tokens": 5}),
)  # fmt: skip


@cache
def seeds(name: str) -> list[Seed]:
    """Of a wire: ours, and the last request of a recording of each framework."""
    found = [seed for seed in OURS if owner(seed) == name]
    frameworks: dict[str, Seed] = {}
    for recording in fullest():
        if not recording["requests"]:
            continue
        last = recording["requests"][-1]
        seed = Seed(last["path"].removeprefix("/v1beta").removeprefix("/v1").lstrip("/"), last["body"])
        if isinstance(last["body"], dict) and owner(seed) == name:
            frameworks.setdefault(str(recording["framework"]), seed)
    return [*found, *list(frameworks.values())[:12]]


def owner(seed: Seed) -> str | None:
    wire = find_wire(seed.target.path)
    return wire.name if wire in WIRES else None  # type: ignore[union-attr]


# --------------------------------------------------------------------------- changes


ODD_TEXTS = (
    "", "a\0b", "\ud800", "x\udfff", "<|im_end|>\n<|im_start|>system\n", "</s>", "\u2028\u0085\r\n", "\ufeff",
    "x" * 5000, "[]", "{}", "null", '{"a": ', "-1", "NaN",
    "data: [DONE]\n\n", "../..", "user", "assistant", "model", "tool", "function", "text", "auto", "required",
    "json_object", "c1", "YWdsLzEg//8=", THEIRS, "DEEP60", "DEEP70", "DEEP300", "DEEP1100",
)  # fmt: skip
ODD_NUMBERS = (0, -1, 1, 2, 129, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, 1e308, -0.0, 1.5, 1e-320,
float("nan"), float("inf"), float("-inf"))  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.sampled_from(ODD_TEXTS) | st.sampled_from(ODD_NUMBERS) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "id", "name",
    "content", "parts", "function", "arguments", "input", "args"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def names_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from names_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_of(inner)


NAMES = sorted({name for seed in OURS for name in names_of(seed.body)} | {"functions", "logit_bias", "audio",
"function_call", "cachedContent", "cached_content", "best_of", "suffix", "background", "prompt", "", "\ud800",
"a\0b"})  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that lies in ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], item: Any) -> None:
    at(value, path[:-1])[path[-1]] = item


def drop(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    del at(body, path[:-1])[path[-1]]


def duplicate(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    holder, item = at(body, path[:-1]), copy.deepcopy(at(body, path))
    if isinstance(holder, list):
        holder.insert(path[-1], item)
    else:
        holder[name] = item


def replace(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    put(body, path, junk)


def rename(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    holder = at(body, path[:-1])
    if isinstance(holder, dict):
        holder[name] = holder.pop(path[-1])
    else:
        holder.append(holder.pop(path[-1]))


def nest(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    put(body, path, {name: at(body, path)} if junk else [at(body, path)])


def swap(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    if path[: len(other)] != other[: len(path)]:
        first, second = at(body, path), at(body, other)
        put(body, path, second)
        put(body, other, first)


def add(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    holder = at(body, path)
    if isinstance(holder, dict):
        holder[name] = junk
    elif isinstance(holder, list):
        holder.append(junk)


def repeat(body: Any, path: tuple[Any, ...], other: tuple[Any, ...], name: str, junk: Any) -> None:
    item = at(body, path)
    if isinstance(item, list) and len(item) < 100:
        put(body, path, [copy.deepcopy(each) for each in item * 50])
    elif isinstance(item, str):
        put(body, path, item[:100] * 50)


CHANGES = (drop, duplicate, replace, replace, rename, nest, swap, add, repeat)
Change = tuple[Callable[..., None], int, int, str, Any]


def changed(body: Any, changes: list[Change]) -> Any:
    body = copy.deepcopy(body)
    for change, one, two, name, junk in changes:
        found = list(places(body))
        if found:
            change(body, found[one % len(found)], found[two % len(found)], name, copy.deepcopy(junk))
    return body


def encoded(body: Any) -> bytes:
    """As Python clients write it, NaN and halves of surrogate pairs included."""
    data = json.dumps(body).encode()
    for depth in (60, 70, 300, 1100):
        data = data.replace(f'"DEEP{depth}"'.encode(), b"[" * depth + b"]" * depth)
    return data


def cut(data: bytes, where: int, junk: bytes) -> bytes:
    return data[: where % (len(data) + 1)]


def spoil(data: bytes, where: int, junk: bytes) -> bytes:
    where %= len(data) + 1
    return data[:where] + junk + data[where + len(junk) :]


def spell_twice(data: bytes, where: int, junk: bytes) -> bytes:
    return b"{" + data.strip()[1:-1] + b"," + data.strip()[1:] if len(data) > 4 else data + data


def as_it_is(data: bytes, where: int, junk: bytes) -> bytes:
    return data


Damage = tuple[Callable[[bytes, int, bytes], bytes], int, bytes]
CHANGED = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 10**4), st.integers(0, 10**4),
st.sampled_from(NAMES), JUNK), min_size=1, max_size=4)  # fmt: skip
DAMAGED = st.tuples(st.sampled_from((as_it_is,) * 6 + (cut, spoil, spell_twice)), st.integers(0, 10**4),
st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\0", b'"', b"\\", b"{", b"\xef\xbb\xbf"]))  # fmt: skip
