"""Google's Gemini API with the official client: what is answered, what is recorded, and that they are the same
tokens."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from google import genai
from google.genai import errors, types
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.gateway.equality import equality_key
from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.wires import find_wire, read_request
from agentlightning.gateway.wires.base import Begun, CallError, Choice, Count, OutputFormat, Reply, Target, WireRequest
from agentlightning.gateway.wires.gemini import Gemini
from agentlightning.gateway.wires.gemini_request import json_schema
from agentlightning.gateway.wires.unserved import Unserved
from agentlightning.nouns import CallStatus, FinishReason, Message, SamplingParams, Tool, ToolCall
from agentlightning.settings.fields import GatewayConfig, SamplingConfig
from agentlightning.templates.base import ParsedDelta
from tests.gateway.conftest import Build, House, Visit, ids, settings_asked, until
from tests.gateway.recorded import Recording, distilled, recorded

WIRE = Gemini()
POST = Target("POST", "models/m:generateContent")
EARLIER = KeptReplies()
SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="calculator", description="calculates", parameters_json_schema=SCHEMA),
        types.FunctionDeclaration(name="clock", parameters=types.Schema(type=types.Type.OBJECT, properties={})),
    ]
)
CALL = '<tool_call>{"name": "calculator", "arguments": { "expression":"17 * 23 é" }}</tool_call>'
OTHER = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
Q = {"role": "user", "parts": [{"text": "q"}]}
LONG = SamplingConfig(max_tokens=1000)


@asynccontextmanager
async def asking(visit: Visit) -> AsyncIterator[Any]:
    """The official client, set up as an agent's environment sets it up."""
    options = types.HttpOptions(base_url=visit.endpoint.root_url, retry_options=types.HttpRetryOptions(attempts=1))
    client = genai.Client(api_key=visit.endpoint.key, vertexai=False, http_options=options)
    try:
        yield client.aio
    finally:
        await client.aio.aclose()
        client.close()


async def said(client: Any, contents: Any, *, stream: bool, **config: Any) -> tuple[list[types.Content], Any]:
    """The contents of a reply (those of a stream's chunks one by one) and its last chunk."""
    asked = {"model": "gemini-x", "contents": contents, "config": types.GenerateContentConfig(**config)}
    if not stream:
        reply = await client.models.generate_content(**asked)
        return [reply.candidates[0].content], reply
    chunks = [chunk async for chunk in await client.models.generate_content_stream(**asked)]
    return [chunk.candidates[0].content for chunk in chunks], chunks[-1]


def together(contents: Sequence[types.Content]) -> tuple[str, str, list[tuple[str, Any]]]:
    """Thoughts, text and calls."""
    parts = [part for content in contents for part in content.parts or []]
    thoughts = "".join(part.text for part in parts if part.text and part.thought)
    text = "".join(part.text for part in parts if part.text and not part.thought)
    return thoughts, text, [(part.function_call.name, part.function_call.args) for part in parts if part.function_call]


async def is_one_path(visit: Visit) -> None:
    calls = await visit.calls()
    assert [call.branch for call in calls] == ["root", *["continued"] * (len(calls) - 1)]
    for before, after in itertools.pairwise(calls):
        whole = await visit.path_ids(before.samples[0].node)
        assert (await visit.path_ids(after.prompt_node))[: len(whole)] == whole
    prompts = [request.prompt_ids.tolist() for request in visit.house.engine.requests]
    assert prompts == [await visit.path_ids(call.prompt_node) for call in calls]
    assert len(await visit.nodes()) == 2 * len(calls)


async def test_a_reply_is_recorded_exactly(house: House) -> None:
    house.engine.script = ["Hello there."]
    visit = await house.open(sampling=LONG)
    async with asking(visit) as client:
        reply = await client.models.generate_content(model="gemini-x", contents="Hi")
    assert (reply.text, reply.model_version) == ("Hello there.", "gemini-x")
    assert reply.candidates[0].finish_reason is types.FinishReason.STOP
    [call] = await visit.calls()
    assert (call.id, call.status, call.wire, call.model) == (
        reply.response_id,
        CallStatus.COMPLETE,
        "gemini",
        "gemini-x",
    )
    assert call.id.startswith("gen-")
    prompt, sampled = await visit.nodes()
    assert prompt.token_ids == house.engine.requests[0].prompt_ids
    assert sampled.token_ids.tolist() == ids(house, "Hello there.<|im_end|>")
    usage = reply.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count) == (len(prompt.token_ids), len(sampled.token_ids))
    assert usage.total_token_count == call.prompt_tokens + call.sampled_tokens


@pytest.mark.parametrize("keeps_ids", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_conversation_keeps_every_token(house: House, stream: bool, keeps_ids: bool) -> None:
    """Each prompt begins with all that was prompted and sampled before, whether the history holds a turn in one content
    or in one per chunk."""
    house.engine.script = ["<think>hm</think>I compute." + CALL + OTHER + CALL, "It is 391.", "Bye."]
    visit = await house.open(sampling=LONG)
    history = [types.Content(role="user", parts=[types.Part(text="What is 17 * 23?")])]
    async with asking(visit) as client:
        for turn in range(3):
            contents, last = await said(client, history, stream=stream, tools=[TOOLS], system_instruction="Be brief.")
            assert last.candidates[0].finish_reason is types.FinishReason.STOP
            assert last.usage_metadata.candidates_token_count > 0
            calls = [part.function_call for content in contents for part in content.parts if part.function_call]
            assert len(calls) == (3 if turn == 0 else 0)
            history += contents
            results = [
                types.Part(
                    function_response=types.FunctionResponse(name=call.name, id=call.id, response={"result": str(i)})
                )
                for i, call in enumerate(calls)
            ]
            history.append(types.Content(role="user", parts=results or [types.Part(text="And now?")]))
            for named in [
                each
                for content in history
                for part in content.parts
                for each in (part.function_call, part.function_response)
            ]:
                if named is not None and not keeps_ids:
                    named.id = None
    await is_one_path(visit)
    calls = await visit.calls()
    recorded = [call.id for call in calls[0].samples[0].message.tool_calls]
    assert len(set(recorded)) == 3
    request = WIRE.request(
        POST, {"contents": [content.model_dump(mode="json", exclude_none=True) for content in history]}, EARLIER
    )
    assert [m.content for m in request.messages if m.role == "tool"] == [
        '{"result":"0"}',
        '{"result":"1"}',
        '{"result":"2"}',
    ]
    told = [m.tool_call_id for m in request.messages if m.role == "tool"]
    assert told == [call.id for m in request.messages for call in m.tool_calls]
    assert (told == recorded) == keeps_ids


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_own_chats_keep_every_token(house: House, stream: bool) -> None:
    """A chat keeps a content for each chunk, and forgets a turn of which any chunk is without parts."""
    house.engine.script = ["<think>I think.</think>One, <b>two</b>.", "Three.", "Four."]
    visit = await house.open(sampling=LONG)
    texts: list[str] = []
    async with asking(visit) as client:
        chat = client.chats.create(model="gemini-x")
        for question in ("a", "b", "c"):
            if stream:
                texts.append("".join([chunk.text or "" async for chunk in await chat.send_message_stream(question)]))
            else:
                texts.append((await chat.send_message(question)).text)
        assert len(chat.get_history(curated=True)) >= 6
    assert texts == ["One, <b>two</b>.", "Three.", "Four."]
    await is_one_path(visit)


async def test_functions_that_the_client_runs_itself(house: House) -> None:
    house.engine.script = [CALL, "It is 391."]
    visit = await house.open(sampling=LONG)

    def calculator(expression: str) -> str:
        """Calculates."""
        return f"{expression} is 391"

    async with asking(visit) as client:
        reply = await client.models.generate_content(
            model="m", contents="What is 17 * 23?", config=types.GenerateContentConfig(tools=[calculator])
        )
    assert reply.text == "It is 391."
    await is_one_path(visit)
    text = house.template.decode(house.engine.requests[1].prompt_ids)
    assert '{"result":"17 * 23 é is 391"}' in text


async def test_thoughts_are_told_where_they_are_asked_for(house: House) -> None:
    spoken = "<think>I think.</think>I compute." + CALL
    house.engine.script = [spoken] * 4
    visit = await house.open(sampling=LONG)
    config = {"tools": [TOOLS], "thinking_config": types.ThinkingConfig(include_thoughts=True, thinking_budget=100)}
    expected = ("I compute.", [("calculator", {"expression": "17 * 23 é"})])
    async with asking(visit) as client:
        for stream in (False, True):
            contents, _ = await said(client, "q", stream=stream, **config)
            assert together(contents) == ("I think.", *expected)
            contents, _ = await said(client, "q", stream=stream, tools=[TOOLS])
            assert together(contents) == ("", *expected)
            body = {"contents": [Q, *(content.model_dump(mode="json", exclude_none=True) for content in contents)]}
            assert WIRE.request(POST, body, EARLIER).messages[1].reasoning == "I think.", (
                "signed, and so sent back unread"
            )


@pytest.mark.parametrize("form", ["events", "blocking", "lines", "array"])
async def test_a_stream_put_together_is_the_reply(build: Build, form: str) -> None:
    spoken = [
        "Zürich\u2028and\u0085漢字 <b>é</b>." + CALL.replace('"17', '\n"17') + OTHER,
        "<think>só</think>other",
        "",
    ]
    house = await build(script=[*spoken, *spoken], chunk=1)
    visit = await house.open(sampling=LONG)
    options = {"tools": [TOOLS], "candidate_count": 3, "thinking_config": types.ThinkingConfig(include_thoughts=True)}
    async with asking(visit) as client:
        whole = await client.models.generate_content(
            model="m", contents="q", config=types.GenerateContentConfig(**options)
        )
        if form == "events":
            config = types.GenerateContentConfig(**options)
            chunks = [
                chunk
                async for chunk in await client.models.generate_content_stream(model="m", contents="q", config=config)
            ]
    if form == "blocking":
        chunks = await asyncio.to_thread(blocking_stream, visit, options)
    if form in ("lines", "array"):
        body = {"contents": "q", "tools": json.loads(TOOLS.model_dump_json(exclude_none=True, by_alias=True)),
        "generationConfig": {"candidateCount": 3, "thinkingConfig": {"includeThoughts": True}}}  # fmt: skip
        url = f"{visit.endpoint.root_url}/v1beta/models/m:streamGenerateContent" + (
            "?alt=sse" if form == "lines" else ""
        )
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            assert response.content_type == ("text/event-stream" if form == "lines" else "application/json")
            text = await response.text()
        # Readers of lines (httpx, and so older releases of the official client) take more characters for their ends
        # than the format does.
        found = (
            [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
            if form == "lines"
            else json.loads(text)
        )
        chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in found]
    assert len(chunks) > 6
    candidates = [candidate for chunk in chunks for candidate in chunk.candidates]
    for index, expected in enumerate(whole.candidates):
        mine = [candidate for candidate in candidates if (candidate.index or 0) == index]
        assert together([candidate.content for candidate in mine]) == together([expected.content])
        assert [candidate.finish_reason for candidate in mine] == [None] * (len(mine) - 1) + [expected.finish_reason]
    assert together([whole.candidates[0].content])[1] == "Zürich\u2028and\u0085漢字 <b>é</b>."
    assert chunks[-1].usage_metadata == whole.usage_metadata
    assert {chunk.response_id for chunk in chunks} == {(await visit.calls())[1].id}
    assert {chunk.model_version for chunk in chunks} == {"m"}


def blocking_stream(visit: Visit, options: dict[str, Any]) -> list[types.GenerateContentResponse]:
    with genai.Client(
        api_key="k", vertexai=False, http_options=types.HttpOptions(base_url=visit.endpoint.root_url)
    ) as client:
        return list(
            client.models.generate_content_stream(
                model="m", contents="q", config=types.GenerateContentConfig(**options)
            )
        )


async def test_tokens_are_counted_as_a_call_would_have_them(house: House) -> None:
    visit = await house.open(sampling=LONG)
    async with asking(visit) as client:
        counted = await client.models.count_tokens(model="m", contents="How many?")
        assert not await visit.calls()
        reply = await client.models.generate_content(model="m", contents="How many?")
    assert counted.total_tokens == reply.usage_metadata.prompt_token_count
    whole = {
        "model": "models/m",
        "contents": [Q],
        "systemInstruction": "s",
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
    }
    status, reply = await post(visit, {"generateContentRequest": whole}, "models/m:countTokens")
    assert status == 200
    await post(visit, whole)
    assert reply == {"totalTokens": (await visit.calls())[-1].prompt_tokens}


async def test_logprobs_come_when_asked_for(house: House) -> None:
    house.engine.script = ["ab", "ab"]
    visit = await house.open(sampling=LONG)
    async with asking(visit) as client:
        for stream in (False, True):
            _, last = await said(client, "q", stream=stream, response_logprobs=True)
            result = last.candidates[0].logprobs_result
            assert [entry.token_id for entry in result.chosen_candidates] == ids(house, "ab<|im_end|>")
            assert [entry.token for entry in result.chosen_candidates] == ["a", "b", "<|im_end|>"]
            assert [entry.log_probability for entry in result.chosen_candidates] == pytest.approx(
                [-0.001, -0.002, -0.003]
            )
            assert last.candidates[0].avg_logprobs == pytest.approx(-0.002)
        _, last = await said(client, "q", stream=False)
        assert last.candidates[0].logprobs_result is None


async def test_limits_and_stops_are_kept(house: House) -> None:
    house.engine.script = ["abcdefgh", "Thought: x\nObservation: 3", "a", "b"]
    visit = await house.open(sampling=SamplingConfig(temperature=0.8, owner="agent"))
    async with asking(visit) as client:
        contents, last = await said(
            client, "q", stream=False, max_output_tokens=4, temperature=0.1, top_p=0.5, top_k=3, seed=5
        )
        assert (contents[0].parts[0].text, last.candidates[0].finish_reason) == ("abcd", types.FinishReason.MAX_TOKENS)
        contents, last = await said(client, "q", stream=False, stop_sequences=["Observation:"])
        assert (contents[0].parts[0].text, last.candidates[0].finish_reason) == (
            "Thought: x\n",
            types.FinishReason.STOP,
        )
        config = types.GenerateContentConfig(candidate_count=2)
        reply = await client.models.generate_content(model="m", contents="q", config=config)
        assert [candidate.content.parts[0].text for candidate in reply.candidates] == ["a", "b"]
    used = house.engine.requests[0].params
    assert (used.temperature, used.top_p, used.top_k, used.max_tokens) == (0.1, 0.5, 3, 4)
    [first, *_] = await visit.calls()
    assert settings_asked(first) == {"temperature": 0.1, "top_p": 0.5, "top_k": 3, "seed": 5, "max_output_tokens": 4}


async def test_arguments_that_are_no_object_come_back_as_they_were(house: House) -> None:
    house.engine.script = ['<tool_call>{"name": "clock", "arguments": {broken "}</tool_call>', "Sorry."]
    visit = await house.open(sampling=LONG)
    async with asking(visit) as client:
        [content], _ = await said(client, [Q], stream=False, tools=[TOOLS])
        call = content.parts[0].function_call
        assert call.args == {"INVALID_JSON": '{broken "'}
        result = types.Part(
            function_response=types.FunctionResponse(name="clock", id=call.id, response={"error": "no JSON"})
        )
        await said(client, [Q, content, types.Content(role="user", parts=[result])], stream=False, tools=[TOOLS])
    await is_one_path(visit)


@pytest.mark.parametrize(
    "path", ["models/m:generateContent", "models/m:streamGenerateContent?alt=sse", "models/m:streamGenerateContent"]
)
async def test_a_client_that_waits_is_kept_waiting(build: Build, heartbeats: list[bytes], path: str) -> None:
    house = await build(
        config=GatewayConfig(heartbeat=0.03, orphan_grace=60, drain=10), script=["late"] * 2, hold=asyncio.Event()
    )
    visit = await house.open(sampling=LONG)

    async def let_go() -> None:
        await until(lambda: len(house.engine.requests) == 1)
        await until(lambda: len(heartbeats) > 2)
        house.engine.hold.set()

    going = asyncio.create_task(let_go())
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{visit.endpoint.base_url}/{path}", json={"contents": "q"}) as response:
            text = await response.text()
    assert len(text) - len(text.lstrip()) > 2
    assert "late" in json.dumps(json.loads(text.strip().removeprefix("data: ")))
    await going
    if "alt" in path:
        house.engine.hold.clear()
        house.engine.requests.clear()
        going = asyncio.create_task(let_go())
        async with asking(visit) as client:
            contents, _ = await said(client, "q", stream=True)
        assert contents[0].parts[0].text == "late"
        await going


# --------------------------------------------------------------------------- what is refused


CONFIG_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"presencePenalty": 0.5}, "generationConfig.presencePenalty=0.5 is not supported"), ({"frequencyPenalty": -1},
    "frequencyPenalty"),
    ({"logprobs": 3, "responseLogprobs": True}, "responseLogprobs=true"), ({"responseModalities": ["AUDIO"]},
    "this model writes text"),
    ({"speechConfig": {}}, "speechConfig"), ({"candidateCount": 0}, "generationConfig.candidateCount must be a whole "
                                                                    "number from 1 to 128, not 0"),
    ({"candidate_count": 1e9}, "candidateCount"), ({"temperature": -1}, "generationConfig.temperature must be"),
    ({"topP": 0}, "topP"),
    ({"topK": 1.5}, "topK"), ({"maxOutputTokens": 0}, "maxOutputTokens"), ({"stopSequences": [""]},
    "generationConfig.stopSequences"),
    ({"responseMimeType": "text/x.enum"}, "use text/plain or application/json"),
    ({"responseSchema": {"type": "OBJECT"}}, "needs generationConfig.responseMimeType"),
    ({"responseMimeType": "application/json", "responseSchema": 1}, "must be a schema"), ({"thinkingConfig": 1},
    "generationConfig.thinkingConfig must be an object"),
    ({"thinkingConfig": {"includeThoughts": "yes"}}, "includeThoughts"), ({"responseLogprobs": 1}, "responseLogprobs"),
]  # fmt: skip

PART_REFUSED: list[tuple[str, Any, str]] = [
    ("user", {"inlineData": {"mimeType": "image/png", "data": ""}}, "contents[0].parts[0].inlineData is not supported: "
                                                                    "this model reads text"),
    ("user", {"file_data": {"fileUri": "x"}, "text": "t"}, "fileData"), ("model", {"executableCode": {"code": "1"}},
    "executableCode"),
    ("model", {"codeExecutionResult": {}}, "codeExecutionResult"), ("user", {"hologram": 1}, "hologram"), ("user", 3,
    "parts[0] must be an object, not 3"),
    ("user", {"text": 3}, "parts[0].text must be a string"), ("user", {"functionCall": {"name": "f"}}, "role model"),
    ("user", {"text": "x", "thought": True}, "role model"),
    ("model", {"functionResponse": {"name": "f"}}, "cannot be in a content of role model"), ("model",
    {"functionCall": {}}, "functionCall.name"),
    ("model", {"functionCall": {"name": "f", "args": "x"}}, "functionCall.args must be an object"), ("function",
    {"functionResponse": {"name": "f", "response": [1]}}, "response must be an object"),
    ("user", {"functionResponse": {"name": "f", "parts": [{"inlineData": {}}]}}, "send the whole result as response"),
    ("robot", {"text": "x"}, "contents[0].role must be one of"),
    ("user", {"functionResponse": {"name": "f", "id": 3}}, "id must be a string"), ("user",
    {"functionResponse": {"response": {}}}, "functionResponse.name"),
]  # fmt: skip

BODY_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "contents must be a list of at least one content"), ({"contents": []}, "contents must be"), ({"contents": [3]},
    "contents[0] must be an object, not 3"),
    ({"cachedContent": "cachedContents/x", "contents": "q"}, "cachedContent='cachedContents/x' is not supported"),
    *[({"contents": "q", "tools": [{kind: {}}]},
    f"tools[0].{kind} is not supported: only functionDeclarations are") for kind in ("googleSearch", "codeExecution",
    "urlContext", "googleMaps", "retrieval", "computerUse", "fileSearch")],
    ({"contents": "q", "tools": [{"function_declarations": [{"description": "x"}]}]},
    "tools[0].functionDeclarations[0].name"),
    ({"contents": "q", "tools": {"functionDeclarations": {"name": "f", "behavior": "NON_BLOCKING"}}}, "behavior"),
    ({"contents": "q", "toolConfig": {"functionCallingConfig": {"mode": "auto"}}}, "must be AUTO, ANY, VALIDATED or "
                                                                                   "NONE, not 'auto'"),
    ({"contents": "q", "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["g"]}}},
    "'g', which is not among the tools"),
    ({"contents": "q", "systemInstruction": {"parts": [{"functionCall": {"name": "f"}}]}},
    "systemInstruction.parts[0] must be text"),
    ({"contents": "q", "systemInstruction": {"parts": [{"inlineData": {}}]}}, "systemInstruction.parts[0].inlineData"),
]  # fmt: skip


def refusals() -> list[tuple[dict[str, Any], str]]:
    return [
        *[({"contents": "q", "generationConfig": config}, words) for config, words in CONFIG_REFUSED],
        *[({"contents": [{"role": role, "parts": [part]}]}, words) for role, part, words in PART_REFUSED],
        *BODY_REFUSED,
    ]


async def test_what_cannot_be_honoured_is_refused_by_name_and_recorded(house: House) -> None:
    visit = await house.open(sampling=LONG)
    for body, words in refusals():
        status, reply = await post(visit, body)
        assert (status, reply["error"]["code"], reply["error"]["status"]) == (400, 400, "INVALID_ARGUMENT"), body
        assert words in reply["error"]["message"], body
    calls = await visit.calls()
    assert [call.status for call in calls] == [CallStatus.REFUSED] * len(refusals())
    assert not house.engine.requests
    for alt in ("proto", "media"):
        status, reply = await post(visit, {"contents": "q"}, f"models/m:streamGenerateContent?alt={alt}")
        assert (status, f"alt='{alt}' is not supported" in reply["error"]["message"]) == (400, True)
    status, reply = await post(visit, {"contents": "q"}, "models/m:generateContent", method="PUT")
    assert (status, reply["error"]["code"]) == (405, 405)


async def test_the_official_client_understands_an_error(build: Build) -> None:
    house = await build(context_length=60)
    visit = await house.open(sampling=LONG)
    async with asking(visit) as client:
        for stream in (False, True):
            with pytest.raises(errors.ClientError) as caught:
                await said(client, "q" * 80, stream=stream)
            assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
            assert "exceeds the maximum number of tokens allowed (60)" in caught.value.message
            info = [each for each in caught.value.details["error"]["details"] if each["@type"].endswith("ErrorInfo")]
            assert [each["reason"] for each in info] == ["CONTEXT_LENGTH_EXCEEDED"]
        await visit.end()
        with pytest.raises(errors.ClientError) as caught:
            await said(client, "q", stream=False)
        assert caught.value.code == 410


async def test_other_methods_say_which_ones_are_served(house: House) -> None:
    visit = await house.open(sampling=LONG)
    async with asking(visit) as client:
        with pytest.raises(
            errors.ClientError, match="generateContent, streamGenerateContent and countTokens"
        ) as caught:
            await client.models.embed_content(model="text-embedding-x", contents="q")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    assert list((await visit.end()).unserved) == ["models/text-embedding-x:batchEmbedContents"]


# --------------------------------------------------------------------------- the translation alone


def request_of(body: dict[str, Any], path: str = "models/m:generateContent", **query: str) -> WireRequest:
    return read_request(WIRE, Target("POST", path, query), body, json.dumps(body).encode(), EARLIER)


def test_paths_name_the_model() -> None:
    models = {
        "models/gemini-2.5-flash:generateContent": "gemini-2.5-flash",
        "models/Qwen/Qwen3-0.6B:streamGenerateContent": "Qwen/Qwen3-0.6B",
        "models/Qwen%2FQwen3:generateContent": "Qwen/Qwen3", "models/qwen3:0.6b:generateContent": "qwen3:0.6b",
        "tunedModels/t:countTokens": "t",
        "publishers/google/models/g:generateContent": "g", "publishers/Qwen/models/q:generateContent": "Qwen/q",
        "models/m%3AgenerateContent": "m",
        "v1beta1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent": "g",
        "projects/p/locations/l/endpoints/7:generateContent": "7",
        "models/\udcff:generateContent": "?",
    }  # fmt: skip
    for path, model in models.items():
        assert find_wire(path).name == "gemini", path  # type: ignore[union-attr]
        assert request_of({"contents": "q"}, path).model == model
    assert isinstance(find_wire("models/m:embedContent"), Unserved)
    assert [
        find_wire(path)
        for path in ("models/m", "models", "models/:generateContent", "m:generateContent", "models/qwen3:8b")
    ] == [None] * 5
    assert isinstance(WIRE.use(Target("POST", "models/m:countTokens")), Count)
    assert WIRE.use(Target("GET", "models/m:countTokens")) is None
    with pytest.raises(CallError, match="NUL"):
        request_of({"contents": "q"}, "models/a%00:generateContent")


def test_both_spellings_and_all_loose_forms_are_one_request() -> None:
    result = {"name": "f", "id": "c", "response": {"output": 1}}
    camel = request_of({
        "systemInstruction": {"role": "user", "parts": [{"text": "s"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
            {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "f", "args": {"x": 1}},
            "thoughtSignature": "U0lH"}]},
            {"role": "function", "parts": [{"functionResponse": result}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "description": "d", "parameters": {"type": "OBJECT",
        "properties": {"x_y": {"type": "INTEGER"}}}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"topP": 0.5, "maxOutputTokens": 7, "stopSequences": ["x"],
        "responseMimeType": "application/json", "responseSchema": {"type": "STRING"}, "candidateCount": 2},
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}], "cachedContent": "",
        "labels": {"a": "b"}, "somethingNew": [1],
    })  # fmt: skip
    snake = request_of({
        "system_instruction": "s",
        "contents": [
            {"parts": ["a", "b"]},
            {"role": "model", "parts": {"function_call": {"id": "c", "name": "f", "args": {"x": 1}},
            "thought_signature": "U0lH"}},
            {"role": "user", "parts": {"function_response": result}},
        ],
        "tools": {"function_declarations": {"name": "f", "description": "d",
        "parameters_json_schema": {"type": "object", "properties": {"x_y": {"type": "integer"}}}}},
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["f"]}},
        "generation_config": {"top_p": 0.5, "max_output_tokens": 7.0, "stop_sequences": ["x"],
        "response_mime_type": "application/json", "response_json_schema": {"type": "string"}, "candidate_count": 2},
        "safety_settings": [], "cached_content": None,
    })  # fmt: skip
    assert replace(camel, asked={}) == replace(snake, asked={})
    assert camel.asked == {**snake.asked, "max_output_tokens": 7}
    assert camel.messages == (
        Message("system", "s"), Message("user", "a\nb"), Message("assistant", "", (ToolCall("c", "f", '{"x":1}'),)),
        Message("tool", '{"output":1}', (), "c", "f"),
    )  # fmt: skip
    assert camel.tools == (Tool("f", "d", {"type": "object", "properties": {"x_y": {"type": "integer"}}}),)
    assert (camel.tool_use.choice, camel.tool_use.names, camel.output, camel.options.n) == (
        "required",
        ("f",),
        OutputFormat({"type": "string"}),
        2,
    )
    assert (
        request_of({"contents": "q", "generationConfig": {"responseMimeType": "application/json"}}).output
        == OutputFormat()
    )
    validated = {"contents": "q", "tools": [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}}  # fmt: skip
    assert (request_of(validated).tool_use.choice, request_of(validated).tool_use.names) == ("auto", ("f", "g"))
    for mode, choice in (("AUTO", "auto"), ("NONE", "none"), ("ANY", "required"), (None, "auto")):
        assert (
            request_of({"contents": "q", "toolConfig": {"functionCallingConfig": {"mode": mode}}}).tool_use.choice
            == choice
        )


def test_results_without_ids_find_their_calls() -> None:
    def call(name: str, **more: Any) -> dict[str, Any]:
        return {"functionCall": {"name": name, "args": {}, **more}}

    def result(name: str, **more: Any) -> dict[str, Any]:
        return {"functionResponse": {"name": name, "response": {}, **more}}

    def told(calls: list[Any], *results: Any) -> list[Any]:
        contents = [Q, {"role": "model", "parts": calls}, *({"role": "user", "parts": each} for each in results)]
        messages = request_of({"contents": contents}).messages
        named = [each.id for each in messages[1].tool_calls]
        assert len(set(named)) == len(named)
        return [
            named.index(m.tool_call_id) if m.tool_call_id in named else m.tool_call_id
            for m in messages
            if m.role == "tool"
        ]

    assert told([call("f"), call("g"), call("f")], [result("f"), result("f"), result("g")]) == [0, 2, 1]
    assert told([call("f"), call("f")], [result("f")], [{"text": "wait"}], [result("f")]) == [0, 1]
    assert told([call("f", id="a"), call("f", id="b")], [result("f", id="b"), result("f")]) == [1, 0]
    assert told([call("f"), call("f")], [result("f", id="x"), result("f", id="y")]) == [0, 1], (
        "the calls lost their ids, the results did not"
    )
    assert told([call("f", id="a")], [result("f", id="stranger"), result("h"), result("f")]) == ["stranger", None, 0]
    assert told([call("f")], [result("f"), result("f")]) == [0, None]


def test_geminis_schemas_become_json_schema() -> None:
    dialect = {
        "type": "OBJECT", "description": "d", "required": ["type"], "property_ordering": ["b", "type"],
        "minProperties": "1",
        "properties": {
            "type": {"type": "STRING", "format": "enum", "enum": ["A", "B"], "nullable": True}, "b": {"type": "ARRAY",
            "min_items": "2", "items": {"type": "NUMBER"}},
            "c": {"any_of": [{"type": "INTEGER"}, {"ref": "#/defs/n"}], "nullable": True},
            "d": {"type": "TYPE_UNSPECIFIED", "nullable": False, "example": "OBJECT"},
        },
        "defs": {"n": {"type": "NULL"}},
    }  # fmt: skip
    schema = json_schema(dialect)
    assert schema == {
        "type": "object", "description": "d", "required": ["type"], "minProperties": 1,
        "properties": {
            "b": {"type": "array", "minItems": 2, "items": {"type": "number"}}, "type": {"type": ["string", "null"],
            "enum": ["A", "B", None]},
            "c": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/n"}, {"type": "null"}]}, "d": {"example": "OBJECT"},
        },
        "$defs": {"n": {"type": "null"}},
    }  # fmt: skip
    assert list(schema["properties"]) == ["b", "type", "c", "d"]
    assert json_schema(schema) == schema


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
VALUES = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
allow_infinity=False) | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
max_leaves=6)  # fmt: skip
ARGUMENTS = (
    st.dictionaries(WORDS, VALUES, max_size=3).flatmap(lambda value: st.sampled_from([json.dumps(value),
    json.dumps(value, indent=1, ensure_ascii=False)]))
    | WORDS
    | st.builds(lambda text: json.dumps({"INVALID_JSON": text}), WORDS)
)  # fmt: skip
TURNS = st.builds(
    lambda text, calls, thought: Message("assistant", text, tuple(ToolCall(f"id{i}", *call) for i,
    call in enumerate(calls)), None, None, thought or None),
    WORDS, st.lists(st.tuples(WORDS, ARGUMENTS), max_size=3), WORDS,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(TURNS, st.booleans(), st.booleans(), st.integers(1, 5))
def test_a_turn_that_comes_back_is_the_turn_that_was_given(
    turn: Message, thoughts: bool, stream: bool, size: int
) -> None:
    """Whatever it says, however it was cut into chunks, each of them a content of its own in the history."""
    config = {"thinkingConfig": {"includeThoughts": thoughts}}
    asked = request_of(
        {"contents": "q", "generationConfig": config}, f"models/m:{'streamG' if stream else 'g'}enerateContent"
    )
    reply = Reply("gen-1", 0, [Choice(turn, FinishReason.STOP, array("i"), array("f"))], 1, 2, 0)
    if stream:
        events = WIRE.stream(asked, "gen-1", 0)
        cuts = [ParsedDelta(turn.content[i : i + size]) for i in range(0, len(turn.content), size)]
        deltas = [
            *cuts,
            ParsedDelta("", turn.reasoning or ""),
            *(ParsedDelta("", "", (call,)) for call in turn.tool_calls),
        ]
        body = [
            events.heartbeat,
            events.begin(Begun(3, SamplingParams())),
            *(events.delta(0, delta) for delta in deltas),
            events.heartbeat,
            events.end(reply),
        ]
        chunks = json.loads(b"".join(body))
    else:
        chunks = [json.loads(WIRE.reply(asked, reply))]
    contents = [chunk["candidates"][0]["content"] for chunk in chunks]
    says = bool(turn.content or turn.tool_calls or (thoughts and turn.reasoning))
    assert all(
        content["parts"] and (not says or all(part.get("text") != "" for part in content["parts"]))
        for content in contents
    )
    user, back = request_of({"contents": ["q", *contents]}).messages
    assert user == Message("user", "q")
    assert equality_key(back) == equality_key(turn)
    assert ([call.id for call in back.tool_calls], back.content, back.reasoning) == (
        [call.id for call in turn.tool_calls],
        turn.content,
        turn.reasoning,
    )


def test_a_foreign_or_spoilt_signature_says_nothing() -> None:
    ours = json.loads(WIRE.reply(request_of({"contents": "q"}), Reply("g", 0, [Choice(Message("assistant", "a", (),
    None, None, "why?>"), FinishReason.STOP, array("i"), array("f"))], 1, 2,
    0)))["candidates"][0]["content"]["parts"][0]["thoughtSignature"]  # fmt: skip

    def reasoning(signature: Any, **more: Any) -> str | None:
        return (
            request_of(
                {"contents": [Q, {"role": "model", "parts": [{"text": "a", "thoughtSignature": signature, **more}]}]}
            )
            .messages[1]
            .reasoning
        )

    assert [reasoning(each) for each in (ours, ours.replace("+", "-").replace("/", "_"))] == ["why?>"] * 2
    nul, cut = base64.b64encode(b"agl/1 a\0b").decode(), base64.b64encode(b"agl/1 \xff").decode()
    assert [reasoning(each) for each in ("U0lH", "", 3, None, ours[:-3], ours[:9], nul, cut)] == [None] * 8


def test_a_number_of_any_length_reaches_the_client_as_it_was_sampled() -> None:
    turn = Message("assistant", "", (ToolCall("c", "f", '{"n": 12345678901234567890123,\n"x": 1.0}'),))
    reply = WIRE.reply(
        request_of({"contents": "q"}), Reply("g", 0, [Choice(turn, FinishReason.STOP, array("i"), array("f"))], 1, 2, 0)
    )
    assert b'{"n": 12345678901234567890123, "x": 1.0}' in reply


# --------------------------------------------------------------------------- recordings


@pytest.mark.parametrize("source", [distilled, recorded])
async def test_every_recorded_conversation_continues(build: Build, source: Callable[[], list[Recording]]) -> None:
    """What google-adk made of replies without ids; the endpoint says what the recorded one said."""
    if not source():
        pytest.skip("the full recordings are not part of the repository")
    house = await build()
    continued = 0
    async with aiohttp.ClientSession() as client:
        for recording in source():
            if not all("enerateContent" in request["path"] for request in recording["requests"]):
                continue
            visit = await house.open(sampling=LONG)
            for request, answered in zip(recording["requests"], recording["replies"], strict=False):
                told = answered["json"].get("candidates", [{"content": {"parts": [{"text": "ok"}]}}])[0]["content"][
                    "parts"
                ]
                house.engine.script = [saying(told)]
                async with client.post(visit.endpoint.root_url + request["path"], json=request["body"]) as response:
                    assert response.status == 200, await response.text()
                    body = await response.json()
                chunks = body if isinstance(body, list) else [body]
                contents = [
                    types.GenerateContentResponse.model_validate(chunk).candidates[0].content for chunk in chunks
                ]
                assert together(contents) == together([types.Content.model_validate({"parts": told})])
            branches = [call.branch for call in await visit.calls()]
            repeats = len({json.dumps(request["body"]) for request in recording["requests"]}) == 1
            assert branches == ["root", *["forked" if repeats else "continued"] * (len(branches) - 1)]
            continued += branches.count("continued")
            assert (await visit.end()).incomplete == 0
    assert continued >= (10 if source is recorded else 5)


def saying(parts: list[dict[str, Any]]) -> str:
    """What the model has to sample for a recorded reply."""
    text = "".join(f"<think>{part['text']}</think>" if part.get("thought") else part.get("text", "") for part in parts)
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    return text + "".join(
        f'<tool_call>{{"name": "{call["name"]}", "arguments": {json.dumps(call["args"])}}}</tool_call>'
        for call in calls
    )


async def post(
    visit: Visit, body: dict[str, Any], path: str = "models/m:generateContent", method: str = "POST"
) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as client:
        async with client.request(method, f"{visit.endpoint.root_url}/v1beta/{path}", json=body) as reply:
            return reply.status, await reply.json()
