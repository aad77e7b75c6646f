"""Requests of Google's Gemini API. `gemini` writes the replies.

Every field may be written in camelCase or snake_case, and a list of one as its one item, as the API takes them. Unknown
fields are accepted; what cannot be honoured is refused by name.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

import orjson

from agentlightning.gateway.wires.base import (
    AskedSampling,
    OutputFormat,
    ReplyOptions,
    SettingNames,
    Target,
    ToolChoice,
    ToolUse,
    WireRequest,
)
from agentlightning.gateway.wires.fields import (
    MAX_SAMPLES,
    arguments_text,
    bad,
    boolean,
    check_depth,
    integer,
    known_tools,
    needed_text,
    number,
    refuse_unless_neutral,
    shown,
    stops,
    tool_of,
    unsupported,
)
from agentlightning.gateway.wires.round_trip import from_object, unsealed
from agentlightning.nouns import Json, Message, Tool, ToolCall

METHODS = ("generateContent", "streamGenerateContent", "countTokens")

_COLLECTIONS = ("models", "tunedModels", "endpoints")

_ROLES = ("user", "model", "function")

_KEPT = {
    "temperature": "temperature", "topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_output_tokens",
    "candidateCount": "candidate_count", "seed": "seed",
    "stopSequences": "stop_sequences", "responseMimeType": "response_mime_type",
    "responseLogprobs": "response_logprobs",
}  # fmt: skip
"""What the record keeps of `generationConfig`, and under which names: as far as wires share settings, they share their
names."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "presencePenalty": (0,),
    "frequencyPenalty": (0,),
    "logprobs": (0,),
    "responseModalities": ([], ["TEXT"], ["Text"], ["text"]),
    "speechConfig": (),
    "imageConfig": (),
    "routingConfig": (),
    "modelSelectionConfig": (),
    "audioTimestamp": (False,),
    "enableAffectiveDialog": (False,),
    "enableEnhancedCivicAnswers": (False,),
    "responseFormat": ([],),
    "translationConfig": (),
    "audioTranscriptionConfig": (),
    "continuationToken": (),
}
"""Fields of `generationConfig` that cannot be honoured, with the values (besides null) that ask for nothing."""

_INSTEAD = {
    "responseFormat": "use responseMimeType and responseSchema or responseJsonSchema",
    "logprobs": "those of the sampled tokens are available with responseLogprobs=true",
    "responseModalities": "this model writes text",
}

_SETTING_NAMES = SettingNames(choice="toolConfig.functionCallingConfig")

_NEUTRAL_BESIDE: Mapping[str, tuple[Json, ...]] = {
    "cachedContent": ("",),
    "continuationToken": (),
    "generationOutputConfig": (),
}
"""The like of the request itself."""

_INSTEAD_BESIDE = {"cachedContent": "send the contents; what was sampled before is kept by itself"}

_DATA = ("text", "functionCall", "functionResponse")
_MEDIA = ("inlineData", "fileData", "executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_BESIDES = ("thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata")
"""The fields of a part: what is read, what is refused, and what says something about the others."""


def read_request(target: Target, body: Mapping[str, Json]) -> WireRequest:
    """The call that is asked for, or whose prompt is to be counted. Raises CallError."""
    model, method = resource(target.path) or ("", "")
    if "\0" in model:
        raise bad("the model's name in the path holds a NUL character", "model")
    fields = _camel(body)
    if method == "countTokens" and fields.get("generateContentRequest") is not None:
        fields = _object(fields["generateContentRequest"], "generateContentRequest")
    stream = method == "streamGenerateContent"
    alt = target.query.get("alt", target.query.get("$alt", "json"))
    if alt not in (("json", "sse") if stream else ("json",)):
        raise bad(f"alt={shown(alt)} is not supported by {method}: use {'sse or json' if stream else 'json'}", "alt")
    refuse_unless_neutral(fields, _NEUTRAL_BESIDE, _INSTEAD_BESIDE)
    config = _object(fields.get("generationConfig"), "generationConfig")
    refuse_unless_neutral(config, _NEUTRAL, _INSTEAD, "generationConfig.")
    thinking = _object(config.get("thinkingConfig"), "generationConfig.thinkingConfig")
    boolean(thinking, "includeThoughts", param="generationConfig.thinkingConfig.includeThoughts")
    tools = _tools(fields.get("tools"))
    of_tools = _object(fields.get("toolConfig"), "toolConfig")
    refuse_unless_neutral(
        of_tools, {"retrievalConfig": ({},), "includeServerSideToolInvocations": (False,)}, where="toolConfig."
    )
    calling = _object(of_tools.get("functionCallingConfig"), "toolConfig.functionCallingConfig")
    refuse_unless_neutral(calling, {"streamFunctionCallArguments": (False,)}, where="toolConfig.functionCallingConfig.")
    choice, names = _tool_choice(calling, tools)
    tool_use = ToolUse(choice, names, setting_names=_SETTING_NAMES)
    asked = {kept: config[name] for name, kept in _KEPT.items() if config.get(name) is not None}
    for name, settings in (("thinking_config", thinking), ("function_calling_config", calling)):
        if settings:
            check_depth(settings, name)
            asked[name] = settings
    if stream:
        asked["alt"] = alt
    messages, failed_tools = _messages(fields)
    return WireRequest(
        model=model,
        messages=messages,
        prompt_field="contents",
        tools=tools,
        tool_use=tool_use,
        output=_output(config),
        sampling=AskedSampling(
            temperature=_number(config, "temperature", 0.0, 100.0),
            top_p=_number(config, "topP", 0.0, 1.0, above=True),
            top_k=_integer(config, "topK", 0),
            max_tokens=_integer(config, "maxOutputTokens", 1),
            seed=_integer(config, "seed", -(2**63), 2**63 - 1),
            stop=stops(config.get("stopSequences"), "generationConfig.stopSequences"),
        ),
        options=ReplyOptions(
            n=_integer(config, "candidateCount", 1, MAX_SAMPLES) or 1,
            stream=stream,
            logprobs=boolean(config, "responseLogprobs", param="generationConfig.responseLogprobs"),
        ),
        failed_tools=failed_tools,
        asked=asked,
    )


# --------------------------------------------------------------------------- fields


def resource(path: str) -> tuple[str, str] | None:
    """The model's name and the method in a path of this API. A publisher other than Google is part of the name."""
    named, _, method = unquote(path).rpartition(":")
    if method not in METHODS:
        return None
    segments = named.encode("utf-8", "replace").decode().split("/")
    at = next((i for i, segment in enumerate(segments) if segment in _COLLECTIONS), len(segments))
    model = "/".join(segments[at + 1 :])
    if not model:
        return None
    publisher = segments[at - 1] if at >= 2 and segments[at - 2] == "publishers" else "google"
    return (model if publisher == "google" else f"{publisher}/{model}"), method


def _camel(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields under their camelCase names, which hold where both are there."""
    if not any("_" in name for name in fields):
        return fields
    renamed = {
        _HUMP.sub(lambda found: found[1].upper(), name.lstrip("_")): value
        for name, value in fields.items()
        if "_" in name
    }
    renamed.update((name, value) for name, value in fields.items() if "_" not in name)
    return renamed


_HUMP = re.compile(r"_+([a-z0-9])")


def _object(value: Json, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad(f"{where} must be an object, not {shown(value)}", where)
    return _camel(cast("dict[str, Any]", value))


def _several(value: Json) -> list[Any]:
    return [] if value is None else cast("list[Any]", value) if isinstance(value, list) else [value]


def _integer(config: Mapping[str, Json], name: str, low: int, high: int | None = None) -> int | None:
    return integer(config, name, low, high, param=f"generationConfig.{name}")


def _number(config: Mapping[str, Json], name: str, low: float, high: float, *, above: bool = False) -> float | None:
    return number(config, name, low, high, above=above, param=f"generationConfig.{name}")


# --------------------------------------------------------------------------- messages


def _messages(fields: Mapping[str, Any]) -> tuple[tuple[Message, ...], frozenset[str]]:
    """The messages, and the ids of the calls whose results report an error."""
    contents = fields.get("contents")
    if not contents:
        raise bad("contents must be a list of at least one content", "contents")
    history = _History(_system(fields.get("systemInstruction")))
    for i, content in enumerate(_several(contents)):
        history.add(content, f"contents[{i}]")
    return history.end(), frozenset(history.failed)


def _system(value: Json) -> list[Message]:
    texts: list[str] = []
    if isinstance(value, str):
        texts.append(value)
    else:
        for j, raw in enumerate(_several(_object(value, "systemInstruction").get("parts"))):
            where = f"systemInstruction.parts[{j}]"
            part = _part(raw, where)
            if part.get("functionCall") is not None or part.get("functionResponse") is not None:
                raise bad(f"{where} must be text", where)
            if part.get("text") is not None:
                texts.append(needed_text(part, "text", where))
    text = "\n".join(texts)
    return [Message("system", text)] if text else []


def _part(raw: Any, where: str) -> Mapping[str, Any]:
    """A part's fields. Raises CallError for what is no text, call or result."""
    if isinstance(raw, str):
        return {"text": raw}
    if not isinstance(raw, dict):
        raise bad(f"{where} must be an object, not {shown(raw)}", where)
    part = _camel(cast("dict[str, Any]", raw))
    others = [name for name, value in part.items() if value is not None and name not in _DATA and name not in _BESIDES]
    if others and (all(part.get(name) is None for name in _DATA) or any(name in _MEDIA for name in others)):
        name = next((name for name in others if name in _MEDIA), others[0])
        raise bad(
            f"{where}.{shown(name)[1:-1]} is not supported: this model reads text",
            f"{where}.{name}",
            "unsupported_content",
        )
    return part


class _History:
    """Makes messages of contents: one of each turn of the model, over how many contents it may be spread, and one of
    each result of a function."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []
        self._signed = ""
        self._in_turn = False
        self._given: set[str] = set()
        self._answered: set[str] = set()
        self._waiting: dict[str, deque[str]] = {}
        self.failed: set[str] = set()

    def add(self, raw: Any, where: str) -> None:
        if isinstance(raw, str):
            raw = {"parts": [raw]}
        content = _object(raw, where)
        role = content.get("role") or "user"
        if role not in _ROLES:
            raise bad(f"{where}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", f"{where}.role")
        parts = [
            (_part(part, f"{where}.parts[{j}]"), f"{where}.parts[{j}]")
            for j, part in enumerate(_several(content.get("parts")))
        ]
        if role == "model":
            self._in_turn = True
            for part, place in parts:
                self._said(part, place)
            return
        self._end_turn()
        texts: list[str] = []
        for part, place in parts:
            if part.get("functionCall") is not None or part.get("thought"):
                raise bad(f"{place} can only be in a content of role model", place)
            if part.get("text") is not None:
                texts.append(needed_text(part, "text", place))
            if part.get("functionResponse") is not None:
                if texts:
                    self._messages.append(Message("user", "\n".join(texts)))
                texts = []
                self._messages.append(self._result(part["functionResponse"], f"{place}.functionResponse"))
        if texts or all(part.get("functionResponse") is None for part, _ in parts):
            self._messages.append(Message("user", "\n".join(texts)))

    def end(self) -> tuple[Message, ...]:
        self._end_turn()
        return tuple(self._messages)

    def _said(self, part: Mapping[str, Any], where: str) -> None:
        if part.get("functionResponse") is not None:
            raise bad(f"{where}.functionResponse cannot be in a content of role model", f"{where}.functionResponse")
        self._signed = self._signed or unsealed(part.get("thoughtSignature"))
        if part.get("text") is not None:
            (self._thoughts if boolean(part, "thought", param=f"{where}.thought") else self._texts).append(
                needed_text(part, "text", where)
            )
        if part.get("functionCall") is not None:
            call = _object(part["functionCall"], f"{where}.functionCall")
            refuse_unless_neutral(
                call, {"partialArgs": ([],), "willContinue": (False,)}, where=f"{where}.functionCall."
            )
            args = call.get("args")
            if args is not None and not isinstance(args, dict):
                raise bad(
                    f"{where}.functionCall.args must be an object, not {shown(args)}", f"{where}.functionCall.args"
                )
            arguments = from_object(cast("dict[str, Json]", args or {}), f"{where}.functionCall.args")
            name = needed_text(call, "name", f"{where}.functionCall")
            call_id = call.get("id")
            if isinstance(call_id, str) and call_id:
                self._given.add(call_id)
            else:
                # Results have to find their calls; the same place in the same history gets the same id again.
                call_id = f"call_{len(self._messages)}_{len(self._calls)}"
            self._calls.append(ToolCall(call_id, name, arguments))
            self._waiting.setdefault(name, deque()).append(call_id)

    def _end_turn(self) -> None:
        if not self._in_turn:
            return
        reasoning = "".join(self._thoughts) or self._signed or None
        self._messages.append(Message("assistant", "".join(self._texts), tuple(self._calls), None, None, reasoning))
        self._texts, self._thoughts, self._calls, self._signed, self._in_turn = [], [], [], "", False

    def _result(self, raw: Any, where: str) -> Message:
        fields = _object(raw, where)
        for name in ("parts", "willContinue"):
            if fields.get(name):
                raise unsupported(f"{where}.{name}", fields[name], "send the whole result as response")
        name = needed_text(fields, "name", where)
        call_id = fields.get("id")
        if call_id is not None and not isinstance(call_id, str):
            raise bad(f"{where}.id must be a string, not {shown(call_id)}", f"{where}.id")
        response = fields.get("response")
        if response is not None and not isinstance(response, dict | str):
            raise bad(f"{where}.response must be an object, not {shown(response)}", f"{where}.response")
        answered = self._answers(name, call_id or None)
        # "error" and "output" are the API's own keys for what went wrong and for what came of it.
        outcome = cast("dict[str, Json]", response) if isinstance(response, dict) else {}
        if answered is not None and outcome.get("error") and "output" not in outcome:
            self.failed.add(answered)
        return Message("tool", arguments_text(response, f"{where}.response"), (), answered, name)

    def _answers(self, name: str, call_id: str | None) -> str | None:
        """The id of the call that a result is of: the one it names, else that of the function's first call without a
        result."""
        if call_id in self._given:
            self._answered.add(call_id)
            return call_id
        waiting = self._waiting.get(name)
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        if not waiting or (call_id is not None and waiting[0] in self._given):
            return call_id
        return waiting.popleft()


# --------------------------------------------------------------------------- tools and formats


def _tools(value: Json) -> tuple[Tool, ...]:
    if not value:
        return ()
    try:
        return _tools_of(orjson.dumps(value))
    except orjson.JSONEncodeError:
        raise bad("tools is nested too deeply", "tools") from None


@lru_cache(maxsize=256)
def _tools_of(encoded: bytes) -> tuple[Tool, ...]:
    """The same tuple for the same tools, so that comparing a turn's tools with the last turn's costs nothing."""
    tools: list[Tool] = []
    for i, raw in enumerate(_several(orjson.loads(encoded))):
        tool = _object(raw, f"tools[{i}]")
        for kind, settings in tool.items():
            if kind != "functionDeclarations" and settings is not None:
                kind = shown(kind)[1:-1]
                raise bad(
                    f"tools[{i}].{kind} is not supported: only functionDeclarations are",
                    f"tools[{i}].{kind}",
                    "unsupported_tool",
                )
        for j, declared in enumerate(_several(tool.get("functionDeclarations"))):
            tools.append(_tool(declared, f"tools[{i}].functionDeclarations[{j}]"))
    return tuple(tools)


def _tool(raw: Any, where: str) -> Tool:
    fields = _object(raw, where)
    if fields.get("behavior") == "NON_BLOCKING":
        raise unsupported(f"{where}.behavior", "NON_BLOCKING", "a function's result is waited for")
    schema = fields.get("parametersJsonSchema")
    if schema is not None:
        return tool_of(fields.get("name"), fields.get("description"), schema, where, schema="parametersJsonSchema")
    tool = tool_of(fields.get("name"), fields.get("description"), fields.get("parameters"), where)
    return Tool(tool.name, tool.description, json_schema(tool.parameters)) if tool.parameters else tool


def _tool_choice(calling: Mapping[str, Any], tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[str, ...] | None]:
    where = "toolConfig.functionCallingConfig"
    mode = calling.get("mode")
    listed = _several(calling.get("allowedFunctionNames"))
    names = known_tools(listed, tools, f"{where}.allowedFunctionNames") or None
    if mode is None or mode in ("AUTO", "MODE_UNSPECIFIED"):
        return "auto", names
    if mode == "NONE":
        return "none", None
    if mode == "ANY":
        return "required", names
    if mode == "VALIDATED":  # text or calls, and the calls after their schemas: naming all tools asks for just that
        return "auto", names or tuple(tool.name for tool in tools) or None
    raise bad(f"{where}.mode must be AUTO, ANY, VALIDATED or NONE, not {shown(mode)}", f"{where}.mode")


def _output(config: Mapping[str, Any]) -> OutputFormat | None:
    where = "generationConfig"
    kind = config.get("responseMimeType") or "text/plain"
    given = [name for name in ("responseSchema", "responseJsonSchema") if config.get(name) is not None]
    if kind == "text/plain" and not given:
        return None
    if kind == "text/plain":
        raise bad(f"{where}.{given[0]} needs {where}.responseMimeType='application/json'", f"{where}.{given[0]}")
    if kind != "application/json":
        raise unsupported(f"{where}.responseMimeType", kind, "use text/plain or application/json")
    if not given:
        return OutputFormat(None, f"{where}.responseMimeType", kind)
    if len(given) > 1:
        raise bad(f"{where} has a responseSchema and a responseJsonSchema: leave one out", f"{where}.responseSchema")
    schema = config[given[0]]
    if not isinstance(schema, dict):
        raise bad(f"{where}.{given[0]} must be a schema, not {shown(schema)}", f"{where}.{given[0]}")
    check_depth(schema, f"{where}.{given[0]}")
    fields = cast("dict[str, Json]", schema)
    return OutputFormat(json_schema(fields) if given[0] == "responseSchema" else fields, f"{where}.{given[0]}", fields)


_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def json_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    """A schema in Gemini's dialect (types in capitals, ``nullable``, counts as strings, an order of the properties) as
    JSON schema.

    What the two have in common stays as it is. It is no deeper than ``check_depth`` allows.
    """
    result: dict[str, Json] = {}
    fields = _camel(schema)
    for name, value in fields.items():
        if name == "type" and isinstance(value, str):
            if value != "TYPE_UNSPECIFIED":
                result[name] = value.lower()
        elif name in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
            result[name] = int(value[:18])
        elif name in ("properties", "defs") and isinstance(value, dict):
            result["$defs" if name == "defs" else name] = _schemas(
                cast("dict[str, Json]", value), fields.get("propertyOrdering")
            )
        elif name in ("items", "additionalProperties") and isinstance(value, dict):
            result[name] = json_schema(cast("dict[str, Json]", value))
        elif name in ("anyOf", "prefixItems") and isinstance(value, list):
            result[name] = [
                json_schema(cast("dict[str, Json]", one)) if isinstance(one, dict) else one
                for one in cast("list[Json]", value)
            ]
        elif name == "ref" and isinstance(value, str):
            result["$ref"] = value.replace("#/defs/", "#/$defs/")
        elif name not in ("nullable", "propertyOrdering") and (name, value) != ("format", "enum"):
            result[name] = value
    if fields.get("nullable") is True:
        return _or_null(result)
    return result


def _schemas(schemas: Mapping[str, Json], order: Json) -> dict[str, Json]:
    first = [name for name in _several(order) if isinstance(name, str) and name in schemas]
    return {
        name: json_schema(cast("dict[str, Json]", schemas[name])) if isinstance(schemas[name], dict) else schemas[name]
        for name in dict.fromkeys([*first, *schemas])
    }


def _or_null(schema: dict[str, Json]) -> dict[str, Json]:
    if "anyOf" in schema and isinstance(schema["anyOf"], list):
        return {**schema, "anyOf": [*cast("list[Json]", schema["anyOf"]), {"type": "null"}]}
    if isinstance(schema.get("type"), str):
        schema = {**schema, "type": [schema["type"], "null"]}
    if isinstance(schema.get("enum"), list):
        schema = {**schema, "enum": [*cast("list[Json]", schema["enum"]), None]}
    return schema
