"""Numbers in tool arguments come back as they were sampled, on every wire, through the clients that keep them: a turn
with one goes on."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.gateway.wires.fields import Rounded, arguments_text, exactly
from tests.gateway.conftest import House, Visit

NUMBERS = (
    '{"x": 123456789012345678901234567890, "y": [-9223372036854775809, 18446744073709551616]}',
    '{"x": 18446744073709551615, "y": -9223372036854775808, "z": 9007199254740993}',
    '{"x": 0.1000000000000000055511151231257827, "y": 1e23, "z": 1.0, "w": -0.0, "v": 1E-400}',
    '{"x": 1e400}',
)
TOOL = {"type": "object", "properties": {"x": {"type": "number"}}}


def script(house: House) -> None:
    house.engine.script = [
        f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>' for arguments in NUMBERS
    ] + ["done"]


async def chat(visit: Visit) -> None:
    history: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    while True:
        tool = {"type": "function", "function": {"name": "f", "parameters": TOOL}}
        message = (await visit.ask(history, tools=[tool])).choices[0].message
        if not message.tool_calls:
            return
        [call] = message.tool_calls
        assert call.function.arguments in NUMBERS
        sent = message.model_dump(exclude_none=True)
        if "e400" not in call.function.arguments:  # as langchain and strands re-serialise
            sent["tool_calls"][0]["function"]["arguments"] = json.dumps(json.loads(call.function.arguments))
        history += [sent, {"role": "tool", "tool_call_id": call.id, "content": "ok"}]


async def responses(visit: Visit) -> None:
    history: list[Any] = [{"role": "user", "content": "q"}]
    while True:
        tool: Any = {"type": "function", "name": "f", "parameters": TOOL, "strict": False}
        reply = await visit.client.responses.create(model="m", input=history, tools=[tool])
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return
        history += [call.model_dump() for call in calls]
        history += [{"type": "function_call_output", "call_id": call.call_id, "output": "ok"} for call in calls]


async def messages(visit: Visit) -> None:
    history: list[Any] = [{"role": "user", "content": "q"}]
    async with AsyncAnthropic(base_url=visit.endpoint.root_url, api_key=visit.endpoint.key, max_retries=0) as client:
        for stream in (False, True, False, True, False):
            ask: Any = {
                "model": "m",
                "max_tokens": 500,
                "messages": history,
                "tools": [{"name": "f", "input_schema": TOOL}],
            }
            if stream:
                async with client.messages.stream(**ask) as events:
                    reply = await events.get_final_message()
            else:
                reply = await client.messages.create(**ask)
            calls = [block for block in reply.content if block.type == "tool_use"]
            history.append(
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
            )
            history.append(
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in calls],
                }
            )


async def gemini(visit: Visit) -> None:
    options = types.HttpOptions(base_url=visit.endpoint.root_url, retry_options=types.HttpRetryOptions(attempts=1))
    client = genai.Client(api_key=visit.endpoint.key, vertexai=False, http_options=options)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="f", parameters_json_schema=TOOL)])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    conversation = client.aio.chats.create(model="m", config=config)
    reply = await conversation.send_message("q")
    while reply.function_calls:
        reply = await conversation.send_message(
            [types.Part.from_function_response(name="f", response={"result": 2**70})]
        )
    await client.aio.aclose()


@pytest.mark.parametrize("talk", [chat, responses, messages, gemini])
async def test_turns_with_any_numbers_go_on(house: House, talk: Any) -> None:
    script(house)
    visit = await house.open()
    await talk(visit)
    calls = await visit.calls()
    assert [call.branch for call in calls] == ["root"] + ["continued"] * len(NUMBERS)
    assert [call.arguments for each in calls[:-1] for call in each.samples[0].message.tool_calls] == list(NUMBERS)
    if talk is gemini:
        assert str(2**70) in house.template.decode(house.engine.requests[-1].prompt_ids), (
            "the model reads a result's own digits"
        )


async def test_another_number_that_rounds_to_the_same_float_is_an_edit(house: House) -> None:
    script(house)
    visit = await house.open()
    url = visit.endpoint.root_url
    async with AsyncAnthropic(base_url=url, api_key=visit.endpoint.key, max_retries=0) as client:
        history: list[Any] = [{"role": "user", "content": "q"}]
        tools: Any = [{"name": "f", "input_schema": TOOL}]
        reply = await client.messages.create(model="m", max_tokens=500, messages=history, tools=tools)
        [call] = reply.content
        changed = {**call.model_dump(exclude_none=True), "input": {**call.input, "x": call.input["x"] + 1}}  # type: ignore[union-attr]
        history += [{"role": "assistant", "content": [changed]}, {"role": "user", "content": [{"type": "tool_result",
        "tool_use_id": call.id, "content": "ok"}]}]  # fmt: skip
        await client.messages.create(model="m", max_tokens=500, messages=history, tools=tools)
    assert [call.branch for call in await visit.calls()] == ["root", "edited"]


VALUES = st.recursive(
    st.integers(-(2**80), 2**80)
    | st.sampled_from([2**64 + 1, -(2**63) - 1, 10**30 + 7, 1e23])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.none()
    | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
def test_what_comes_as_an_object_becomes_text_with_its_own_numbers(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    try:
        text = arguments_text(orjson.loads(body), "here")
    except Rounded as error:
        assert error.status == 400 and "here" in error.message
        text = arguments_text(exactly(body), "here")
    assert json.loads(text) == value
