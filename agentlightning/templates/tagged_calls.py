"""The readers of tool calls that stand between an opening and a closing tag. Pure.

Each function reads the text between one pair of tags (`call_scanner.BlockScanner` finds them) and gives None where it
is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentlightning.nouns import Tool, ToolCall
from agentlightning.templates.arguments import as_json, from_gemma, join, types_of
from agentlightning.templates.call_scanner import (
    WHITE,
    BlockScanner,
    all_calls,
    ends_in_string,
    make_call,
    only_call,
    past_space,
    read_object,
)

if TYPE_CHECKING:
    from agentlightning.templates.call_scanner import Scanner

Reader = Callable[[str], "list[ToolCall] | None"]


def hermes(tools: Sequence[Tool]) -> Scanner:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: NousResearch's Hermes-Function-Calling, and Qwen
    2.5 and 3 (Qwen's documentation, "Function Calling")."""
    return BlockScanner("<tool_call>", "</tool_call>", only_call, ends_in_string)


def phi4(tools: Sequence[Tool]) -> Scanner:
    """``<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>``: Phi-4-mini, after the model card's tool
    tokens."""
    return BlockScanner("<|tool_call|>", "<|/tool_call|>", all_calls, ends_in_string)


# --------------------------------------------------------------------------- a tag for each argument


def qwen3_coder(tools: Sequence[Tool]) -> Scanner:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>``: Qwen3-Coder's chat
    template and the tool parser that is published beside it. One line break on either side of a value belongs to the
    tags."""
    types = types_of(tools)

    def read(body: str) -> list[ToolCall] | None:
        head = _FUNCTION.match(body)
        if not head:
            return None
        name = head[1].strip()
        members: dict[str, str] = {}
        at = head.end()
        while found := _PARAMETER.match(body, at):
            key = found[1].strip()
            value = found[2].removeprefix("\n").removesuffix("\n")
            members[key] = as_json(value, types.get(name, {}).get(key, frozenset()))
            at = found.end()
        if not _FUNCTION_END.fullmatch(body, at):
            return None
        call = make_call(name, join(list(members.items())))
        return [call] if call else None

    return BlockScanner("<tool_call>", "</tool_call>", read, _open("<parameter=", "</parameter>"))


_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)
_FUNCTION_END = re.compile(r"\s*</function>\s*")


def glm(tools: Sequence[Tool]) -> Scanner:
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>``: GLM-4.5 and later, after
    their chat templates."""
    types = types_of(tools)

    def read(body: str) -> list[ToolCall] | None:
        head = body.partition("<arg_key>")[0]
        name, at = head.strip(), len(head)
        if any(sign in name for sign in '{}<>"\n'):
            return None
        members: dict[str, str] = {}
        while body[at:].strip():
            key, at = _between(body, at, "<arg_key>", "</arg_key>")
            value, at = _between(body, at, "<arg_value>", "</arg_value>")
            if at < 0:
                return None
            key = key.strip()
            members[key] = as_json(value, types.get(name, {}).get(key, frozenset()))
        call = make_call(name, join(list(members.items())))
        return [call] if call else None

    return BlockScanner("<tool_call>", "</tool_call>", read, _open("<arg_value>", "</arg_value>"))


def _between(text: str, at: int, opening: str, closing: str) -> tuple[str, int]:
    """What the tags that come next enclose and the position behind them, which is -1 where they are not there."""
    start = past_space(text, at) if at >= 0 else len(text)
    end = text.find(closing, start) if text.startswith(opening, start) else -1
    return ("", -1) if end < 0 else (text[start + len(opening) : end], end + len(closing))


def _open(opening: str, closing: str) -> Callable[[str], bool]:
    """Whether a text breaks off inside the last such tag."""
    return lambda body: body.rfind(opening) > body.rfind(closing)


# --------------------------------------------------------------------------- DeepSeek

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE = "```"


def deepseek(tools: Sequence[Tool]) -> Scanner:
    """DeepSeek's token tags, after the chat templates of V3 and R1 (``function<sep>NAME`` and the arguments in a JSON
    code fence) and of V3.1 (``NAME<sep>{...}``); both are read. V3.2 writes calls in another form, and no chat template
    ships with it."""
    return BlockScanner(CALLS, CALLS_END, _deepseek, ends_in_string)


def _deepseek(body: str) -> list[ToolCall] | None:
    calls: list[ToolCall] = []
    at = past_space(body, 0)
    while body.startswith(CALL, at):
        at += len(CALL)
        separator = body.find(SEPARATOR, at)
        if separator < 0:
            return None
        name = body[at:separator].strip()
        at = separator + len(SEPARATOR)
        fenced = _FENCED.match(body, at) if name == "function" else None
        if fenced:
            name, at = fenced[1].strip(), fenced.end()
        start = past_space(body, at)
        try:
            _, at = read_object(body, start)
        except (ValueError, RecursionError):
            return None
        call = make_call(name, body[start:at])
        if call is None:
            return None
        calls.append(call)
        at = past_space(body, at)
        if fenced:
            if not body.startswith(FENCE, at):
                return None
            at = past_space(body, at + len(FENCE))
        if not body.startswith(CALL_END, at):
            return None
        at = past_space(body, at + len(CALL_END))
    return calls if calls and not body[at:].strip(WHITE) else None


_FENCED = re.compile(r"([^\n]+)\n```(?:json)?")


# --------------------------------------------------------------------------- Gemma


def gemma4(tools: Sequence[Tool]) -> Scanner:
    """``<|tool_call>call:NAME{key:<|"|>text<|"|>,other:5}<tool_call|>``: Gemma 4, after Google's "Gemma 4 prompt
    formatting"."""
    return _gemma("<|tool_call>", "<tool_call|>", '<|"|>')


def function_gemma(tools: Sequence[Tool]) -> Scanner:
    """``<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>``: Google's "FunctionGemma
    formatting and best practices"."""
    return _gemma("<start_function_call>", "<end_function_call>", "<escape>")


def _gemma(opening: str, closing: str, quote: str) -> Scanner:
    def read(body: str) -> list[ToolCall] | None:
        head = _GEMMA.match(body)
        arguments = from_gemma(body[head.end() - 1 :], quote) if head else None
        call = make_call(head[1].strip(), arguments) if head and arguments is not None else None
        return [call] if call else None

    return BlockScanner(opening, closing, read, lambda body: body.count(quote) % 2 == 1)


_GEMMA = re.compile(r"\s*call:([^{}\n]+)\{")
