"""Anthropic's message threads with the official client: a history that stays here is the conversation that was sampled,
token for token."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic, beta_async_tool
from anthropic.types.beta import BetaMessage

from tests.gateway.conftest import House
from tests.gateway.test_messages import Caller, call_on

CALL = (
    '<think>17 * 23</think>I compute.<tool_call>{"name": "calculator", "arguments": { "expression":"17 * 23" '
    "}}</tool_call>"
)


@beta_async_tool
async def calculator(expression: str) -> str:
    """Calculates.

    Args:
        expression: What to calculate.
    """
    return {"17 * 23": "391"}.get(expression, "no idea")


def bodies(caller: Caller) -> list[dict[str, Any]]:
    """What the client sends from now on."""
    sent: list[dict[str, Any]] = []
    post = caller.client._client.send

    async def noted(request: Any, **options: Any) -> Any:
        sent.append(json.loads(request.content))
        return await post(request, **options)

    caller.client._client.send = noted  # type: ignore[method-assign]
    return sent


async def run(caller: Caller, *, stream: bool, **options: Any) -> BetaMessage:
    fields: dict[str, Any] = {
        "model": "claude-x",
        "max_tokens": 250,
        "system": "Be good.",
        "tools": [calculator],
        **options,
    }
    runner = caller.client.beta.messages.tool_runner(
        messages=[{"role": "user", "content": "What is 17 * 23?"}], stream=stream, **fields
    )
    return await runner.until_done()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_runner_keeps_its_history_here_and_every_token(house: House, stream: bool) -> None:
    house.engine.script = [CALL, CALL, "It is 391."]
    caller = await call_on(house)
    sent = bodies(caller)
    final = await run(caller, stream=stream)
    assert [block.text for block in final.content if block.type == "text"] == ["It is 391."]
    assert [body["thread"]["type"] for body in sent] == ["create", "continue", "continue"]
    assert not any({"system", "tools"} & body.keys() or len(body["messages"]) > 1 for body in sent[1:])
    await caller.check_one_path()
    calls = await caller.visit.calls()
    assert len({call.agent for call in calls}) == 1
    assert [call.asked["thread"] for call in calls] == [body["thread"] for body in sent]
    shown = house.template.decode(house.engine.requests[-1].prompt_ids)
    assert "Be good." in shown and "What is 17 * 23?" in shown and "calculator" in shown and "391" in shown


@pytest.mark.parametrize("stream", [False, True])
async def test_with_and_without_a_thread_the_model_reads_the_same(house: House, stream: bool) -> None:
    house.engine.script = [CALL, "It is 391."] * 2
    for options in ({}, {"thread": False}):
        await run(await call_on(house), stream=stream, **options)
    prompts = [request.prompt_ids.tolist() for request in house.engine.requests]
    assert prompts[:2] == prompts[2:]


async def test_a_thread_goes_on_from_any_of_its_replies(house: House) -> None:
    house.engine.script = ["one", "two", "other", "three"]
    caller = await call_on(house)
    thread = caller.client.beta.messages.thread(
        model="claude-x", max_tokens=50, system="S", messages=[{"role": "user", "content": "first"}]
    )
    first = await thread.send()
    await thread.send({"role": "user", "content": "second"})
    await ask(caller, "else", {"type": "continue", "previous_message_id": first.id})
    await thread.send({"role": "user", "content": "third"})
    assert await caller.branches() == ["root", "continued", "forked", "continued"]
    shown = [house.template.decode(request.prompt_ids) for request in house.engine.requests]
    assert (
        shown[2] == shown[1].replace("second", "else")
        and "one" in shown[3]
        and "two" in shown[3]
        and "else" not in shown[3]
    )


async def ask(caller: Caller, text: str, thread: Any, **options: Any) -> BetaMessage:
    messages: list[Any] = [{"role": "user", "content": text}]
    return await caller.client.beta.messages.create(
        model="claude-x", max_tokens=50, messages=messages, thread=thread, **options
    )


async def test_a_message_that_is_not_here_is_refused_so_that_the_client_sends_its_history(house: House) -> None:
    caller, other = await call_on(house), await call_on(house)
    elsewhere = await ask(other, "q", {"type": "create"})
    alone = await ask(caller, "q", None)
    response = await caller.visit.client.responses.create(model="m", input="q")
    for name in ("msg_made_up", elsewhere.id, alone.id, response.id, ""):
        with pytest.raises(anthropic.NotFoundError) as caught:
            await ask(caller, "q", {"type": "continue", "previous_message_id": name})
        assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        assert caught.value.body["error"]["details"] == {"error_code": "thread_not_found"}  # type: ignore[index]
    house.engine.script = ["one", "two"]
    begun = [call.id for call in await caller.visit.calls()]
    thread = caller.client.beta.messages.thread(
        model="claude-x", max_tokens=50, messages=[{"role": "user", "content": "first"}]
    )
    first = await thread.send()
    assert caller.visit.session.kept_replies.forget(first.id)
    await thread.send({"role": "user", "content": "second"})  # the client sends all of it again
    calls = [call for call in await caller.visit.calls() if call.id not in begun and call.samples]
    assert [call.branch for call in calls] == ["new", "continued"]
    [lost] = [call for call in await caller.visit.calls() if call.error and first.id in call.error]
    assert lost.asked == {}


async def test_a_reply_of_a_thread_is_no_response(house: House) -> None:
    caller = await call_on(house)
    kept = await ask(caller, "q", {"type": "create"})
    client = caller.visit.client
    for attempt in (
        client.responses.retrieve(kept.id),
        client.responses.create(model="m", input="x", previous_response_id=kept.id),
    ):
        with pytest.raises(Exception, match="which is not here"):
            await attempt


async def test_a_thread_keeps_the_system_prompt_and_tools_it_was_created_with(house: House) -> None:
    house.engine.script = ["one", "two"]
    caller = await call_on(house)
    tools: list[Any] = [calculator.to_dict()]
    first = await ask(caller, "q", {"type": "create"}, system="S", tools=tools)
    on = {"type": "continue", "previous_message_id": first.id}
    for name, fields in {"system": {"system": "T"}, "tools": {"tools": [{**tools[0], "name": "other"}]}}.items():
        with pytest.raises(
            anthropic.BadRequestError, match=f"{name} is not what the thread was created with"
        ) as caught:
            await ask(caller, "r", on, **fields)
        assert caught.value.body["error"]["details"] == {"error_code": "thread_fingerprint_mismatch"}  # type: ignore[index]
    await ask(caller, "r", on, system="S", tools=tools)
    await caller.check_one_path()


@pytest.mark.parametrize(
    "thread",
    [True, "create", {}, {"type": "resume"}, {"type": "continue"}, {"type": "continue", "previous_message_id": 3}],
)
async def test_a_thread_of_another_form_is_refused(house: House, thread: Any) -> None:
    caller = await call_on(house)
    status, reply = await caller.post({"messages": [{"role": "user", "content": "q"}], "thread": thread})
    assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
    assert "thread must be of type create or continue" in reply["error"]["message"]


async def test_what_a_thread_would_send_can_be_counted(house: House) -> None:
    caller = await call_on(house)
    first = await ask(caller, "q", {"type": "create"}, system="S")
    on = {"type": "continue", "previous_message_id": first.id}
    messages = [{"role": "user", "content": "r"}]
    status, counted = await caller.post({"messages": messages, "thread": on}, "/v1/messages/count_tokens")
    second = await ask(caller, "r", on)
    assert status == 200 and counted["input_tokens"] == second.usage.input_tokens + (
        second.usage.cache_read_input_tokens or 0
    )


async def test_a_client_that_tries_again_gets_the_threads_reply(house: House) -> None:
    house.engine.script = ["one", "two"]
    caller = await call_on(house)
    first = await ask(caller, "q", {"type": "create"})
    client: AsyncAnthropic = caller.client
    again = {"X-Stainless-Retry-Count": "1"}
    on = {"type": "continue", "previous_message_id": first.id}
    second = await ask(caller, "r", on)
    third = await client.beta.messages.create(
        model="claude-x",
        max_tokens=50,
        messages=[{"role": "user", "content": "r"}],
        thread=on,
        extra_headers=again,  # type: ignore[arg-type]
    )
    assert second.id == third.id and len(house.engine.requests) == 2
