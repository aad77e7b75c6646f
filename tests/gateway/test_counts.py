"""What is told of a reply besides its text: how many of its tokens are thoughts, on every wire, and how many of its
tool calls could not be read."""

from __future__ import annotations

import io
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from rich.console import Console

from agentlightning.nouns import RunRecord, RunStatus, StepRecord
from agentlightning.records.ledger import Ledger, count_malformed, total
from agentlightning.templates import load_template
from agentlightning.views.live.state import summary
from agentlightning.views.runs import RunView, render_run
from agentlightning.views.trace import attempt_of, node_facts, render_rollout, render_tree, rollout_json, tree_json
from agentlightning.views.tree import boxes
from tests.cli.test_trace import view_of
from tests.gateway.conftest import Build, Visit
from tests.gateway.scripted import GlassTemplate
from tests.templates.fixtures import template_of
from tests.tiny import CHATML, tiny_tokenizer

THOUGHT, ANSWER = "<think>\nI think, 🙂.\n</think>", "\n\nSo I am."
TOOL = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
BROKEN = 'Look: <tool_call>{"name": "calc", "arguments": {"x": </tool_call>'


@pytest.mark.parametrize("stream", [False, True])
async def test_thought_tokens_are_told_exactly_on_every_wire(build: Build, stream: bool) -> None:
    thinking = template_of("thinking")
    house = await build(template=thinking, canonical=False, script=[THOUGHT + ANSWER] * 8)
    visit = await house.open()
    for _ in range(2):  # twice: what is reused from a cache is no matter
        told = {
            "chat": await chat(visit, stream),
            "responses": await responses(visit, stream),
            "messages": await messages(visit, stream),
            "gemini": await gemini(visit, stream),
        }
        thought = sum(len(thinking.encode(character, start=False)) for character in THOUGHT)
        sampled = thought + sum(len(thinking.encode(character, start=False)) for character in ANSWER) + 1
        assert told == dict.fromkeys(told, (thought, sampled))


async def chat(visit: Visit, stream: bool) -> tuple[int, int]:
    reply = await visit.ask("q", stream=stream)
    if stream:
        reply = [chunk async for chunk in reply][-1]
    return reply.usage.completion_tokens_details.reasoning_tokens, reply.usage.completion_tokens


async def responses(visit: Visit, stream: bool) -> tuple[int, int]:
    reply = await visit.client.responses.create(model="m", input="q", stream=stream)
    if stream:
        reply = [event async for event in reply][-1].response
    return reply.usage.output_tokens_details.reasoning_tokens, reply.usage.output_tokens


async def messages(visit: Visit, stream: bool) -> tuple[int, int]:
    async with AsyncAnthropic(base_url=visit.endpoint.root_url, api_key=visit.endpoint.key, max_retries=0) as client:
        ask: Any = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": "q"}]}
        if stream:
            async with client.messages.stream(**ask) as events:
                reply = await events.get_final_message()
        else:
            reply = await client.messages.create(**ask)
    assert reply.usage.output_tokens_details is not None
    return reply.usage.output_tokens_details.thinking_tokens, reply.usage.output_tokens


async def gemini(visit: Visit, stream: bool) -> tuple[int, int]:
    options = types.HttpOptions(base_url=visit.endpoint.root_url, retry_options=types.HttpRetryOptions(attempts=1))
    client = genai.Client(api_key=visit.endpoint.key, vertexai=False, http_options=options)
    if stream:
        usage = [chunk async for chunk in await client.aio.models.generate_content_stream(model="m", contents="q")][
            -1
        ].usage_metadata
    else:
        usage = (await client.aio.models.generate_content(model="m", contents="q")).usage_metadata
    await client.aio.aclose()
    assert (
        usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count + usage.thoughts_token_count
    )
    return usage.thoughts_token_count, usage.candidates_token_count + usage.thoughts_token_count


async def test_a_reply_without_thoughts_has_none_to_count(build: Build) -> None:
    house = await build(script=["ok", "ok"])
    visit = await house.open()
    assert (await chat(visit, False))[0] == (await chat(visit, True))[0] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("real", [False, True])
async def test_a_malformed_call_is_text_for_the_agent_and_counted_in_the_record(
    build: Build, stream: bool, real: bool
) -> None:
    template = load_template(tiny_tokenizer((), CHATML)) if real else GlassTemplate()
    whole = '<tool_call>\n{"name": "calc", "arguments": {"x": 1}}\n</tool_call>'
    house = await build(template=template, script=[BROKEN, whole, BROKEN])
    visit = await house.open()
    for tools in ([TOOL], [TOOL], None):
        reply = await visit.ask("q", stream=stream, **({"tools": tools} if tools else {}))
        if stream:
            said = "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
        else:
            said = reply.choices[0].message.content or ""
        assert said in (BROKEN, "")
    calls = await visit.calls()
    counted = [sample.malformed for call in calls for sample in call.samples]
    assert counted[:2] == [1, 0]
    assert counted[2] == 0 or not real, "where no tools are offered, nothing is a call"

    view = await view_of(visit)
    trace = attempt_of(view)
    assert [one.malformed for one in node_facts(view, trace) if one.malformed] == [1] * sum(counted)
    assert "1 malformed" in printed(render_tree(view, trace))
    assert "1 malformed tool call" in printed(render_rollout(view))
    assert any("1 malformed" in box.detail + box.corner for box in boxes(node_facts(view, trace)))
    assert sum(node["malformed"] for node in tree_json(view, trace)["nodes"]) == sum(counted)
    assert rollout_json(view)["attempts"][0]["calls"][0]["samples"][0]["malformed"] == 1
    assert count_malformed(sample for call in calls for sample in call.samples) == sum(counted)


def printed(what: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=250, color_system=None, highlight=False).print(what)
    return out.getvalue()


def test_a_run_tells_how_many_of_its_tool_calls_were_malformed() -> None:
    assert total([Ledger(malformed=2), Ledger(malformed=3)]).malformed == 5
    ledger = Ledger(sampled=5, trained=5, malformed=3).to_json()
    assert ("malformed", "3 tool calls: given to the agent as text") in summary({"ledger": ledger})
    step = StepRecord("r", 1, {"main": 1}, (), {}, ledger)
    run = RunView(RunRecord("r", "r", "r", RunStatus.FINISHED, {}, 0.0, 1.0), [step])
    assert "malformed  3 tool calls" in " ".join(printed(render_run(run)).split("\n"))
