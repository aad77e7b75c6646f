"""OpenAI's Responses API: responses as JSON and as server-sent events, what is kept of them, and conversations.

Pure translation. An agent may send its whole history each time, or refer to it: by `previous_response_id`, by a
conversation, or item by item. What it refers to are the attempt's own earlier replies, so that each way continues the
same recorded tokens. Unknown fields are accepted; what cannot be honoured (hosted tools, background, prompt templates,
images) is refused by name. `truncation` may say `auto`, though no item is ever dropped: a prompt that does not fit is
refused. `metadata`, `user` and the like are kept in the record and repeated.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import orjson

from agentlightning.gateway.equality import equality_key
from agentlightning.gateway.wires.base import (
    AskedSampling,
    CallError,
    Conversation,
    Count,
    EarlierReplies,
    HistoryLinks,
    Lookup,
    OutputFormat,
    Reply,
    ReplyOptions,
    Target,
    ToolChoice,
    ToolUse,
    Use,
    WireRequest,
)
from agentlightning.gateway.wires.fields import (
    bad,
    boolean,
    check_depth,
    integer,
    known_tool,
    known_tools,
    mapping,
    number,
    refuse_unless_neutral,
    settings,
    shown,
    stops,
    string,
    tool_of,
    tools_of,
    unsupported,
)
from agentlightning.gateway.wires.openai import INPUT_TOO_LONG, openai_error
from agentlightning.gateway.wires.responses_items import (
    CALL,
    CONVERSATION,
    ENCRYPTED,
    LOGPROBS,
    Item,
    conversation_items,
    conversation_messages,
    failed_outputs,
    input_items,
    read_items,
)
from agentlightning.gateway.wires.responses_stream import ResponsesStream, finished_response
from agentlightning.nouns import Json, Message, Tool

_PATHS = re.compile(r"responses(/.*)?|conversations(/.*)?")

_KEPT = (
    "temperature", "top_p", "top_k", "max_output_tokens", "seed", "stop", "stream", "store", "tool_choice",
    "parallel_tool_calls", "truncation",
    "reasoning", "metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier",
)  # fmt: skip
"""What the record keeps of a request as it was sent; `include`, `text`, `conversation` and `previous_response_id` are
kept once they are checked."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "background": (False,),
    "personality": (),
    "prompt": (),
    "max_tool_calls": (),
    "top_logprobs": (0,),
    "context_management": ([],),
    "generate": (True,),
    "moderation": (),
    "multi_agent": ({"enabled": False},),
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "modalities": (["text"], []),
    "truncation": ("auto", "disabled"),
}
"""Known fields that cannot be honoured, with the values (besides null) that ask for nothing."""

_INSTEAD = {
    "personality": "say it in the instructions",
    "background": "responses are made while the client waits, which may take as long as it likes",
    "prompt": "send input and instructions",
    "max_tool_calls": "it limits hosted tools, which there are none of; parallel_tool_calls=false allows one function "
    "call at a time",
    "top_logprobs": f"logprobs of the sampled tokens are available with include=['{LOGPROBS}']",
    "n": "make several calls",
    "truncation": "it is auto or disabled",
}

_TOOL_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "defer_loading": (False,),
    "async": (False,),
    "allowed_callers": (["direct"], []),
}


class Responses:
    """``responses``, ``conversations`` and what lies below them. Satisfies `Wire`."""

    name = "responses"

    id_prefix = CALL

    def owns(self, path: str) -> bool:
        return _PATHS.fullmatch(path) is not None

    def use(self, target: Target) -> Use | None:
        if target.path == "responses":
            return "call" if target.method == "POST" else None
        if target.path == "responses/input_tokens":
            return Count(_counted) if target.method == "POST" else None
        known = [methods for path, methods in _LOOKS if path.fullmatch(target.path) is not None]
        return Lookup(partial(_looked, target)) if not known or target.method in known[0] else None

    def request(self, target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> WireRequest:
        refuse_unless_neutral(body, _NEUTRAL, _INSTEAD)
        instructions = string(body, "instructions")
        messages, conversation, carried, after = _history(body, earlier)
        tools = tools_of(body.get("tools"), _tool)
        choice, names = _tool_choice(body.get("tool_choice"), tools)
        parallel = body.get("parallel_tool_calls") is None or boolean(body, "parallel_tool_calls")
        tool_use = ToolUse(choice, names, parallel)
        include = _include(body.get("include"))
        output, told = _output(body.get("text"))
        top_k = integer(body, "top_k", -1)
        asked = {name: body[name] for name in _KEPT if body.get(name) is not None}
        asked |= {"include": include} if include else {}
        asked |= {"text": told} if told else {}
        asked |= {"conversation": conversation} if conversation else {}
        asked |= {"previous_response_id": body["previous_response_id"]} if body.get("previous_response_id") else {}
        for name in ("metadata", "reasoning"):
            if name in asked:
                _object(asked[name], name)
        for name in ("user", "safety_identifier", "prompt_cache_key", "service_tier"):
            string(body, name)
        settings(body, "stream_options")
        caching = settings(body, "prompt_cache_options")
        refuse_unless_neutral(
            caching, {"prewarm": (False,), "comparison_response_id": ()}, where="prompt_cache_options."
        )
        stored = body.get("store") is None or boolean(body, "store")
        return WireRequest(
            model=string(body, "model") or "",
            messages=(Message("system", instructions), *messages) if instructions else messages,
            prompt_field="input",
            tools=tools,
            tool_use=tool_use,
            output=output,
            sampling=AskedSampling(
                temperature=number(body, "temperature", 0.0, 100.0),
                top_p=number(body, "top_p", 0.0, 1.0, above=True),
                top_k=None if top_k is None else max(top_k, 0),
                max_tokens=integer(body, "max_output_tokens", 1),
                seed=integer(body, "seed", -(2**63), 2**63 - 1),
                stop=stops(body.get("stop")),
            ),
            options=ReplyOptions(
                stream=boolean(body, "stream"),
                logprobs=LOGPROBS in include,
                token_ids=boolean(body, "return_token_ids"),
            ),
            links=HistoryLinks(
                preface=1 if instructions else 0,
                store=stored or conversation is not None,
                conversation=conversation,
                from_conversation=carried,
                after=after,
            ),
            failed_tools=failed_outputs(body.get("input")),
            asked=asked,
        )

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        return orjson.dumps(finished_response(request, reply))

    def stream(self, request: WireRequest, call_id: str, created: int) -> ResponsesStream:
        return ResponsesStream(request, call_id, created)

    def error(self, error: CallError) -> bytes:
        return openai_error(error, INPUT_TOO_LONG)


# --------------------------------------------------------------------------- parts of a request


def _history(
    body: Mapping[str, Json], earlier: EarlierReplies
) -> tuple[tuple[Message, ...], str | None, int, str | None]:
    """All messages but the instructions, the conversation they go to, how many of them come from it, and the response
    that they go on from."""
    given = body.get("input")
    new = (
        ()
        if given is None
        else (Message("user", given),)
        if isinstance(given, str)
        else read_items(given, earlier, "input")
    )
    previous, named = body.get("previous_response_id"), body.get("conversation")
    if previous is not None and named is not None:
        raise bad(
            "previous_response_id and conversation cannot be used together: use one of them", "previous_response_id"
        )
    if named is not None:
        conversation = _conversation(
            mapping(named).get("id") if isinstance(named, dict) else named, earlier, "conversation"
        )
        known = conversation_messages(conversation, earlier)
        _needed(known, new)
        return (*known, *new), conversation.id, len(known), conversation.last
    known = () if previous is None else _previous(previous, earlier)
    _needed(known, new)
    return new if _repeats(known, new) else (*known, *new), None, 0, cast("str | None", previous)


def _needed(known: Sequence[Message], new: Sequence[Message]) -> None:
    if not known and not new:
        raise bad("input must be a string or a list of at least one item", "input")


def _previous(call_id: Json, earlier: EarlierReplies) -> tuple[Message, ...]:
    if not isinstance(call_id, str):
        raise bad(f"previous_response_id must be a string, not {shown(call_id)}", "previous_response_id")
    if _response(call_id, earlier) is None:
        raise _not_here(
            "previous_response_id names response", call_id, "previous_response_id", "previous_response_not_found"
        )
    return earlier.history(call_id)


def _response(call_id: str, earlier: EarlierReplies) -> tuple[WireRequest, Reply] | None:
    """A response of this API that was kept."""
    return earlier.call(call_id) if call_id.startswith(CALL) else None


def _repeats(known: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether a client that refers to its history also sends all of it: it is not meant twice."""
    if not known or len(new) < len(known):
        return False
    return all(equality_key(theirs) == equality_key(ours) for theirs, ours in zip(new, known, strict=False))


def _not_here(what: str, name: Json, param: str | None, code: str) -> CallError:
    return CallError(
        404,
        f"{what} {shown(name)}, which is not here: it belongs to another attempt, or it was not stored or is deleted",
        param=param,
        code=code,
    )


def _conversation(name: Any, earlier: EarlierReplies, param: str | None) -> Conversation:
    conversation = earlier.conversations.get(name) if isinstance(name, str) else None
    if conversation is None:
        raise _not_here("there is no conversation", name, param, "conversation_not_found")
    return conversation


def _object(value: Json, name: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise bad(f"{name} must be an object, not {shown(value)}", name)
    check_depth(value, name)
    return cast("Mapping[str, Json]", value)


def _include(value: Json) -> list[str]:
    """What is asked to be included, of what there is. The rest belongs to hosted tools and images, which are refused
    where they are asked for."""
    if value is None:
        return []
    names = cast("list[Any]", value) if isinstance(value, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise bad(f"include must be a list of strings, not {shown(value)}", "include")
    return [name for name in (ENCRYPTED, LOGPROBS) if name in names]


def _tool(raw: Any, where: str) -> Tool:
    tool = mapping(raw)
    kind = tool.get("type", "function")
    if kind != "function":
        raise bad(
            f"{where} is of type {shown(kind)}: only functions are supported", f"{where}.type", "unsupported_tool"
        )
    refuse_unless_neutral(tool, _TOOL_NEUTRAL, where=f"{where}.")
    return tool_of(tool.get("name"), tool.get("description"), tool.get("parameters"), where, strict=tool.get("strict"))


def _tool_choice(choice: Json, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[str, ...] | None]:
    if choice is None or choice == "auto":
        return "auto", None
    if choice == "none" or choice == "required":
        return choice, None
    check_depth(choice, "tool_choice")
    fields = mapping(choice)
    kind = fields.get("type")
    if kind == "function":
        return "required", (known_tool(fields.get("name"), tools, "tool_choice"),)
    listed: Any = fields.get("tools")
    if kind == "allowed_tools" and isinstance(listed, list):
        names = known_tools([mapping(tool).get("name") for tool in cast("list[Any]", listed)], tools, "tool_choice")
        return ("required" if fields.get("mode") == "required" else "auto"), names
    raise bad(
        "tool_choice must be auto, none, required, a function or allowed_tools (functions of tools), not "
        f"{shown(choice)}",
        "tool_choice",
    )


def _output(value: Json) -> tuple[OutputFormat | None, dict[str, Json]]:
    """The format, and what the record keeps of it: all but the schema."""
    if value is None:
        return None, {}
    fields = _object(value, "text")
    told: dict[str, Json] = {"verbosity": fields["verbosity"]} if fields.get("verbosity") is not None else {}
    wanted = mapping(fields.get("format"))
    kind, schema = wanted.get("type"), wanted.get("schema")
    if fields.get("format") is None or kind == "text":
        return None, told
    if kind == "json_object" and schema is None:
        return OutputFormat(None, "text.format", kind), {**told, "format": {"type": kind}}
    if kind in ("json_object", "json_schema") and isinstance(schema, dict):
        named = {name: wanted[name] for name in ("name", "strict") if wanted.get(name) is not None}
        return OutputFormat(cast("dict[str, Json]", schema), "text.format", kind), {
            **told,
            "format": {"type": kind, **named},
        }
    raise bad(
        "text.format must be of type text, json_object or json_schema (with its schema), not "
        f"{shown(fields['format'])}",
        "text.format",
    )


# --------------------------------------------------------------------------- what is kept


_LOOKS = (
    (re.compile(r"responses/compact"), ("POST",)),
    (re.compile(r"responses/[^/]+"), ("GET", "DELETE")),
    (re.compile(r"responses/[^/]+/input_items"), ("GET",)),
    (re.compile(r"responses/[^/]+/cancel"), ("POST",)),
    (re.compile(r"conversations"), ("POST",)),
    (re.compile(r"conversations/[^/]+"), ("GET", "POST", "DELETE")),
    (re.compile(r"conversations/[^/]+/items"), ("GET", "POST")),
    (re.compile(r"conversations/[^/]+/items/[^/]+"), ("GET", "DELETE")),
)
"""Paths that tell about what is kept, with their methods."""


def _counted(tokens: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens})


def _looked(target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> bytes:
    room, *rest = target.path.split("/")
    if room == "responses":
        return orjson.dumps(_look_at_response(target, rest, earlier))
    return orjson.dumps(_look_at_conversation(target, rest, body, earlier))


def _look_at_response(target: Target, rest: list[str], earlier: EarlierReplies) -> dict[str, Json]:
    call_id, *below = rest
    if target.method == "POST" and below in ([], ["cancel"]):
        raise bad(
            f"{target.path} is not supported: responses are neither compacted nor made in the background",
            None,
            "unsupported_path",
        )
    kept = _response(call_id, earlier)
    if kept is None:
        raise _not_here("there is no response", call_id, None, "response_not_found")
    request, reply = kept
    if target.method == "DELETE":
        earlier.forget(call_id)
        return {"id": call_id, "object": "response", "deleted": True}
    if below == ["input_items"]:
        return _page(input_items(reply, earlier), target.query)
    if below:
        raise _nothing_at(target)
    if target.query.get("stream", "false") != "false":
        raise unsupported("stream", True, "a stored response is read as JSON")
    wanted = [value for name, value in target.query.items() if name.startswith("include")]
    if LOGPROBS in wanted and not request.options.logprobs:
        raise unsupported("include", LOGPROBS, "logprobs have to be asked for when the response is made")
    asked = {**request.asked, "include": [ENCRYPTED]} if ENCRYPTED in wanted else request.asked
    return finished_response(replace(request, asked=asked), reply)


def _look_at_conversation(
    target: Target, rest: list[str], body: Mapping[str, Json], earlier: EarlierReplies
) -> dict[str, Json]:
    if not rest:
        added = () if body.get("items") is None else read_items(body["items"], earlier, "items")
        conversation = Conversation(f"{CONVERSATION}{secrets.token_hex(12)}", int(time.time()), _metadata(body), added)
        earlier.conversations[conversation.id] = conversation
        return _shown_conversation(conversation)
    name, *below = rest
    conversation = _conversation(name, earlier, None)
    if below == ["items"]:
        if target.method == "GET":
            return _page(conversation_items(conversation, earlier), target.query)
        known = len(conversation_items(conversation, earlier))
        conversation.added += read_items(body.get("items"), earlier, "items")
        return _list(conversation_items(conversation, earlier)[known:], more=False)
    if below[:1] == ["items"]:
        raise bad("single items of a conversation are not supported: list its items", None, "unsupported_path")
    if below:
        raise _nothing_at(target)
    if target.method == "DELETE":
        del earlier.conversations[name]
        return {"id": name, "object": "conversation.deleted", "deleted": True}
    if target.method == "POST":
        conversation.metadata = _metadata(body)
    return _shown_conversation(conversation)


def _metadata(body: Mapping[str, Json]) -> Mapping[str, Json]:
    return {} if body.get("metadata") is None else _object(body["metadata"], "metadata")


def _shown_conversation(conversation: Conversation) -> dict[str, Json]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": conversation.metadata,
    }


def _nothing_at(target: Target) -> CallError:
    return CallError(404, f"there is nothing at {target.path!r}", code="unknown_url")


def _page(items: list[Item], query: Mapping[str, str]) -> dict[str, Json]:
    """A page of a list, the latest first unless `order` is asc. Raises CallError."""
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise bad(f"order must be asc or desc, not {shown(order)}", "order")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= 100:
        raise bad(f"limit must be a whole number from 1 to 100, not {shown(limit)}", "limit")
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        place = next((i for i, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise bad(f"after={shown(after)} is no item of this list", "after")
        ordered = ordered[place + 1 :]
    return _list(ordered[: int(limit)], more=len(ordered) > int(limit))


def _list(items: list[Item], *, more: bool) -> dict[str, Json]:
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": more}
