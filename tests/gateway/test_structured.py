"""Tool choice and structured output through the gateway: the real local engine over the tiny model, and the official
client."""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from typing import Any

import aiohttp
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import BadRequestError
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentlightning.engines.grammar import Grammars, replay
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.gateway import Served
from agentlightning.nouns import CallStatus
from agentlightning.settings.fields import EngineConfig, SamplingConfig
from agentlightning.templates import Template, load_template
from tests.gateway.conftest import Build, House, Visit
from tests.gateway.schemas import valid
from tests.tiny import CHATML, PLAIN_CHATML, tiny_model, tiny_tokenizer

SIZE = 400
SAMPLES = 50


def chained(*words: str) -> list[tuple[str, str]]:
    """Merges that make one token of each word, as a real tokenizer has it: fewer steps for the same text."""
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        spelled = word.replace(" ", "Ġ").replace("\n", "Ċ")
        for i in range(1, len(spelled)):
            merges[spelled[:i], spelled[i]] = None
    return list(merges)


MERGES = chained(
    "<tool_call>\n",
    "</tool_call>",
    '{"name": "',
    "calculator",
    "clock_",
    '", "arguments": {"',
    '", "parameters": {"',
    "expression",
    "digits",
    "zone",
)

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "calculates",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {"type": "string", "maxLength": 4},
                "digits": {"type": "integer", "minimum": 0, "maximum": 20},
            },
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock_é",
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {"$ref": "#/$defs/Zone"},
                "path": {"type": "string", "format": "file-path", "maxLength": 3},
            },
            "required": ["zone"],
            "additionalProperties": False,
            "$defs": {"Zone": {"enum": ["UTC", "CET"]}},
        },
    },
}
TOOLS = [CALCULATOR, CLOCK]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 120}, {"type": "null"}]},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}

LLAMA = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}{{- '{"name": "' + call.function.name + '", "parameters": ' + (call.function.arguments | tojson) + '}' }}{%- endfor %}
{%- else %}{{- message.content }}{%- endif %}{{- '<|im_end|>\\n' }}
{%- if loop.first and tools %}{%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
THINKING = CHATML.replace(
    "'<|im_start|>assistant\\n' }}{%- endif %}", "'<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
FAMILIES = {
    "tools in the template": (CHATML, None),
    "tools as text": (PLAIN_CHATML, None),
    "llama": (CHATML, "llama3_json"),
    "a tag for each argument": (CHATML, "qwen3_coder"),
    "gemma": (CHATML, "gemma4"),
    "thinking": (THINKING, None),
}


@cache
def grammars() -> Grammars:
    return Grammars(tiny_tokenizer(MERGES), SIZE)


@pytest.fixture
async def engine() -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(tiny_model(vocab_size=SIZE), tiny_tokenizer(MERGES), EngineConfig(slots=SAMPLES))
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
def live(build: Build, engine: LocalEngine) -> Callable[..., Any]:
    async def make(family: str = "tools in the template") -> tuple[House, Visit]:
        source, tool_format = FAMILIES[family]
        template = load_template(tiny_tokenizer(MERGES, source), tool_format=tool_format)
        house = await build(template=template, policies={"main": Served("main", engine, template)})
        return house, await house.open(sampling=SamplingConfig(max_tokens=400))

    return make


async def ask(visit: Visit, count: int = SAMPLES, **options: Any) -> list[Any]:
    """That many choices. None of them was cut by length."""
    reply = await visit.ask("q", n=count, **options)
    assert len(reply.choices) == count
    return reply.choices


def checked(calls: Any, tools: list[dict[str, Any]]) -> list[str]:
    """The names of the calls, whose arguments are after their tool's schema."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for call in calls:
        valid(json.loads(call.function.arguments), schemas[call.function.name])
    return [call.function.name for call in calls]


@pytest.mark.parametrize(
    "family", ["tools in the template", "tools as text", "llama", "a tag for each argument", "gemma"]
)
async def test_required_gives_well_formed_calls_and_nothing_else(live: Any, family: str) -> None:
    _, visit = await live(family)
    names: list[list[str]] = []
    for choice in await ask(visit, tools=TOOLS, tool_choice="required"):
        assert choice.finish_reason in ("tool_calls", "length")
        if choice.finish_reason == "tool_calls":
            assert not choice.message.content
            names.append(checked(choice.message.tool_calls, TOOLS))
    assert len(names) > SAMPLES * 0.8
    assert {name for each in names for name in each} == {"calculator", "clock_é"}
    assert max(map(len, names)) > 1, "several calls are allowed"


@pytest.mark.parametrize(
    "family", ["tools in the template", "tools as text", "llama", "a tag for each argument", "gemma"]
)
async def test_a_named_function_is_called_once(live: Any, family: str) -> None:
    _, visit = await live(family)
    for choice in await ask(visit, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "clock_é"}}):
        assert choice.finish_reason == "tool_calls"
        assert checked(choice.message.tool_calls, TOOLS) == ["clock_é"]
        assert not choice.message.content


async def test_one_call_at_most_is_one_well_formed_call(live: Any) -> None:
    _, visit = await live()
    for choice in await ask(visit, tools=TOOLS, tool_choice="required", parallel_tool_calls=False):
        assert len(checked(choice.message.tool_calls, TOOLS)) == 1


@pytest.mark.parametrize("family", ["tools in the template", "tools as text", "llama"])
async def test_without_parallel_calls_a_reply_is_text_or_one_call(live: Any, family: str, engine: LocalEngine) -> None:
    """The tiny model never begins a call by itself: what the grammar allows is walked through as text."""
    house, visit = await live(family)
    for choice in await ask(visit, count=5, tools=TOOLS, parallel_tool_calls=False, max_tokens=30):
        assert not choice.message.tool_calls
    [call] = await visit.calls()
    template = house.template
    call_of = {"llama": '{"name": "clock_é", "parameters": {"zone": "UTC"}}'}.get(
        family, '<tool_call>\n{"name": "clock_é", "arguments": {"zone": "UTC"}}\n</tool_call>'
    )
    text = "" if family == "llama" else "Let me see < <tool_ call>.\n"
    assert follows(template, call, text + call_of)
    assert follows(template, call, "No call { at all.")
    assert follows(template, call, "")
    assert not follows(template, call, f"{call_of}\n{call_of}")
    assert not follows(template, call, call_of.replace("UTC", "EST"))
    assert not follows(template, call, call_of.replace("clock_é", "clock"))
    assert not follows(template, call, f"No {call_of[: len(call_of) // 2]}") or family == "llama"


def follows(template: Template, call: Any, text: str) -> bool:
    """Whether a reply of this text, and its end, is one that the call's grammar allows."""
    grammar = call.used.grammar
    ids = array("i", [*template.encode(text, start=False), template.stop_token_ids[0]])
    matcher = grammars().matcher(grammar, template.stop_token_ids)
    try:
        replay(matcher, array("i"), ids)
    except Exception as error:
        assert "does not allow" in str(error) or "no token" in str(error)
        return False
    return True


async def test_some_tools_may_be_called_and_others_not(live: Any) -> None:
    house, visit = await live()
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "calculator"}}]},
    }
    await visit.ask("q", tools=TOOLS, tool_choice=allowed, max_tokens=5)
    [call] = await visit.calls()
    calculator = '<tool_call>\n{"name": "calculator", "arguments": {"expression":"1"}}\n</tool_call>'
    clock = '<tool_call>\n{"name": "clock_é", "arguments": {"zone": "UTC"}}\n</tool_call>'
    assert follows(house.template, call, calculator + "\n" + calculator)
    assert follows(house.template, call, "text " + calculator)
    assert not follows(house.template, call, clock)


async def test_json_after_a_schema_parses_and_validates(live: Any) -> None:
    _, visit = await live()
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    seen: set[str] = set()
    for choice in await ask(visit, response_format=form):
        assert choice.finish_reason == "stop"
        valid(json.loads(choice.message.content), PERSON)
        seen.add(choice.message.content)
    assert len(seen) > SAMPLES * 0.9


def terse_tokenizer() -> PreTrainedTokenizerFast:
    """Few characters: a random model soon ends a string."""
    characters = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *'{}[]":,-.0123456789abeflnrstuq', "Ġ"]
    core = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(characters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = PLAIN_CHATML
    return made


async def test_any_json_object_parses(build: Build) -> None:
    engine = LocalEngine(tiny_model(vocab_size=40), terse_tokenizer(), EngineConfig(slots=64))
    await engine.start()
    template = load_template(terse_tokenizer())
    house = await build(template=template, policies={"main": Served("main", engine, template)})
    visit = await house.open(sampling=SamplingConfig(max_tokens=300))
    whole: list[dict[str, Any]] = []
    for choice in await ask(visit, count=64, response_format={"type": "json_object"}):
        if choice.finish_reason == "stop":
            whole.append(json.loads(choice.message.content))
        else:
            assert choice.message.content.startswith("{"), "cut by length"
    await engine.close()
    assert len(whole) >= SAMPLES and all(isinstance(value, dict) for value in whole)
    assert sum(bool(value) for value in whole) > 10


async def test_a_pydantic_model_comes_back_parsed(live: Any) -> None:
    class Pet(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str = Field(max_length=5)
        legs: int = Field(ge=0, le=8)

    _, visit = await live()
    reply = await visit.client.chat.completions.parse(
        model="m", messages=[{"role": "user", "content": "q"}], response_format=Pet
    )
    assert isinstance(reply.choices[0].message.parsed, Pet)


async def test_json_or_a_call_where_both_are_asked_for(live: Any) -> None:
    house, visit = await live()
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for choice in await ask(visit, count=10, response_format=form, tools=TOOLS):
        if choice.message.tool_calls:
            checked(choice.message.tool_calls, TOOLS)
        else:
            valid(json.loads(choice.message.content), PERSON)
    [call] = await visit.calls()
    assert follows(house.template, call, '{"name": "é", "tags": ["a","b"], "age":null}')
    assert follows(house.template, call, '<tool_call>\n{"name": "clock_é", "arguments": {"zone": "UTC"}}\n</tool_call>')
    assert not follows(house.template, call, "text")


async def test_reasoning_before_the_reply_stays_free(live: Any) -> None:
    house, visit = await live("thinking")
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    await visit.ask("q", response_format=form, max_tokens=5)
    await visit.ask("q", tools=TOOLS, tool_choice="required", max_tokens=5)
    first, second = await visit.calls()
    person = '{"name": "", "tags": [], "age": 7}'
    assert follows(house.template, first, f"anything {{ <tool_call> at all</think>\n\n{person}")
    assert follows(house.template, first, f"</think>{person}")
    assert not follows(house.template, first, person), "the prompt has opened the reasoning: it has to end first"
    assert not follows(house.template, first, "thoughts</think>text")
    call = '<tool_call>\n{"name": "clock_é", "arguments": {"zone": "UTC"}}\n</tool_call>'
    assert follows(house.template, second, f"Well...\n</think>\n\n{call}")


async def test_a_stream_under_a_grammar_is_the_reply(live: Any) -> None:
    _, visit = await live()
    stream = await visit.ask("q", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True)
    calls: list[Any] = []
    async for chunk in stream:
        calls += chunk.choices[0].delta.tool_calls or []
    assert len(checked(calls, TOOLS)) == 1


async def test_the_record_holds_the_grammar_and_can_be_replayed(live: Any, engine: LocalEngine) -> None:
    house, visit = await live()
    await ask(visit, count=3, tools=TOOLS, tool_choice="required")
    await visit.ask("free")
    constrained, free = await visit.calls()
    assert constrained.status is CallStatus.COMPLETE
    assert free.used is not None and free.used.grammar is None
    assert constrained.used is not None and constrained.used.grammar is not None
    nodes = {node.id: node for node in await visit.nodes()}
    for sample in constrained.samples:
        node = nodes[sample.node]
        assert node.kept is None and node.log_kept is not None, "no list of ids the size of the vocabulary"
        replay(
            grammars().matcher(constrained.used.grammar, house.template.stop_token_ids),
            array("i"),
            node.token_ids,
        )


async def test_a_conversation_goes_on_behind_constrained_calls(live: Any) -> None:
    _, visit = await live()
    history: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for _ in range(3):
        reply = (
            (await visit.ask(history, tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
            .choices[0]
            .message
        )
        history.append(
            {
                "role": "assistant",
                "content": reply.content,
                "tool_calls": [call.model_dump() for call in reply.tool_calls or []],
            }
        )
        history += [{"role": "tool", "tool_call_id": call.id, "content": "391"} for call in reply.tool_calls or []]
    assert [call.branch for call in await visit.calls()] == ["root", "continued", "continued"]


# --------------------------------------------------------------------------- the other wires

FUNCTION = CALCULATOR["function"]
ARGUMENTS: dict[str, Any] = FUNCTION["parameters"]  # pyright: ignore[reportAssignmentType]


async def test_responses_give_required_calls_and_json(live: Any) -> None:
    _, visit = await live()
    create = visit.client.responses.create
    for _ in range(5):
        reply = await create(
            model="m",
            input="q",
            tools=[{"type": "function", **FUNCTION, "strict": True}],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        [call] = [item for item in reply.output if item.type == "function_call"]
        valid(json.loads(call.arguments), ARGUMENTS)
        form = {"type": "json_schema", "name": "person", "schema": PERSON}
        reply = await create(model="m", input="q", text={"format": form})
        valid(json.loads(reply.output_text), PERSON)


async def test_messages_give_required_calls_and_json(live: Any) -> None:
    _, visit = await live()
    tool = {"name": "calculator", "input_schema": ARGUMENTS}
    async with AsyncAnthropic(base_url=visit.endpoint.root_url, api_key=visit.endpoint.key, max_retries=0) as client:
        ask = partial(client.messages.create, model="m", max_tokens=300, messages=[{"role": "user", "content": "q"}])
        for _ in range(5):
            reply = await ask(tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True})
            [block] = reply.content
            assert (block.type, reply.stop_reason) == ("tool_use", "tool_use")
            valid(block.input, ARGUMENTS)
            reply = await ask(tools=[tool], tool_choice={"type": "tool", "name": "calculator"})
            assert [block.name for block in reply.content] == ["calculator"]
            reply = await ask(extra_body={"output_config": {"format": {"type": "json_schema", "schema": PERSON}}})
            valid(json.loads(reply.content[0].text), PERSON)


async def test_gemini_gives_required_calls_and_json(live: Any) -> None:
    _, visit = await live()
    options = types.HttpOptions(base_url=visit.endpoint.root_url, retry_options=types.HttpRetryOptions(attempts=1))
    tool = types.Tool(
        function_declarations=[types.FunctionDeclaration(name="calculator", parameters_json_schema=ARGUMENTS)]
    )
    only = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["calculator"])
    client = genai.Client(api_key=visit.endpoint.key, vertexai=False, http_options=options)
    ask = partial(client.aio.models.generate_content, model="m", contents="q")
    for _ in range(5):
        reply = await ask(
            config=types.GenerateContentConfig(tools=[tool], tool_config=types.ToolConfig(function_calling_config=only))
        )
        [call] = reply.function_calls
        valid(call.args, ARGUMENTS)
        reply = await ask(
            config=types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=PERSON)
        )
        valid(json.loads(reply.text), PERSON)
    await client.aio.aclose()


# --------------------------------------------------------------------------- refusals

BAD = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def bad_tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"x": schema}}},
    }


def strictly(tool: dict[str, Any], strict: Any = True) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": strict}}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD}}},
            "response_format=.*uniqueItems",
        ),
        ({"tools": [CALCULATOR, bad_tool("bad", BAD)], "tool_choice": "required"}, "tool_choice=.*'bad'.*uniqueItems"),
        (
            {"tools": [bad_tool("odd", {"not": {"type": "string"}}), CALCULATOR], "parallel_tool_calls": False},
            "parallel_tool_calls=.*'odd'.*not",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"$ref": "#/$defs/none"}},
                }
            },
            "response_format=.*none",
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}],
                "tool_choice": "required",
            },
            "'f'.*object",
        ),
    ],
)
async def test_a_schema_that_cannot_be_kept_to_is_refused_by_name_before_sampling(
    live: Any, options: dict[str, Any], says: str
) -> None:
    _, visit = await live()
    with pytest.raises(BadRequestError, match=f"(?s){says}") as caught:
        await visit.ask("q", **options)
    assert caught.value.param in ("response_format", "tool_choice", "parallel_tool_calls")
    [call] = await visit.calls()
    assert (call.status, call.samples) == (CallStatus.REFUSED, ())


FUNCTIONS = [
    {"name": "calculator", "parameters": ARGUMENTS},
    {"name": "bad", "parameters": {"type": "object", "properties": {"x": BAD}}},
]
RESPONSES = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]
ANTHROPIC = [{"name": function["name"], "input_schema": function["parameters"]} for function in FUNCTIONS]
GEMINI = [{"functionDeclarations": [{"name": f["name"], "parametersJsonSchema": f["parameters"]} for f in FUNCTIONS]}]
CONFIG = {"responseMimeType": "application/json"}
ITEMS = {"type": "json_schema", "schema": BAD}


@pytest.mark.parametrize(
    ("wire", "options", "field", "value"),
    [
        ("chat", {"tools": [bad_tool("bad", BAD)], "tool_choice": "required"}, "tool_choice", "'required'"),
        ("chat", {"tools": [bad_tool("bad", BAD)], "parallel_tool_calls": False}, "parallel_tool_calls", "False"),
        ("chat", {"tools": [CALCULATOR, strictly(bad_tool("bad", BAD))]}, "tools[1].function.strict", "True"),
        (
            "chat",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD}}},
            "response_format",
            "'json_schema'",
        ),
        ("responses", {"tools": RESPONSES, "tool_choice": "required"}, "tool_choice", "'required'"),
        ("responses", {"tools": RESPONSES, "parallel_tool_calls": False}, "parallel_tool_calls", "False"),
        ("responses", {"tools": [RESPONSES[0], {**RESPONSES[1], "strict": True}]}, "tools[1].strict", "True"),
        ("responses", {"text": {"format": {"name": "n", **ITEMS}}}, "text.format", "'json_schema'"),
        ("messages", {"tools": ANTHROPIC, "tool_choice": {"type": "any"}}, "tool_choice", "{'type': 'any'}"),
        (
            "messages",
            {"tools": ANTHROPIC, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "tool_choice.disable_parallel_tool_use",
            "True",
        ),
        ("messages", {"tools": [ANTHROPIC[0], {**ANTHROPIC[1], "strict": True}]}, "tools[1].strict", "True"),
        ("messages", {"output_config": {"format": ITEMS}}, "output_config.format", "'json_schema'"),
        (
            "gemini",
            {"tools": GEMINI, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "toolConfig.functionCallingConfig",
            "{'mode': 'ANY'}",
        ),
        (
            "gemini",
            {"tools": GEMINI, "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}},
            "toolConfig.functionCallingConfig",
            "{'mode': 'VALIDATED'}",
        ),
        (
            "gemini",
            {"generationConfig": {**CONFIG, "responseJsonSchema": BAD}},
            "generationConfig.responseJsonSchema",
            "{'type': 'array'",
        ),
        (
            "gemini",
            {
                "generationConfig": {
                    **CONFIG,
                    "responseSchema": {"type": "ARRAY", "items": {"type": "INTEGER"}, "uniqueItems": True},
                }
            },
            "generationConfig.responseSchema",
            "{'type': 'ARRAY'",
        ),
    ],
)
async def test_a_refusal_names_the_callers_own_field(
    live: Any, wire: str, options: dict[str, Any], field: str, value: str
) -> None:
    _, visit = await live()
    path, body = {
        "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "q"}]}),
        "responses": ("/v1/responses", {"input": "q"}),
        "messages": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}),
        "gemini": ("/v1beta/models/m:generateContent", {"contents": "q"}),
    }[wire]
    async with (
        aiohttp.ClientSession() as client,
        client.post(visit.endpoint.root_url + path, json={"model": "m", **body, **options}) as reply,
    ):
        assert reply.status == 400
        error = (await reply.json())["error"]
    assert error["message"].startswith(f"{field}={value}"), error["message"]
    assert "uniqueItems" in error["message"] and ("tools" not in options or "'bad'" in error["message"])
    if wire in ("chat", "responses"):
        assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    if wire == "gemini":
        assert error["details"][0]["fieldViolations"][0]["field"] == field


# --------------------------------------------------------------------------- strict tools


async def test_calls_of_strict_tools_follow_their_schemas(live: Any) -> None:
    """The tiny model never begins a call by itself: what the grammar allows is walked through as text."""
    house, visit = await live()
    tools = [strictly(CALCULATOR), CLOCK]
    await visit.ask("q", tools=tools, max_tokens=5)
    await visit.client.responses.create(
        model="m", input="q", tools=[{"type": "function", **FUNCTION, "strict": True}], max_output_tokens=5
    )
    async with AsyncAnthropic(base_url=visit.endpoint.root_url, api_key=visit.endpoint.key, max_retries=0) as client:
        tool: Any = {"name": "calculator", "input_schema": ARGUMENTS, "strict": True}
        await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "q"}], tools=[tool])
    for call in await visit.calls():
        good = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
        assert follows(house.template, call, f"I look. {good}")
        assert follows(house.template, call, f"{good}\n{good}")
        assert follows(house.template, call, "No call at all.")
        assert not follows(house.template, call, good.replace("1+1", "too long"))
        assert not follows(house.template, call, good.replace("}}", ', "more": 1}}'))


async def test_a_strict_tool_asks_for_nothing_where_it_may_not_be_called_or_is_not_strict(live: Any) -> None:
    _, visit = await live()
    await visit.ask("q", tools=[strictly(CALCULATOR)], tool_choice="none", max_tokens=3)
    await visit.ask("q", tools=[strictly(CALCULATOR, False), strictly(CLOCK, None)], max_tokens=3)
    assert [call.used.grammar for call in await visit.calls() if call.used] == [None, None]


async def test_strict_makes_no_difference_to_the_prompt_or_to_what_continues(live: Any) -> None:
    _, visit = await live()
    first = (await visit.ask("q", tools=[CALCULATOR], max_tokens=3)).choices[0].message
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "go on"},
    ]
    await visit.ask(history, tools=[strictly(CALCULATOR)], max_tokens=3)
    assert [call.branch for call in await visit.calls()] == ["root", "continued"]


async def test_an_engine_that_cannot_constrain_says_once_that_strict_tools_are_not_kept_to(
    house: House, caplog: Any
) -> None:
    visit = await house.open()
    for _ in range(3):
        await visit.ask("q", tools=[strictly(CALCULATOR)])
    [said] = [record.message for record in caplog.records if "strict" in record.message]
    assert "calculator" in said and "ScriptedEngine" in said


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_strict_is_true_or_false(house: House, wire: str) -> None:
    visit = await house.open()
    path, body = {
        "chat": (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "q"}], "tools": [strictly(CALCULATOR, "yes")]},
        ),
        "responses": ("/v1/responses", {"input": "q", "tools": [{**RESPONSES[0], "strict": "yes"}]}),
        "messages": (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "q"}],
                "tools": [{**ANTHROPIC[0], "strict": "yes"}],
            },
        ),
    }[wire]
    async with (
        aiohttp.ClientSession() as client,
        client.post(visit.endpoint.root_url + path, json={"model": "m", **body}) as reply,
    ):
        assert (reply.status, "strict must be true or false" in await reply.text()) == (400, True)


# --------------------------------------------------------------------------- what is not named


@pytest.mark.parametrize("wire", ["chat", "gemini"])
async def test_members_that_a_schema_does_not_name_are_not_invented(live: Any, wire: str) -> None:
    house, visit = await live()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    if wire == "chat":
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        await visit.ask("q", response_format=form, max_tokens=3)
        await visit.ask(
            "q", tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required", max_tokens=3
        )
    else:
        for body in (
            {
                "contents": "q",
                "generationConfig": {
                    **CONFIG,
                    "responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}},
                },
            },
            {
                "contents": "q",
                "tools": [{"functionDeclarations": [{"name": "f"}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
            },
        ):
            url = visit.endpoint.root_url + "/v1beta/models/m:generateContent"
            body["generationConfig"] = {**body.get("generationConfig", {}), "maxOutputTokens": 3}
            async with aiohttp.ClientSession() as client, client.post(url, json=body) as reply:
                assert reply.status == 200
    output, call = await visit.calls()
    assert follows(house.template, output, '{"a": 1}') and follows(house.template, output, "{}")
    assert not follows(house.template, output, '{"b": 1}')
    assert follows(house.template, call, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert not follows(house.template, call, '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>')


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [CALCULATOR], "tool_choice": "required"},
        {"tools": [CALCULATOR], "tool_choice": {"type": "function", "function": {"name": "calculator"}}},
        {"tools": [CALCULATOR], "parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
    ],
)
async def test_an_engine_that_cannot_constrain_refuses_by_name(house: House, options: dict[str, Any]) -> None:
    visit = await house.open()
    with pytest.raises(BadRequestError, match=r"ScriptedEngine\) cannot keep a sample to a grammar"):
        await visit.ask("q", **options)
    assert house.engine.requests == []


async def test_what_asks_for_nothing_is_free(live: Any) -> None:
    _, visit = await live()
    await asyncio.gather(
        visit.ask("q", tools=TOOLS, max_tokens=3),
        visit.ask("q", tools=TOOLS, tool_choice="none", parallel_tool_calls=False, max_tokens=3),
        visit.ask("q", parallel_tool_calls=False, max_tokens=3),
        visit.ask("q", response_format={"type": "text"}, max_tokens=3),
    )
    assert [call.used.grammar for call in await visit.calls() if call.used] == [None] * 4


GBNF = 'root ::= "go " way\nway ::= ("up" | "down") "!"'
FORMS = [
    ({"guided_regex": "^[a-c]{2,5}$"}, r"[a-c]{2,5}"),
    ({"structured_outputs": {"choice": ["up", "down é", 'a "b"\\n']}}, r'up|down é|a "b"\\n'),
    ({"ebnf": GBNF}, r"go (up|down)!"),
    ({"guided_grammar": 'start: "go " /[0-9]{1,3}/'}, r"go [0-9]{1,3}"),
]


@pytest.mark.parametrize(("form", "pattern"), FORMS)
async def test_what_other_servers_call_guided_is_kept_to_on_every_wire_and_replayed(
    live: Any, form: dict[str, Any], pattern: str
) -> None:
    house, visit = await live()
    for choice in await ask(visit, count=20, extra_body=form):
        assert re.fullmatch(pattern, choice.message.content), choice.message.content
    bodies: dict[str, dict[str, Any]] = {
        "completions": {"prompt": "q", "max_tokens": 50}, "responses": {"input": "q"}, "messages": {"max_tokens": 50,
        "messages": [{"role": "user", "content": "q"}]},
        "models/m:generateContent": {"contents": "q"},
    }  # fmt: skip
    async with aiohttp.ClientSession() as client:
        for path, body in bodies.items():
            async with client.post(f"{visit.endpoint.base_url}/{path}", json={**body, **form}) as got:
                assert got.status == 200, await got.text()
    calls = await visit.calls()
    assert len(calls) == 5
    nodes = await visit.nodes()
    for call in calls:
        assert call.used is not None and call.used.grammar is not None
        for sample in call.samples:
            assert re.fullmatch(pattern, sample.message.content)
            replay(
                grammars().matcher(call.used.grammar, house.template.stop_token_ids),
                array("i"),
                nodes[sample.node].token_ids,
            )


async def test_a_format_that_is_none_is_refused_by_its_own_name(live: Any) -> None:
    _, visit = await live()
    for form, says in (
        ({"guided_regex": "(a"}, "guided_regex='(a' is not supported"),
        ({"regex": "a$b"}, "write ^(?:...)$ around the whole of it"),
        ({"ebnf": "root ::= (("}, "ebnf='root ::= ((' is not supported: it is no GBNF"),
        ({"guided_grammar": "start: nothing"}, "nothing"),
        ({"guided_choice": ["<|im_end|>"]}, "which is a token of its own"),
    ):
        with pytest.raises(BadRequestError, match=re.escape(says)):
            await visit.ask("q", extra_body=form)
