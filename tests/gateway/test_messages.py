"""Messages with the official client: what is answered, what is recorded, and that the same turn is recognised in every
form it comes back in."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message as ClientMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agentlightning.gateway.equality import canonical_arguments
from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.wires.fields import exactly
from agentlightning.gateway.wires.messages_request import read_request
from agentlightning.gateway.wires.round_trip import as_object, sealed
from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import GatewayConfig, SamplingConfig
from agentlightning.templates import load_template
from tests.gateway.conftest import Build, House, Paths, Visit, ids, settings_asked, until
from tests.gateway.recorded import fullest
from tests.tiny import CHATML, MERGES, tiny_tokenizer

CALCULATOR = {
    "name": "calculator",
    "description": "calculates",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "calculator", "arguments": { "expression":"17 * 23" }}</tool_call>'
SAID = "<think>17 * 23, so</think> I compute. \n" + CALL
Q = {"role": "user", "content": "What is 17 * 23?"}

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BETA_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)


class Caller:
    """The official client of an attempt."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.client = AsyncAnthropic(base_url=visit.endpoint.root_url, api_key=visit.endpoint.key, max_retries=0)

    async def ask(self, messages: list[Any], **options: Any) -> Any:
        return await self.client.messages.create(model="claude-x", messages=messages, **{"max_tokens": 250, **options})

    async def streamed(self, messages: list[Any], **options: Any) -> Any:
        async with self.client.messages.stream(
            model="claude-x", messages=messages, **{"max_tokens": 250, **options}
        ) as stream:
            return await stream.get_final_message()

    async def post(self, body: Mapping[str, Any], path: str = "/v1/messages", method: str = "POST") -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as client,
            client.request(
                method, self.visit.endpoint.root_url + path, json={"model": "m", "max_tokens": 250, **body}
            ) as reply,
        ):
            return reply.status, await reply.json()

    async def events(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The stream's events as they are on the wire."""
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                self.visit.endpoint.root_url + "/v1/messages?beta=true",
                json={"model": "m", "max_tokens": 250, "stream": True, **body},
            ) as reply,
        ):
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            blocks = [block for block in (await reply.text()).split("\n\n") if block]
        events: list[dict[str, Any]] = []
        for block in blocks:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events

    async def branches(self) -> list[str]:
        return [call.branch for call in await self.visit.calls() if call.status is CallStatus.COMPLETE]

    async def check_one_path(self) -> None:
        """Each prompt begins with all that was prompted and sampled before it, and is what the engine was given."""
        calls = [call for call in await self.visit.calls() if call.status is CallStatus.COMPLETE]
        assert [call.branch for call in calls] == ["root", *["continued"] * (len(calls) - 1)]
        for before, after in itertools.pairwise(calls):
            whole = await self.visit.path_ids(before.samples[0].node)
            assert (await self.visit.path_ids(after.prompt_node))[: len(whole)] == whole
        prompts = [await self.visit.path_ids(call.prompt_node) for call in calls]
        assert [request.prompt_ids.tolist() for request in self.visit.house.engine.requests] == prompts
        assert len(await self.visit.nodes()) == 2 * len(calls)


async def call_on(house: House, **options: Any) -> Caller:
    return Caller(await house.open(sampling=SamplingConfig(max_tokens=5000), **options))


def results(reply: Any, *said: str) -> dict[str, Any]:
    calls = [block for block in reply.content if block.type == "tool_use"]
    texts = itertools.cycle(said or ("391",))
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": next(texts)} for call in calls],
    }


# --------------------------------------------------------------------------- what is answered and recorded


async def test_a_reply_is_recorded_exactly(house: House) -> None:
    house.engine.script = ["Hello there."]
    caller = await call_on(house)
    reply = await caller.ask([{"role": "user", "content": "Hi"}], system="Be brief.")
    assert [block.model_dump(exclude_none=True) for block in reply.content] == [
        {"type": "text", "text": "Hello there."}
    ]
    assert (reply.stop_reason, reply.stop_sequence, reply.model, reply.role) == (
        "end_turn",
        None,
        "claude-x",
        "assistant",
    )
    [call] = await caller.visit.calls()
    assert (call.id, call.wire, call.branch, settings_asked(call)) == (
        reply.id,
        "messages",
        "root",
        {"max_tokens": 250},
    )
    assert reply.id.startswith("msg_")
    assert len(reply.id) == 28
    prompt, sampled = await caller.visit.nodes()
    assert house.template.decode(prompt.token_ids).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
    )
    assert sampled.token_ids.tolist() == ids(house, "Hello there.<|im_end|>")
    assert reply.usage.input_tokens + reply.usage.cache_read_input_tokens == len(prompt.token_ids)
    assert reply.usage.output_tokens == len(sampled.token_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_conversation_is_one_path(house: House, stream: bool) -> None:
    house.engine.script = [SAID + CALL, "It is 391.", "Bye."]
    caller = await call_on(house)
    history: list[Any] = [Q]
    reasons: list[str] = []
    for turn in range(3):
        ask = caller.streamed if stream else caller.ask
        reply = await ask(history, tools=[CALCULATOR], system=[{"type": "text", "text": "Be brief."}])
        reasons.append(reply.stop_reason)
        history.append({"role": "assistant", "content": reply.content})
        if turn == 0:
            assert [block.type for block in reply.content] == ["thinking", "text", "tool_use", "tool_use"]
            assert [block.input for block in reply.content[2:]] == [{"expression": "17 * 23"}] * 2
            history.append(results(reply, "391", "392"))
        else:
            history.append({"role": "user", "content": "And now?"})
    assert reasons == ["tool_use", "end_turn", "end_turn"]
    await caller.check_one_path()
    assert '{ "expression":"17 * 23" }' in house.template.decode(house.engine.requests[-1].prompt_ids)


@pytest.mark.parametrize("canonical", [True, False])
async def test_a_real_template_keeps_every_token_too(build: Build, canonical: bool) -> None:
    template = load_template(tiny_tokenizer(MERGES, CHATML))
    call = '<tool_call>\n{"name": "calculator", "arguments": { "expression":"17 * 23 é" }}\n</tool_call>'
    house = await build(
        template=template, canonical=canonical, script=["Then the hall.\n\n" + call + "\n" + call, "It is 391. ", "end"]
    )
    caller = await call_on(house)
    history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is <|im_end|> in?"}]}]
    for turn in range(3):
        reply = await (caller.streamed if turn else caller.ask)(history, tools=[CALCULATOR])
        history.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
        )
        history.append(results(reply) if turn == 0 else {"role": "user", "content": f"the next, {turn}"})
    await caller.check_one_path()
    ends = house.engine.requests[0].prompt_ids.tolist().count(template.stop_token_ids[0])
    assert ends == 2, "of the system turn and the user's, none from the text"


SAYINGS = {
    "text": "Zürich — <b>two</b> 漢字.",
    "all": SAID + CALL.replace("17", "18"),
    "only a call": CALL,
    "only thinking": "<think>hm</think>",
    "nothing": "",
    "arguments that are no JSON": '<tool_call>{"name": "calculator", "arguments": {"a": 1,}}</tool_call>',
    "long numbers": '<tool_call>{"name": "calculator", "arguments": {"a": 123456789012345678901234567890}}</tool_call>',
    "cut by a stop string": "Thought: x\nSTOP: 3",
    "too long": "x" * 300,
}


@pytest.mark.parametrize("chunk", [1, 7])
async def test_a_stream_put_together_is_the_reply(build: Build, chunk: int) -> None:
    house = await build(chunk=chunk)
    for said in SAYINGS.values():
        house.engine.script = [said] * 3
        caller = await call_on(house)
        body = {"messages": [Q], "tools": [CALCULATOR], "stop_sequences": ["STOP:"], "thinking": {"type": "adaptive"}}
        status, whole = await caller.post(body)
        assert status == 200
        events = await caller.events(body)
        assert without_ids(together(events)) == without_ids(whole)
        final = await caller.streamed([Q], tools=[CALCULATOR], stop_sequences=["STOP:"])
        assert without_ids(final.model_dump(exclude_none=True)) == without_ids({**known(whole), "model": "claude-x"})
        for event in events:
            EVENT.validate_python(event, strict=True)
            BETA_EVENT.validate_python(event, strict=True)
        ClientMessage.model_validate(whole, strict=True)
        BetaMessage.model_validate(whole, strict=True)
        first, *others = await caller.visit.calls()
        assert [call.branch for call in others] == ["forked", "forked"]
        assert all(len(call.samples[0].message.content) == len(first.samples[0].message.content) for call in others)


def known(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply that a client makes of a stream, checking that its events come in the documented order."""
    message = events[0]["message"]
    blocks: list[dict[str, Any]] = message["content"]
    open_block = False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not open_block
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
            open_block = True
            continue
        assert open_block
        assert event["index"] == len(blocks) - 1
        block = blocks[-1]
        if event["type"] == "content_block_stop":
            open_block = False
            if text := block.pop("json"):
                block["input"] = json.loads(text)
            continue
        delta = event["delta"]
        kind = {
            "text_delta": "text",
            "thinking_delta": "thinking",
            "signature_delta": "signature",
            "input_json_delta": "partial_json",
        }[delta["type"]]
        block["json" if kind == "partial_json" else kind] += delta[kind]
    assert not open_block
    assert [event["type"] for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    message.update(events[-2]["delta"])
    message["usage"].update(events[-2]["usage"])
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{**block, "id": ""} if "id" in block else block for block in message["content"]]
    usage = {name: message["usage"][name] for name in ("input_tokens", "output_tokens", "cache_read_input_tokens")}
    return {**message, "id": "", "content": content, "usage": usage}


async def test_how_a_reply_ended(house: House) -> None:
    house.engine.script = ["Thought: x\nObservation: 3", "abcdefgh", "ok", "", CALL]
    caller = await call_on(house)
    reply = await caller.ask([Q], stop_sequences=["Observation:", "Calling:"])
    assert (reply.content[0].text, reply.stop_reason, reply.stop_sequence) == (
        "Thought: x\n",
        "stop_sequence",
        "Observation:",
    )
    reply = await caller.ask([Q], max_tokens=4)
    assert (reply.content[0].text, reply.stop_reason, reply.stop_sequence) == ("abcd", "max_tokens", None)
    reply = await caller.ask([Q], stop_sequences=["Observation:"])
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    reply = await caller.ask([Q])
    assert reply.content == []
    status, whole = await caller.post({"messages": [Q], "tools": [CALCULATOR], "stop_sequences": ["</tool_call>"]})
    assert (status, whole["stop_reason"]) in ((200, "stop_sequence"), (200, "tool_use"))


async def test_text_after_a_call_stands_before_it_in_a_stream_as_in_a_reply(house: House) -> None:
    house.engine.script = [f"before{CALL}after"] * 2
    caller = await call_on(house)
    whole = await caller.ask([Q], tools=[CALCULATOR])
    final = await caller.streamed([Q], tools=[CALCULATOR])
    assert [block.type for block in whole.content] == [block.type for block in final.content] == ["text", "tool_use"]
    assert whole.content[0].text == final.content[0].text == "beforeafter"


async def test_the_beta_client_with_all_that_agents_send(house: House) -> None:
    house.engine.script = [SAID, "It is 391."]
    caller = await call_on(house)
    options: dict[str, Any] = {
        "model": "claude-x",
        "max_tokens": 250,
        "betas": ["interleaved-thinking-2025-05-14", "context-management-2025-06-27", "something-new-2030-01-01"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "somebody"},
        "tools": [{**CALCULATOR, "type": "custom", "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "auto"},
        "service_tier": "auto",
        "system": [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "It is 12:00."},
        ],
    }
    first = await caller.client.beta.messages.create(messages=[Q], **options)
    history: list[Any] = [Q, {"role": "assistant", "content": first.content}, results(first)]
    async with caller.client.beta.messages.stream(messages=history, **options) as stream:
        final = await stream.get_final_message()
    assert final.content[0].text == "It is 391."
    await caller.check_one_path()
    [call, _] = await caller.visit.calls()
    assert call.asked["metadata"] == {"user_id": "somebody"}
    assert call.asked["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert "Be brief.\nIt is 12:00." in house.template.decode(house.engine.requests[0].prompt_ids)


async def test_tokens_are_counted_as_they_would_be_sampled_from(house: House) -> None:
    house.engine.script = [SAID, "ok"]
    caller = await call_on(house)
    counted = await caller.client.messages.count_tokens(model="m", messages=[Q], tools=[CALCULATOR], system="s")
    reply = await caller.ask([Q], tools=[CALCULATOR], system="s")
    assert counted.input_tokens == reply.usage.input_tokens + reply.usage.cache_read_input_tokens
    history: list[Any] = [Q, {"role": "assistant", "content": reply.content}, results(reply)]
    counted = await caller.client.beta.messages.count_tokens(
        model="m", messages=history, tools=[CALCULATOR], system="s"
    )
    await caller.ask(history, tools=[CALCULATOR], system="s")
    assert counted.input_tokens == len(house.engine.requests[-1].prompt_ids)
    assert len(await caller.visit.calls()) == 2, "counting is no call"
    await caller.check_one_path()


async def test_pings_keep_a_waiting_stream(build: Build, heartbeats: list[bytes]) -> None:
    house = await build(
        config=GatewayConfig(heartbeat=0.03, orphan_grace=60, drain=10), hold=asyncio.Event(), script=["late"] * 2
    )
    caller = await call_on(house)
    raw = asyncio.create_task(caller.events({"messages": [Q]}))
    final = asyncio.create_task(caller.streamed([Q]))
    await until(lambda: len(house.engine.requests) == 2)
    await until(lambda: len(heartbeats) > 4)
    house.engine.hold.set()
    assert (await raw)[0] == {"type": "ping"}
    assert (await final).content[0].text == "late"


# --------------------------------------------------------------------------- what comes back


async def test_the_same_turn_is_recognised_in_every_form(house: House) -> None:
    house.engine.script = [SAID] + ["done"] * 20
    caller = await call_on(house)
    reply = await caller.ask([Q], tools=[CALCULATOR], system="Be\nbrief.")
    thinking, text, call = [block.model_dump(exclude_none=True) for block in reply.content]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "391"}
    cached = {"cache_control": {"type": "ephemeral"}}
    question = {"type": "text", "text": Q["content"]}
    turns: list[list[dict[str, Any]]] = [
        [Q, {"role": "assistant", "content": [thinking, text, call]}, {"role": "user", "content": [result]}],
        [{"role": "user", "content": [question]}, {"role": "assistant", "content": [text, call]}, {"role": "user",
        "content": [result]}],
        [
            {"role": "user", "content": [{**question, **cached}]},
            {"role": "assistant", "content": [{**thinking, "x": 1}, {**text, "citations": None}, {**call, **cached,
            "caller": {"type": "direct"}}]},
            {"role": "user", "content": [{**result, **cached, "is_error": False, "content": [{"type": "text",
            "text": "391", **cached}]}]},
        ],
        [
            Q,
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text",
            "text": "I compute."}]},
            {"role": "assistant", "content": [{**call, "id": call["id"]}]},
            {"role": "user", "content": [result]},
        ],
        [Q, {"role": "assistant", "content": [{**thinking, "thinking": "", "x": 1}, text, call]}, {"role": "user",
        "content": [result]}],
        [Q, {"role": "assistant", "content": [{"type": "thinking", "thinking": thinking["thinking"], "signature": ""},
        text, call]},
         {"role": "user", "content": [result]}],
    ]  # fmt: skip
    systems: list[Any] = [
        "Be\nbrief.",
        [{"type": "text", "text": "Be\nbrief."}],
        [{"type": "text", "text": "Be", **cached}, {"type": "text", "text": "brief."}],
    ]
    for i, history in enumerate(turns):
        status, answer = await caller.post(
            {"messages": history, "tools": [{**CALCULATOR, **cached}], "system": systems[i % 3]}
        )
        assert status == 200, answer
    assert await caller.branches() == ["root", "continued", *["forked"] * (len(turns) - 1)]
    nodes = await caller.visit.nodes()
    assert sum(not node.sampled for node in nodes) == 2, "all of them are the same prompt"


async def test_an_edited_turn_is_a_branch(house: House) -> None:
    house.engine.script = [SAID] + ["done"] * 9
    caller = await call_on(house)
    reply = await caller.ask([Q], tools=[CALCULATOR])
    thinking, text, call = [block.model_dump(exclude_none=True) for block in reply.content]
    for blocks in (
        [{**thinking, "thinking": "something else"}, text, call],
        [thinking, {**text, "text": "I guess."}, call],
        [thinking, text, {**call, "input": {"expression": "17 * 24"}}],
        [{**thinking, "thinking": "", "signature": sealed("another thing")}, text, call],
    ):
        await caller.ask([Q, {"role": "assistant", "content": blocks}, results(reply)], tools=[CALCULATOR])
    assert await caller.branches() == ["root", *["edited"] * 4]


async def test_thinking_that_is_not_shown_comes_back_in_its_signature(house: House) -> None:
    house.engine.script = [SAID, "done", SAID, "done"]
    caller = await call_on(house)
    options: dict[str, Any] = {"tools": [CALCULATOR], "thinking": {"type": "adaptive", "display": "omitted"}}
    for ask in (caller.ask, caller.streamed):
        reply = await ask([Q], **options)
        block = reply.content[0]
        assert (block.type, block.thinking) == ("thinking", "")
        assert "17 * 23, so" not in block.signature
        history = [Q, {"role": "assistant", "content": reply.content}, results(reply)]
        request = read_request(
            {"messages": json.loads(json.dumps(history, default=lambda each: each.model_dump())), **options},
            KeptReplies(),
            counted=True,
        )
        assert request.messages[1].reasoning == "17 * 23, so"
        await ask(history, **options)
    assert await caller.branches() == ["root", "continued", "forked", "continued"]


BROKEN = (
    '{"expression": "17 * 23"',
    "[1, 2]",
    '"text"',
    '{"a": NaN}',
    "17",
    "null",
    '{"INVALID_JSON": "x"}',
    '{"INVALID_JSON": {}}',
    '{"a": "\\ud800"}',
)


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_object_are_given_out_and_come_back(house: House, stream: bool) -> None:
    for arguments in BROKEN:
        house.engine.script = [f'<tool_call>{{"name": "calculator", "arguments": {arguments}}}</tool_call>', "done"]
        house.engine.requests.clear()
        caller = await call_on(house)
        ask = caller.streamed if stream else caller.ask
        reply = await ask([Q], tools=[CALCULATOR])
        [call] = reply.content
        assert call.input == ({"INVALID_JSON": {}} if arguments == BROKEN[-2] else {"INVALID_JSON": arguments})
        await ask([Q, {"role": "assistant", "content": reply.content}, results(reply, "no JSON")], tools=[CALCULATOR])
        await caller.check_one_path()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("INVALID_JSON"), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(JSON.map(json.dumps) | st.text(max_size=12) | JSON.map(lambda value: json.dumps(value)[:-1]))
def test_any_arguments_come_back_as_what_they_were(arguments: str) -> None:
    given = exactly(as_object(arguments).encode())
    assert isinstance(given, dict)
    history = [Q, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": given}]}, Q]
    [call] = read_request({"messages": history}, KeptReplies(), counted=True).messages[1].tool_calls
    assert canonical_arguments(call.arguments) == canonical_arguments(arguments)


def roles(messages: list[dict[str, Any]], **more: Any) -> list[tuple[str, str]]:
    return [
        (message.role, message.content)
        for message in read_request({"messages": messages, **more}, KeptReplies(), counted=True).messages
    ]


def test_a_mixed_user_turn_keeps_its_order() -> None:
    text, other = {"type": "text", "text": "now"}, {"type": "text", "text": "then"}
    result = {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    failed = {"type": "tool_result", "tool_use_id": "2", "content": "no such file", "is_error": True}
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    asked = [Q, {"role": "assistant", "content": "ok"}]
    assert roles([*asked, {"role": "user", "content": [result, failed, text, other]}])[2:] == [
        ("tool", "a\nb"), ("tool", "Error: no such file"), ("user", "now\nthen"),
    ]  # fmt: skip
    assert roles([*asked, {"role": "user", "content": [text, result, other]}])[2:] == [
        ("user", "now"),
        ("tool", "a\nb"),
        ("user", "then"),
    ]
    assert roles([*asked, {"role": "user", "content": [result]}, {"role": "user", "content": "now"}])[2:] == [
        ("tool", "a\nb"),
        ("user", "now"),
    ]
    assert roles([{"role": "user", "content": "a"}, {"role": "user", "content": [text]}]) == [("user", "a\nnow")]
    assert roles([{"role": "user", "content": [plain, text]}]) == [("user", "T\nD\nnow")]
    assert roles([{"role": "user", "content": []}]) == [("user", "")]
    assert roles([Q], system="") == [("user", Q["content"])]
    again = {**failed, "content": "Error: gone"}
    assert roles([*asked, {"role": "user", "content": [again]}])[2:] == [("tool", "Error: gone")]


# --------------------------------------------------------------------------- what is refused, and how

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}
SERVER_TOOLS = (
    "web_search_20250305",
    "computer_20250124",
    "bash_20250124",
    "text_editor_20250728",
    "code_execution_20250825",
    "memory_20250818",
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens is required"),
    "prefill": ({"messages": [Q, {"role": "assistant", "content": "The answer is ("}]}, "prefill"),
    "no messages": ({"messages": []}, "messages must be"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "image": ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0] is of type 'image'"),
    "pdf": (
        {"messages": [{"role": "user", "content": [PDF]}]},
        "messages[0].content[0] is of type 'document' with a source of type 'base64'",
    ),
    "image in a result": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}]}]},
        "messages[0].content[0].content[0] is of type 'image'",
    ),
    "a result of no call": ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    "server result": (
        {"messages": [Q, {"role": "assistant", "content": [{"type": "server_tool_use"}]}, Q]},
        "server_tool_use",
    ),
    "input": (
        {"messages": [Q, {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": "x"}]}, Q]},
        "input must be an object",
    ),
    "mcp": ({"mcp_servers": [{"type": "url", "url": "x", "name": "x"}]}, "mcp_servers"),
    "container": ({"container": "c"}, "container"),
    "speed": ({"speed": "fast"}, "speed"),
    "context": (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits[0]",
    ),
    "temperature": ({"temperature": 1.5}, "temperature"),
    "top_k": ({"top_k": -1}, "top_k"),
    "thinking": ({"thinking": {"type": "deep"}}, "thinking"),
    "choice": ({"tool_choice": {"type": "sometimes"}}, "tool_choice"),
    "unknown tool": ({"tools": [CALCULATOR], "tool_choice": {"type": "tool", "name": "other"}}, "'other'"),
    "schema": ({"tools": [{"name": "f", "input_schema": 3}]}, "tools[0].input_schema"),
    "format": ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    **{kind: ({"tools": [{"type": kind, "name": "x"}]}, f"tools[0] is of type '{kind}'") for kind in SERVER_TOOLS},
}


async def test_what_cannot_be_honoured_is_refused_by_name(house: House) -> None:
    caller = await call_on(house)
    for name, (fields, words) in REFUSED.items():
        status, reply = await caller.post({"messages": [Q], **fields})
        assert (status, reply["type"], reply["error"]["type"]) == (400, "error", "invalid_request_error"), name
        assert words in reply["error"]["message"], (name, reply)
    assert not house.engine.requests
    assert {call.status for call in await caller.visit.calls()} == {CallStatus.REFUSED}
    nothing = {
        "temperature": 1, "top_p": None, "top_k": None, "stop_sequences": [], "tools": [], "mcp_servers": [],
        "container": None, "service_tier": "standard_only",
        "context_management": {"edits": []}, "output_config": {"effort": "low"}, "thinking": {"type": "disabled"},
        "speed": "standard", "something_new": [1],
        "cache_control": {"type": "ephemeral"}, "tool_choice": {"type": "none"}, "metadata": {}, "inference_geo": "eu",
        "output_format": None,
    }  # fmt: skip
    status, reply = await caller.post({"messages": [Q], **nothing})
    assert status == 200, reply


def test_choices_and_formats_are_handed_on() -> None:
    def read(**fields: Any) -> Any:
        return read_request({"messages": [Q], "tools": [CALCULATOR], **fields}, KeptReplies(), counted=True)

    assert (read().tool_use.choice, read().tool_use.parallel) == ("auto", True)
    assert read(tool_choice={"type": "any", "disable_parallel_tool_use": True}).tool_use.choice == "required"
    assert read(tool_choice={"type": "any", "disable_parallel_tool_use": True}).tool_use.parallel is False
    assert read(tool_choice={"type": "none"}).tool_use.choice == "none"
    named = read(tool_choice={"type": "tool", "name": "calculator"})
    assert (named.tool_use.choice, named.tool_use.names) == ("required", ("calculator",))
    schema = {"type": "object"}
    assert read(output_format={"type": "json_schema", "schema": schema}).output.schema == schema
    assert (
        read(output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"}).output.schema
        == schema
    )
    assert read().output is None
    assert read().tools is read(tools=[dict(CALCULATOR)]).tools


async def test_errors_are_those_of_the_clients_own_types(build: Build) -> None:
    house = await build(context_length=60, config=GatewayConfig(max_body_mb=0.1, orphan_grace=60, drain=10))
    caller = await call_on(house)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: .* 60 maximum"):
        await caller.ask([{"role": "user", "content": "x" * 100}])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await caller.streamed([{"role": "user", "content": "x" * 100}])
    with pytest.raises(anthropic.RequestTooLargeError):
        await caller.ask([{"role": "user", "content": "x" * 200_000}])
    with pytest.raises(anthropic.NotFoundError, match="message batches"):
        await caller.client.messages.batches.create(requests=[])
    with pytest.raises(anthropic.NotFoundError, match="message batches"):
        await caller.client.messages.batches.retrieve("msgbatch_1")
    status, reply = await caller.post({}, "/v1/messages/other")
    assert (status, reply["error"]["type"]) == (404, "not_found_error")
    status, reply = await caller.post({}, "/v1/messages/count_tokens", "PUT")
    assert (status, reply["error"]["type"]) == (405, "invalid_request_error")
    stranger = AsyncAnthropic(base_url=f"{house.gateway.url}/a/{'x' * 43}", api_key="x", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        await stranger.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "q"}])
    token = AsyncAnthropic(base_url=caller.visit.endpoint.base_url, auth_token="anything", max_retries=0)
    reply = await token.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "q"}])
    assert reply.content[0].type == "text", "a bearer token, and /v1 twice"


# --------------------------------------------------------------------------- what frameworks really sent


def recordings() -> list[tuple[str, list[tuple[dict[str, Any], Any]]]]:
    """Each recording's bodies with the replies that they got."""
    found: list[tuple[str, list[tuple[dict[str, Any], Any]]]] = []
    for recording in fullest():
        turns = [
            (request["body"], reply)
            for request, reply in zip(recording["requests"], recording["replies"], strict=False)
            if request["path"].split("?")[0].endswith("/messages")
        ]
        if turns:
            found.append((f"{recording['framework']} {recording['mode']} {recording['scenario']}", turns))
    return found


def blocks_of(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def plain(message: Mapping[str, Any]) -> str:
    """A message as the gateway should see it, written independently of it."""
    parts: list[Any] = [message["role"]]
    for block in blocks_of(message["content"]):
        if block["type"] == "text" and block["text"].strip():
            parts.append(block["text"].strip())
        elif block["type"] == "tool_use":
            parts.append([block["name"], block["input"]])
        elif block["type"] == "tool_result":
            parts.append([each["text"].strip() for each in blocks_of(block["content"])])
    return json.dumps(parts, sort_keys=True)


def saying(content: list[dict[str, Any]]) -> str:
    """What the model has to sample for the recorded reply."""
    said = ""
    for block in content:
        if block["type"] == "thinking":
            said += f"<think>{block['thinking']}</think>"
        elif block["type"] == "text":
            said += block["text"]
        else:
            said += (
                f'<tool_call>{{"name": "{block["name"]}", "arguments": '
                f"{json.dumps(block['input'], indent=1)}}}</tool_call>"
            )
    return said


async def test_every_recorded_request_continues_as_its_client_meant_it(build: Build) -> None:
    house = await build(context_length=10**6)
    tally: Counter[str] = Counter()
    for name, turns in recordings():
        caller = await call_on(house)
        renamed: dict[str, str] = {}
        before: list[tuple[list[str], str, str]] = []
        for body, recorded in turns:
            text = json.dumps(body)
            for theirs, ours in renamed.items():
                text = text.replace(theirs, ours)
            sent = json.loads(text)
            content = (recorded.get("json") or {}).get("content") or [{"type": "text", "text": "ok"}]
            house.engine.script = [saying(content)]
            status, reply = await caller.post({**sent, "max_tokens": 2500, "stream": False})
            assert status == 200, (name, reply)
            assert plain(reply) == plain({"role": "assistant", "content": content}), name
            renamed |= {
                old["id"]: new["id"]
                for old, new in zip(content, reply["content"], strict=True)
                if old["type"] == "tool_use"
            }  # fmt: skip
            history = [plain(message) for message in sent["messages"]]
            extends = any(
                history[: len(history_then) + 1] == [*history_then, said] and tools == json.dumps(sent.get("tools"))
                for history_then, said, tools in before
            )
            repeats = any(history == history_then for history_then, _, _ in before)
            call = (await caller.visit.calls())[-1]
            expected = "forked" if repeats else "continued" if extends else "root" if not before else "new"
            assert call.branch == expected, (name, len(before))
            tally[call.branch] += 1
            before.append((history, plain(reply), json.dumps(sent.get("tools"))))
        calls = {call.id: call for call in await caller.visit.calls()}
        paths = Paths(await caller.visit.nodes())
        wholes = [paths.ids(call.samples[0].node) for call in calls.values()]
        assert all(
            any(paths.ids(call.prompt_node)[: len(whole)] == whole for whole in wholes)
            for call in calls.values()
            if call.branch == "continued"
        )
        assert (await caller.visit.end()).incomplete == 0
    print(dict(tally))
    assert tally["continued"] >= 40


async def test_a_deferred_tool_is_told_of_once_a_result_refers_to_it(house: House) -> None:
    """As agents with many tools do it: a tool of their own searches, and its result names what was found."""
    find = '<tool_call>{"name": "find", "arguments": {"words": "sum"}}</tool_call>'
    house.engine.script = [find, CALL, "391"]
    caller = await call_on(house)
    tools = [
        {**CALCULATOR, "defer_loading": True},
        {"name": "find", "input_schema": {"type": "object"}},
        {"name": "other", "defer_loading": True},
    ]
    history: list[Any] = [Q]
    for said in ([{"type": "tool_reference", "tool_name": "calculator"}], "391"):
        reply = await caller.ask(history, tools=tools)
        [call] = [block for block in reply.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": said}
        history += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    await caller.ask(history, tools=tools)
    calls = await caller.visit.calls()
    shown = [house.template.decode(request.prompt_ids) for request in house.engine.requests]
    assert ['["find"]' in shown[0], '["find", "calculator"]' in shown[1], '["find", "calculator"]' in shown[2]] == [
        True
    ] * 3
    assert [call.branch for call in calls] == ["root", "tools_changed", "continued"]
    assert len({call.agent for call in calls}) == 1


async def test_a_thread_with_deferred_tools_is_refused_so_that_the_client_goes_on_without(house: House) -> None:
    caller = await call_on(house)
    tools: list[Any] = [{**CALCULATOR, "defer_loading": True}]
    runner = caller.client.beta.messages.tool_runner(
        model="m", max_tokens=50, messages=[{"role": "user", "content": "q"}], tools=tools
    )
    assert (await runner.until_done()).stop_reason == "end_turn"
    [refused, call] = await caller.visit.calls()
    assert (
        refused.status is CallStatus.REFUSED and "defer_loading" in (refused.error or "") and "thread" not in call.asked
    )


async def test_message_start_counts_the_prompts_tokens(build: Build) -> None:
    house = await build(script=["hello there"])
    visit = await house.open()
    asked = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "q"}], "stream": True}
    async with aiohttp.ClientSession() as client, client.post(f"{visit.endpoint.base_url}/messages", json=asked) as got:
        events = [json.loads(line[6:]) for line in (await got.text()).splitlines() if line.startswith("data: ")]
    start, last = (
        events[0]["message"]["usage"],
        next(event["usage"] for event in events if event["type"] == "message_delta"),
    )
    assert (
        start["input_tokens"]
        == len(house.engine.requests[0].prompt_ids)
        == last["input_tokens"] + last["cache_read_input_tokens"]
    )
    assert (start["output_tokens"], last["output_tokens"]) == (0, 12)
