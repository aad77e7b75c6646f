"""Chat Completions with the official client: what is answered, what is recorded, and that they are the same tokens."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from typing import Any

import openai
import pytest

from agentlightning.gateway import Served
from agentlightning.gateway.call_order import CallOrder
from agentlightning.gateway.sampling import sample_seed
from agentlightning.nouns import CallStatus, FinishReason, Mode
from agentlightning.settings.fields import EvaluationConfig, GatewayConfig, SamplingConfig
from tests.gateway.conftest import Build, House, ids, settings_asked, until
from tests.gateway.scripted import GlassTemplate, ScriptedEngine

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "calculates",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
CALL = '<tool_call>{"name": "calculator", "arguments": { "expression":"17 * 23" }}</tool_call>'


async def collect(stream: Any) -> tuple[str, dict[int, Any], str | None, Any]:
    """Text, tool calls by index, finish reason and usage of a stream's only choice."""
    text, calls, finish, usage = "", {}, None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                calls[call.index] = call
            finish = choice.finish_reason or finish
    return text, calls, finish, usage


async def test_a_reply_is_recorded_exactly(house: House) -> None:
    house.engine.script = ["Hello there."]
    visit = await house.open()
    reply = await visit.ask("Hi")
    assert reply.choices[0].message.content == "Hello there."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "gpt-x"
    [call] = await visit.calls()
    assert (call.id, call.status, call.branch, call.wire, call.policy) == (
        reply.id,
        CallStatus.COMPLETE,
        "root",
        "chat",
        "main",
    )
    assert call.samples[0].message.content == "Hello there."
    prompt, sampled = await visit.nodes()
    assert prompt.token_ids == house.engine.requests[0].prompt_ids
    assert sampled.token_ids.tolist() == ids(house, "Hello there.<|im_end|>")
    assert sampled.logprobs is not None
    assert sampled.logprobs.tolist() == pytest.approx([-(t + 1) / 1000 for t in range(len(sampled.token_ids))])
    assert (sampled.version, sampled.parent, prompt.sampled) == (1, 0, False)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(prompt.token_ids), len(sampled.token_ids))
    assert reply.usage.total_tokens == call.prompt_tokens + call.sampled_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_conversation_keeps_every_token(house: House, stream: bool) -> None:
    """The same agent, streaming or not: each prompt begins with all that was prompted and sampled before."""
    house.engine.script = ["<think>hm</think>I compute." + CALL + CALL, "It is 391.", "Bye."]
    visit = await house.open()
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 17 * 23?"},
    ]
    finishes = []
    for turn in range(3):
        if stream:
            text, calls, finish, usage = await collect(await visit.ask(history, tools=[CALCULATOR], stream=True))
            message = {"role": "assistant", "content": text or None}
            if calls:
                message["tool_calls"] = [calls[i].model_dump(exclude={"index"}) for i in sorted(calls)]
            assert usage.completion_tokens > 0
        else:
            reply = await visit.ask(history, tools=[CALCULATOR])
            message, finish = reply.choices[0].message.model_dump(), reply.choices[0].finish_reason
        finishes.append(finish)
        history.append(message)
        if turn == 0:
            assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
                '{ "expression":"17 * 23" }'
            ] * 2
            for call in message["tool_calls"]:
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
                history.append({"role": "tool", "tool_call_id": call["id"], "content": "391"})
        else:
            history.append({"role": "user", "content": "And now?"})
    assert finishes == ["tool_calls", "stop", "stop"]
    calls = await visit.calls()
    assert [call.branch for call in calls] == ["root", "continued", "continued"]
    for before, after in itertools.pairwise(calls):
        whole = await visit.path_ids(before.samples[0].node)
        assert (await visit.path_ids(after.prompt_node))[: len(whole)] == whole
    assert [request.prompt_ids.tolist() for request in house.engine.requests] == [
        await visit.path_ids(call.prompt_node) for call in calls
    ]
    assert len(await visit.nodes()) == 6


async def test_a_stream_put_together_is_the_reply(house: House) -> None:
    house.engine.script = ["Zürich — <b>two</b> 漢字.", "Zürich — <b>two</b> 漢字."]
    visit = await house.open()
    whole = await visit.ask("Hi")
    text, _, finish, usage = await collect(await visit.ask("Hi", stream=True, stream_options={"include_usage": True}))
    assert text == whole.choices[0].message.content == "Zürich — <b>two</b> 漢字."
    assert finish == whole.choices[0].finish_reason
    assert usage.total_tokens == whole.usage.total_tokens
    first, second = await visit.calls()
    assert first.samples[0].message == second.samples[0].message
    assert second.branch == "forked"


async def test_the_clients_own_stream_helper_understands_the_events(house: House) -> None:
    house.engine.script = ["I compute." + CALL]
    visit = await house.open()
    tool = {**CALCULATOR, "function": {**CALCULATOR["function"], "strict": True}}
    async with visit.client.chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "q"}], tools=[tool]
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == {"expression": "17 * 23"}
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage.completion_tokens > 0


async def test_a_chunk_holds_text_or_one_call(house: House) -> None:
    """A client that finds text beside calls may put it behind them (agent-framework), and one that finds two calls may
    take the first (llama-index)."""
    house.engine.script = ["<think>hm</think>I compute." + CALL + CALL]
    visit = await house.open()
    stream = await visit.ask("Hi", tools=[CALCULATOR], stream=True)
    deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) async for chunk in stream]
    assert all(len(delta.keys() - {"role"}) <= 1 for delta in deltas)
    calls = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [[call["index"] for call in each] for each in calls] == [[0], [1]]


async def test_the_blocking_client_works_too(house: House) -> None:
    visit = await house.open()
    house.engine.script = ["one", "two"]

    def agent() -> list[str]:
        with openai.OpenAI(base_url=visit.endpoint.base_url, api_key="anything") as client:
            messages = [{"role": "user", "content": "q"}]
            whole = client.chat.completions.create(model="m", messages=messages)
            parts = client.chat.completions.create(model="m", messages=messages, stream=True)
            return [whole.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in parts)]

    assert await asyncio.to_thread(agent) == ["one", "two"]


async def test_n_samples_share_their_prompt(house: House) -> None:
    house.engine.script = ["a", "bb", "ccc"]
    visit = await house.open()
    reply = await visit.ask("q", n=3)
    assert [choice.message.content for choice in reply.choices] == ["a", "bb", "ccc"]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    nodes = await visit.nodes()
    assert [node.parent for node in nodes] == [None, 0, 0, 0]
    assert len({request.params.seed for request in house.engine.requests}) == 3
    assert reply.usage.completion_tokens == sum(len(node.token_ids) for node in nodes[1:])
    [call] = await visit.calls()
    assert [sample.node for sample in call.samples] == [1, 2, 3]


async def test_n_streamed_samples_keep_to_their_index(house: House) -> None:
    house.engine.script = ["first sample", "second sample"]
    visit = await house.open()
    texts = {0: "", 1: ""}
    async for chunk in await visit.ask("q", n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "first sample", 1: "second sample"}


async def test_logprobs_and_token_ids_come_when_asked_for(house: House) -> None:
    house.engine.script = ["ab", "ab", "é"]
    visit = await house.open()
    plain = await visit.ask("q")
    assert plain.choices[0].logprobs is None
    assert "token_ids" not in plain.choices[0].model_extra
    reply = await visit.ask("q", logprobs=True, extra_body={"return_token_ids": True})
    entries = reply.choices[0].logprobs.content
    assert [(entry.token, entry.bytes) for entry in entries[:2]] == [("a", [97]), ("b", [98])]
    assert [entry.logprob for entry in entries] == pytest.approx([-0.001, -0.002, -0.003])
    assert reply.choices[0].model_extra["token_ids"] == ids(house, "ab<|im_end|>")
    assert reply.model_extra["prompt_token_ids"] == house.engine.requests[1].prompt_ids.tolist()
    streamed = [chunk async for chunk in await visit.ask("q", logprobs=True, stream=True)]
    [entries] = [chunk.choices[0].logprobs.content for chunk in streamed if chunk.choices[0].logprobs]
    assert [entry.bytes for entry in entries[:2]] == [None, None], "half a character has no text"


async def test_stop_strings_cut_the_text_and_stay_in_the_tokens(house: House) -> None:
    house.engine.script = ["Thought: x\nObservation: 3", "next"]
    visit = await house.open()
    reply = await visit.ask("q", stop=["Observation:", "Calling tools:"])
    assert reply.choices[0].message.content == "Thought: x\n"
    assert reply.choices[0].finish_reason == "stop"
    assert (await visit.nodes())[1].token_ids.tolist() == ids(house, "Thought: x\nObservation:")
    await visit.ask(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "Thought: x"},
            {"role": "user", "content": "3"},
        ]
    )
    assert (await visit.calls())[1].branch == "continued"


async def test_a_sample_cut_by_length_says_so_and_goes_on(house: House) -> None:
    house.engine.script = ["abcdefgh", "z"]
    visit = await house.open()
    reply = await visit.ask("q", max_completion_tokens=4, max_tokens=6)
    assert reply.choices[0].message.content == "abcd"
    assert reply.choices[0].finish_reason == "length"
    await visit.ask(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "abcd"},
            {"role": "user", "content": "more"},
        ]
    )
    first, second = await visit.calls()
    assert first.samples[0].finish is FinishReason.LENGTH
    assert second.branch == "continued"


# --------------------------------------------------------------------------- who sets sampling


async def test_in_training_the_run_sets_sampling_and_both_are_recorded(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    visit = await house.open(sampling=SamplingConfig(temperature=0.8, top_p=0.9, top_k=5, max_tokens=50))
    with caplog.at_level(logging.WARNING, "agentlightning.gateway"):
        for _ in range(3):
            await visit.ask("q", temperature=0.0, top_p=0.5, max_tokens=10)
        await visit.ask("q", max_tokens=1000)
    used = [request.params for request in house.engine.requests]
    assert [(p.temperature, p.top_p, p.top_k) for p in used] == [(0.8, 0.9, 5)] * 4
    assert [p.max_tokens for p in used] == [10, 10, 10, 50]
    calls = await visit.calls()
    assert settings_asked(calls[0]) == {"temperature": 0.0, "top_p": 0.5, "max_tokens": 10}
    assert calls[0].used == used[0]
    about = [record.message for record in caplog.records if "temperature" in record.message]
    assert len(about) == 1
    assert "temperature=0.0 (used: 0.8)" in about[0]


async def test_the_agent_decides_where_the_run_lets_it(house: House) -> None:
    visit = await house.open(sampling=SamplingConfig(temperature=0.8, owner="agent"))
    await visit.ask("q", temperature=0.1, extra_body={"top_k": 3})
    await visit.ask("q")
    assert [(r.params.temperature, r.params.top_k) for r in house.engine.requests] == [(0.1, 3), (0.8, 0)]


async def test_evaluation_holds_its_own_settings(house: House) -> None:
    visit = await house.open(sampling=EvaluationConfig(max_tokens=9), mode=Mode.VAL)
    await visit.ask("q", temperature=1.0)
    assert house.engine.requests[0].params.temperature == 0.0
    assert house.engine.requests[0].params.max_tokens == 9


async def test_seeds_follow_from_the_place_in_the_run(house: House) -> None:
    one, two = await house.open(seed=1), await house.open(seed=2)
    for visit in (one, two):
        await visit.ask("q", seed=42)
        await visit.ask("q", seed=42)
    seeds = [request.params.seed for request in house.engine.requests]
    assert len(set(seeds)) == 4, "an agent's seed makes no twins"
    assert seeds[0] == sample_seed(1, 1, 0, 0, 42)
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


# --------------------------------------------------------------------------- models, agents, branches


async def test_any_model_name_is_accepted_and_an_unmapped_one_warned_of_once(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    template = GlassTemplate()
    engines = [ScriptedEngine(template, script=[name] * 9) for name in ("a", "b")]
    house = await build(
        policies={
            "main": Served("main", engines[0], template),
            "judge": Served("judge", engines[1], template, ("gpt-judge", "judge-2")),
        }
    )
    visit = await house.open(resources={"critic_llm": {"policy": "judge"}})
    with caplog.at_level(logging.WARNING, "agentlightning.gateway"):
        said = [
            (await visit.ask("q", model=name)).choices[0].message.content
            for name in ("main", "judge", "gpt-judge", "critic_llm", "gpt-4o-mini", "gpt-4o-mini", "judge-2")
        ]
    assert said == ["a", "b", "b", "b", "a", "a", "b"]
    assert [record.message for record in caplog.records] == [
        "no policy is called 'gpt-4o-mini': its calls go to 'main'"
    ]
    assert [call.policy for call in await visit.calls()] == ["main", "judge", "judge", "judge", "main", "main", "judge"]
    assert {model.id for model in (await visit.client.models.list()).data} == {"main", "judge", "gpt-judge", "judge-2"}
    assert (await visit.client.models.retrieve("org/any-name")).id == "org/any-name"


@pytest.mark.parametrize("suffix", ["", "/v1", "/v1/v1", "/agent/planner", "/agent/planner/v1", "/"])
async def test_every_base_url_that_a_client_may_build_is_served(house: House, suffix: str) -> None:
    visit = await house.open()
    async with openai.AsyncOpenAI(base_url=visit.endpoint.root_url + suffix, api_key="x", max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    [call] = await visit.calls()
    assert (call.agent == "planner") == ("planner" in suffix)


async def test_what_the_client_sends_back_is_recognised(house: House) -> None:
    """The forms in which clients return a turn: explicit nulls, absent content, lists of parts, names, unknown keys."""
    visit = await house.open()
    house.engine.script = [CALL, "done"] * 6
    first = await visit.ask("q", tools=[CALCULATOR])
    message = first.choices[0].message.model_dump()
    call = message["tool_calls"][0]
    forms: list[dict[str, Any]] = [
        message,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [call], "name": "agent"},
        {"role": "assistant", "content": [], "tool_calls": [call], "x_unknown": {"a": [1]}, "annotations": None},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": ""}],
            "tool_calls": [{**call, "index": 0}],
            "audio": None,
        },
    ]
    for form in forms:
        history = [{"role": "user", "content": [{"type": "text", "text": "q"}], "name": "someone"}, form]
        history.append(
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": "calculator",
                "content": [{"type": "text", "text": "391"}],
            }
        )
        await visit.ask(history, tools=[CALCULATOR], tool_choice="auto")
    branches = [call.branch for call in await visit.calls()]
    assert branches == ["root", "continued", "forked", "forked", "forked", "forked"]


async def test_the_developer_role_is_the_system_role(house: House) -> None:
    visit = await house.open()
    await visit.ask([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "q"}])
    assert "<|im_start|>system\nBe brief." in house.template.decode(house.engine.requests[0].prompt_ids)


async def test_tool_choice_none_keeps_the_tools_and_leaves_calls_as_text(house: House) -> None:
    visit = await house.open()
    house.engine.script = [CALL]
    reply = await visit.ask("q", tools=[CALCULATOR], tool_choice="none")
    assert reply.choices[0].message.content == CALL
    assert not reply.choices[0].message.tool_calls
    assert "calculator" in house.template.decode(house.engine.requests[0].prompt_ids)


async def test_broken_tool_calls_come_back_as_text(house: House) -> None:
    house.engine.script = ["<tool_call>{nonsense</tool_call>"]
    reply = await (await house.open()).ask("q", tools=[CALCULATOR])
    assert reply.choices[0].message.content == "<tool_call>{nonsense</tool_call>"


# --------------------------------------------------------------------------- many at once


async def test_a_hundred_calls_at_once_are_all_recorded(build: Build) -> None:
    house = await build(hold=asyncio.Event())
    visit = await house.open()
    asking = asyncio.gather(*(visit.ask(f"question {i % 10}", stream=False) for i in range(100)))
    await until(lambda: house.engine.running == 100, seconds=60)
    house.engine.hold.set()
    replies = await asking
    calls = await visit.calls()
    assert {call.id for call in calls} == {reply.id for reply in replies}
    assert [call.index for call in calls] == list(range(100))
    nodes = await visit.nodes()
    assert sum(not node.sampled for node in nodes) == 10, "equal prompts share their node"
    usage = await visit.end()
    assert (usage.calls, usage.incomplete, usage.abandoned, usage.repeats) == (100, 0, 0, 0)


async def test_parallel_equal_calls_are_meant(build: Build) -> None:
    house = await build(delay=0.01)
    house.engine.answer = lambda prompt, request: f"answer {request.params.seed}"
    visit = await house.open()
    replies = await asyncio.gather(*(visit.ask("same") for _ in range(8)))
    assert len({reply.choices[0].message.content for reply in replies}) == 8


async def test_deterministic_mode_samples_one_at_a_time(build: Build) -> None:
    house = await build(deterministic=True, delay=0.003)
    visits = [await house.open() for _ in range(4)]
    await asyncio.gather(*(visit.ask(f"rollout {i}", n=2) for i, visit in enumerate(visits)))
    assert house.engine.most_running == 1
    assert len(house.engine.requests) == 8


async def test_those_that_wait_go_in_the_order_of_their_places() -> None:
    call_order, order = CallOrder(), []

    async def sample(*place: Any) -> None:
        await call_order.enter(place)
        order.append(place)
        await asyncio.sleep(0)
        call_order.leave()

    places = [
        (step, group, index, 1, call, 0) for step in (0, 1) for group in "ab" for index in (0, 1, 10) for call in (0, 1)
    ]
    tasks = [asyncio.create_task(sample(*place)) for place in reversed(places)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[0] == places[-1], "the first to come does not wait"
    assert order[1:] == sorted(order[1:])
    assert len(order) == len(places) - 1
    await asyncio.wait_for(sample(9, "z", 9, 9, 9, 9), 1)


async def test_a_version_that_changes_within_a_sample_is_told_per_token(build: Build) -> None:
    house = await build(split_at=3, script=["abcdef"])
    visit = await house.open()
    await visit.ask("q")
    assert [(node.version, len(node.token_ids)) for node in (await visit.nodes())[1:]] == [(1, 3), (2, 4)]
    [call] = await visit.calls()
    assert call.samples[0].node == 2
    assert call.sampled_tokens == 7


async def test_the_context_is_checked_before_anything_is_sampled(build: Build) -> None:
    house = await build(context_length=60, config=GatewayConfig(orphan_grace=0.2))
    visit = await house.open()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await visit.ask("x" * 100, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert "60" in caught.value.message
    await visit.ask("x")
    calls = await visit.calls()
    assert [call.status for call in calls] == [CallStatus.REFUSED, CallStatus.REFUSED, CallStatus.COMPLETE]
    assert (calls[0].prompt_node, calls[0].samples) == (None, ())
    assert calls[2].branch == "root"
    assert len(house.engine.requests) == 1
    usage = await visit.end()
    assert (usage.context_length_errors, usage.refused, usage.calls) == (2, 2, 3)


@pytest.mark.parametrize("wire", ["chat", "completions"])
async def test_a_stream_has_usage_unless_it_is_not_wanted(build: Build, wire: str) -> None:
    visit = await (await build()).open()

    async def usages(**more: Any) -> list[int]:
        """How many of the chunks with and without choices have usage."""
        create = visit.client.completions.create if wire == "completions" else visit.client.chat.completions.create
        asked = {"prompt": "q"} if wire == "completions" else {"messages": [{"role": "user", "content": "q"}]}
        chunks = [chunk async for chunk in await create(model="m", stream=True, **asked, **more)]
        return [
            sum(chunk.usage is not None and bool(chunk.choices) is with_choice for chunk in chunks)
            for with_choice in (True, False)
        ]

    assert await usages(stream_options={"include_usage": False}) == [0, 0]
    assert await usages(stream_options={"include_usage": True}) == [0, 1]
    assert await usages() == await usages(stream_options={}) == [1, 0]
