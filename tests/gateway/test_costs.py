"""What a request of a megabyte, or a reply of a model that repeats itself, may cost: seconds of a loop that every
attempt waits for.

Each of these took ten seconds or more while something in it was looked through again and again. Measured as processor
time of this thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.text_prompts import encode_text
from agentlightning.gateway.wires import find_wire
from agentlightning.gateway.wires.base import CallError, Conversation, Target, WireRequest
from agentlightning.gateway.wires.responses_items import MAX_HISTORIES
from agentlightning.gateway.wires.unserved import Unserved
from agentlightning.nouns import Message, Tool
from agentlightning.templates import load_template
from agentlightning.templates.call_scanner import MOST_TAGS
from agentlightning.templates.formats import FORMATS, read_whole
from agentlightning.templates.harmony import CHANNEL, START, HarmonyReader
from tests.tiny import MERGES, tiny_tokenizer

ALLOWED = 3.0
"""Seconds of processor time; what costs most here takes one."""


@contextmanager
def cheap() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < ALLOWED


def asked(path: str, body: dict[str, Any], earlier: KeptReplies | None = None) -> WireRequest:
    wire = find_wire(path)
    assert wire is not None and not isinstance(wire, Unserved)
    return wire.request(Target("POST", path), body, earlier or KeptReplies())


# --------------------------------------------------------------------------- requests


def kept(count: int, messages: int) -> tuple[KeptReplies, list[str]]:
    """So many conversations of so many messages, and their ids."""
    earlier, names = KeptReplies(), [f"{i:024x}" for i in range(count)]
    for name in names:
        said = tuple([Message(("user", "assistant")[i % 2], str(i)) for i in range(messages)])
        earlier.conversations[f"conv_{name}"] = Conversation(f"conv_{name}", 0, {}, said)
    return earlier, names


def test_many_references_into_a_long_history_read_it_once() -> None:
    earlier, [name] = kept(1, 999)
    items = [{"type": "item_reference", "id": f"msg_{name}_at_{i % 999}"} for i in range(15_000)]
    with cheap():
        request = asked("responses", {"input": items}, earlier)
    assert [message.content for message in request.messages[:3]] == ["0", "1", "2"]


def test_references_into_more_histories_than_can_be_read_are_refused_by_name() -> None:
    earlier, names = kept(MAX_HISTORIES + 1, 3)
    items = [{"type": "item_reference", "id": f"msg_{name}_at_0"} for name in names]
    assert len(asked("responses", {"input": items[:-1]}, earlier).messages) == MAX_HISTORIES
    with pytest.raises(CallError, match=f"more than {MAX_HISTORIES} histories: send the item itself") as refused:
        asked("responses", {"input": items}, earlier)
    assert refused.value.param == f"input[{MAX_HISTORIES}]"


@pytest.mark.parametrize("path", ["chat/completions", "responses", "models/g:generateContent"])
def test_many_names_among_many_tools_are_looked_up_at_once(path: str) -> None:
    count = 24_000
    named = [{"type": "function", "name": f"f{i}"} for i in range(count)]
    body: dict[str, Any]
    if path == "responses":
        body = {"input": "q", "tools": named, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": named}}
    elif path == "chat/completions":
        tools = [{"type": "function", "function": {"name": each["name"]}} for each in named]
        chosen = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
        body = {"messages": [{"role": "user", "content": "q"}], "tools": tools, "tool_choice": chosen}
    else:
        names = [each["name"] for each in named]
        body = {
            "contents": [{"parts": [{"text": "q"}]}],
            "tools": [{"functionDeclarations": [{"name": name} for name in names]}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": names}},
        }
    with cheap():
        request = asked(path, body)
    assert request.tool_use.names is not None and len(request.tool_use.names) == count


def test_a_prompt_of_edges_is_looked_through_once() -> None:
    text = "".join(f"@text {i}:" for i in range(60_000))
    template = load_template(tiny_tokenizer(MERGES))
    with cheap():
        ids = encode_text(text, template, start=True)
    assert template.decode(ids) == text


def test_a_message_of_escapes_is_taken_apart_once() -> None:
    template = load_template(tiny_tokenizer(MERGES))
    text = "\U0010f8f0" * 250_000
    with cheap():
        ids = encode_text(text, template, start=True)
    assert template.decode(ids) == text


# --------------------------------------------------------------------------- replies

TOOLS = [Tool("f", "", {"type": "object", "properties": {"x": {"type": "string"}}})]
LENGTH = 64_000

BROKEN: dict[str, list[str]] = {
    "hermes": ['<tool_call>{"a": "\\</tool_call>', '<tool_call>{"name": "', "<tool_call>"],
    "qwen3_coder": ["<tool_call><function=f><parameter=x></tool_call>", "<tool_call><function=f><parameter=x>"],
    "glm": ["<tool_call>f<arg_key>x</arg_key><arg_value></tool_call>"],
    "mistral_v11": ["[TOOL_CALLS]f{", "[TOOL_CALLS][", "[TOOL_CALLS]"],
    "gemma4": ['<|tool_call>call:f{x:<|"|><tool_call|>'],
    "harmony": [CHANNEL, START, f"{START}assistant"],
}
"""What a model may repeat until it is cut."""

ENDLESS: dict[str, list[tuple[str, str]]] = {
    "hermes": [('<tool_call>{"name": "', "\\</tool_call>"), ("<tool_call>", " ")],
    "qwen3_coder": [("<tool_call><function=f><parameter=x>", "</tool_call>")],
    "mistral_v11": [("[TOOL_CALLS]", "x"), ("[TOOL_CALLS]", " "), ("[TOOL_CALLS]", "x]"), ("[TOOL_CALLS]f{", '"')],
    "harmony": [(START, "x"), (CHANNEL, " "), (f"{START}assistant", CHANNEL)],
}
"""A beginning, and what may follow it without end."""


def repeated() -> list[tuple[str, str]]:
    texts = [(name, piece * (LENGTH // len(piece))) for name, pieces in BROKEN.items() for piece in pieces]
    return texts + [
        (name, begin + piece * (LENGTH // len(piece))) for name, shapes in ENDLESS.items() for begin, piece in shapes
    ]


@pytest.mark.parametrize(("name", "text"), repeated(), ids=lambda value: value[:40] if isinstance(value, str) else None)
def test_a_model_that_repeats_itself_is_read_once(name: str, text: str) -> None:
    """All at once and while it comes; nothing of it is lost or taken for a call."""
    form = FORMATS[name]
    with cheap():
        content, calls = read_whole(form, TOOLS, text)
    assert not calls
    shown = ""
    with cheap():
        for taken in fed(name, text):
            shown += taken
    assert shown == content
    if name != "harmony":
        assert content.replace(" ", "") == text.replace(" ", "")


def fed(name: str, text: str) -> Iterator[str]:
    """The text of a reply that comes four characters at a time."""
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    scanner = FORMATS[name].scanner
    if scanner is None:
        reader = HarmonyReader(tools=True)
        yield from (reader.feed(piece).content for piece in pieces)
        yield reader.finish().content
    else:
        scan = scanner(TOOLS)
        yield from (scan.feed(piece)[0] for piece in pieces)
        yield scan.finish()[0]


WITH_TAGS: dict[str, Callable[[int], str]] = {
    "hermes": lambda count: f'<tool_call>{{"name": "f", "arguments": {{"x": "{"</tool_call>" * count}"}}}}</tool_call>',
    "qwen3_coder": lambda count: (
        f"<tool_call><function=f><parameter=x>{'</tool_call>' * count}</parameter></function></tool_call>"
    ),
    "mistral_v11": lambda count: f'[TOOL_CALLS]f{{"x": "{"[TOOL_CALLS]" * count}"}}',
}


@pytest.mark.parametrize("name", WITH_TAGS)
def test_a_value_may_hold_its_formats_own_tag_so_and_so_often(name: str) -> None:
    for count in (1, MOST_TAGS):
        content, calls = read_whole(FORMATS[name], TOOLS, WITH_TAGS[name](count))
        assert [call.name for call in calls] == ["f"] and not content, count
    text = WITH_TAGS[name](MOST_TAGS + 1)
    content, calls = read_whole(FORMATS[name], TOOLS, text)
    assert (content, calls) == (text, []), "and beyond that it is text"
    assert "".join(fed(name, text)) == text
