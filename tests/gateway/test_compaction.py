"""A history that has grown past the context is shortened by the user's function: the branch is `compacted`, later turns
go on from it whatever the client sends, what comes back is checked, and what cannot be shortened is the context-length
error."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from agentlightning.errors import CompactionError
from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import SamplingConfig
from tests.gateway.conftest import Build, Visit
from tests.gateway.test_messages import Caller

CONTEXT = 400
SAMPLING = SamplingConfig(max_tokens=60)
CALL = '<tool_call>{"name": "look", "arguments": {"at": 3}}</tool_call>'
LOOK = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}


class Shorten:
    """Keeps the system prompt and the last two messages, with a summary of the rest; ``change`` spoils that."""

    def __init__(self, change: Callable[[list[Any]], Any] = lambda messages: messages) -> None:
        self.asked: list[dict[str, Any]] = []
        self.counts: list[int] = []
        self._change = change

    async def __call__(self, asked: Any, count: Any) -> Any:
        self.asked.append(asked)
        self.counts.append(await count(asked["messages"]))
        first, *rest = asked["messages"]
        short = [first, {"role": "user", "content": f"({len(rest) - 2} messages were here)"}, *rest[-2:]]
        self.counts.append(await count(short))
        return self._change(short)


def history() -> list[dict[str, Any]]:
    return [{"role": "system", "content": "You play."}, {"role": "user", "content": "Night 1. " + "x" * 40}]


async def play(visit: Visit, nights: int, messages: list[dict[str, Any]] | None = None, **options: Any) -> list[Any]:
    messages = history() if messages is None else messages
    for night in range(nights):
        reply = (await visit.ask(list(messages), **options)).choices[0].message
        messages.append({"role": "assistant", "content": reply.content})
        messages.append({"role": "user", "content": f"Night {night + 2}. " + "x" * 40})
    return messages


async def continues(visit: Visit) -> list[str]:
    """The branches; every call that continues does so from the call before it, token by token."""
    calls = [call for call in await visit.calls() if call.status is CallStatus.COMPLETE]
    for before, after in itertools.pairwise(calls):
        whole = await visit.path_ids(before.samples[0].node)
        prompt = await visit.path_ids(after.prompt_node)
        assert (prompt[: len(whole)] == whole) is (after.branch == "continued"), after.branch
    return [call.branch for call in calls]


async def test_a_long_history_is_shortened_and_later_turns_go_on_from_it(build: Build) -> None:
    shorten = Shorten()
    house = await build(context_length=CONTEXT, compact=shorten, script=["I vote for the third one. " * 2] * 12)
    visit = await house.open(sampling=SAMPLING)
    messages = await play(visit, 12)
    branches = await continues(visit)
    assert branches[0] == "root" and set(branches[1:]) == {"continued", "compacted"}
    made = branches.count("compacted")
    assert 2 <= made == len(shorten.asked) < 6, "not once a turn: the client sends its whole history each time"
    assert len(messages) == 2 + 24, "the client knows nothing of it"
    limit = CONTEXT - SAMPLING.max_tokens
    assert {asked["limit"] for asked in shorten.asked} == {limit}
    assert all(len(request.prompt_ids) <= limit for request in house.engine.requests), "the reply has its room"
    assert shorten.counts[0] > limit >= shorten.counts[1]
    again = shorten.asked[1]["messages"]
    assert again[1]["content"].endswith("messages were here)"), "it is handed the history as the model knows it"
    usage = await visit.end()
    assert (usage.compaction.made, usage.compaction.failed, usage.context_length_errors) == (made, 0, 0)
    assert usage.compaction.tokens_before > limit * made > usage.compaction.tokens_after
    shortened = [call for call in await visit.calls() if call.branch == "compacted"]
    sent = {tuple(request.prompt_ids.tolist()) for request in house.engine.requests}
    for call in shortened:
        assert tuple(await visit.path_ids(call.prompt_node)) in sent


async def test_the_count_is_that_of_the_prompt_and_leaves_nothing_behind(build: Build) -> None:
    shorten = Shorten()
    house = await build(context_length=CONTEXT, compact=shorten, script=["I vote for the third one. " * 2] * 6)
    visit = await house.open(sampling=SAMPLING)
    await play(visit, 6)
    compacted = next(call for call in await visit.calls() if call.branch == "compacted")
    assert shorten.counts[1] == compacted.prompt_tokens
    nodes = await visit.nodes()
    paths = {len(await visit.path_ids(node.id)) for node in nodes}
    assert {call.prompt_tokens for call in await visit.calls()} <= paths


async def test_tokens_are_counted_of_the_history_as_it_goes_on(build: Build) -> None:
    house = await build(context_length=CONTEXT, compact=Shorten(), script=["word " * 30] * 8)
    caller = Caller(await house.open(sampling=SAMPLING))
    messages: list[Any] = [{"role": "user", "content": "x" * 60}, {"role": "assistant", "content": "y"}]
    for night in range(4):
        messages.append({"role": "user", "content": f"{night} " + "x" * 80})
        reply = await caller.ask(messages)
        messages.append({"role": "assistant", "content": reply.content[0].text})
        messages.append({"role": "user", "content": "?"})
        told = await caller.client.messages.count_tokens(model="m", messages=messages)
        assert told.input_tokens <= CONTEXT
    assert "compacted" in await caller.branches()


async def test_equal_requests_that_come_together_share_one_shortened_history(build: Build) -> None:
    shorten = Shorten()
    house = await build(context_length=CONTEXT, compact=shorten, script=["word " * 20] * 20)
    visit = await house.open(sampling=SAMPLING)
    messages = await play(visit, 2)
    messages[-1]["content"] += "x" * 100
    await asyncio.gather(*(visit.ask(list(messages)) for _ in range(4)))
    assert len(shorten.asked) == 1
    calls = (await visit.calls())[2:]
    assert len({call.prompt_node for call in calls}) == 1
    assert sorted(call.branch for call in calls) == ["compacted", "forked", "forked", "forked"]


def drop_the_call(messages: list[Any]) -> Any:
    return [message for message in messages if not message.get("tool_calls")]


def drop_the_result(messages: list[Any]) -> Any:
    return [message for message in messages if message["role"] != "tool"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda messages: None, "returned what is no history: messages must be a list of at least one message"),
        (lambda messages: [], "returned what is no history: messages must be a list"),
        (
            lambda messages: [{"role": "judge", "content": "x"}],
            r"returned what is no history: messages\[0\].role must be",
        ),
        (lambda messages: [{"role": "user", "content": 7}], r"messages\[0\].content must be a string"),
        (drop_the_call, "returned a tool result without its call: .*; drop both or keep both"),
        (drop_the_result, "returned a tool call without its result: .*; drop both or keep both"),
        (lambda messages: [{"role": "user", "content": "y" * 500}], "compact shortened a history from"),
    ],
)
async def test_what_comes_back_is_checked_and_else_it_is_the_context_length_error(
    build: Build, change: Any, said: str
) -> None:
    house = await build(context_length=CONTEXT, compact=Shorten(change), script=["x" * 40 + CALL, "fine"])
    visit = await house.open(sampling=SamplingConfig(max_tokens=200))
    messages = history()
    reply = (await visit.ask(messages, tools=[LOOK])).choices[0].message
    messages += [reply.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "z" * 300}]
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        await visit.ask(messages, tools=[LOOK])
    assert caught.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 400 tokens" in caught.value.message
    usage = await visit.end()
    assert (usage.compaction.failed, usage.context_length_errors) == (1, 1)


async def test_a_function_that_fails_is_no_matter_where_the_prompt_fits_all_the_same(build: Build) -> None:
    async def fails(asked: Any, count: Any) -> Any:
        raise CompactionError("raised ValueError: no")

    house = await build(context_length=CONTEXT, compact=fails, script=["ok"])
    visit = await house.open(sampling=SAMPLING)
    await visit.ask("x" * (CONTEXT - 60))
    assert [call.branch for call in await visit.calls()] == ["root"]
    with pytest.raises(openai.BadRequestError, match="compact raised ValueError: no"):
        await visit.ask("x" * CONTEXT)
    caller = Caller(visit)
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .*\(compact raised ValueError: no\)"):
        await caller.ask([{"role": "user", "content": "x" * CONTEXT}])
    usage = await visit.end()
    assert (usage.compaction.made, usage.compaction.failed, usage.compaction.trouble) == (
        0,
        3,
        "compact raised ValueError: no",
    )


async def test_responses_that_name_the_one_before_go_on_from_the_shortened_history(build: Build) -> None:
    shorten = Shorten()
    house = await build(context_length=CONTEXT, compact=shorten, script=["I vote for the third one. " * 2] * 10)
    visit = await house.open(sampling=SAMPLING)
    previous = None
    for night in range(10):
        reply = await visit.client.responses.create(
            model="m",
            instructions="You play.",
            input=f"Night {night}. " + "x" * 40,
            previous_response_id=previous,
        )
        previous = reply.id
    branches = await continues(visit)
    assert branches.count("compacted") == len(shorten.asked) >= 2
    assert {asked["messages"][0]["content"] for asked in shorten.asked} == {"You play."}
    assert all([m["role"] for m in asked["messages"]].count("system") == 1 for asked in shorten.asked)
