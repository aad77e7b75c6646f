"""OpenAI's Chat Completions: the request as the frameworks really send it, the reply as JSON and as server-sent events.

Pure translation. What clients add is accepted (unknown keys, explicit nulls, lists of text parts, names anywhere); what
cannot be honoured is refused by name. Validated by hand: this runs on every call, on histories of any length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.base import (
    AskedSampling,
    Begun,
    CallError,
    Choice,
    EarlierReplies,
    OutputFormat,
    Reply,
    ReplyOptions,
    SettingNames,
    Target,
    ToolChoice,
    ToolUse,
    Use,
    WireRequest,
)
from agentlightning.gateway.wires.fields import (
    MAX_SAMPLES,
    arguments_text,
    bad,
    boolean,
    check_depth,
    integer,
    known_tool,
    known_tools,
    mapping,
    needed_text,
    number,
    refuse_unless_neutral,
    settings,
    shown,
    stops,
    string,
    text,
    tool_of,
    tools_of,
)
from agentlightning.gateway.wires.openai import ChunkStream, include_usage, openai_error, usage
from agentlightning.nouns import FinishReason, Json, Message, Tool, ToolCall
from agentlightning.templates.base import ParsedDelta

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

_KEPT = (
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "n", "seed", "stop", "stream", "logprobs",
    "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "verbosity", "user", "metadata",
)  # fmt: skip
"""What the record keeps of a request besides its messages and tools."""

_STRINGS = (
    "user",
    "reasoning_effort",
    "verbosity",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
)

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "top_logprobs": (0,),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "modalities": (["text"], []),
    "moderation": (),
    "web_search_options": (),
}
"""Fields of the API that cannot be honoured (extra_settings.py has those of other servers), with the values (besides
null) that ask for nothing."""

_INSTEAD = {
    "functions": "use tools",
    "function_call": "use tools",
    "top_logprobs": "logprobs of the sampled tokens are available with logprobs=true",
}


_SETTING_NAMES = SettingNames(strict="tools[{}].function.strict")


class ChatCompletions:
    """``POST chat/completions``. Satisfies `Wire`."""

    name = "chat"

    id_prefix = "chatcmpl-"

    def owns(self, path: str) -> bool:
        return path == "chat/completions"

    def use(self, target: Target) -> Use | None:
        return "call" if target.method == "POST" else None

    def request(self, target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> WireRequest:
        refuse_unless_neutral(body, _NEUTRAL, _INSTEAD)
        messages = read_messages(body.get("messages"))
        tools = tools_of(body.get("tools"), _tool)
        choice, names = _tool_choice(body.get("tool_choice"), tools)
        parallel = body.get("parallel_tool_calls") is None or boolean(body, "parallel_tool_calls")
        tool_use = ToolUse(choice, names, parallel, _SETTING_NAMES)
        limit = integer(body, "max_completion_tokens", 1)
        older = integer(body, "max_tokens", 1)
        top_k = integer(body, "top_k", -1)
        for name in _STRINGS:
            string(body, name)
        boolean(body, "store")
        asked = {name: body[name] for name in _KEPT if body.get(name) is not None}
        check_depth(settings(body, "metadata"), "metadata")
        return WireRequest(
            model=string(body, "model") or "",
            messages=messages,
            tools=tools,
            tool_use=tool_use,
            output=read_format(body.get("response_format")),
            sampling=AskedSampling(
                temperature=number(body, "temperature", 0.0, 100.0),
                top_p=number(body, "top_p", 0.0, 1.0, above=True),
                top_k=None if top_k is None else max(top_k, 0),
                max_tokens=limit if older is None else older if limit is None else min(older, limit),
                seed=integer(body, "seed", -(2**63), 2**63 - 1),
                stop=stops(body.get("stop")),
            ),
            options=ReplyOptions(
                n=integer(body, "n", 1, MAX_SAMPLES) or 1,
                stream=boolean(body, "stream"),
                logprobs=boolean(body, "logprobs"),
                token_ids=boolean(body, "return_token_ids"),
                include_usage=include_usage(body),
            ),
            asked=asked,
        )

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        choices: list[dict[str, Json]] = []
        for index, choice in enumerate(reply.choices):
            message: dict[str, Json] = {"role": "assistant", "content": choice.message.content or None, "refusal": None}
            if choice.message.reasoning is not None:
                message["reasoning_content"] = choice.message.reasoning
            if choice.message.tool_calls:
                message["tool_calls"] = [_call(call) for call in choice.message.tool_calls]
            elif message["content"] is None:
                message["content"] = ""
            entry: dict[str, Json] = {
                "index": index,
                "message": message,
                "logprobs": _logprobs(choice) if request.options.logprobs else None,
                "finish_reason": _finish(choice),
            }
            if request.options.token_ids:
                entry["token_ids"] = choice.token_ids.tolist()
            choices.append(entry)
        body: dict[str, Json] = {
            "id": reply.id,
            "object": "chat.completion",
            "created": reply.created,
            "model": request.model,
            "choices": choices,
            "usage": usage(reply),
        }
        if reply.prompt_ids is not None:
            body["prompt_token_ids"] = reply.prompt_ids.tolist()
        return orjson.dumps(body)

    def stream(self, request: WireRequest, call_id: str, created: int) -> ChatStream:
        return ChatStream(request, call_id, created)

    def error(self, error: CallError) -> bytes:
        return openai_error(error)


class ChatStream(ChunkStream):
    """See `ChunkStream`. Before the finish chunks come the roles and the deltas, one thing a chunk: reasoning, text, or
    a whole tool call."""

    def __init__(self, request: WireRequest, call_id: str, created: int) -> None:
        super().__init__(
            request, {"id": call_id, "object": "chat.completion.chunk", "created": created, "model": request.model}
        )
        self._calls = [0] * request.options.n

    def begin(self, begun: Begun) -> bytes:
        return b"".join(
            self._chunk(
                [{"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
            )
            for i in range(self._request.options.n)
        )

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        # One thing a chunk, in the order in which it was sampled: some clients put text that comes beside a call behind
        # it, and some take one call a chunk.
        added: list[dict[str, Json]] = []
        if delta.reasoning:
            added.append({"reasoning_content": delta.reasoning})
        if delta.content:
            added.append({"content": delta.content})
        for call in delta.tool_calls:
            added.append({"tool_calls": [{"index": self._calls[index], **_call(call)}]})
            self._calls[index] += 1
        return b"".join(
            [self._chunk([{"index": index, "delta": each, "logprobs": None, "finish_reason": None}]) for each in added]
        )

    def _finished(self, reply: Reply, index: int) -> dict[str, Json]:
        choice = reply.choices[index]
        entry: dict[str, Json] = {
            "index": index,
            "delta": {},
            "logprobs": _logprobs(choice) if self._request.options.logprobs else None,
            "finish_reason": _finish(choice),
        }
        return {**entry, "token_ids": choice.token_ids.tolist()} if self._request.options.token_ids else entry

    def _beside(self, reply: Reply) -> dict[str, Json]:
        return {} if reply.prompt_ids is None else {"prompt_token_ids": reply.prompt_ids.tolist()}


# --------------------------------------------------------------------------- parts of a reply


def _call(call: ToolCall) -> dict[str, Json]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(choice: Choice) -> str:
    if choice.finish is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if choice.message.tool_calls else "stop"


def _logprobs(choice: Choice) -> dict[str, Json]:
    # Part of a character has no text of its own; its bytes are then unknown here, which the API writes as null.
    return {
        "content": [
            {
                "token": text,
                "logprob": logprob,
                "bytes": None if "\ufffd" in text else list(text.encode("utf-8", "surrogatepass")),
                "top_logprobs": [],
            }
            for text, logprob in zip(choice.token_texts, choice.logprobs, strict=True)
        ],
        "refusal": None,
    }


# --------------------------------------------------------------------------- parts of a request


def read_messages(value: Json) -> tuple[Message, ...]:
    """Raises CallError."""
    if not isinstance(value, list) or not value:
        raise bad("messages must be a list of at least one message", "messages")
    return tuple([_message(raw, i) for i, raw in enumerate(cast("list[Any]", value))])


def _message(raw: Any, i: int) -> Message:
    if not isinstance(raw, dict):
        raise bad(f"messages[{i}] must be an object, not {shown(raw)}", f"messages[{i}]")
    fields = cast("dict[str, Any]", raw)
    role = fields.get("role")
    if len(fields) == 2 and (role == "user" or role == "assistant") and isinstance(said := fields.get("content"), str):
        return Message(role, said)  # most of a history, and all of a long one's cost
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise bad(f"messages[{i}].role must be one of {', '.join(_ROLES)}, not {shown(role)}", f"messages[{i}].role")
    content = fields.get("content")
    reasoning: str | None = None
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content, reasoning = _parts(content, known, i)
    if known == "assistant":
        calls = fields.get("tool_calls")
        if fields.get("function_call") is not None:
            raise bad(
                f"messages[{i}].function_call is not supported: use tool_calls",
                f"messages[{i}].function_call",
                "unsupported_parameter",
            )
        if fields.get("audio") is not None:
            raise bad(
                f"messages[{i}].audio is not supported: this model reads text",
                f"messages[{i}].audio",
                "unsupported_parameter",
            )
        told = fields.get("reasoning_content") or fields.get("reasoning")
        return Message(
            known,
            content or _refusal(fields),
            _calls(calls, i) if calls else (),
            None,
            text(fields, "name", f"messages[{i}]"),
            told if isinstance(told, str) else reasoning,
        )
    if known == "tool":
        return Message(
            known, content, (), text(fields, "tool_call_id", f"messages[{i}]"), text(fields, "name", f"messages[{i}]")
        )
    return Message(known, content, (), None, text(fields, "name", f"messages[{i}]"))


def _refusal(fields: Mapping[str, Any]) -> str:
    refusal = fields.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _parts(content: Any, role: str, i: int) -> tuple[str, str | None]:
    """Text and reasoning in a list of parts. Paragraphs of a prompt stay apart; the pieces of an answer are one
    text."""
    where = f"messages[{i}].content"
    if not isinstance(content, list):
        raise bad(f"{where} must be a string, a list of parts or null, not {shown(content)}", where)
    texts: list[str] = []
    thoughts: list[str] = []
    for j, part in enumerate(cast("list[Any]", content)):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise bad(f"{where}[{j}] must be an object, not {shown(part)}", f"{where}[{j}]")
        fields = cast("dict[str, Any]", part)
        kind = fields.get("type", "text")
        if kind in ("text", "input_text", "output_text"):
            texts.append(needed_text(fields, "text", f"{where}[{j}]"))
        elif kind == "refusal":
            texts.append(needed_text(fields, "refusal", f"{where}[{j}]"))
        elif kind in ("thinking", "reasoning") and role == "assistant":
            thoughts.append(needed_text(fields, "thinking" if "thinking" in fields else "text", f"{where}[{j}]"))
        else:
            raise bad(
                f"{where}[{j}] is of type {shown(kind)}, which is not supported: this model reads text",
                f"{where}[{j}].type",
                "unsupported_content",
            )
    return ("" if role == "assistant" else "\n").join(texts), "".join(thoughts) if thoughts else None


def _calls(value: Any, i: int) -> tuple[ToolCall, ...]:
    where = f"messages[{i}].tool_calls"
    if not isinstance(value, list):
        raise bad(f"{where} must be a list, not {shown(value)}", where)
    calls: list[ToolCall] = []
    for j, raw in enumerate(cast("list[Any]", value)):
        call = mapping(raw)
        function = mapping(call.get("function"))
        name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id")
        if not isinstance(name, str):
            raise bad(
                f"{where}[{j}] must be a call with a function's name and arguments, not {shown(raw)}", f"{where}[{j}]"
            )
        written = arguments_text(arguments, f"{where}[{j}].function.arguments")
        calls.append(ToolCall(call_id if isinstance(call_id, str) else "", name, written))
    return tuple(calls)


def _tool(raw: Any, where: str) -> Tool:
    tool = mapping(raw)
    kind = tool.get("type", "function")
    if tool and kind != "function":
        raise bad(
            f"{where} is of type {shown(kind)}: only functions are supported", f"{where}.type", "unsupported_tool"
        )
    function = mapping(tool.get("function"))
    strict = function.get("strict")
    return tool_of(
        function.get("name"),
        function.get("description"),
        function.get("parameters"),
        f"{where}.function",
        strict=strict,
    )


def _tool_choice(choice: Json, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[str, ...] | None]:
    if choice is None or choice == "auto":
        return "auto", None
    if choice == "none" or choice == "required":
        return choice, None
    fields = mapping(choice)
    kind = fields.get("type")
    if kind == "function":
        name = mapping(fields.get("function")).get("name", fields.get("name"))
        return "required", (known_tool(name, tools, "tool_choice"),)
    if kind == "allowed_tools":
        allowed = mapping(fields.get("allowed_tools")) or fields
        listed: Any = allowed.get("tools")
        each = [mapping(tool) for tool in cast("list[Any]", listed)] if isinstance(listed, list) else []
        names = known_tools(
            [mapping(tool.get("function")).get("name", tool.get("name")) for tool in each], tools, "tool_choice"
        )
        return ("required" if allowed.get("mode") == "required" else "auto"), names
    raise bad(f"tool_choice must be auto, none, required or a function of tools, not {shown(choice)}", "tool_choice")


def read_format(value: Json, where: str = "response_format") -> OutputFormat | None:
    """A `response_format`; None for text. Some servers take a schema inside `json_object`. Raises CallError."""
    fields = mapping(value)
    kind = fields.get("type")
    if value is None or kind == "text":
        return None
    schema = mapping(fields.get("json_schema")).get("schema") if kind == "json_schema" else fields.get("schema")
    if kind == "json_object" and schema is None:
        return OutputFormat(where=where, value=kind)
    if kind in ("json_object", "json_schema") and isinstance(schema, dict):
        check_depth(schema, f"{where}.json_schema.schema" if kind == "json_schema" else f"{where}.schema")
        return OutputFormat(cast("dict[str, Json]", schema), where, kind)
    raise bad(f"{where} must be of type text, json_object or json_schema (with its schema), not {shown(value)}", where)
