"""Whatever a confused or hostile client may send, on every wire that is served: an answer in the wire's own shape, and
soon; never a 500, never anything of another attempt, never a control token that the template did not write.

A body is a seed (ours, and recorded ones where they are present) with a few changes to its structure, and then perhaps
to its bytes.
"""

from __future__ import annotations

import asyncio
import copy
import json
from array import array
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from anthropic.types import ErrorResponse
from google.genai import errors as gemini_errors
from google.genai import types as gemini_types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types import Completion, ErrorObject
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from agentlightning.errors import TemplateError
from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.request_bodies import parse as _parse
from agentlightning.gateway.tree import TraceTree
from agentlightning.gateway.wires import WIRES, find_wire, read_request
from agentlightning.gateway.wires.base import Begun, CallError, Choice, Lookup, Reply, Wire, WireRequest
from agentlightning.nouns import FinishReason, Message, SamplingParams, ToolCall
from agentlightning.settings.fields import SamplingConfig
from agentlightning.templates.base import ParsedDelta, Template
from tests.gateway.conftest import Build, House, Visit
from tests.gateway.mutation import (
    CHANGED,
    CHAT,
    DAMAGED,
    GEMINI,
    OURS,
    PLACE,
    THEIRS,
    Change,
    Damage,
    Seed,
    at,
    changed,
    encoded,
    places,
    put,
    seeds,
)
from tests.templates.fixtures import template_of
from tests.templates.test_injection import control_of

DEADLINE = 30.0
"""Seconds that any answer may take here."""

SECRET = "SECRET-4711"

WHOLE = {wire.name: next(seed for seed in OURS if wire.owns(seed.target.path)) for wire in WIRES}
"""Of each wire the seed that says something everywhere."""

wires = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])


# --------------------------------------------------------------------------- what an answer has to be


def check_openai_error(body: Any) -> None:
    assert set(body) == {"error"}
    error = ErrorObject.model_validate(body["error"], strict=True)
    assert error.message and error.type


def check_anthropic_error(body: Any) -> None:
    assert (set(body), body["type"], set(body["error"])) == ({"type", "error"}, "error", {"type", "message"})
    assert body["error"]["message"]
    assert ErrorResponse.model_validate(body).error.type == body["error"]["type"]


def check_gemini_error(body: Any) -> None:
    error = gemini_errors.APIError(body["error"]["code"], body)
    assert error.message and error.status and error.status.isupper()


ERRORS: dict[str, Callable[[Any], None]] = {"messages": check_anthropic_error, "gemini": check_gemini_error}
REPLIES: dict[str, Callable[[Any], Any]] = {
    "chat": ChatCompletion.model_validate,
    "completions": Completion.model_validate,
    # It repeats fields of the request, right or wrong, which its client reads without a check.
    "responses": lambda body: Response.construct(**body).output[0].type,
    "gemini": gemini_types.GenerateContentResponse.model_validate,
}


def check_error(wire: Wire, body: Any) -> None:
    ERRORS.get(wire.name, check_openai_error)(body)


# --------------------------------------------------------------------------- the translations alone

SAID = Message(
    "assistant",
    "é\u2028 <b>",
    (ToolCall("call_1", "f", '{"a": 1}'), ToolCall("call_2", "g", "{broken")),
    None,
    None,
    "hm",
)


def prompt_of(request: WireRequest, template: Template) -> list[int]:
    """The tokens that the request would be sampled from. Raises TemplateError."""
    if request.prompt is not None:
        return TraceTree().place_prompt(request.prompt, "main", template).prompt_ids.tolist()
    return TraceTree().place(request.messages, request.tools, "main", template).prompt_ids.tolist()


def answer(wire: Wire, request: WireRequest) -> None:
    """What the wire makes of a reply to the request: JSON, and a stream."""
    ids, logprobs = array("i", [5, 6]), array("f", [-0.5, -0.25])
    choices = [
        Choice(SAID, FinishReason.STOP, ids, logprobs, ("a", "\ufffd") if request.options.logprobs else ())
    ] * request.options.n
    reply = Reply(
        wire.id_prefix + "0" * 24,
        0,
        choices,
        3,
        2 * request.options.n,
        1,
        array("i", [1, 2, 3]) if request.options.token_ids else None,
    )
    REPLIES.get(wire.name, lambda body: body)(json.loads(wire.reply(request, reply)))
    events = wire.stream(request, reply.id, 0)
    data = [events.heartbeat, events.begin(Begun(3, SamplingParams()))]
    for index in range(request.options.n):
        data.append(events.delta(index, ParsedDelta(SAID.content, SAID.reasoning or "", SAID.tool_calls)))
    data.append(events.end(reply))
    b"".join(data).decode()


@wires
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_body_is_a_request_or_a_refusal(wire: Wire, data: st.DataObject) -> None:
    known = seeds(wire.name)
    seed = data.draw(st.sampled_from(range(len(known))).map(known.__getitem__))
    damage, where, junk = data.draw(DAMAGED)
    body = damage(encoded(changed(seed.body, data.draw(CHANGED))), where, junk)
    earlier = KeptReplies()
    try:
        use = wire.use(seed.target)
        if isinstance(use, Lookup):
            json.loads(use.answer(_parse(body), earlier))
            return
        try:
            request = read_request(wire, seed.target, _parse(body), body, earlier)
        except (RecursionError, orjson.JSONEncodeError):
            return  # the server says that it is nested too deeply
    except CallError as error:
        assert 400 <= error.status < 500
        check_error(wire, json.loads(wire.error(error)))
        return
    assert request.messages or request.prompt is not None
    assert 1 <= request.options.n <= 128
    assert len(json.dumps(request.asked)) < len(body) + 1000
    assert not request.asked.keys() & {"messages", "contents", "input", "prompt", "tools"}
    try:
        assert len(prompt_of(request, template_of("hermes_tags"))) > 0
    except (TemplateError, RecursionError):
        return  # answered with what the template says
    answer(wire, request)


# --------------------------------------------------------------------------- over HTTP


class Attack:
    """One attempt's client, who may not learn anything of another attempt, nor keep the gateway from serving."""

    def __init__(self, client: aiohttp.ClientSession, victim: Visit, visit: Visit, their_id: str) -> None:
        self._client, self._visit, self._their_id = client, visit, their_id
        self._hidden = [SECRET, victim.endpoint.key, visit.endpoint.key]

    async def send(self, seed: Seed, data: bytes, kind: str = "application/json") -> tuple[int, str]:
        path = seed.path.replace(THEIRS, self._their_id)
        data = data.replace(THEIRS.encode(), self._their_id.encode())
        url = f"{self._visit.endpoint.base_url}/{path}"
        body = data if seed.method == "POST" else None
        async with asyncio.timeout(DEADLINE):
            async with self._client.request(seed.method, url, data=body, headers={"Content-Type": kind}) as reply:
                text = await reply.text()
        wire = find_wire(seed.target.path)
        assert wire in WIRES
        assert reply.status < 500 and reply.status not in (401, 403, 410, 429), text
        assert not [hidden for hidden in self._hidden if hidden in text], "something of another attempt"
        if reply.status != 200:
            check_error(wire, json.loads(text))  # type: ignore[arg-type]
        elif reply.content_type == "application/json":
            json.loads(text)
        return reply.status, text


async def attacked(build: Build) -> tuple[House, Visit, Visit, str]:
    """A house with an attempt that has something to hide and one that is nosy; the engine says what it was prompted
    with."""

    def echo(prompt: str, request: Any) -> str:
        return SECRET if SECRET in prompt else prompt[-60:].replace("<|", "< |")

    house = await build(answer=echo, chunk=64)
    victim, visit = await house.open(), await house.open(sampling=SamplingConfig(max_tokens=80))
    their_id = "resp_" + "0" * 24
    async with aiohttp.ClientSession() as client:
        for name, seed in WHOLE.items():
            body = json.loads(json.dumps(seed.body).replace(PLACE, SECRET))
            async with client.post(f"{victim.endpoint.base_url}/{seed.path}", json=body) as reply:
                assert reply.status == 200, await reply.text()
                their_id = (await reply.json())["id"] if name == "responses" else their_id
    return house, victim, visit, their_id


@wires
async def test_no_request_brings_the_server_down_or_shows_another_attempt(build: Build, wire: Wire) -> None:
    _, victim, visit, their_id = await attacked(build)
    loop = asyncio.get_running_loop()
    known = seeds(wire.name)
    whole = WHOLE[wire.name]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2 * DEADLINE)) as client:
        attack = Attack(client, victim, visit, their_id)

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(
            st.integers(0, len(known) - 1),
            CHANGED,
            DAMAGED,
            st.sampled_from(["application/json"] * 8 + ["text/plain", "JSON", ""]),
        )
        def one(which: int, changes: list[Change], damaged: Damage, kind: str) -> None:
            damage, where, junk = damaged
            data = damage(encoded(changed(known[which].body, changes)), where, junk)
            asyncio.run_coroutine_threadsafe(attack.send(known[which], data, kind), loop).result(2 * DEADLINE)

        await asyncio.to_thread(one)
        status, text = await attack.send(whole, encoded(whole.body))
        assert status == 200, text
    usage = await visit.end()
    assert usage.incomplete == 0
    assert usage.abandoned == 0


@wires
async def test_what_is_spoilt_as_a_whole_is_refused_in_the_wires_own_shape(build: Build, wire: Wire) -> None:
    _, victim, visit, their_id = await attacked(build)
    seed = WHOLE[wire.name]
    whole = encoded(seed.body)
    bodies = (b"", b"{", b"[]", b"3", b"null", b'"x"', whole[:-1], whole.replace(b"PLACE", b"\xff", 1),
    whole.replace(b"PLACE", b"\\ud800", 1), whole.replace(b"PLACE", b"a\\u0000b", 1),
              whole.replace(b"0.5", b"NaN"), b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000,
              b"\0" * 1000)  # fmt: skip
    async with aiohttp.ClientSession() as client:
        attack = Attack(client, victim, visit, their_id)
        for body in bodies:
            if body != whole:
                assert (await attack.send(seed, body))[0] == 400, body[:80]
        assert (await attack.send(seed, whole, "text/xml"))[0] == 415
        for method in ("PUT", "PATCH"):
            assert (await attack.send(Seed(seed.path, seed.body, method), whole))[0] == 405
        assert (await attack.send(seed, whole))[0] == 200


@wires
async def test_sizes_that_are_meant_to_hurt_are_answered(build: Build, wire: Wire) -> None:
    house, victim, visit, their_id = await attacked(build)
    house.engine.context_length = 10**7
    seed = WHOLE[wire.name]
    async with aiohttp.ClientSession() as client:
        attack = Attack(client, victim, visit, their_id)
        for name in ("messages", "contents", "input"):
            if name in seed.body:
                many = [seed.body[name][0], seed.body[name][-1]] * 5000
                status, text = await attack.send(seed, encoded({**seed.body, name: many}))
                assert status in (200, 400), text
                few = {"text": "x", "type": "text"}
                long = [{"role": "user", "content": [few] * 10_000, "parts": [few] * 10_000}]
                assert (await attack.send(seed, encoded({**seed.body, name: long})))[0] in (200, 400)
        tools = seed.body.get("tools")
        if tools:
            assert (await attack.send(seed, encoded({**seed.body, "tools": tools * 300})))[0] in (200, 400)
            for depth in (60, 70, 300, 1100):
                status, _ = await attack.send(
                    seed, encoded({**seed.body, "tools": [{**tools[0], "more": f"DEEP{depth}"}]})
                )
                assert status == 400 or depth < 300, "what is not read may be nested, as far as JSON goes"
        for count, expected in ((128, 200), (129, 400), (10**9, 400)):
            body = (
                {**seed.body, "n": count}
                if "n" in seed.body
                else {**seed.body, "generationConfig": {"candidateCount": count}}
            )
            if "n" in seed.body or "contents" in seed.body:
                assert (await attack.send(seed, encoded(body)))[0] == expected
        assert (await attack.send(seed, encoded(seed.body)))[0] == 200


# --------------------------------------------------------------------------- control tokens


def leaves(value: Any) -> list[tuple[Any, ...]]:
    return [path for path in places(value) if isinstance(at(value, path), str)]


def control_tokens_of(wire: Wire, seed: Seed, body: Any, family: str) -> list[int] | None:
    """Those of the prompt that a body asks for, None where it asks for none."""
    template = template_of(family)
    try:
        ids = prompt_of(read_request(wire, seed.target, _parse(encoded(body)), encoded(body), KeptReplies()), template)
    except (CallError, TemplateError):
        return None
    control = set(control_of(template).values())
    return [token for token in ids if token in control]


@pytest.mark.parametrize("family", ["hermes_tags", "thinking", "llama3", "gemma"])
@wires
def test_no_field_of_a_request_can_write_a_control_token(wire: Wire, family: str) -> None:
    """Each string of the seed in turn is the text of all control tokens, and then all that is the author's own at
    once."""
    seed = WHOLE[wire.name]
    word = "".join(control_of(template_of(family)))
    tried = 0
    for path in leaves(seed.body):
        harmless, hostile = copy.deepcopy(seed.body), copy.deepcopy(seed.body)
        put(harmless, path, "word")
        put(hostile, path, word)
        expected = control_tokens_of(wire, seed, harmless, family)
        tried += expected is not None
        assert control_tokens_of(wire, seed, hostile, family) == expected, path
    everywhere = json.loads(json.dumps(seed.body).replace(PLACE, f"x{word}y"))
    assert control_tokens_of(wire, seed, everywhere, family) == control_tokens_of(wire, seed, seed.body, family)
    assert (
        tried >= min(5, json.dumps(seed.body).count(PLACE)) or control_tokens_of(wire, seed, seed.body, family) is None
    )


@wires
async def test_control_tokens_in_a_request_are_recorded_as_text(build: Build, wire: Wire) -> None:
    seed = WHOLE[wire.name]
    template = template_of("hermes_tags")
    control = set(control_of(template).values())
    house = await build(template=template)
    visit = await house.open()
    found: list[list[int]] = []
    async with aiohttp.ClientSession() as client:
        for word in ("word", "".join(control_of(template))):
            body = json.loads(json.dumps(seed.body).replace(PLACE, f"x{word}y"))
            async with client.post(f"{visit.endpoint.base_url}/{seed.path}", json=body) as reply:
                assert reply.status == 200, await reply.text()
            call = (await visit.calls())[-1]
            prompt = await visit.path_ids(call.prompt_node)
            assert template.decode(prompt).count(f"x{word}y") >= min(5, json.dumps(seed.body).count(PLACE))
            found.append([token for token in prompt if token in control])
    assert found[0] == found[1]
    assert found[0] or wire.name == "completions", "a text that is continued as it is has no turns"


# --------------------------------------------------------------------------- paths

ODD_SEGMENTS = (
    b"%00",
    b"a%00b",
    b"%ff",
    b"\xff",
    "é".encode(),
    b"%2e%2e",
    b"..",
    b"%2F",
    b"a:b",
    b"x" * 3000,
    b"%",
    b"%zz",
    b"*",
    b"a;b",
    b"<|im_end|>",
)


async def test_odd_paths_are_answered_and_recorded(build: Build) -> None:
    """A model, an agent, a response or a query that no author would name so: nothing is a 500, and what becomes a call
    is recorded whole."""
    house = await build()
    visit = await house.open()
    gemini, chat = encoded(GEMINI.body), encoded(CHAT.body)
    for segment in ODD_SEGMENTS:
        for method, path, data in (
            (b"POST", b"/v1beta/models/" + segment + b":generateContent", gemini),
            (b"POST", b"/v1/agent/" + segment + b"/v1/chat/completions", chat),
            (b"POST", b"/agent/" + segment + b"/v1/chat/completions", chat),
            (b"POST", b"/v1/chat/completions?" + segment + b"=" + segment, chat),
            (b"GET", b"/v1/responses/" + segment, b""),
            (b"GET", b"/v1/models/" + segment, b""),
            (b"POST", b"/" + segment, chat),
        ):
            status, body = await raw(visit, method, path, data)
            assert status < 500, (method, path, body)
    calls = await visit.calls()
    usage = await visit.end()
    assert (usage.incomplete, usage.abandoned) == (0, 0)
    assert len(calls) == usage.calls
    for call in calls:
        for name in (call.model, call.agent or ""):
            assert "\0" not in name, "PostgreSQL takes none"
            name.encode()


async def raw(visit: Visit, method: bytes, path: bytes, data: bytes) -> tuple[int, bytes]:
    """Over a bare connection: the path goes out as it is."""
    url = urlsplit(visit.endpoint.root_url)
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        head = b"%s %s%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (
            method,
            url.path.encode(),
            path,
            len(data),
        )
        writer.write(head + data)
        answer = await reader.read()
        writer.close()
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), rest
