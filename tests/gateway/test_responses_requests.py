"""What the Responses API accepts and refuses, for all bodies and replies, and what frameworks really sent to it
(`recorded`)."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import responses as types

from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.wires.base import Begun, CallError, Choice, Lookup, Reply, Target, WireRequest
from agentlightning.nouns import FinishReason, Message, SamplingParams, ToolCall
from agentlightning.settings.fields import SamplingConfig
from agentlightning.templates.base import ParsedDelta
from tests.gateway.conftest import Build, House, Visit
from tests.gateway.recorded import fullest
from tests.gateway.test_recordings import Replay, Turn, value_of
from tests.gateway.test_responses import CALC, WIRE, create, events_of, exact, put_together, send

# --------------------------------------------------------------------------- what is refused

F = {"type": "function", "name": "f"}
REFUSED: dict[str, tuple[Any, str]] = {
    "no input": ({}, "input must be a string or a list of at least one item"),
    "an empty list": ({"input": []}, "input must be a string or a list of at least one item"),
    "instructions alone": ({"instructions": "x"}, "input must be"),
    "a number": ({"input": 3}, "input must be a string or a list of items, not 3"),
    "an item that is none": ({"input": ["q"]}, "input[0] must be an object, not 'q'"),
    "an unknown role": ({"input": [{"role": "robot", "content": ""}]}, "input[0].role must be one of"),
    "an unknown item": ({"input": [{"type": "computer_call_output"}]}, "input[0] is of type 'computer_call_output'"),
    "a custom call": ({"input": [{"type": "custom_tool_call"}]}, "'custom_tool_call'"),
    "an item of no kind": ({"input": [{}]}, "input[0] is of type None"),
    "a compaction": ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "'compaction'"),
    "a reference to nothing": ({"input": [{"type": "item_reference", "id": 3}]}, "input[0] refers to item 3"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    "input[0].content[0] is of type 'input_image'"),
    "a file": ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "'input_file'"),
    "audio": ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'input_audio'"),
    "an image from a tool": ({"input": [{"type": "function_call_output", "call_id": "c",
    "output": [{"type": "input_image"}]}]}, "input[0].output[0]"),
    "a numeric content": ({"input": [{"role": "user", "content": 3}]}, "input[0].content must be"),
    "a call without a name": ({"input": [{"type": "function_call", "arguments": "{}"}]}, "input[0].name must be a "
                                                                                         "string"),
    "a numeric summary": ({"input": [{"type": "reasoning", "summary": 3}]}, "input[0].summary must be a list"),
    "numeric instructions": ({"input": "q", "instructions": 3}, "instructions must be a string, not 3"),
    "web search": ({"input": "q", "tools": [{"type": "web_search"}]}, "tools[0] is of type 'web_search': only "
                                                                      "functions are supported"),
    "file search": ({"input": "q", "tools": [{"type": "file_search", "vector_store_ids": []}]}, "'file_search'"),
    "code interpreter": ({"input": "q", "tools": [F, {"type": "code_interpreter"}]}, "tools[1] is of type "
                                                                                     "'code_interpreter'"),
    "computer use": ({"input": "q", "tools": [{"type": "computer_use_preview"}]}, "'computer_use_preview'"),
    "an MCP server": ({"input": "q", "tools": [{"type": "mcp", "server_label": "x"}]}, "'mcp'"),
    "image generation": ({"input": "q", "tools": [{"type": "image_generation"}]}, "'image_generation'"),
    "a custom tool": ({"input": "q", "tools": [{"type": "custom", "name": "x"}]}, "'custom'"),
    "a namespace": ({"input": "q", "tools": [{"type": "namespace", "name": "x", "tools": [F]}]}, "'namespace'"),
    "a deferred tool": ({"input": "q", "tools": [{**F, "defer_loading": True}]}, "tools[0].defer_loading=True is not "
                                                                                 "supported"),
    "an unknown tool choice": ({"input": "q", "tools": [F], "tool_choice": {"type": "function", "name": "g"}},
    "tool_choice names 'g'"),
    "a hosted tool choice": ({"input": "q", "tools": [F], "tool_choice": {"type": "file_search"}},
    "tool_choice must be auto"),
    "background": ({"input": "q", "background": True}, "background=True is not supported"),
    "a prompt template": ({"input": "q", "prompt": {"id": "x"}}, "prompt={'id': 'x'} is not supported: send input"),
    "max_tool_calls": ({"input": "q", "max_tool_calls": 3}, "max_tool_calls=3 is not supported"),
    "top_logprobs": ({"input": "q", "top_logprobs": 2}, "top_logprobs=2 is not supported: logprobs of the sampled "
                                                        "tokens"),
    "several samples": ({"input": "q", "n": 2}, "n=2 is not supported: make several calls"),
    "truncation": ({"input": "q", "truncation": "middle"}, "truncation='middle' is not supported: it is auto or "
                                                           "disabled"),
    "context management": ({"input": "q", "context_management": [{"type": "compaction"}]}, "context_management="),
    "a text that is a string": ({"input": "q", "text": "json"}, "text must be an object"),
    "a format without a schema": ({"input": "q", "text": {"format": {"type": "json_schema", "name": "x"}}},
    "text.format must be of type"),
    "an include that is a string": ({"input": "q", "include": "x"}, "include must be a list of strings"),
    "metadata": ({"input": "q", "metadata": "x"}, "metadata must be an object"),
    "a user": ({"input": "q", "user": {"a": 1}}, "user must be a string"),
    "a temperature": ({"input": "q", "temperature": -1}, "temperature must be a number"),
    "a limit": ({"input": "q", "max_output_tokens": 0}, "max_output_tokens must be"),
    "store": ({"input": "q", "store": "no"}, "store must be true or false"),
    "two histories": ({"input": "q", "previous_response_id": "resp_1", "conversation": "conv_1"},
    "cannot be used together"),
    "a numeric previous response": ({"input": "q", "previous_response_id": 3}, "previous_response_id must be a string"),
}  # fmt: skip


async def test_what_cannot_be_honoured_is_refused_by_name(house: House) -> None:
    visit = await house.open()
    for name, (body, words) in REFUSED.items():
        status, reply = await send(visit, "POST", "responses", body)
        assert status in (400, 404), name
        assert set(reply["error"]) == {"message", "type", "param", "code"}, name
        assert words in reply["error"]["message"], name
        assert reply["error"]["type"] == "invalid_request_error"
    assert not house.engine.requests
    assert (await visit.end()).refused == len(REFUSED)


async def test_paths_and_methods_that_are_not_there_are_named(house: House) -> None:
    visit = await house.open()
    reply = await create(visit, "q")
    for method, path, status in (
        ("GET", "responses", 405), ("PUT", f"responses/{reply.id}", 405), ("POST", f"responses/{reply.id}", 405),
        ("GET", "conversations", 405),
        ("GET", "responses/input_tokens", 405), ("POST", f"responses/{reply.id}/cancel", 400), ("POST",
        "responses/compact", 400),
        ("GET", f"responses/{reply.id}/nothing", 404), ("GET", f"responses/{reply.id}?stream=true", 400), ("GET",
        "conversations/conv_1", 404),
        ("GET", f"responses/{reply.id}?include[]=message.output_text.logprobs", 400), ("GET",
        "conversations/conv_1/items/msg_1", 404),
    ):  # fmt: skip
        got, refusal = await send(visit, method, path, {} if method == "POST" else None)
        assert (got, "error" in refusal) == (status, True), path
        assert path.split("?")[0] in refusal["error"]["message"] or got != 405
    with pytest.raises(openai.BadRequestError, match="cancel is not supported"):
        await visit.client.responses.cancel(reply.id)


async def test_tool_choice_and_format_reach_the_request(house: House) -> None:
    earlier = KeptReplies()

    def asked(**body: Any) -> WireRequest:
        return WIRE.request(Target("POST", "responses"), {"input": "q", "tools": [F, CALC], **body}, earlier)

    def echoed(request: WireRequest) -> dict[str, Any]:
        body = json.loads(
            WIRE.reply(request, Reply("resp_" + "0" * 24, 1, [choice(Message("assistant", "x"))], 1, 1, 0))
        )
        exact(types.Response, body)
        return body

    for said in ("auto", "none", "required", None):
        request = asked(tool_choice=said)
        assert (request.tool_use.choice, request.tool_use.names) == (said or "auto", None)
        assert echoed(request)["tool_choice"] == (said or "auto")
    named = {"type": "function", "name": "calc"}
    request = asked(tool_choice=named)
    assert (request.tool_use.choice, request.tool_use.names, echoed(request)["tool_choice"]) == (
        "required",
        ("calc",),
        named,
    )
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, named]}
    request = asked(tool_choice=allowed, parallel_tool_calls=False)
    assert (request.tool_use.choice, request.tool_use.names, echoed(request)["tool_choice"]) == (
        "auto",
        ("f", "calc"),
        allowed,
    )
    assert (request.tool_use.parallel, echoed(request)["parallel_tool_calls"]) == (False, False)
    schema = {"type": "object", "properties": {}}
    request = asked(
        text={"format": {"type": "json_schema", "name": "out", "schema": schema, "strict": True}, "verbosity": "low"}
    )
    assert request.output is not None
    assert request.output.schema == schema
    assert request.asked["text"] == {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "out", "strict": True},
    }, "without the schema"
    assert echoed(request)["text"]["format"]["schema"] == schema
    request = asked(text={"format": {"type": "json_object"}})
    assert request.output is not None
    assert (request.output.schema, echoed(request)["text"]["format"]) == (None, {"type": "json_object"})
    assert asked(text={"format": {"type": "text"}}).output is None


# --------------------------------------------------------------------------- for all replies and bodies


def choice(message: Message, finish: FinishReason = FinishReason.STOP) -> Choice:
    return Choice(message, finish, array("i", [5, 6]), array("f", [-0.5, -1.5]), ("a", "\ufffd"))


PIECES = st.lists(
    st.builds(ParsedDelta, st.text(max_size=5), st.text(max_size=5))
    | st.builds(
        lambda name, arguments: ParsedDelta("", "", (ToolCall("call_1", name, arguments),)),
        st.text(max_size=3),
        st.text(max_size=9),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(PIECES, st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]), st.booleans(), st.booleans())
def test_any_reply_is_the_same_streamed_and_whole(
    pieces: list[ParsedDelta], finish: FinishReason, seal: bool, logprobs: bool
) -> None:
    pieces = [piece for piece in pieces if piece.content or piece.reasoning or piece.tool_calls]
    content, reasoning = "".join(piece.content for piece in pieces), "".join(piece.reasoning for piece in pieces)
    calls = tuple(
        ToolCall(f"call_{i}", call.name, call.arguments)
        for i, call in enumerate(call for piece in pieces for call in piece.tool_calls)
    )
    body = {
        "input": "q",
        "include": ["reasoning.encrypted_content"] * seal + ["message.output_text.logprobs"] * logprobs,
    }
    request = WIRE.request(Target("POST", "responses"), body, KeptReplies())
    reply = Reply(
        "resp_" + "0" * 24,
        1,
        [choice(Message("assistant", content, calls, None, None, reasoning or None), finish)],
        3,
        2,
        1,
    )
    stream = WIRE.stream(request, reply.id, reply.created)
    text = b"".join(
        [stream.begin(Begun(3, SamplingParams())), *(stream.delta(0, piece) for piece in pieces), stream.end(reply)]
    ).decode()
    whole = json.loads(WIRE.reply(request, reply))
    exact(types.Response, whole)
    spoke = [i for i, piece in enumerate(pieces) if piece.content]
    late = bool(spoke) and any(piece.reasoning for piece in pieces[spoke[0] + 1 :])
    if late:  # the last event has all of it, though the reasoning was told when it could no longer be added to
        events = events_of(text)
        by_id = {item["id"]: item for item in events[-1]["response"]["output"]}
        assert [by_id[item["id"]] for item in whole["output"]] == whole["output"]
    else:
        assert put_together(events_of(text)) == whole


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "system", "input_text", "output_text", "function", "auto", "resp_1",
    f"msg_{'0' * 24}_0", "{}", "agl1.x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "text", "id", "name", "arguments", "content", "role", "format", "schema",
    "tools", "mode"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip

ITEMS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference"])
            | VALUES
        },
        optional={
            "role": st.sampled_from(["user", "assistant", "system", "developer"]) | VALUES,
            **dict.fromkeys(
                ("id", "content", "name", "arguments", "call_id", "output", "summary", "encrypted_content"), VALUES
            ),
        },
    )
    | VALUES,
    max_size=4,
)

BODIES = st.fixed_dictionaries(
    {"input": ITEMS | VALUES},
    optional=dict.fromkeys(("model", "instructions", "tools", "tool_choice", "previous_response_id", "conversation",
    "include", "store", "stream", "temperature", "top_p", "top_k", "max_output_tokens", "seed", "stop", "text",
    "reasoning", "metadata", "user", "truncation", "parallel_tool_calls", "background", "top_logprobs", "n",
    "service_tier"), VALUES),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(BODIES)
def test_any_body_is_a_request_or_a_refusal(body: dict[str, Any]) -> None:
    try:
        request = WIRE.request(Target("POST", "responses"), body, KeptReplies())
    except CallError as error:
        assert 400 <= error.status < 500
        json.loads(WIRE.error(error))
    else:
        assert request.messages
        assert all(isinstance(message.content, str) for message in request.messages)
        json.dumps(request.asked)
        json.loads(WIRE.reply(request, Reply("resp_" + "0" * 24, 1, [choice(Message("assistant", "x"))], 1, 1, 0)))


PATHS = st.lists(
    st.sampled_from(
        ["responses", "conversations", "items", "input_items", "cancel", "compact", "resp_1", "conv_1", "x"]
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    PATHS,
    st.sampled_from(["GET", "POST", "DELETE", "PUT"]),
    st.dictionaries(st.sampled_from(["items", "metadata"]), ITEMS | VALUES),
)
def test_any_look_is_an_answer_or_a_refusal(parts: list[str], method: str, body: dict[str, Any]) -> None:
    target = Target(method, "/".join(parts))
    use = WIRE.use(target) if WIRE.owns(target.path) else None
    if not isinstance(use, Lookup):
        return
    earlier = KeptReplies()
    try:
        json.loads(use.answer(body, earlier))
    except CallError as error:
        assert 400 <= error.status < 500
    else:
        assert len(earlier.conversations) == 1


# --------------------------------------------------------------------------- what frameworks really sent


def plain(items: Any, known: dict[str, dict[str, Any]]) -> list[str]:
    """A history as the gateway should see it, written independently of it: no recorded client has two turns of the
    assistant's in a row."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    turns: list[list[Any]] = []
    for item in items:
        item = known[item["id"]] if item.get("type") == "item_reference" else item
        kind = item.get("type", "message")
        role = "tool" if kind == "function_call_output" else item.get("role", "assistant")
        content = item.get("content") if kind == "message" else item.get("output") if role == "tool" else ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        calls = [(item["name"], value_of(item["arguments"]))] if kind == "function_call" else []
        if role == "assistant" and turns and turns[-1][0] == role:
            turns[-1][1] += text
            turns[-1][2] += calls
        else:
            turns.append([role, text, calls])
    return [json.dumps([role, text.strip(), calls], sort_keys=True) for role, text, calls in turns]


def saying(output: list[dict[str, Any]]) -> str:
    """What the model has to sample for the recorded reply."""
    said = ""
    for item in output:
        if item["type"] == "reasoning":
            said += f"<think>{item['content'][0]['text']}</think>"
        elif item["type"] == "message":
            said += item["content"][0]["text"]
        else:
            said += f'<tool_call>{{"name": "{item["name"]}", "arguments": {item["arguments"]}}}</tool_call>'
    return said


class ResponsesReplay(Replay):
    """A recording of responses against one attempt."""

    def __init__(self, house: House, visit: Visit) -> None:
        super().__init__(house, visit)
        self.items: dict[str, dict[str, Any]] = {}

    async def play(self, client: aiohttp.ClientSession, request: dict[str, Any], recorded: dict[str, Any]) -> None:
        body = json.loads(self._renamed(json.dumps(request["body"])))
        if "top_logprobs" in body:
            status, refusal = await self._respond(client, request["path"], body)
            assert (status, refusal["error"]["code"]) == (400, "unsupported_parameter")
            del body["top_logprobs"]
        if "format" in body.get("text", {}):
            kept = WIRE.request(Target("POST", "responses"), body, KeptReplies()).output
            assert kept is not None
            assert kept.schema == body.pop("text")["format"]["schema"]
        output = recorded["json"]["output"]
        self.house.engine.script = [saying(output)]
        status, reply = await self._respond(client, request["path"], {**body, "max_output_tokens": 200})
        assert status == 200, reply
        exact(types.Response, {name: value for name, value in reply.items() if not name.endswith("token_ids")})
        for item in reply["output"]:
            self.items[item["id"]] = item
        told = plain(output, {})
        assert plain(reply["output"], {}) == told
        for kind in ("reasoning", "message", "function_call"):
            theirs, ours = ([item for item in items if item["type"] == kind] for items in (output, reply["output"]))
            for their, our in zip(theirs, ours, strict=bool(ours)):
                self.ids |= {their[name]: our[name] for name in ("id", "call_id") if name in their}
        history = plain(body["input"], self.items)
        if body.get("previous_response_id"):
            [before] = [turn for turn in self.turns if turn.call_id == body["previous_response_id"]]
            history = [*before.history[self.lead :], before.reply, *history]
        self.lead = 1 if body.get("instructions") else 0
        if self.lead:
            history = [*plain([{"role": "system", "content": body["instructions"]}], {}), *history]
        self.ids[recorded["json"]["id"]] = reply["id"]
        self.turns.append(Turn(history, json.dumps(body.get("tools")), told[0], reply["id"]))

    async def _respond(self, client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if not body.get("stream"):
            return await self._post(client, path, body)
        async with client.post(self.visit.endpoint.root_url + path, json=body) as reply:
            text = await reply.text()
            return reply.status, put_together(events_of(text)) if reply.status == 200 else json.loads(text)


async def test_every_recorded_response_continues_as_its_client_meant_it(build: Build) -> None:
    house = await build()
    tally: Counter[str] = Counter()
    played = 0
    async with aiohttp.ClientSession() as client:
        for recording in fullest():
            turns = [
                (request, reply)
                for request, reply in zip(recording["requests"], recording["replies"], strict=False)
                if request["path"].endswith("/responses")
                and isinstance(reply.get("json"), dict)
                and "output" in reply["json"]
            ]
            if not turns:
                continue
            visit = await house.open(sampling=SamplingConfig(max_tokens=300))
            replay = ResponsesReplay(house, visit)
            for request, reply in turns:
                await replay.play(client, request, reply)
            tally += await replay.check()
            played += len(turns)
            assert (await visit.end()).incomplete == 0
    print(played, dict(tally))
    assert tally["continued"] > 100
    assert tally["template"] == 0


@pytest.mark.parametrize("strict", [True, False, None])
async def test_a_response_says_whether_its_tools_are_strict(house: House, strict: bool | None) -> None:
    visit = await house.open(sampling=SamplingConfig(max_tokens=2000))
    tools: Any = [{**CALC, "strict": strict}, {"type": "function", "name": "plain", "parameters": {"type": "object"}}]
    reply = await visit.client.responses.create(model="m", input="q", tools=tools)
    later = await visit.client.responses.create(model="m", input="r", previous_response_id=reply.id, tools=tools)
    for told in (reply, later, await visit.client.responses.retrieve(later.id)):
        assert [tool.strict for tool in told.tools] == [strict is True, False]  # type: ignore[union-attr]
