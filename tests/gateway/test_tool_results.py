"""Tool results that report an error: seen on every API that can say so, through the official clients, once each; they may
be a reward for the call that made the tool call."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from agentlightning import GRPO
from agentlightning.credit.rewards import call_rewards
from agentlightning.errors import ConfigError
from agentlightning.gateway.tool_results import ToolResults, is_mcp_error
from agentlightning.gateway.wires.base import WireRequest
from agentlightning.nouns import Message, Reward, ToolCall
from agentlightning.records.traces import AttemptTrace
from agentlightning.settings.fields import GatewayConfig, RunConfig
from tests.gateway import test_gemini, test_messages, test_responses
from tests.gateway.conftest import Build, Visit
from tests.gateway.test_chat import CALCULATOR, CALL

WORTH = -0.25
FAILS, WORKS = True, False
MCP = json.dumps({"content": [{"type": "text", "text": "division by zero"}], "isError": True})

Talk = Callable[[Visit, bool], Awaitable[None]]
"""A conversation of three turns: the first reply calls a tool twice, and the result of the second call is an error or
not; both come back in each later turn."""


async def over_messages(visit: Visit, fails: bool) -> None:
    caller = test_messages.Caller(visit)
    history: list[Any] = [test_messages.Q]
    reply = await caller.ask(history, tools=[test_messages.CALCULATOR])
    one, two = [block for block in reply.content if block.type == "tool_use"]
    done = {"type": "tool_result", "tool_use_id": one.id, "content": "391"}
    other = {"type": "tool_result", "tool_use_id": two.id, "content": "no such file", "is_error": fails}
    history += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [done, other]}]
    for _ in range(2):
        reply = await caller.ask(history, tools=[test_messages.CALCULATOR])
        history += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "And?"}]


async def over_chat(visit: Visit, fails: bool) -> None:
    """The API has no mark: a program passes on what an MCP server sent."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    message = (await visit.ask(history, tools=[CALCULATOR])).choices[0].message
    one, two = message.tool_calls
    history += [message.model_dump(), {"role": "tool", "tool_call_id": one.id, "content": "391"}]
    history += [{"role": "tool", "tool_call_id": two.id, "content": MCP if fails else MCP.replace("true", "false")}]
    for _ in range(2):
        message = (await visit.ask(history, tools=[CALCULATOR])).choices[0].message
        history += [message.model_dump(), {"role": "user", "content": "And?"}]


async def over_responses(visit: Visit, fails: bool) -> None:
    """The second turn sends the results alone, the third the whole history."""
    described: Any = CALCULATOR["function"]
    create: Any = visit.client.responses.create
    asked: dict[str, Any] = {"model": "gpt-x", "tools": [{"type": "function", **described}]}
    first = await create(input="q", **asked)
    one, two = test_responses.results(first)
    two = {**two, "status": "incomplete" if fails else "completed"}
    await create(input=[one, two], previous_response_id=first.id, **asked)
    whole = [{"role": "user", "content": "q"}, *test_responses.dumped(first), one, two]
    await create(input=whole, **asked)


async def over_gemini(visit: Visit, fails: bool) -> None:
    asked: dict[str, Any] = {"stream": False, "tools": [test_gemini.TOOLS]}
    async with test_gemini.asking(visit) as client:
        (content,), _ = await test_gemini.said(client, "q", **asked)
        one, two = [part.function_call for part in content.parts if part.function_call]
        outcome = {"error": "no such file"} if fails else {"output": "391"}
        parts = [
            types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))
            for call, response in ((one, {"output": "391"}), (two, outcome))
        ]
        history = [types.Content(role="user", parts=[types.Part(text="q")]), content]
        history.append(types.Content(role="user", parts=parts))
        for _ in range(2):
            (content,), _ = await test_gemini.said(client, history, **asked)
            history += [content, types.Content(role="user", parts=[types.Part(text="And?")])]


TALKS = {"messages": over_messages, "chat": over_chat, "responses": over_responses, "gemini": over_gemini}


async def talked(build: Build, talk: Talk, fails: bool, **config: Any) -> tuple[Visit, list[Reward]]:
    house = await build(script=["I compute." + CALL + CALL, "It is 391.", "Bye."], config=GatewayConfig(**config))
    visit = await house.open()
    await talk(visit, fails)
    assert len(await visit.calls()) == 3
    return visit, await house.store.rewards(visit.rollout.id)


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
async def test_a_tool_result_that_is_an_error_is_a_reward_of_the_call_that_made_the_tool_call_once(
    build: Build, talk: Talk
) -> None:
    visit, rewards = await talked(build, talk, FAILS, tool_error_reward=WORTH)
    [reward] = rewards
    calls = await visit.calls()
    tools = calls[0].samples[0].message.tool_calls
    assert (reward.value, reward.source, reward.name) == (WORTH, "rule", "reward")
    assert reward.tool_call_id == tools[1].id and reward.attempt_id == visit.attempt.id
    trace = AttemptTrace(visit.attempt, tuple(calls), (), tuple(rewards))
    assert call_rewards(trace) == {0: WORTH}
    assert (await visit.end()).tool_errors == 1


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
async def test_a_tool_result_that_is_no_error_is_worth_nothing(build: Build, talk: Talk) -> None:
    visit, rewards = await talked(build, talk, WORKS, tool_error_reward=WORTH)
    assert rewards == [] and (await visit.end()).tool_errors == 0


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
async def test_without_a_setting_tool_errors_are_counted_and_give_no_reward(build: Build, talk: Talk) -> None:
    visit, rewards = await talked(build, talk, FAILS)
    assert rewards == [] and (await visit.end()).tool_errors == 1


async def test_an_error_of_a_tool_call_that_the_attempt_did_not_make_is_nobodys(build: Build) -> None:
    """A history that was written by hand, or that another attempt had."""
    house = await build(script=["Well."], config=GatewayConfig(tool_error_reward=WORTH))
    visit = await house.open()
    call = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    await visit.ask([*history, {"role": "tool", "tool_call_id": "call_1", "content": MCP}], tools=[CALCULATOR])
    assert await house.store.rewards(visit.rollout.id) == [] and (await visit.end()).tool_errors == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (MCP, True),
        ("\n" + MCP, True),
        (MCP.replace("true", "false"), False),
        (f"it said {MCP}", False),
        ('{"isError": true}', False),
        ('{"isError": "true", "content": []}', False),
        ('{"isError": true, "content": []', False),
        ('["isError"]', False),
        ("Error: no such file", False),
    ],
)
def test_an_mcp_error_is_a_whole_result_that_says_so_and_no_text_about_one(text: str, error: bool) -> None:
    assert is_mcp_error(text) is error


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=8), st.sets(st.sampled_from("abc")))
def test_each_tool_call_counts_once_however_often_its_result_comes_back(
    brought: list[tuple[str, bool]], made: set[str]
) -> None:
    results = ToolResults()
    results.made(Message("assistant", tool_calls=tuple(ToolCall(id, "f", "{}") for id in sorted(made))))
    told: list[str] = []
    for count in range(len(brought) + 1):  # a history that grows, each time with all that came before
        messages = tuple(Message("tool", "x", (), id) for id, _ in brought[:count])
        marked = frozenset(id for id, failed in brought[:count] if failed)
        told += results.failed(WireRequest("m", messages, failed_tools=marked))
    assert len(told) == len(set(told)) and set(told) <= made
    first = dict(reversed(brought))
    assert set(told) == {id for id in made if first.get(id)}


def test_a_reward_for_tool_errors_that_no_credit_uses_is_refused() -> None:
    config = RunConfig(gateway={"tool_error_reward": -0.5})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"tool_error_reward=-0.5 .*scheme='episode' uses none of those"):
        GRPO().check(config)
    GRPO(credit={"scheme": "mixed"}).check(config)  # pyright: ignore[reportArgumentType]
