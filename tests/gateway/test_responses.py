"""The Responses API as the official client speaks it: however an agent refers to its history, its turns are one path of
exact tokens."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any, get_args

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import responses as types
from openai.types.conversations import ConversationItemList
from openai.types.responses.response_item_list import ResponseItemList
from openai.types.responses.response_stream_event import ResponseStreamEvent
from pydantic import BaseModel

from agentlightning.gateway.wires.responses import Responses
from agentlightning.gateway.wires.round_trip import sealed, unsealed
from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import SamplingConfig
from tests.gateway.conftest import Build, House, Visit, settings_asked, until

WIRE = Responses()
CALC = {
    "type": "function",
    "name": "calc",
    "description": "sums",
    "parameters": {"type": "object", "properties": {"e": {"type": "string"}}},
}
ASKS = '<think>Sum it.</think>I will. <tool_call>{"name": "calc", "arguments": { "e":"1 + 1" }}</tool_call>'
TWO_CALLS = (
    '<tool_call>{"name": "calc", "arguments": {"e": "1"}}</tool_call><tool_call>{"name": "calc", "arguments": '
    '{"e": "2"}}</tool_call>'
)
Q = [{"role": "user", "content": "1 + 1?"}]

EVENTS: dict[str, type[BaseModel]] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}

TOLD_TOO: dict[type[BaseModel], set[str]] = {
    types.Response: {"store", "presence_penalty", "frequency_penalty"},
    types.ResponseFunctionCallArgumentsDoneEvent: {"name"},
}
"""What the API sends and earlier clients' types hold, though this one's do not."""


def exact(kind: type[BaseModel], data: Any) -> None:
    """``data`` is of the client's own type, strictly, without a field that the type does not know."""
    model = kind.model_validate_json(json.dumps(data), strict=True)
    todo: list[Any] = [model]
    while todo:
        item = todo.pop()
        if isinstance(item, BaseModel):
            assert set(item.model_extra or ()) <= TOLD_TOO.get(type(item), set()), type(item)
            todo += [getattr(item, name) for name in type(item).model_fields]
        elif isinstance(item, list):
            todo += item


REQUIRED = {
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
}
"""The fields that Open Responses' schema of a response requires."""
NEVER_NULL = (
    "status",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "service_tier",
    "store",
    "background",
    "metadata",
)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("owner", ["run", "agent"])
async def test_a_response_has_every_required_field_and_says_what_it_was_sampled_with(
    build: Build, cut: bool, owner: str
) -> None:
    house = await build(script=["one two three"] * 2)
    visit = await house.open(sampling=SamplingConfig(temperature=0.7, top_p=0.9, owner=owner))
    asked = {
        "model": "m",
        "input": "q",
        "temperature": 0.2,
        "metadata": {},
        **({"max_output_tokens": 3} if cut else {}),
    }
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{visit.endpoint.base_url}/responses", json=asked) as got:
            whole = await got.json()
        async with client.post(f"{visit.endpoint.base_url}/responses", json={**asked, "stream": True}) as got:
            events = [event["response"] for event in events_of(await got.text()) if "response" in event]
        async with client.get(f"{visit.endpoint.base_url}/responses/{whole['id']}") as got:
            kept = await got.json()
        async with client.post(f"{visit.endpoint.base_url}/responses", json={**asked, "background": True}) as got:
            assert got.status == 400 and set((await got.json())["error"]) == {"message", "type", "param", "code"}
    assert kept == whole and [each["status"] for each in events] == ["in_progress", "in_progress", whole["status"]]
    for response in (whole, *events):
        assert response.keys() >= REQUIRED
        assert all(response[name] is not None for name in NEVER_NULL)
        assert (response["temperature"], response["top_p"]) == (0.2 if owner == "agent" else 0.7, 0.9)
        done = response["status"] == "completed"
        assert (
            (response["completed_at"] is not None and response["completed_at"] >= response["created_at"])
            if done
            else response["completed_at"] is None
        )


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each checked against the client's type of it."""
    events: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        exact(EVENTS[event["type"]], event)
        events.append(event)
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client that only adds up events makes of a stream, which has to be what the last one says."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert all(
        event["response"]["output"] == [] and event["response"]["status"] == "in_progress" for event in events[:2]
    )
    output: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(event["item"])
            continue
        item = output[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "response.content_part.added":
            assert event["content_index"] == len(item["content"])
            item["content"].append(event["part"])
        elif kind.endswith("_text.delta"):
            item["content"][event["content_index"]]["text"] += event["delta"]
        elif kind.endswith("_text.done"):
            assert event["text"] == item["content"][event["content_index"]]["text"]
        elif kind == "response.content_part.done":
            part = item["content"][event["content_index"]]
            assert event["part"]["text"] == part["text"]
            part.update(event["part"])
        elif kind == "response.function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert (event["name"], event["arguments"]) == (item["name"], item["arguments"])
        else:
            assert kind == "response.output_item.done"
            assert {**event["item"], "status": "in_progress", "encrypted_content": 0} == {
                **item,
                "encrypted_content": 0,
            }
            item.clear()
            item.update(event["item"])
    last = events[-1]
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["output"] == output
    return last["response"]


async def send(visit: Visit, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"{visit.endpoint.base_url}/{path}", json=body) as reply,
    ):
        text = await reply.text()
        return reply.status, json.loads(text) if reply.content_type == "application/json" else text


async def create(visit: Visit, input: Any, *, stream: bool = False, **options: Any) -> types.Response:
    """A response of the official client, from the JSON body or from its stream helper."""
    options = {"model": "gpt-x", "input": input, "tools": [CALC], **options}
    if not stream:
        return await visit.client.responses.create(**options)
    async with visit.client.responses.stream(**options) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


def dumped(response: types.Response) -> list[dict[str, Any]]:
    """Output items as agents send them back."""
    return [
        item.model_dump(exclude={"parsed_arguments": True, "content": {"__all__": {"parsed"}}})
        for item in response.output
    ]


def calls_of(response: types.Response) -> list[types.ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


def results(response: types.Response) -> list[dict[str, Any]]:
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "2"} for call in calls_of(response)]


async def one_path(visit: Visit, count: int = 2) -> None:
    """All calls are one path: each prompt begins with the one before it and what was sampled for it."""
    calls = await visit.calls()
    assert [call.branch for call in calls] == ["root", *["continued"] * (count - 1)]
    for before, after in pairwise(calls):
        whole = await visit.path_ids(before.samples[0].node)
        assert (await visit.path_ids(after.prompt_node))[: len(whole)] == whole


# --------------------------------------------------------------------------- one reply


async def test_a_reply_is_of_the_clients_types_and_says_what_was_sampled(house: House) -> None:
    visit = await house.open()
    house.engine.script = [ASKS]
    body = {
        "model": "gpt-x", "input": Q, "tools": [CALC], "instructions": "Be short.", "metadata": {"a": "b"},
        "temperature": 0.5, "max_output_tokens": 150,
        "user": "u", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "service_tier": "auto",
        "truncation": "auto", "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content", "file_search_call.results"],
        "stream_options": {"include_obfuscation": False}, "new": [1],
    }  # fmt: skip
    status, reply = await send(visit, "POST", "responses", body)
    assert status == 200, reply
    exact(types.Response, reply)
    call = reply["id"].removeprefix("resp_")
    assert len(call) == 24
    thought, said, asked = reply["output"]
    assert (thought["id"], thought["type"], thought["summary"]) == (f"rs_{call}_0", "reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": "Sum it."}]
    assert unsealed(thought["encrypted_content"]) == "Sum it."
    assert said == {
        "id": f"msg_{call}_0", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "I will. ", "annotations": [], "logprobs": []}],
    }  # fmt: skip
    assert (asked["id"], asked["name"], asked["arguments"]) == (f"fc_{call}_0", "calc", '{ "e":"1 + 1" }')
    assert (reply["status"], reply["instructions"], reply["metadata"], reply["temperature"]) == (
        "completed",
        "Be short.",
        {"a": "b"},
        1.0,
    ), "what was used"
    assert (reply["truncation"], reply["text"]) == ("auto", {"format": {"type": "text"}, "verbosity": "low"})
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    [record] = await visit.calls()
    assert (record.wire, record.id, usage["output_tokens"]) == ("responses", reply["id"], record.sampled_tokens)
    assert record.samples[0].message.tool_calls[0].id == asked["call_id"]
    assert settings_asked(record) == {
        "metadata": {"a": "b"}, "temperature": 0.5, "max_output_tokens": 150, "user": "u",
        "reasoning": {"effort": "low"}, "text": {"verbosity": "low"},
        "service_tier": "auto", "truncation": "auto", "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "say", ["plain", ASKS, TWO_CALLS, "", "<think>only thoughts</think>", "text, then <think>a late thought</think>"]
)
async def test_a_streams_events_put_together_are_the_json_reply(house: House, say: str) -> None:
    visit = await house.open()
    house.engine.script = [say]
    include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    status, text = await send(
        visit,
        "POST",
        "responses",
        {"input": Q, "tools": [CALC], "stream": True, "include": include, "instructions": "Be short."},
    )
    assert status == 200
    told = put_together(events_of(text))
    assert told["usage"]["output_tokens"] == (await visit.calls())[0].sampled_tokens
    status, kept = await send(visit, "GET", f"responses/{told['id']}")
    assert status == 200
    late = "late" in say
    assert kept == ({**told, "output": told["output"][::-1]} if late else told), (
        "only reasoning after the text has another place in the stream"
    )
    for event in ("data: [DONE]", "response.failed"):
        assert event not in text


async def test_a_reply_cut_by_length_is_incomplete(house: House) -> None:
    visit = await house.open()
    for stream in (False, True):
        house.engine.script = ["a long answer"]
        status, reply = await send(visit, "POST", "responses", {"input": "q", "max_output_tokens": 6, "stream": stream})
        assert status == 200
        told = put_together(events_of(reply)) if stream else reply
        exact(types.Response, told)
        assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [(item["status"], item["content"][0]["text"]) for item in told["output"]] == [("incomplete", "a long")]


async def test_logprobs_and_ids_come_when_they_are_asked_for(house: House) -> None:
    visit = await house.open()
    house.engine.script = ["ab", "ab"]
    reply = await create(visit, "q", include=["message.output_text.logprobs"], extra_body={"return_token_ids": True})
    [record] = await visit.calls()
    sampled = (await visit.nodes())[-1]
    assert reply.output[0].type == "message"
    told = reply.output[0].content[0]
    assert told.type == "output_text"
    assert told.logprobs is not None
    assert [each.logprob for each in told.logprobs] == pytest.approx(
        sampled.logprobs.tolist() if sampled.logprobs else None
    )
    assert "".join(each.token for each in told.logprobs).startswith("ab")
    extra = reply.model_extra or {}
    assert (extra["token_ids"], extra["prompt_token_ids"]) == (
        sampled.token_ids.tolist(),
        await visit.path_ids(record.prompt_node),
    )
    status, text = await send(
        visit, "POST", "responses", {"input": "q", "stream": True, "include": ["message.output_text.logprobs"]}
    )
    [done] = [event for event in events_of(text) if event["type"] == "response.output_text.done"]
    assert (status, [each["token"] for each in done["logprobs"]]) == (200, [each.token for each in told.logprobs])


async def test_a_prompts_tokens_are_counted_as_they_would_be_used(house: House) -> None:
    visit = await house.open()
    counted = await visit.client.responses.input_tokens.count(
        model="gpt-x", input=Q, tools=[CALC], instructions="Be short."
    )
    reply = await create(visit, Q, instructions="Be short.")
    assert reply.usage is not None
    assert counted.input_tokens == reply.usage.input_tokens
    assert counted.object == "response.input_tokens"


# --------------------------------------------------------------------------- ways to go on


async def by_history(visit: Visit, first: types.Response) -> dict[str, Any]:
    return {"input": [*Q, *dumped(first), *results(first)]}


async def by_previous(visit: Visit, first: types.Response) -> dict[str, Any]:
    return {"input": results(first), "previous_response_id": first.id}


async def by_both(visit: Visit, first: types.Response) -> dict[str, Any]:
    """As ag2 0.14 does."""
    return {**await by_history(visit, first), "previous_response_id": first.id}


async def by_reference(visit: Visit, first: types.Response) -> dict[str, Any]:
    """As the ai SDK does: what has text by reference, calls by value and without their item's id."""
    items: list[dict[str, Any]] = []
    for item in dumped(first):
        if item["type"] == "function_call":
            items.append({name: item[name] for name in ("type", "call_id", "name", "arguments")})
        else:
            items.append({"type": "item_reference", "id": item["id"]})
    return {"input": [*Q, *items, *results(first)]}


async def by_references_alone(visit: Visit, first: types.Response) -> dict[str, Any]:
    asked = [{"id": item.id} async for item in visit.client.responses.input_items.list(first.id, order="asc")]
    return {"input": [*asked, *[{"id": item["id"]} for item in dumped(first)], *results(first)]}


async def without_ids(visit: Visit, first: types.Response) -> dict[str, Any]:
    """As clients do that keep text and calls alone, with arguments written anew."""
    items: list[dict[str, Any]] = []
    for item in dumped(first):
        if item["type"] == "message":
            items.append({"role": "assistant", "content": item["content"][0]["text"].strip()})
        elif item["type"] == "function_call":
            again = json.dumps(json.loads(item["arguments"]))
            items.append(
                {"type": "function_call", "call_id": item["call_id"], "name": item["name"], "arguments": again}
            )
    return {"input": [*Q, *items, *results(first)]}


async def reordered(visit: Visit, first: types.Response) -> dict[str, Any]:
    """As agent-framework does with store=false: the call before the text, the text without its id."""
    thought, said, asked = dumped(first)
    del said["id"]
    return {"input": [*Q, thought, asked, said, *results(first)]}


async def with_extras(visit: Visit, first: types.Response) -> dict[str, Any]:
    items = [{**item, "x_unknown": {"a": 1}, "token_ids": [1], "status": None} for item in dumped(first)]
    outputs = [{**item, "output": [{"type": "input_text", "text": "2"}], "name": None} for item in results(first)]
    return {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
            *items,
            *outputs,
        ]
    }


WAYS: list[Callable[..., Any]] = [
    by_history, by_previous, by_both, by_reference, by_references_alone, without_ids, reordered, with_extras,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
async def test_however_a_second_turn_refers_to_the_first_it_continues_its_tokens(
    house: House, way: Callable[..., Any], stream: bool
) -> None:
    visit = await house.open()
    house.engine.script = [ASKS, "It is 2."]
    first = await create(visit, Q, stream=stream, instructions="Be short.")
    second = await create(visit, **await way(visit, first), stream=stream, instructions="Be short.")
    assert second.output_text == "It is 2."
    await one_path(visit)
    assert (await visit.calls())[1].prompt_tokens == len(await visit.path_ids((await visit.calls())[1].prompt_node))
    listed = [item.type async for item in visit.client.responses.input_items.list(second.id, order="asc")]
    assert listed == ["message", "reasoning", "message", "function_call", "function_call_output"] or way is without_ids


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_in_a_conversation_continue_its_tokens(house: House, stream: bool) -> None:
    visit = await house.open()
    house.engine.script = [ASKS, "It is 2.", "It is 4."]
    conversation = await visit.client.conversations.create(
        items=[{"role": "user", "content": "You sum."}], metadata={"a": "b"}
    )
    first = await create(visit, Q, stream=stream, conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second = await create(visit, results(first), stream=stream, conversation={"id": conversation.id})
    await visit.client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "2 + 2?"}])
    third = await create(visit, [], stream=stream, conversation=conversation.id)
    assert (second.output_text, third.output_text) == ("It is 2.", "It is 4.")
    await one_path(visit, 3)
    items = [item async for item in visit.client.conversations.items.list(conversation.id, order="asc", limit=3)]
    assert [getattr(item, "role", item.type) for item in items] == [
        "user", "user", "reasoning", "assistant", "function_call", "function_call_output", "assistant", "user",
        "assistant",
    ]  # fmt: skip
    assert len({item.id for item in items}) == len(items)
    latest = await visit.client.conversations.items.list(conversation.id, limit=1)
    assert [item.id for item in latest.data] == [items[-1].id]


async def test_instructions_are_not_carried_over(house: House) -> None:
    visit = await house.open()
    first = await create(visit, Q, instructions="Be short.")
    second = await create(visit, "And?", previous_response_id=first.id, instructions="Be long.")
    third = await create(visit, "And?", previous_response_id=second.id)
    prompts = [house.template.decode(await visit.path_ids(call.prompt_node)) for call in await visit.calls()]
    assert ["Be short." in prompt for prompt in prompts] == [True, False, False]
    assert ["Be long." in prompt for prompt in prompts] == [False, True, False]
    assert prompts[2].count("And?") == 2
    assert (second.instructions, third.instructions, third.previous_response_id) == ("Be long.", None, second.id)


async def test_two_replies_in_a_row_stay_two_turns(house: House) -> None:
    visit = await house.open()
    house.engine.script = ["one", "two", "three"]
    first = await create(visit, Q)
    second = await create(visit, [], previous_response_id=first.id)
    await create(visit, [*Q, *dumped(first), *dumped(second), {"role": "user", "content": "Go on."}])
    await one_path(visit, 3)
    plain = [{"role": "assistant", "content": text} for text in ("one", "two")]
    await create(visit, [*Q, *plain, {"role": "user", "content": "Go on."}])
    assert (await visit.calls())[3].branch == "forked"


async def test_parallel_calls_are_one_turn(house: House) -> None:
    visit = await house.open()
    house.engine.script = [TWO_CALLS, "done"]
    first = await create(visit, Q)
    assert [item.type for item in first.output] == ["function_call", "function_call"]
    assert len({call.call_id for call in calls_of(first)}) == 2
    await create(visit, [*Q, *dumped(first), *results(first)])
    await one_path(visit)


async def test_an_edited_turn_is_a_branch(house: House) -> None:
    visit = await house.open()
    house.engine.script = [ASKS, "done"]
    first = await create(visit, Q)
    thought, said, asked = dumped(first)
    await create(visit, [*Q, thought, said, {**asked, "arguments": '{"e": "1 + 3"}'}, *results(first)])
    assert [call.branch for call in await visit.calls()] == ["root", "edited"]


@pytest.mark.parametrize("kept", [("content",), ("encrypted_content",), ("summary",), ()])
async def test_reasoning_comes_back_in_any_form(house: House, kept: tuple[str, ...]) -> None:
    visit = await house.open()
    house.engine.script = [ASKS, "done"]
    first = await create(visit, Q, include=["reasoning.encrypted_content"], store=False)
    thought, *rest = dumped(first)
    moved = {**thought, "summary": [{"type": "summary_text", "text": thought["content"][0]["text"]}]}
    thought = {name: value for name, value in moved.items() if name in ("type", "id", *kept)}
    await create(visit, [*Q, {"summary": [], **thought}, *rest, *results(first)], store=False)
    await one_path(visit)


async def test_reasoning_that_nobody_sampled_is_kept_as_it_is_given(house: House) -> None:
    visit = await house.open()
    thought = {"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": sealed("sealed thought")}
    await create(visit, [*Q, thought, {"role": "assistant", "content": "2"}, {"role": "user", "content": "Sure?"}])
    [call] = await visit.calls()
    assert "<think>sealed thought</think>2" in house.template.decode(await visit.path_ids(call.prompt_node))


@given(st.text(), st.text())
def test_sealed_reasoning_comes_back_unharmed_and_what_is_not_sealed_here_is_nothing(text: str, other: str) -> None:
    assert unsealed(sealed(text)) == ("" if "\0" in text else text)
    mark = sealed("")
    assert isinstance(unsealed(mark + other), str)
    assert unsealed(other if not other.startswith(mark) else "") == ""
    for hidden in (b"a\0b", b"\xed\xa0\x80", b"\xff"):
        assert unsealed(b64encode(b"agl/1 " + hidden).decode()) == "", (
            "what a body may not hold, nor may what it carries"
        )


# --------------------------------------------------------------------------- what is kept


async def test_a_stored_response_can_be_read_and_deleted(house: House) -> None:
    visit = await house.open()
    house.engine.script = [ASKS, "2"]
    first = await create(visit, Q)
    kept = await visit.client.responses.retrieve(first.id)
    assert kept.model_dump() == first.model_dump()
    sealed_one = await visit.client.responses.retrieve(first.id, include=["reasoning.encrypted_content"])
    assert sealed_one.output[0].type == "reasoning"
    assert unsealed(sealed_one.output[0].encrypted_content) == "Sum it."
    status, listed = await send(visit, "GET", f"responses/{first.id}/input_items")
    exact(ResponseItemList, listed)
    assert (status, listed["data"][0]["content"]) == (200, [{"type": "input_text", "text": "1 + 1?"}])
    second = await create(visit, results(first), previous_response_id=first.id)
    await visit.client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not here"):
        await visit.client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match="previous_response_id names response"):
        await create(visit, "q", previous_response_id=first.id)
    third = await create(visit, "And?", previous_response_id=second.id)
    assert third.output_text == "ok", "what came after it still knows its history"
    assert (await visit.calls())[-1].branch == "continued"


async def test_nothing_is_kept_of_a_response_that_is_not_to_be_stored(house: House) -> None:
    visit = await house.open()
    reply = await create(visit, Q, store=False)
    assert (reply.model_extra or {})["store"] is False
    for path in (f"responses/{reply.id}", f"responses/{reply.id}/input_items"):
        assert (await send(visit, "GET", path))[0] == 404
    status, refusal = await send(
        visit, "POST", "responses", {"input": [*Q, {"type": "item_reference", "id": reply.output[0].id}]}
    )
    assert (status, refusal["error"]["code"]) == (404, "item_not_found")
    assert "store=false" in refusal["error"]["message"]


async def test_another_attempts_responses_items_and_conversations_are_not_here(house: House) -> None:
    mine, theirs = await house.open(), await house.open()
    first = await create(theirs, Q)
    conversation = await theirs.client.conversations.create()
    bodies: list[dict[str, Any]] = [
        {"input": "q", "previous_response_id": first.id},
        {"input": "q", "conversation": conversation.id},
        {"input": [{"type": "item_reference", "id": first.output[0].id}]},
    ]
    for body in bodies:
        status, refusal = await send(mine, "POST", "responses", body)
        assert (status, refusal["error"]["type"]) == (404, "invalid_request_error"), body
        assert "another attempt" in refusal["error"]["message"]
    for method, path in (("GET", f"responses/{first.id}"), ("DELETE", f"responses/{first.id}"), ("GET",
    f"conversations/{conversation.id}"),
                         ("DELETE", f"conversations/{conversation.id}"), ("GET",
                         f"conversations/{conversation.id}/items")):  # fmt: skip
        assert (await send(mine, method, path))[0] == 404
    assert (await theirs.client.responses.retrieve(first.id)).id == first.id
    assert [call.status for call in await mine.calls()] == [CallStatus.REFUSED] * len(bodies)


async def test_a_conversation_is_made_changed_and_deleted(house: House) -> None:
    visit = await house.open()
    made = await visit.client.conversations.create()
    assert (await visit.client.conversations.update(made.id, metadata={"x": "y"})).metadata == {"x": "y"}
    assert (await visit.client.conversations.retrieve(made.id)).metadata == {"x": "y"}
    items = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "calc", "arguments": "{}"},
    ]
    status, added = await send(visit, "POST", f"conversations/{made.id}/items", {"items": items})
    exact(ConversationItemList, added)
    assert (status, [item["type"] for item in added["data"]]) == (200, ["message", "function_call"])
    status, more = await send(
        visit, "POST", f"conversations/{made.id}/items", {"items": [{"role": "user", "content": "b"}]}
    )
    assert [item["id"] for item in more["data"]] == [f"msg_{made.id.removeprefix('conv_')}_at_2"]
    referred = await create(visit, [{"type": "item_reference", "id": more["data"][0]["id"]}])
    assert referred.output_text == "ok"
    for method in ("GET", "DELETE"):
        status, refusal = await send(visit, method, f"conversations/{made.id}/items/{added['data'][0]['id']}")
        assert (status, refusal["error"]["code"]) == (400, "unsupported_path")
    assert (await visit.client.conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await create(visit, "q", conversation=made.id)


async def test_a_conversation_loses_nothing_when_calls_and_items_cross(house: House) -> None:
    visit = await house.open()
    house.engine.answer = lambda prompt, request: "answer to " + prompt.rsplit("user\n", 1)[1].split("<", 1)[0]
    house.engine.hold = asyncio.Event()
    conversation = await visit.client.conversations.create()
    calls = [asyncio.create_task(create(visit, name, conversation=conversation.id)) for name in ("a", "b")]
    await until(lambda: house.engine.running == 2)
    await visit.client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "meanwhile"}])
    house.engine.hold.set()
    first, second = await asyncio.gather(*calls)
    assert {first.output_text, second.output_text} == {"answer to a", "answer to b"}

    async def texts() -> list[str]:
        return [
            item.content[0].text async for item in visit.client.conversations.items.list(conversation.id, order="asc")
        ]  # type: ignore[union-attr]

    crossed = await texts()
    assert crossed[0] == "meanwhile"
    assert sorted([tuple(crossed[1:3]), tuple(crossed[3:])]) == [("a", "answer to a"), ("b", "answer to b")]
    third = await create(visit, "c", conversation=conversation.id)
    assert await texts() == [*crossed, "c", "answer to c"]
    await visit.client.responses.delete(third.id)
    assert await texts() == [*crossed, "c", "answer to c"]
    await create(visit, "d", conversation=conversation.id)
    assert await texts() == [*crossed, "c", "answer to c", "d", "answer to d"]
    assert (await visit.calls())[-1].branch == "continued"


async def test_lists_are_given_in_pages(house: House) -> None:
    visit = await house.open()
    items = [{"role": "user", "content": str(i)} for i in range(7)]
    reply = await create(visit, items)

    async def contents(pages: AsyncIterator[Any]) -> list[str]:
        return [item.content[0].text async for item in pages]

    listing = visit.client.responses.input_items
    assert await contents(listing.list(reply.id, limit=2)) == ["6", "5", "4", "3", "2", "1", "0"]
    assert await contents(listing.list(reply.id, limit=3, order="asc")) == ["0", "1", "2", "3", "4", "5", "6"]
    for query in ("limit=0", "limit=101", "limit=x", "limit=99999999999999999999", "order=up", "after=msg_1"):
        status, refusal = await send(visit, "GET", f"responses/{reply.id}/input_items?{query}")
        assert (status, query.split("=")[0] in refusal["error"]["message"]) == (400, True), query
