"""Reading a request of Anthropic's Messages: blocks to messages.

Pure translation. A user turn's tool results and texts become `tool` and `user` messages in the order given; messages of
the same role in a row are one turn, as in the API. ``cache_control`` is read nowhere, so it can make no difference.
What cannot be honoured is refused by name.

A ``thread`` is a history that stays here: a request that continues one sends its new messages alone, and has the system
prompt, the tools and the messages of the reply that it names. A reply may be continued more than once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar, cast

from agentlightning.gateway.wires.base import (
    AskedSampling,
    CallError,
    EarlierReplies,
    HistoryLinks,
    OutputFormat,
    ReplyOptions,
    SettingNames,
    ToolChoice,
    ToolUse,
    WireRequest,
)
from agentlightning.gateway.wires.fields import (
    bad,
    boolean,
    check_depth,
    integer,
    known_tool,
    mapping,
    needed_text,
    number,
    objects,
    refuse_unless_neutral,
    settings,
    shown,
    stops,
    string,
    text,
    tool_of,
    tools_of,
    unsupported,
)
from agentlightning.gateway.wires.round_trip import from_object, unsealed
from agentlightning.nouns import Json, Message, Tool, ToolCall

_KEPT = (
    "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream", "tool_choice", "thinking", "metadata",
    "service_tier", "thread",
)  # fmt: skip
"""What the record keeps of a request besides its messages and tools, and ``effort`` and ``task_budget`` of
``output_config``."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "compaction": (),
    "container": (),
    "fallbacks": ([], "default"),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
"""Known fields that cannot be honoured, with the values (besides null) that ask for nothing."""

_INSTEAD = {"compaction": "ask for a summary with a message of the user's, and go on from it"}

_TOOL_NEUTRAL: Mapping[str, tuple[Json, ...]] = {"allowed_callers": (["direct"], []), "input_examples": ([],)}

_TOOL_INSTEAD = {"input_examples": "say it in the description"}

CALL = "msg_"
REFERENCE = "tool_reference"

_SETTING_NAMES = SettingNames(parallel=("tool_choice.disable_parallel_tool_use", True))

_THINKING = ("enabled", "adaptive", "disabled")


def read_request(body: Mapping[str, Json], earlier: EarlierReplies, *, counted: bool) -> WireRequest:
    """``counted``: only the prompt's tokens are asked for, so that ``max_tokens`` may be left out and compaction makes
    no difference. Raises CallError."""
    refuse_unless_neutral({**body, "compaction": None} if counted else body, _NEUTRAL, _INSTEAD)
    _check_context_management(body.get("context_management"))
    limit = integer(body, "max_tokens", 1)
    if limit is None and not counted:
        raise bad("max_tokens is required", "max_tokens")
    for name in ("service_tier", "inference_geo"):
        string(body, name)
    thinking = body.get("thinking")
    if thinking is not None and mapping(thinking).get("type") not in _THINKING:
        raise bad(f"thinking must be of type {', '.join(_THINKING)}, not {shown(thinking)}", "thinking")
    system, (tools, loaded) = _system(body.get("system")), _tools(body)
    begun = _continued(body.get("thread"), earlier)
    if begun is not None:
        system, tools = _kept("system", system, begun.system), _kept("tools", tools, begun.tools)
    choice, names, parallel = _tool_choice(body.get("tool_choice"), tools)
    tool_use = ToolUse(choice, names, parallel, _SETTING_NAMES)
    config = settings(body, "output_config")
    settings(body, "metadata")
    asked = {name: body[name] for name in _KEPT if body.get(name) is not None}
    asked |= {name: config[name] for name in ("effort", "task_budget") if config.get(name) is not None}
    check_depth(asked, "the request")
    return WireRequest(
        model=string(body, "model") or "",
        messages=(*system, *_messages(body.get("messages"), begun.messages if begun is not None else ())),
        tools=tools,
        tool_use=tool_use,
        loaded=loaded,
        output=_output(config.get("format") or body.get("output_format")),
        sampling=AskedSampling(
            temperature=number(body, "temperature", 0.0, 1.0),
            top_p=number(body, "top_p", 0.0, 1.0, above=True),
            top_k=integer(body, "top_k", 0),
            max_tokens=limit,
            stop=stops(body.get("stop_sequences"), "stop_sequences"),
        ),
        options=ReplyOptions(stream=boolean(body, "stream")),
        links=HistoryLinks(
            preface=len(system), store=body.get("thread") is not None, after=begun.after if begun is not None else None
        ),
        failed_tools=_failed(body.get("messages")),
        asked=asked,
    )


# --------------------------------------------------------------------------- threads


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a thread holds up to the reply that a request continues."""

    system: tuple[Message, ...]
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    after: str


def _continued(thread: Json, earlier: EarlierReplies) -> _Begun | None:
    """What is there of a thread; None where none is asked for, or a new one. Raises CallError."""
    if thread is None:
        return None
    fields = mapping(thread)
    kind, call_id = fields.get("type"), fields.get("previous_message_id")
    if kind == "create":
        return None
    if kind != "continue" or not isinstance(call_id, str):
        raise bad(
            f"thread must be of type create or continue (with its previous_message_id), not {shown(thread)}", "thread"
        )
    kept = earlier.call(call_id) if call_id.startswith(CALL) else None
    if kept is None:
        raise CallError(
            404,
            f"thread.previous_message_id names message {shown(call_id)}, which is not here: it belongs to another "
            "attempt, or it was made without a thread; send the whole conversation with thread.type=create",
            param="thread.previous_message_id",
            code="thread_not_found",
        )
    return _Begun(kept[0].messages, kept[0].tools, earlier.history(call_id), call_id)


_Held = TypeVar("_Held", tuple[Message, ...], tuple[Tool, ...])


def _kept(name: str, given: _Held, held: _Held) -> _Held:
    """What a thread was created with, which later requests may leave out or repeat."""
    if given and given != held:
        raise bad(
            f"{name} is not what the thread was created with: leave it out, or create a thread",
            name,
            "thread_fingerprint_mismatch",
        )
    return held


# --------------------------------------------------------------------------- messages


def _system(value: Json) -> tuple[Message, ...]:
    if value is None:
        return ()
    said = value if isinstance(value, str) else "\n".join(_texts(value, "system"))
    return (Message("system", said),) if said else ()


def _messages(value: Json, known: tuple[Message, ...]) -> list[Message]:
    """The messages after those that are ``known``, and these."""
    if not isinstance(value, list) or not value:
        raise bad("messages must be a list of at least one message", "messages")
    messages = list(known)
    for i, raw in enumerate(cast("list[Any]", value)):
        if not isinstance(raw, dict):
            raise bad(f"messages[{i}] must be an object, not {shown(raw)}", f"messages[{i}]")
        fields = cast("dict[str, Any]", raw)
        role, content = fields.get("role"), fields.get("content")
        if role not in ("user", "assistant", "system"):
            raise bad(f"messages[{i}].role must be user or assistant, not {shown(role)}", f"messages[{i}].role")
        if content is None or isinstance(content, str):
            turn = [Message(role, content or "")]
        elif role == "user":
            turn = _user(content, f"messages[{i}].content")
        elif role == "assistant":
            turn = [_assistant(content, f"messages[{i}].content")]
        else:
            turn = [Message(role, "\n".join(_texts(content, f"messages[{i}].content")))]
        if role == "system":
            refuse_unless_neutral(fields, {"clear_at": ("never",)}, where=f"messages[{i}].")
        messages += turn
    messages = [message for role, run in groupby(messages, _ROLE) for message in _one_turn(role, list(run))]
    if messages[-1].role == "assistant":
        raise bad(
            "messages ends with a message of the assistant (a prefill), which is not supported: the model begins its "
            "own turn",
            "messages",
            "unsupported_parameter",
        )
    return messages


_ROLE = attrgetter("role")


def _one_turn(role: str, run: list[Message]) -> list[Message]:
    """Messages of one role in a row as one. Paragraphs of a prompt stay apart; the pieces of an answer are one text."""
    if role == "tool" or len(run) == 1:
        return run
    if role != "assistant":
        return [Message(role, "\n".join([message.content for message in run if message.content]))]
    reasoning = "".join([message.reasoning or "" for message in run])
    calls = tuple([call for message in run for call in message.tool_calls])
    return [Message(role, "".join([message.content for message in run]), calls, reasoning=reasoning or None)]


def _blocks(content: Any, where: str) -> list[tuple[str, Mapping[str, Any], str]]:
    """Type, fields and path of each block."""
    if not isinstance(content, list):
        raise bad(f"{where} must be a string or a list of blocks, not {shown(content)}", where)
    blocks: list[tuple[str, Mapping[str, Any], str]] = []
    for j, block in enumerate(cast("list[Any]", content)):
        if not isinstance(block, dict):
            raise bad(f"{where}[{j}] must be an object, not {shown(block)}", f"{where}[{j}]")
        fields = cast("dict[str, Any]", block)
        kind = fields.get("type", "text")
        blocks.append((kind if isinstance(kind, str) else shown(kind), fields, f"{where}[{j}]"))
    return blocks


def _texts(content: Any, where: str) -> list[str]:
    return [_said(kind, fields, at) for kind, fields, at in _blocks(content, where)]


def _said(kind: str, fields: Mapping[str, Any], where: str) -> str:
    """The text of a block that a prompt may hold anywhere: text, or a document that is text."""
    if kind == "text":
        return needed_text(fields, "text", where)
    source = mapping(fields.get("source"))
    if kind == "document" and source.get("type") in ("text", "content"):
        if mapping(fields.get("citations")).get("enabled"):
            raise bad(
                f"{where}.citations is not supported: this model cites nothing",
                f"{where}.citations",
                "unsupported_content",
            )
        inner = source.get("content")
        if source["type"] == "text":
            said = [needed_text(source, "data", f"{where}.source")]
        else:
            said = [inner] if isinstance(inner, str) else _texts(inner, f"{where}.source.content")
        return "\n".join([*(part for name in ("title", "context") if (part := text(fields, name, where))), *said])
    of = f" with a source of type {shown(source['type'])}" if "type" in source else ""
    raise bad(
        f"{where} is of type {kind!r}{of}, which is not supported: this model reads text",
        f"{where}.type",
        "unsupported_content",
    )


def _user(content: Any, where: str) -> list[Message]:
    messages: list[Message] = []
    texts: list[str] = []
    for kind, fields, at in _blocks(content, where):
        if kind != "tool_result":
            texts.append(_said(kind, fields, at))
            continue
        if texts:
            messages.append(Message("user", "\n".join(texts)))
            texts = []
        messages.append(_result(fields, at))
    if texts or not messages:
        messages.append(Message("user", "\n".join(texts)))
    return messages


def _result(fields: Mapping[str, Any], where: str) -> Message:
    content = fields.get("content")
    if isinstance(content, str) or content is None:
        said = content or ""
    else:
        blocks = _blocks(content, f"{where}.content")
        said = "\n".join(
            [
                needed_text(each, "tool_name", at) if kind == REFERENCE else _said(kind, each, at)
                for kind, each, at in blocks
            ]
        )
    if boolean(fields, "is_error") and not said.lstrip().lower().startswith("error"):
        said = f"Error: {said}"  # what the API tells its models apart from the text
    return Message("tool", said, (), needed_text(fields, "tool_use_id", where))


def _failed(messages: Json) -> frozenset[str]:
    """The ids of the calls whose results are marked as errors."""
    return frozenset(
        [
            block["tool_use_id"]
            for message in objects(messages)
            for block in objects(message.get("content"))
            if block.get("is_error") is True and isinstance(block.get("tool_use_id"), str)
        ]
    )


def _assistant(content: Any, where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for kind, fields, at in _blocks(content, where):
        if kind == "text":
            texts.append(needed_text(fields, "text", at))
        elif kind == "thinking":
            thoughts.append(text(fields, "thinking", at) or unsealed(fields.get("signature")))
        elif kind == "tool_use":
            given = fields.get("input")
            if given is not None and not isinstance(given, dict):
                raise bad(f"{at}.input must be an object, not {shown(given)}", f"{at}.input")
            arguments = from_object(mapping(given), f"{at}.input")
            calls.append(ToolCall(text(fields, "id", at) or "", needed_text(fields, "name", at), arguments))
        elif kind != "redacted_thinking":  # somebody else's: it has no text
            raise bad(f"{at} is of type {kind!r}, which is not supported", f"{at}.type", "unsupported_content")
    return Message("assistant", "".join(texts), tuple(calls), reasoning="".join(thoughts) or None)


# --------------------------------------------------------------------------- settings


def _tools(body: Mapping[str, Json]) -> tuple[tuple[Tool, ...], int]:
    """The tools that the model is told of. Those with ``defer_loading`` come last, once a tool's result has referred to
    them, and are counted."""
    tools = tools_of(body.get("tools"), _tool)
    listed = [mapping(raw) for raw in cast("list[Json]", body["tools"])] if tools else []
    deferred = {raw["name"]: raw for raw in listed if raw.get("defer_loading")}
    if not deferred:
        return tools, 0
    if body.get("thread") is not None:
        raise bad(
            "tools with defer_loading are not supported in a thread: send the whole history",
            "tools",
            "thread_unsupported_request",
        )
    loaded = [deferred[name] for name in _references(body.get("messages")) if name in deferred]
    return tools_of([*(raw for raw in listed if raw["name"] not in deferred), *loaded], _tool), len(loaded)


def _references(messages: Json) -> list[str]:
    """The tools that results refer to, each once."""
    blocks = [
        block
        for message in objects(messages)
        for block in objects(message.get("content"))
        if block.get("type") == "tool_result"
    ]
    found = [
        each.get("tool_name")
        for block in blocks
        for each in objects(block.get("content"))
        if each.get("type") == REFERENCE
    ]
    return list(dict.fromkeys([name for name in found if isinstance(name, str)]))


def _tool(raw: Any, where: str) -> Tool:
    tool = mapping(raw)
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise bad(
            f"{where} is of type {shown(kind)}, which the API's own servers or models know: only tools with an "
            "input_schema are supported",
            f"{where}.type",
            "unsupported_tool",
        )
    refuse_unless_neutral(tool, _TOOL_NEUTRAL, _TOOL_INSTEAD, f"{where}.")
    boolean(tool, "defer_loading", param=f"{where}.defer_loading")
    name, strict = tool.get("name"), tool.get("strict")
    return tool_of(name, tool.get("description"), tool.get("input_schema"), where, schema="input_schema", strict=strict)


def _tool_choice(value: Json, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[str, ...] | None, bool]:
    """The choice, the names that may be called, and whether several calls may be made."""
    if value is None:
        return "auto", None, True
    fields = mapping(value)
    kind = fields.get("type")
    parallel = not boolean(fields, "disable_parallel_tool_use")
    if kind == "auto" or kind == "none":
        return kind, None, parallel
    if kind == "any":
        return "required", None, parallel
    if kind == "tool":
        return "required", (known_tool(fields.get("name"), tools, "tool_choice"),), parallel
    raise bad(f"tool_choice must be of type auto, any, none or tool (with its name), not {shown(value)}", "tool_choice")


def _output(value: Json) -> OutputFormat | None:
    if value is None:
        return None
    fields = mapping(value)
    schema = fields.get("schema")
    if fields.get("type") == "json_schema" and isinstance(schema, dict):
        check_depth(schema, "output_config.format.schema")
        return OutputFormat(cast("dict[str, Json]", schema), "output_config.format", "json_schema")
    raise bad(
        f"output_config.format must be of type json_schema (with its schema), not {shown(value)}",
        "output_config.format",
    )


def _check_context_management(value: Json) -> None:
    """A history is used as it is sent: edits that would leave some of it out are refused."""
    edits: Any = mapping(value).get("edits") or []
    if (value is not None and not isinstance(value, dict)) or not isinstance(edits, list):
        raise bad(
            f"context_management must be an object with a list of edits, not {shown(value)}", "context_management"
        )
    for i, edit in enumerate(cast("list[Any]", edits)):
        kind, keep = mapping(edit).get("type"), mapping(edit).get("keep")
        if not (isinstance(kind, str) and kind.startswith("clear_thinking") and keep in ("all", {"type": "all"})):
            raise unsupported(f"context_management.edits[{i}]", edit, "the history is used as it is sent")
