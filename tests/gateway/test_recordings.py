"""Chat requests that frameworks really sent, played against a gateway that says what the recorded endpoint said.

What each client made of the reply (re-serialised arguments, dropped reasoning, null or absent content, names, lists of parts) has to continue the
recorded tokens, and what it changed has to be a branch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.gateway.conftest import Build, House, Paths, Visit
from tests.gateway.recorded import Recording, distilled, recorded

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
    calls = [(call["function"]["name"], value_of(call["function"]["arguments"])) for call in message.get("tool_calls") or []]
    role = {"developer": "system"}.get(message["role"], message["role"])
    return json.dumps([role, text_of(message.get("content")).strip(), calls], sort_keys=True)


def saying(message: dict[str, Any]) -> str:
    """What the model has to sample for the recorded reply."""
    said = f"<think>{message['reasoning_content']}</think>" if message.get("reasoning_content") else ""
    said += message.get("content") or ""
    for call in message.get("tool_calls") or []:
        said += f'<tool_call>{{"name": "{call["function"]["name"]}", "arguments": {call["function"]["arguments"]}}}</tool_call>'
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
        self.turns.append(Turn([plain(each) for each in body["messages"]], json.dumps(body.get("tools")), plain(ours), reply["id"]))

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
async def test_every_recorded_chat_continues_as_its_client_meant_it(build: Build, source: Callable[[], list[Recording]]) -> None:
    if not source():
        pytest.skip("the full recordings are not part of the repository")
    house = await build()
    tally: Counter[str] = Counter()
    async with aiohttp.ClientSession() as client:
        for recording in source():
            turns = [
                (request, reply)
                for request, reply in zip(recording["requests"], recording["replies"], strict=False)
                if request["path"].endswith("/chat/completions") and isinstance(reply.get("json"), dict) and "choices" in reply["json"]
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
