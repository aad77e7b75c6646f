"""Reasoning is split from the answer on every wire, by the official clients: of a model whose template knows it and of
one where a setting says what encloses it. An agent's parser sees the answer alone, and the next turn keeps its tokens
whether the client sends the reasoning back or drops it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google.genai import types as gemini
from openai import AsyncOpenAI

from agentlightning.errors import ConfigError
from agentlightning.settings.fields import ModelConfig, SamplingConfig
from agentlightning.templates import Template, load_template
from tests.gateway.conftest import Build, Visit
from tests.gateway.test_gemini import asking, together
from tests.templates.fixtures import SPECIAL, tokenizer_of
from tests.tiny import CHATML, MERGES, PLAIN_CHATML, tiny_tokenizer

LONG = SamplingConfig(max_tokens=2000)
TAGS = ("<think>", "</think>")
TURNS = [
    "<think>\nThe seer is <b>dead</b>, so 3.\n</think>\n\nI vote 3.",
    "<think>No </tag> here.</think>Still 3.",
    "<think></think>Three.",
]
"""What is sampled. The last one has tags and no thought, as a model writes that was told not to think."""
THOUGHT = ["The seer is <b>dead</b>, so 3.", "No </tag> here.", ""]
ANSWER = ["I vote 3.", "Still 3.", "Three."]
CALL = '<tool_call>\n{"name": "vote", "arguments": {"why": "<think>a</think>b"}}\n</tool_call>'
PLAIN = '<tool_call>\n{"name": "vote", "arguments": {}}\n</tool_call>'
TOOL = {
    "name": "vote",
    "description": "votes",
    "parameters": {"type": "object", "properties": {"why": {"type": "string"}}},
}


@dataclass
class Turn:
    """A reply as a client's user sees it, and the turn that it puts into its history."""

    thought: str
    answer: str
    calls: list[Any]
    back: list[Any]


Ask = Callable[[Visit, list[Any], bool, bool], Awaitable[Turn]]
"""(attempt, history, stream, keep the reasoning)"""


async def chat(visit: Visit, history: list[Any], stream: bool, keep: bool) -> Turn:
    asked: dict[str, Any] = {"model": "m", "messages": history, "tools": [{"type": "function", "function": TOOL}]}
    async with AsyncOpenAI(base_url=visit.endpoint.base_url, api_key=visit.endpoint.key, max_retries=0) as client:
        if stream:
            thought = answer = ""
            calls: list[Any] = []
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                for choice in chunk.choices:
                    thought += getattr(choice.delta, "reasoning_content", None) or ""
                    answer += choice.delta.content or ""
                    calls += choice.delta.tool_calls or []
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
            thought = getattr(message, "reasoning_content", None) or ""
            answer, calls = message.content or "", message.tool_calls or []
    back: dict[str, Any] = {"role": "assistant", "content": answer}
    if calls:
        back["tool_calls"] = [
            {"id": call.id, "type": "function", "function": call.function.model_dump()} for call in calls
        ]
    if keep and thought:
        back["reasoning_content"] = thought
    return Turn(thought, answer, [call.function.arguments for call in calls], [back])


async def responses(visit: Visit, history: list[Any], stream: bool, keep: bool) -> Turn:
    asked: dict[str, Any] = {"model": "m", "input": history, "tools": [{"type": "function", **TOOL}]}
    async with AsyncOpenAI(base_url=visit.endpoint.base_url, api_key=visit.endpoint.key, max_retries=0) as client:
        if stream:
            async with client.responses.stream(**asked) as events:
                async for _ in events:
                    pass
                reply = await events.get_final_response()
        else:
            reply = await client.responses.create(**asked)
    items = [item.model_dump(exclude_none=True, mode="json") for item in reply.output]
    thought = "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"])
    calls = [item["arguments"] for item in items if item["type"] == "function_call"]
    return Turn(thought, reply.output_text, calls, [item for item in items if keep or item["type"] != "reasoning"])


async def messages(visit: Visit, history: list[Any], stream: bool, keep: bool) -> Turn:
    tool = {"name": TOOL["name"], "description": "votes", "input_schema": TOOL["parameters"]}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 2000, "messages": history, "tools": [tool]}
    async with AsyncAnthropic(base_url=visit.endpoint.root_url, api_key=visit.endpoint.key, max_retries=0) as client:
        if stream:
            async with client.messages.stream(**asked) as events:
                reply = await events.get_final_message()
        else:
            reply = await client.messages.create(**asked)
    blocks = [block.model_dump(exclude_none=True, mode="json") for block in reply.content]
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    answer = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [block["input"] for block in blocks if block["type"] == "tool_use"]
    kept = [block for block in blocks if keep or block["type"] != "thinking"]
    return Turn(thought, answer, calls, [{"role": "assistant", "content": kept}])


async def generate(visit: Visit, history: list[Any], stream: bool, keep: bool) -> Turn:
    config = gemini.GenerateContentConfig(
        tools=[gemini.Tool(function_declarations=[gemini.FunctionDeclaration(
            name="vote", description="votes", parameters_json_schema=TOOL["parameters"])])],
        thinking_config=gemini.ThinkingConfig(include_thoughts=True),
    )  # fmt: skip
    asked: dict[str, Any] = {"model": "m", "contents": history, "config": config}
    async with asking(visit) as client:
        if stream:
            contents = [
                chunk.candidates[0].content async for chunk in await client.models.generate_content_stream(**asked)
            ]
        else:
            contents = [(await client.models.generate_content(**asked)).candidates[0].content]
    thought, answer, calls = together(contents)
    parts = [part for content in contents for part in content.parts or [] if keep or not part.thought]
    back = gemini.Content(role="model", parts=parts)
    return Turn(thought, answer, [arguments for _, arguments in calls], [back])


WIRES: dict[str, Ask] = {"chat": chat, "responses": responses, "messages": messages, "gemini": generate}


def user(wire: str, text: str) -> Any:
    if wire == "gemini":
        return gemini.Content(role="user", parts=[gemini.Part(text=text)])
    return {"role": "user", "content": text}


def templates() -> dict[str, Callable[[], Template]]:
    return {
        "a setting": lambda: load_template(tiny_tokenizer(MERGES, CHATML), reasoning_tags=TAGS),
        "a setting, no tools": lambda: load_template(tiny_tokenizer(MERGES, PLAIN_CHATML), reasoning_tags=TAGS),
        "the template, kept": lambda: load_template(tokenizer_of("thinking"), keep_reasoning=True),
    }


async def is_one_path(visit: Visit) -> None:
    calls = await visit.calls()
    assert [call.branch for call in calls] == ["root", *["continued"] * (len(calls) - 1)]
    for before, after in itertools.pairwise(calls):
        whole = await visit.path_ids(before.samples[0].node)
        assert (await visit.path_ids(after.prompt_node))[: len(whole)] == whole
    assert len(await visit.nodes()) == 2 * len(calls)


@pytest.mark.parametrize("keep", [True, False], ids=["sent back", "dropped"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("known_by", list(templates()))
@pytest.mark.parametrize("wire", list(WIRES))
async def test_the_answer_comes_alone_and_the_next_turn_keeps_every_token(
    build: Build, wire: str, known_by: str, stream: bool, keep: bool
) -> None:
    house = await build(template=templates()[known_by](), script=list(TURNS), canonical=False)
    visit = await house.open(sampling=LONG)
    history = [user(wire, "Whom do you vote for?")]
    for thought, answer in zip(THOUGHT, ANSWER, strict=True):
        turn = await WIRES[wire](visit, history, stream, keep)
        assert (turn.thought.strip(), turn.answer.strip()) == (thought, answer)
        history += [*turn.back, user(wire, "Sure?")]
    await is_one_path(visit)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", list(WIRES))
async def test_a_tag_in_a_tool_call_is_the_calls_and_a_call_in_a_thought_is_thought(
    build: Build, wire: str, stream: bool
) -> None:
    template = load_template(tiny_tokenizer(MERGES, CHATML), reasoning_tags=TAGS)
    house = await build(template=template, script=[f"<think>{PLAIN}</think>Yes.{CALL}"])
    turn = await WIRES[wire](await house.open(sampling=LONG), [user(wire, "q")], stream, True)
    assert (turn.thought, turn.answer.strip(), len(turn.calls)) == (PLAIN, "Yes.", 1)
    assert "<think>a</think>b" in str(turn.calls[0])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", list(WIRES))
async def test_a_sample_that_never_closes_its_tag_has_no_answer_and_is_continued(
    build: Build, wire: str, stream: bool
) -> None:
    template = load_template(tiny_tokenizer(MERGES, CHATML), reasoning_tags=TAGS)
    house = await build(template=template, script=["<think>Hm. </thin", "<think>So?</think>Then 3."])
    visit = await house.open(sampling=LONG)
    turn = await WIRES[wire](visit, [user(wire, "q")], stream, True)
    assert (turn.thought, turn.answer, turn.calls) == ("Hm. </thin", "", [])
    history = [user(wire, "q"), *turn.back, user(wire, "And?")]
    assert (await WIRES[wire](visit, history, stream, True)).answer == "Then 3."
    await is_one_path(visit)


async def test_without_the_setting_the_tags_of_a_plain_model_are_text(build: Build) -> None:
    house = await build(template=load_template(tiny_tokenizer(MERGES, CHATML)), script=[TURNS[0]])
    turn = await chat(await house.open(sampling=LONG), [user("chat", "q")], False, True)
    assert (turn.thought, turn.answer) == ("", TURNS[0])


def test_tags_that_are_none_and_those_of_a_model_with_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['<think>', ''\] are no tags: two texts without white space"):
        ModelConfig(reasoning_tags=("<think>", ""))
    with pytest.raises(ConfigError, match="writes its reasoning into a channel of its own"):
        load_template(SPECIAL["harmony"](), reasoning_tags=TAGS)
