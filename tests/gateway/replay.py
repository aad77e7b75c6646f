"""Recordings of agent frameworks played once more, on every wire, streamed or not, exactly as their clients sent them;
and an independent judge of it.

The gateway says what the recorded endpoint said. Each reply has to be one that the client's own types accept, event by
event, and to say the same. Each request is then judged by a plain comparison of what the client sent, which shares no
code with the trace tree: it *extends* an earlier call where its history begins with that call's whole history and reply
(equal roles, stripped text, tool names and argument values) under the same tools. Then its prompt has to begin with all
of that call's tokens; where it does not extend one, the judge says what was changed, and it has to be a branch.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, get_args

import aiohttp
from anthropic import types as anthropic
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from google.genai import types as gemini
from openai.types import ErrorObject, chat, responses
from openai.types.responses.response_stream_event import ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError

from agentlightning.engines.grammar import Grammars
from agentlightning.settings.fields import SamplingConfig
from tests.gateway.conftest import House, Paths, Visit, until
from tests.gateway.recorded import Recording
from tests.gateway.scripted import ScriptedEngine
from tests.tiny import tiny_tokenizer

Json = dict[str, Any]

UNSENT = frozenset(
    (
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "x-api-key",
        "x-goog-api-key",
    )
)
"""Recorded headers that are the connection's or the key's, not the client's."""

SAID_INSTEAD = "ok"
"""What is said where the recorded endpoint answered with an error each time."""


class KeepingEngine(ScriptedEngine):
    """One that takes every grammar that a real engine would; what it says is scripted all the same."""

    async def check_grammar(self, grammar: str) -> None:
        _grammars().check(grammar)


@cache
def _grammars() -> Grammars:
    return Grammars(tiny_tokenizer(), 259)


# --------------------------------------------------------------------------- plain forms


def text_of(content: Any) -> str:
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content or ""


def value_of(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@dataclass
class Turn:
    """A message in plain form: role, stripped text, and the calls' names and values."""

    role: str
    text: str
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def key(self) -> str:
        return json.dumps(
            [{"developer": "system"}.get(self.role, self.role), self.text.strip(), self.calls], sort_keys=True
        )


def spoken(text: str, calls: Iterable[tuple[str, str]], reasoning: str | None = None) -> str:
    """What the model has to sample for a reply."""
    said = f"<think>{reasoning}</think>" if reasoning else ""
    return (
        said
        + text
        + "".join(f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>' for name, arguments in calls)
    )


def accepted(kind: Any, data: Any) -> None:
    """Raises ValidationError where ``data`` is not of the client's own type, strictly."""
    _adapter(kind).validate_json(json.dumps(data), strict=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def events_of(text: str) -> list[tuple[str | None, str]]:
    """Name and data of each event of a stream."""
    found: list[tuple[str | None, str]] = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        if data:
            name = next((line.removeprefix("event:").strip() for line in lines if line.startswith("event:")), None)
            found.append((name, "\n".join(data)))
    return found


# --------------------------------------------------------------------------- one reader per wire


class Reader(Protocol):
    """What one API's bodies and replies say, written independently of the gateway's wires."""

    def owns(self, path: str) -> bool: ...

    def says(self, reply: Json) -> list[str]:
        """What has to be sampled for a recorded reply, one text per choice."""
        ...

    def read(self, body: Json, path: str, text: str) -> Json:
        """The reply in its whole form, put together where it was streamed. Raises ValidationError or ValueError where
        the client would not take it."""
        ...

    def turn(self, reply: Json) -> Turn: ...

    def ids(self, reply: Json) -> list[str]:
        """The ids by which a later request may refer to the reply, in the same order for equal replies."""
        ...

    def history(self, body: Json, known: Mapping[str, Any]) -> list[Turn]:
        """``known``: earlier replies and their histories by id, for clients that only refer to them."""
        ...

    def error(self, data: Any) -> None:
        """Raises ValidationError or KeyError where it is no error of this API's."""
        ...


class Chat:
    def owns(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def says(self, reply: Json) -> list[str]:
        return [
            spoken(
                choice["message"].get("content") or "",
                [
                    (call["function"]["name"], call["function"]["arguments"])
                    for call in choice["message"].get("tool_calls") or ()
                ],
                choice["message"].get("reasoning_content"),
            )
            for choice in reply["choices"]
        ]

    def read(self, body: Json, path: str, text: str) -> Json:
        if not body.get("stream"):
            reply = json.loads(text)
            accepted(chat.ChatCompletion, reply)
            return reply
        events = [data for _, data in events_of(text)]
        if events.pop() != "[DONE]":
            raise ValueError("the stream has no end")
        message: Json = {"role": "assistant", "content": None}
        calls: dict[int, Json] = {}
        whole: Json = {"id": None, "choices": [{"message": message}]}
        for event in map(json.loads, events):
            accepted(chat.ChatCompletionChunk, event)
            whole["id"] = event["id"]
            for choice in event["choices"]:
                delta = choice["delta"]
                if choice["index"]:
                    continue
                if delta.get("content"):
                    message["content"] = (message["content"] or "") + delta["content"]
                for part in delta.get("tool_calls") or ():
                    call = calls.setdefault(
                        part["index"], {"id": part.get("id"), "function": {"name": "", "arguments": ""}}
                    )
                    call["function"]["name"] += part["function"].get("name") or ""
                    call["function"]["arguments"] += part["function"].get("arguments") or ""
        message["tool_calls"] = [calls[i] for i in sorted(calls)]
        return whole

    def turn(self, reply: Json) -> Turn:
        return self._plain({**reply["choices"][0]["message"], "role": "assistant"})

    def ids(self, reply: Json) -> list[str]:
        return [call["id"] for call in reply["choices"][0]["message"].get("tool_calls") or ()]

    def history(self, body: Json, known: Mapping[str, Any]) -> list[Turn]:
        return [self._plain(message) for message in body["messages"]]

    def error(self, data: Any) -> None:
        accepted(ErrorObject, data["error"])

    def _plain(self, message: Json) -> Turn:
        calls = [
            (call["function"]["name"], value_of(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        return Turn(message["role"], text_of(message.get("content")), calls)


RESPONSE_EVENTS: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}


class Responses:
    def owns(self, path: str) -> bool:
        return path.endswith("/responses")

    def says(self, reply: Json) -> list[str]:
        said = ""
        for item in reply["output"]:
            if item["type"] == "function_call":
                said += spoken("", [(item["name"], item["arguments"])])
            else:
                said += (
                    spoken("", [], item["content"][0]["text"])
                    if item["type"] == "reasoning"
                    else item["content"][0]["text"]
                )
        return [said]

    def read(self, body: Json, path: str, text: str) -> Json:
        reply: Json = json.loads(text) if not body.get("stream") else {}
        if body.get("stream"):
            for name, data in events_of(text):
                event = json.loads(data)
                if name != event["type"]:
                    raise ValueError(f"event {name} says that it is {event['type']}")
                accepted(RESPONSE_EVENTS[event["type"]], event)
                reply = event.get("response", reply)
            if reply.get("status") not in ("completed", "incomplete"):
                raise ValueError("the stream has no end")
        accepted(responses.Response, reply)
        return reply

    def turn(self, reply: Json) -> Turn:
        [turn] = self._plain(reply["output"], {}) or [Turn("assistant", "")]
        return turn

    def ids(self, reply: Json) -> list[str]:
        kinds = ("reasoning", "message", "function_call")
        items = sorted(
            (item for item in reply["output"] if item["type"] in kinds), key=lambda item: kinds.index(item["type"])
        )
        return [reply["id"], *(item[name] for item in items for name in ("id", "call_id") if name in item)]

    def history(self, body: Json, known: Mapping[str, Any]) -> list[Turn]:
        turns = self._plain(body["input"], known)
        if before := body.get("previous_response_id"):
            turns = [*known[before], *turns]
        return [Turn("system", body["instructions"]), *turns] if body.get("instructions") else turns

    def error(self, data: Any) -> None:
        accepted(ErrorObject, data["error"])

    def _plain(self, items: Any, known: Mapping[str, Any]) -> list[Turn]:
        turns: list[Turn] = []
        for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
            item = known[item["id"]] if item.get("type") == "item_reference" else item
            kind = item.get("type", "message")
            role = "tool" if kind == "function_call_output" else item.get("role", "assistant")
            text = (
                text_of(item.get("content"))
                if kind == "message"
                else text_of(item.get("output"))
                if role == "tool"
                else ""
            )
            calls = [(item["name"], value_of(item["arguments"]))] if kind == "function_call" else []
            if role == "assistant" and turns and turns[-1].role == role:
                turns[-1].text += text
                turns[-1].calls += calls
            else:
                turns.append(Turn(role, text, calls))
        return turns


class Messages:
    def owns(self, path: str) -> bool:
        return path.endswith("/messages")

    def says(self, reply: Json) -> list[str]:
        said = ""
        for block in reply["content"]:
            if block["type"] == "tool_use":
                said += spoken("", [(block["name"], json.dumps(block["input"], indent=1))])
            else:
                said += spoken("", [], block["thinking"]) if block["type"] == "thinking" else block["text"]
        return [said]

    def read(self, body: Json, path: str, text: str) -> Json:
        beta = "beta=true" in path
        if not body.get("stream"):
            reply = json.loads(text)
            accepted(BetaMessage if beta else anthropic.Message, reply)
            return reply
        reply, last = {}, ""
        for name, data in events_of(text):
            event = json.loads(data)
            last = event["type"]
            if name != last:
                raise ValueError(f"event {name} says that it is {last}")
            if last == "ping":
                continue
            accepted(BetaRawMessageStreamEvent if beta else anthropic.RawMessageStreamEvent, event)
            if last == "message_start":
                reply = event["message"]
            elif last == "content_block_start":
                reply["content"].append(event["content_block"])
            elif last == "content_block_delta":
                block, delta = reply["content"][event["index"]], event["delta"]
                if delta["type"] == "input_json_delta":
                    block["input"] = (block["input"] or "") + delta["partial_json"]
                else:
                    name = delta["type"].removesuffix("_delta")
                    block[name] = (block.get(name) or "") + delta[name]
            elif last == "message_delta":
                reply |= {
                    key: value for key, value in event["delta"].items() if key in ("stop_reason", "stop_sequence")
                }
        if last != "message_stop":
            raise ValueError("the stream has no end")
        for block in reply["content"]:
            if isinstance(block.get("input"), str):
                block["input"] = json.loads(block["input"] or "{}")
        accepted(BetaMessage if beta else anthropic.Message, reply)
        return reply

    def turn(self, reply: Json) -> Turn:
        return self._plain("assistant", reply["content"])[0]

    def ids(self, reply: Json) -> list[str]:
        return [block["id"] for block in reply["content"] if block["type"] == "tool_use"]

    def history(self, body: Json, known: Mapping[str, Any]) -> list[Turn]:
        system = [Turn("system", text_of(body["system"]))] if body.get("system") else []
        return [
            *system,
            *(turn for message in body["messages"] for turn in self._plain(message["role"], message["content"])),
        ]

    def error(self, data: Any) -> None:
        accepted(anthropic.ErrorResponse, data)

    def _plain(self, role: str, content: Any) -> list[Turn]:
        turn, results = Turn(role, ""), list[Turn]()
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "text":
                turn.text += block["text"]
            elif block["type"] == "tool_use":
                turn.calls.append((block["name"], block["input"]))
            elif block["type"] == "tool_result":
                results.append(Turn("tool", text_of(block["content"])))
        return [*results, turn] if turn.text.strip() or turn.calls or not results else results


class Gemini:
    def owns(self, path: str) -> bool:
        return "enerateContent" in path

    def says(self, reply: Json) -> list[str]:
        parts = reply["candidates"][0]["content"]["parts"]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        thoughts = "".join(part.get("text", "") for part in parts if part.get("thought"))
        text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
        return [spoken(text, [(call["name"], json.dumps(call["args"])) for call in calls], thoughts)]

    def read(self, body: Json, path: str, text: str) -> Json:
        streamed = "alt=sse" in path
        found = json.loads(f"[{','.join(data for _, data in events_of(text))}]" if streamed else text)
        chunks = found if isinstance(found, list) else [found]
        for chunk in chunks:
            accepted(gemini.GenerateContentResponse, chunk)
        if not chunks or not chunks[-1]["candidates"][0].get("finishReason"):
            raise ValueError("the reply has no end")
        parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"].get("parts") or ()]
        return {"id": chunks[0]["responseId"], "candidates": [{"content": {"role": "model", "parts": parts}}]}

    def turn(self, reply: Json) -> Turn:
        return self._plain("model", reply["candidates"][0]["content"]["parts"])[0]

    def ids(self, reply: Json) -> list[str]:
        return []  # the recorded replies had none

    def history(self, body: Json, known: Mapping[str, Any]) -> list[Turn]:
        instruction = body.get("systemInstruction") or body.get("system_instruction")
        system = [Turn("system", text_of(instruction["parts"]))] if instruction else []
        contents = [
            turn for content in body["contents"] for turn in self._plain(content.get("role", "user"), content["parts"])
        ]
        return [*system, *contents]

    def error(self, data: Any) -> None:
        if not isinstance(data["error"]["code"], int) or not all(
            isinstance(data["error"][name], str) for name in ("message", "status")
        ):
            raise ValueError(f"no error of this API's: {data!r:.80}")

    def _plain(self, role: str, parts: list[Json]) -> list[Turn]:
        results = [
            Turn("tool", json.dumps(part["functionResponse"]["response"]))
            for part in parts
            if "functionResponse" in part
        ]
        text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
        calls = [
            (part["functionCall"]["name"], part["functionCall"].get("args") or {})
            for part in parts
            if "functionCall" in part
        ]
        return (
            results if results and not text else [*results, Turn("assistant" if role == "model" else role, text, calls)]
        )


READERS: tuple[Reader, ...] = (Chat(), Responses(), Messages(), Gemini())


def reader_of(path: str) -> Reader:
    return next(reader for reader in READERS if reader.owns(path.partition("?")[0]))


# --------------------------------------------------------------------------- the judge


@dataclass
class Asked:
    """A request that was answered, in plain form. ``text`` is its whole body."""

    call_id: str
    history: list[str]
    reply: str
    tools: str
    reply_ids: list[str]
    text: str

    @property
    def whole(self) -> list[str]:
        return [*self.history, self.reply]

    def extends(self, before: Asked) -> bool:
        return self.tools == before.tools and self.history[: len(before.whole)] == before.whole

    def refers_to(self, before: Asked) -> bool:
        """By an id, by the reply's exact words, or by all that came before the reply."""
        grown = len(self.history) > len(before.history) and self.history[: len(before.history)] == before.history
        return grown or any(each in self.text for each in before.reply_ids) or before.reply in self.history[1:]


def why_not(asked: Asked, earlier: Sequence[Asked]) -> str:
    """What a client changed, in words, of the earlier call that it comes nearest to."""

    def agreement(before: Asked) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(asked.history, before.whole, strict=False)) if a != b), len(before.whole)
        )

    named = [before for before in earlier if asked.refers_to(before)]
    if not named:
        return "nothing in it was sampled" if earlier else "the first prompt"
    before = max(named, key=lambda each: (agreement(each), len(each.whole)))
    at = agreement(before)
    if at >= len(before.whole):
        return "the tools are others"
    theirs = json.loads(asked.history[at]) if at < len(asked.history) else ["nothing", "", []]
    ours = json.loads(before.whole[at])
    if at == len(before.history) and theirs[0] != "assistant":
        return "the turn that was sampled was left out"
    if theirs[0] != ours[0]:
        return f"a message of role {theirs[0]} where one of role {ours[0]} was"
    if ours[0] != "assistant":
        return f"the {ours[0]} message is another"
    if [name for name, _ in theirs[2]] != [name for name, _ in ours[2]]:
        return "a call is missing, or written as text"
    return "the text of a turn is another" if theirs[1] != ours[1] else "the arguments of a call are others"


# --------------------------------------------------------------------------- playing


@dataclass
class Outcome:
    """What became of one recording's requests. ``wrong`` names each that was not as it has to be."""

    requests: int = 0
    answered: int = 0
    """With status 200, a refusal by name or, to a repeat, the reply that was given already. Not those that their client
    left."""
    accepted: int = 0
    """By the client's own types."""
    refused: Counter[str] = field(default_factory=Counter)
    left: int = 0
    """Their client hung up before any reply."""
    repeats: int = 0
    """Retries that got the reply of the call that they repeat."""
    extensions: int = 0
    stitched: int = 0
    branches: Counter[str] = field(default_factory=Counter)
    """Of the requests that are no extension: the gateway's reason and the judge's."""
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for name in ("requests", "answered", "accepted", "left", "repeats", "extensions", "stitched"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused += other.refused
        self.branches += other.branches
        self.wrong += other.wrong


class Play:
    """One recording against one attempt."""

    def __init__(self, house: House, visit: Visit, recording: Recording) -> None:
        self.house, self.visit, self.recording = house, visit, recording
        self.outcome = Outcome()
        self.asked: list[Asked] = []
        self.renamed: dict[str, str] = {}
        self.known: dict[str, Any] = {}

    async def run(self, client: aiohttp.ClientSession) -> Outcome:
        pairs = list(zip(self.recording["requests"], self.recording["replies"], strict=True))
        for i, (request, reply) in enumerate(pairs):
            self.outcome.requests += 1
            reader = reader_of(request["path"])
            told = self._told(pairs, i)
            self.house.engine.script = reader.says(told) if told else [SAID_INSTEAD]
            # A recorded reply may have fewer choices than the request asks for.
            self.house.engine.script *= max(1, request["body"].get("n") or 1)
            if reply["status"] is None:
                await self._leave(client, request)
            else:
                await self._ask(client, request, reader, told)
        await self._judge()
        return self.outcome

    def _told(self, pairs: list[tuple[Json, Json]], i: int) -> Json | None:
        """What the recorded endpoint said, here or, where it refused to, when it was asked the same again."""
        for request, reply in pairs[i:]:
            if request["body"] == pairs[i][0]["body"] and reply["status"] == 200 and isinstance(reply["json"], dict):
                return reply["json"]
        return None

    def _request(self, request: Json) -> tuple[str, Json, dict[str, str]]:
        text = json.dumps(request["body"])
        for theirs, ours in self.renamed.items():
            text = text.replace(theirs, ours)
        path = request["path"] + (f"?{request['query']}" if request.get("query") else "")
        headers = {name: value for name, value in (request.get("headers") or {}).items() if name not in UNSENT}
        return path, json.loads(text), headers

    async def _leave(self, client: aiohttp.ClientSession, request: Json) -> None:
        """The client hangs up while the model samples."""
        path, body, headers = self._request(request)
        self.outcome.left += 1
        before, self.house.engine.hold = (
            self.visit.session.usage.calls + self.visit.session.usage.repeats,
            asyncio.Event(),
        )
        asking = asyncio.create_task(self._post(client, path, body, headers))
        await until(lambda: self.visit.session.usage.calls + self.visit.session.usage.repeats > before)
        asking.cancel()
        await until(self.visit.orphans)
        self.house.engine.hold.set()

    async def _post(
        self, client: aiohttp.ClientSession, path: str, body: Json, headers: Mapping[str, str]
    ) -> tuple[int, str]:
        async with client.post(self.visit.endpoint.root_url + path, json=body, headers=headers) as response:
            return response.status, await response.text()

    async def _ask(self, client: aiohttp.ClientSession, request: Json, reader: Reader, told: Json | None) -> None:
        path, body, headers = self._request(request)
        status, text = await self._post(client, path, body, headers)
        if status == 400 and (field := _unsupported(text)):
            reader.error(json.loads(text))
            self.outcome.refused[field] += 1
            body = {key: value for key, value in body.items() if key not in (field, "logprobs")}
            status, text = await self._post(client, path, body, headers)
        if status != 200:
            self.outcome.wrong.append(f"{self._name()}: answered {status}: {text[:200]}")
            return
        self.outcome.answered += 1
        try:
            reply = reader.read(body, path, text)
        except (ValidationError, ValueError, KeyError) as error:
            self.outcome.wrong.append(f"{self._name()}: its client takes no such reply: {error}")
            return
        self.outcome.accepted += 1
        turn = reader.turn(reply).key()
        if told is not None and turn != reader.turn(told).key():
            self.outcome.wrong.append(f"{self._name()}: it said {turn}, recorded is {reader.turn(told).key()}")
        if told is not None:
            self.renamed |= dict(zip(reader.ids(told), reader.ids(reply), strict=True))
        if any(asked.call_id == reply["id"] for asked in self.asked):
            self.outcome.repeats += 1
            return
        history = reader.history(body, self.known)
        if isinstance(reader, Responses):
            lead = 1 if body.get("instructions") else 0
            self.known |= {item["id"]: item for item in reply["output"]} | {
                reply["id"]: [*history[lead:], reader.turn(reply)]
            }
        tools = json.dumps(body.get("tools"))
        self.asked.append(
            Asked(reply["id"], [each.key() for each in history], turn, tools, reader.ids(reply), json.dumps(body))
        )

    def _name(self) -> str:
        recording = self.recording
        return f"{recording['framework']} {recording['mode']} {recording['scenario']}, request {self.outcome.requests}"

    async def _judge(self) -> None:
        calls = {call.id: call for call in await self.visit.calls()}
        paths = Paths(await self.visit.nodes())
        for i, asked in enumerate(self.asked):
            call, earlier = calls[asked.call_id], self.asked[:i]
            extended = [before for before in earlier if asked.extends(before)]
            same = any(before.history == asked.history and before.tools == asked.tools for before in earlier)
            name = (
                f"{self.recording['framework']} {self.recording['mode']} {self.recording['scenario']}, call "
                f"{call.index} ({call.branch})"
            )
            if extended:
                self.outcome.extensions += 1
                most = max(len(before.whole) for before in extended)
                wholes = [
                    paths.ids(calls[before.call_id].samples[0].node) for before in extended if len(before.whole) == most
                ]
                prompt = paths.ids(call.prompt_node)
                # Where a longer call could be gone on from but for its tools, the label says so.
                longer = any(
                    len(before.whole) > most and asked.history[: len(before.whole)] == before.whole
                    for before in earlier
                )
                labels = ("tools_changed",) if longer else ("continued", "forked")
                if call.branch in labels and any(prompt[: len(whole)] == whole for whole in wholes):
                    self.outcome.stitched += 1
                else:
                    self.outcome.wrong.append(f"{name}: it extends an earlier call, but is not one path with it")
            else:
                why = "the same prompt once more" if same else why_not(asked, earlier)
                self.outcome.branches[f"{call.branch}: {why}"] += 1
                expected = {"the same prompt once more": "forked", "the first prompt": "root"}.get(why)
                if call.branch == "continued" or (expected and call.branch != expected):
                    self.outcome.wrong.append(f"{name}: {why}")


def _unsupported(text: str) -> str | None:
    """The field that a refusal names."""
    error = json.loads(text).get("error", {})
    return error.get("param") if error.get("code") == "unsupported_parameter" else None


async def played(
    house: House, recordings: Sequence[Recording], done: Callable[[Recording, Outcome], None] | None = None
) -> dict[str, Outcome]:
    """All recordings, each as an attempt of its own, by framework."""
    by_framework: dict[str, Outcome] = defaultdict(Outcome)
    async with aiohttp.ClientSession() as client:
        for recording in recordings:
            visit = await house.open(sampling=SamplingConfig(max_tokens=100_000))
            outcome = await Play(house, visit, recording).run(client)
            usage = await visit.end()
            if usage.incomplete:
                outcome.wrong.append(
                    f"{recording['framework']} {recording['mode']} {recording['scenario']}: the attempt is incomplete"
                )
            by_framework[recording["framework"]].add(outcome)
            if done is not None:
                done(recording, outcome)
    return dict(by_framework)
