"""OpenAI's Chat Completions: the request as the frameworks really send it, the reply as JSON and as server-sent events.

Pure translation. What clients add is accepted (unknown keys, explicit nulls, lists of text parts, names anywhere); what cannot be honoured is
refused by name. Validated by hand: this runs on every call, on histories of any length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.base import CallError, Choice, Reply, WireRequest
from agentlightning.templates.base import ParsedDelta
from agentlightning.types import FinishReason, Json, Message, Tool, ToolCall

MAX_SAMPLES = 128
MAX_STOPS = 16
MAX_DEPTH = 64
"""Levels of nesting in tools and in what the record keeps of a request."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

_KEPT = (
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "n", "seed", "stop", "stream", "logprobs", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "verbosity", "user", "metadata",
)  # fmt: skip
"""What the record keeps of a request besides its messages and tools."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "prompt_logprobs": (False,),
    "echo": (False,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "use_beam_search": (False,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "modalities": (["text"], []),
    "web_search_options": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Known fields that cannot be honoured, with the values (besides null) that ask for nothing."""

_INSTEAD = {
    "response_format": "describe the format in the prompt",
    "functions": "use tools",
    "function_call": "use tools",
    "top_logprobs": "logprobs of the sampled tokens are available with logprobs=true",
    "stop_token_ids": "use stop",
    "best_of": "use n",
}


def openai_error(error: CallError) -> bytes:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return orjson.dumps({"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}})


class ChatCompletions:
    """``POST chat/completions``. Satisfies `Wire`."""

    name = "chat"

    def serves(self, path: str) -> bool:
        return path == "chat/completions"

    def request(self, path: str, body: Mapping[str, Json]) -> WireRequest:
        for name in _NEUTRAL.keys() & body.keys():
            _refuse_unless_neutral(name, body[name])
        messages = _messages(body.get("messages"))
        tools = _tools(body.get("tools"))
        logprobs = _boolean(body, "logprobs")
        options = body.get("stream_options")
        if options is not None and not isinstance(options, dict):
            raise _bad("stream_options must be an object", "stream_options")
        limit = _integer(body, "max_completion_tokens", 1)
        older = _integer(body, "max_tokens", 1)
        top_k = _integer(body, "top_k", -1)
        model = body.get("model")
        if model is not None and not isinstance(model, str):
            raise _bad("model must be a string", "model")
        asked = {name: body[name] for name in _KEPT if body.get(name) is not None}
        if "metadata" in asked:
            _check_depth(asked["metadata"], "metadata")
        return WireRequest(
            model=model or "",
            messages=messages,
            tools=tools,
            parse_tools=_parse_tools(body, tools),
            n=_integer(body, "n", 1, MAX_SAMPLES) or 1,
            stream=_boolean(body, "stream"),
            temperature=_number(body, "temperature", 0.0, 100.0),
            top_p=_number(body, "top_p", 0.0, 1.0, above=True),
            top_k=None if top_k is None else max(top_k, 0),
            max_tokens=limit if older is None else older if limit is None else min(older, limit),
            seed=_integer(body, "seed", -(2**63), 2**63 - 1),
            stop=_stops(body.get("stop")),
            logprobs=logprobs,
            token_ids=_boolean(body, "return_token_ids"),
            include_usage=isinstance(options, dict) and bool(cast("dict[str, Json]", options).get("include_usage")),
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
                "logprobs": _logprobs(choice) if request.logprobs else None,
                "finish_reason": _finish(choice),
            }
            if request.token_ids:
                entry["token_ids"] = choice.token_ids.tolist()
            choices.append(entry)
        body: dict[str, Json] = {
            "id": reply.id,
            "object": "chat.completion",
            "created": reply.created,
            "model": request.model,
            "choices": choices,
            "usage": _usage(reply),
        }
        if reply.prompt_ids is not None:
            body["prompt_token_ids"] = reply.prompt_ids.tolist()
        return orjson.dumps(body)

    def stream(self, request: WireRequest, call_id: str, created: int) -> ChatStream:
        return ChatStream(request, call_id, created)

    def error(self, error: CallError) -> bytes:
        return openai_error(error)


class ChatStream:
    """Server-sent events of one reply: the roles, the deltas (whole tool calls, each in one chunk), the finish chunks, usage, ``[DONE]``.

    Logprobs and token ids come with the finish chunk: the engine tells them when the sample is whole. Without ``include_usage`` the usage rides on
    the last finish chunk.
    """

    def __init__(self, request: WireRequest, call_id: str, created: int) -> None:
        self._request = request
        self._base: dict[str, Json] = {"id": call_id, "object": "chat.completion.chunk", "created": created, "model": request.model}
        if request.include_usage:
            self._base["usage"] = None
        self._calls = [0] * request.n

    def _chunk(self, choices: Sequence[Mapping[str, Json]], **more: Json) -> bytes:
        return b"data: " + orjson.dumps({**self._base, "choices": choices, **more}) + b"\n\n"

    def begin(self) -> bytes:
        return b"".join(
            self._chunk([{"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}])
            for i in range(self._request.n)
        )

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        added: dict[str, Json] = {}
        if delta.content:
            added["content"] = delta.content
        if delta.reasoning:
            added["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            first = self._calls[index]
            self._calls[index] += len(delta.tool_calls)
            added["tool_calls"] = [{"index": first + i, **_call(call)} for i, call in enumerate(delta.tool_calls)]
        if not added:
            return b""
        return self._chunk([{"index": index, "delta": added, "logprobs": None, "finish_reason": None}])

    def end(self, reply: Reply) -> bytes:
        events: list[bytes] = []
        for index, choice in enumerate(reply.choices):
            entry: dict[str, Json] = {
                "index": index,
                "delta": {},
                "logprobs": _logprobs(choice) if self._request.logprobs else None,
                "finish_reason": _finish(choice),
            }
            more: dict[str, Json] = {}
            if self._request.token_ids:
                entry["token_ids"] = choice.token_ids.tolist()
            if index == len(reply.choices) - 1:
                if reply.prompt_ids is not None:
                    more["prompt_token_ids"] = reply.prompt_ids.tolist()
                if not self._request.include_usage:
                    more["usage"] = _usage(reply)
            events.append(self._chunk([entry], **more))
        if self._request.include_usage:
            events.append(self._chunk([], usage=_usage(reply)))
        events.append(b"data: [DONE]\n\n")
        return b"".join(events)


# --------------------------------------------------------------------------- parts of a reply


def _call(call: ToolCall) -> dict[str, Json]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(choice: Choice) -> str:
    if choice.finish is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if choice.message.tool_calls else "stop"


def _usage(reply: Reply) -> dict[str, Json]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.reused_tokens},
    }


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


def _bad(message: str, param: str | None, code: str | None = None) -> CallError:
    return CallError(400, message, param=param, code=code)


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse_unless_neutral(name: str, value: Json) -> None:
    if value is None or value in _NEUTRAL[name]:
        return
    instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise _bad(f"{name}={_shown(value)} is not supported yet{instead}", name, "unsupported_parameter")


def _boolean(body: Mapping[str, Json], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _bad(f"{name} must be true or false, not {_shown(value)}", name)


def _integer(body: Mapping[str, Json], name: str, low: int, high: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise _bad(f"{name} must be a whole number {limits}, not {_shown(value)}", name)
    return value


def _number(body: Mapping[str, Json], name: str, low: float, high: float, *, above: bool = False) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
        or (above and value == low)
    ):
        limits = f"above {low} and at most {high}" if above else f"from {low} to {high}"
        raise _bad(f"{name} must be a number {limits}, not {_shown(value)}", name)
    return float(value)


def _stops(value: Json) -> tuple[str, ...]:
    if value is None:
        return ()
    stops: list[Any] = [value] if isinstance(value, str) else cast("list[Any]", value) if isinstance(value, list) else [None]
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise _bad(f"stop must be a non-empty string or a list of at most {MAX_STOPS} of them, not {_shown(value)}", "stop")
    return tuple(dict.fromkeys(stops))


def _messages(value: Json) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _bad("messages must be a list of at least one message", "messages")
    return tuple([_message(raw, i) for i, raw in enumerate(cast("list[Any]", value))])


def _message(raw: Any, i: int) -> Message:
    if not isinstance(raw, dict):
        raise _bad(f"messages[{i}] must be an object, not {_shown(raw)}", f"messages[{i}]")
    fields = cast("dict[str, Any]", raw)
    role = fields.get("role")
    if len(fields) == 2 and (role == "user" or role == "assistant") and isinstance(text := fields.get("content"), str):
        return Message(role, text)  # most of a history, and all of a long one's cost
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise _bad(f"messages[{i}].role must be one of {', '.join(_ROLES)}, not {_shown(role)}", f"messages[{i}].role")
    content = fields.get("content")
    reasoning: str | None = None
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content, reasoning = _parts(content, known, i)
    if known == "assistant":
        calls = fields.get("tool_calls")
        if fields.get("function_call") is not None:
            raise _bad(
                f"messages[{i}].function_call is not supported: use tool_calls", f"messages[{i}].function_call", "unsupported_parameter"
            )
        if fields.get("audio") is not None:
            raise _bad(f"messages[{i}].audio is not supported: this model reads text", f"messages[{i}].audio", "unsupported_parameter")
        told = fields.get("reasoning_content") or fields.get("reasoning")
        return Message(
            known,
            content or _refusal(fields),
            _calls(calls, i) if calls else (),
            None,
            _text(fields, "name", i),
            told if isinstance(told, str) else reasoning,
        )
    if known == "tool":
        return Message(known, content, (), _text(fields, "tool_call_id", i), _text(fields, "name", i))
    return Message(known, content, (), None, _text(fields, "name", i))


def _refusal(fields: Mapping[str, Any]) -> str:
    refusal = fields.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _text(fields: Mapping[str, Any], name: str, i: int) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _bad(f"messages[{i}].{name} must be a string, not {_shown(value)}", f"messages[{i}].{name}")


def _parts(content: Any, role: str, i: int) -> tuple[str, str | None]:
    """Text and reasoning in a list of parts. Paragraphs of a prompt stay apart; the pieces of an answer are one text."""
    where = f"messages[{i}].content"
    if not isinstance(content, list):
        raise _bad(f"{where} must be a string, a list of parts or null, not {_shown(content)}", where)
    texts: list[str] = []
    thoughts: list[str] = []
    for j, part in enumerate(cast("list[Any]", content)):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise _bad(f"{where}[{j}] must be an object, not {_shown(part)}", f"{where}[{j}]")
        fields = cast("dict[str, Any]", part)
        kind = fields.get("type", "text")
        if kind in ("text", "input_text", "output_text"):
            texts.append(_part_text(fields, "text", f"{where}[{j}]"))
        elif kind == "refusal":
            texts.append(_part_text(fields, "refusal", f"{where}[{j}]"))
        elif kind in ("thinking", "reasoning") and role == "assistant":
            thoughts.append(_part_text(fields, "thinking" if "thinking" in fields else "text", f"{where}[{j}]"))
        else:
            raise _bad(
                f"{where}[{j}] is of type {_shown(kind)}, which is not supported: this model reads text",
                f"{where}[{j}].type",
                "unsupported_content",
            )
    return ("" if role == "assistant" else "\n").join(texts), "".join(thoughts) if thoughts else None


def _part_text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if isinstance(value, str):
        return value
    raise _bad(f"{where}.{name} must be a string, not {_shown(value)}", f"{where}.{name}")


def _calls(value: Any, i: int) -> tuple[ToolCall, ...]:
    where = f"messages[{i}].tool_calls"
    if not isinstance(value, list):
        raise _bad(f"{where} must be a list, not {_shown(value)}", where)
    calls: list[ToolCall] = []
    for j, raw in enumerate(cast("list[Any]", value)):
        call = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        function = cast("dict[str, Any]", call.get("function")) if isinstance(call.get("function"), dict) else {}
        name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id")
        if not isinstance(name, str):
            raise _bad(f"{where}[{j}] must be a call with a function's name and arguments, not {_shown(raw)}", f"{where}[{j}]")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            _check_depth(arguments, f"{where}[{j}].function.arguments")
            arguments = orjson.dumps(arguments).decode()
        calls.append(ToolCall(call_id if isinstance(call_id, str) else "", name, arguments))
    return tuple(calls)


def _tools(value: Json) -> tuple[Tool, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise _bad(f"tools must be a list, not {_shown(value)}", "tools")
    return _tools_of(orjson.dumps(value))


@lru_cache(maxsize=256)
def _tools_of(encoded: bytes) -> tuple[Tool, ...]:
    """The same tuple for the same tools, so that comparing a turn's tools with the last turn's costs nothing."""
    tools: list[Tool] = []
    for i, raw in enumerate(orjson.loads(encoded)):
        tool = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        kind = tool.get("type", "function")
        if tool and kind != "function":
            raise _bad(f"tools[{i}] is of type {_shown(kind)}: only functions are supported", f"tools[{i}].type", "unsupported_tool")
        function = cast("dict[str, Any]", tool.get("function")) if isinstance(tool.get("function"), dict) else {}
        name, description, parameters = function.get("name"), function.get("description"), function.get("parameters")
        if not isinstance(name, str) or not name:
            raise _bad(f"tools[{i}].function.name must be a string", f"tools[{i}].function.name")
        if description is not None and not isinstance(description, str):
            raise _bad(f"tools[{i}].function.description must be a string", f"tools[{i}].function.description")
        if parameters is not None and not isinstance(parameters, dict):
            raise _bad(f"tools[{i}].function.parameters must be a JSON schema", f"tools[{i}].function.parameters")
        _check_depth(parameters, f"tools[{i}].function.parameters")
        tools.append(Tool(name, description or "", cast("dict[str, Any]", parameters or {})))
    return tuple(tools)


def _parse_tools(body: Mapping[str, Json], tools: tuple[Tool, ...]) -> bool:
    choice = body.get("tool_choice")
    parallel = body.get("parallel_tool_calls")
    if parallel is False and tools and choice != "none":
        raise _bad(
            "parallel_tool_calls=false is not supported yet: the model may write several calls at once",
            "parallel_tool_calls",
            "unsupported_parameter",
        )
    if choice is None or choice == "auto":
        return True
    if choice == "none":
        return False
    raise _bad(f"tool_choice={_shown(choice)} is not supported yet: use 'auto' or 'none'", "tool_choice", "unsupported_parameter")


def _check_depth(value: Any, where: str) -> None:
    """Refuses what is nested so deeply that a template or an encoder would run out of stack."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for outer in level for item in _inner(outer)]
        if not level:
            return
    raise _bad(f"{where} is nested more than {MAX_DEPTH} levels deep", where)


def _inner(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()
