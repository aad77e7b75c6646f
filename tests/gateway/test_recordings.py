"""Requests that frameworks really sent, played against a gateway that says what the recorded endpoint said.

What each client made of the reply (re-serialised arguments, dropped reasoning, null or absent content, names, lists of
parts) has to continue the recorded tokens, and what it changed has to be a branch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from agentlightning.gateway import Served, tree
from tests.gateway.conftest import Build, House, Paths, Visit
from tests.gateway.recorded import Recording, distilled, fullest, recorded
from tests.gateway.replay import KeepingEngine, Outcome, Play, played
from tests.gateway.scripted import GlassTemplate

UNSUPPORTED = ("response_format", "top_logprobs")


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def value_of(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def plain(message: dict[str, Any]) -> str:
    """A message as the gateway should see it, written independently of it."""
    calls = [
        (call["function"]["name"], value_of(call["function"]["arguments"])) for call in message.get("tool_calls") or []
    ]
    role = {"developer": "system"}.get(message["role"], message["role"])
    return json.dumps([role, text_of(message.get("content")).strip(), calls], sort_keys=True)


def saying(message: dict[str, Any]) -> str:
    """What the model has to sample for the recorded reply."""
    said = f"<think>{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
    said += message.get("content") or ""
    for call in message.get("tool_calls") or []:
        said += (
            f'<tool_call>{{"name": "{call["function"]["name"]}", "arguments": '
            f"{call['function']['arguments']}}}</tool_call>"
        )
    return said


@dataclass
class Turn:
    """A request as it was answered: its history and reply in plain form."""

    history: list[str]
    tools: str
    reply: str
    call_id: str

    def extends(self, before: Turn) -> bool:
        return self.history[: len(before.history) + 1] == [*before.history, before.reply]


class Replay:
    """One recording against one attempt."""

    def __init__(self, house: House, visit: Visit) -> None:
        self.house, self.visit = house, visit
        self.turns: list[Turn] = []
        self.ids: dict[str, str] = {}

    async def play(self, client: aiohttp.ClientSession, request: dict[str, Any], recorded: dict[str, Any]) -> None:
        body = json.loads(self._renamed(json.dumps(request["body"])))
        if body.get("tool_choice") not in (None, "auto", "none") or any(body.get(name) for name in UNSUPPORTED):
            status, reply = await self._post(client, request["path"], body)
            assert (status, reply["error"]["code"]) == (400, "unsupported_parameter")
            for name in (*UNSUPPORTED, "tool_choice"):
                body.pop(name, None)
        message = recorded["json"]["choices"][0]["message"]
        self.house.engine.script = [saying(message)] * (body.get("n") or 1)
        status, reply = await self._post(client, request["path"], {**body, "stream": False, "max_tokens": 200})
        assert status == 200, reply
        ours = reply["choices"][0]["message"]
        assert plain(ours) == plain({**message, "role": "assistant"})
        assert reply["usage"]["total_tokens"] > 0
        for theirs, mine in zip(message.get("tool_calls") or [], ours.get("tool_calls") or [], strict=True):
            self.ids[theirs["id"]] = mine["id"]
        self.turns.append(
            Turn([plain(each) for each in body["messages"]], json.dumps(body.get("tools")), plain(ours), reply["id"])
        )

    async def check(self) -> Counter[str]:
        """Each request's place in the tree is the one that a plain comparison of the messages gives."""
        calls = {call.id: call for call in await self.visit.calls()}
        paths = Paths(await self.visit.nodes())
        for i, turn in enumerate(self.turns):
            call, earlier = calls[turn.call_id], self.turns[:i]
            extended = [before for before in earlier if before.tools == turn.tools and turn.extends(before)]
            if any(before.history == turn.history and before.tools == turn.tools for before in earlier):
                assert call.branch == "forked"
            elif extended:
                most = max(len(before.history) for before in extended)
                elsewhere = any(turn.extends(before) and len(before.history) > most for before in earlier)
                assert call.branch in ({"tools_changed"} if elsewhere else {"continued", "forked"}), turn
                prompt = paths.ids(call.prompt_node)
                wholes = [paths.ids(calls[before.call_id].samples[0].node) for before in extended]
                assert any(prompt[: len(whole)] == whole for whole in wholes), turn
            else:
                assert call.branch in ("root", "new", "edited", "tools_changed"), turn
        return Counter(calls[turn.call_id].branch for turn in self.turns)

    def _renamed(self, text: str) -> str:
        for theirs, mine in self.ids.items():
            text = text.replace(theirs, mine)
        return text

    async def _post(self, client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with client.post(self.visit.endpoint.root_url + path, json=body) as reply:
            return reply.status, await reply.json()


@pytest.mark.parametrize("source", [distilled, recorded])
async def test_every_recorded_chat_continues_as_its_client_meant_it(
    build: Build, source: Callable[[], list[Recording]]
) -> None:
    if not source():
        pytest.skip("the full recordings are not part of the repository")
    house = await build()
    tally: Counter[str] = Counter()
    async with aiohttp.ClientSession() as client:
        for recording in source():
            turns = [
                (request, reply)
                for request, reply in zip(recording["requests"], recording["replies"], strict=False)
                if request["path"].endswith("/chat/completions")
                and isinstance(reply.get("json"), dict)
                and "choices" in reply["json"]
            ]
            if not turns:
                continue
            visit = await house.open()
            replay = Replay(house, visit)
            for request, reply in turns:
                await replay.play(client, request, reply)
            tally += await replay.check()
            assert (await visit.end()).incomplete == 0
    print(dict(tally))
    assert tally["continued"] > (250 if source is recorded else 120)
    assert tally["template"] == 0


# --------------------------------------------------------------------------- every wire, exactly as it was sent


async def keeping(build: Build) -> House:
    template = GlassTemplate()
    engine = KeepingEngine(template, context_length=10**7, chunk=64)
    house = await build(policies={"main": Served("main", engine, template)})
    house.engine = engine
    return house


async def test_every_recorded_request_is_answered_and_every_extension_is_one_path(build: Build) -> None:
    """On every wire, streamed where the client streams. benchmarks/recordings.py prints the same by framework."""
    outcomes = await played(await keeping(build), fullest())
    total = Outcome()
    for outcome in outcomes.values():
        total.add(outcome)
    assert total.wrong == []
    assert len(outcomes) >= 19
    assert total.requests == total.answered + total.left
    assert total.accepted == total.answered
    assert set(total.refused) == {"top_logprobs"}
    assert total.stitched == total.extensions >= 300
    # What frameworks really change. No such request goes on with tokens that its client did not mean.
    reasons = {each.partition(":")[0] for each in total.branches}
    assert reasons == {"root", "new", "edited", "tools_changed", *(["forked"] if "forked" in reasons else [])}


CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{ "a":1 }'}}
Q = {"role": "user", "content": "q"}


def chatted(*histories: list[dict[str, Any]], tools: tuple[Any, ...] = (1, 1)) -> Recording:
    """A recording of chats that were answered with one call each."""
    bodies = [
        {"model": "m", "messages": history, "tools": [{"type": "function", "function": {"name": f"f{tool}"}}]}
        for history, tool in zip(histories, tools, strict=True)
    ]
    said = {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [CALLED]}}]}
    return {
        "framework": "x", "mode": "chat", "scenario": "plain",
        "requests": [{"method": "POST", "path": "/v1/chat/completions", "query": "", "body": body} for body in bodies],
        "replies": [{"status": 200, "json": said} for _ in bodies],
    }  # fmt: skip


def answered_with(arguments: str = '{"a": 1}', content: str | None = None, **more: Any) -> list[dict[str, Any]]:
    call = {**CALLED, "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "assistant", "content": content, "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ]


@pytest.mark.parametrize(
    ("second", "tools", "extensions", "branches"),
    [
        ([Q, *answered_with()], (1, 1), 1, {}),
        ([Q, *answered_with('{"a": 2}')], (1, 1), 0, {"edited: the arguments of a call are others": 1}),
        ([Q, *answered_with(content="Oh.")], (1, 1), 0, {"edited: the text of a turn is another": 1}),
        (
            [Q, {"role": "assistant", "content": "f"}, Q],
            (1, 1),
            0,
            {"edited: a call is missing, or written as text": 1},
        ),
        ([{"role": "user", "content": "p"}, *answered_with()], (1, 1), 0, {"edited: the user message is another": 1}),
        ([Q, *answered_with()], (1, 2), 0, {"tools_changed: the tools are others": 1}),
        ([Q, Q], (1, 1), 0, {"new: the turn that was sampled was left out": 1}),
        ([{"role": "user", "content": "other"}], (1, 1), 0, {"new: nothing in it was sampled": 1}),
        ([Q], (1, 1), 0, {"forked: the same prompt once more": 1}),
    ],
)
async def test_the_judge_tells_an_extension_from_what_was_changed(
    build: Build, second: list[dict[str, Any]], tools: tuple[int, int], extensions: int, branches: dict[str, int]
) -> None:
    house = await keeping(build)
    recording = chatted([Q], second, tools=tools)
    async with aiohttp.ClientSession() as client:
        outcome = await Play(house, await house.open(), recording).run(client)
    assert outcome.wrong == []
    assert (outcome.requests, outcome.accepted, outcome.extensions, outcome.stitched) == (2, 2, extensions, extensions)
    assert outcome.branches == {"root: the first prompt": 1, **branches}


async def test_the_judge_notices_a_splice_that_is_none_and_an_extension_that_is_not_spliced(
    build: Build, monkeypatch: Any
) -> None:
    house = await keeping(build)
    edited, whole = chatted([Q], [Q, *answered_with('{"a": 2}')]), chatted([Q], [Q, *answered_with()])
    wrong: list[str] = []
    async with aiohttp.ClientSession() as client:
        for recording, key in ((edited, lambda message: (message.role, "", ())), (whole, lambda message: id(message))):
            monkeypatch.setattr(tree, "equality_key", key)
            wrong += (await Play(house, await house.open(), recording).run(client)).wrong
    assert len(wrong) == 2, wrong
    assert "arguments" in wrong[0] and "not one path" in wrong[1]
