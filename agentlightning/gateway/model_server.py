"""The gateway for a model that is used and not trained. Clients send a key in a header, as to any API, and
nothing is recorded.

Each request is an attempt of its own, which is forgotten with its reply: what is kept from one to the next is the
engine's prefix cache, the warnings that were given, and the last Responses replies that clients may refer to, so many
and no more. So it may run for days.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast
from weakref import WeakSet

from aiohttp import web

from agentlightning.gateway.calls import OpenCall
from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.served import Served
from agentlightning.gateway.server import Gateway, below
from agentlightning.gateway.session import Session
from agentlightning.gateway.tree import Leaf
from agentlightning.gateway.wires.base import CallError, Conversation, Reply, Target, WireRequest
from agentlightning.nouns import Attempt, Call, Mode, Node, Reward, Rollout, SamplingParams, Status
from agentlightning.settings.fields import GatewayConfig, SamplingConfig
from agentlightning.store.base import Store

KEPT_REPLIES = 1_000
"""Responses replies, and conversations, that may be referred to; the oldest are forgotten first."""

ID = "served"

V = TypeVar("V")


class NullStore:
    """What a session needs of a store, recording nothing. ``calls`` counts the replies that were written to their
    end."""

    def __init__(self) -> None:
        self.calls = 0

    async def record(self, call: Call, nodes: Sequence[Node]) -> None:
        del nodes
        self.calls += bool(call.samples)

    async def set_call_status(self, call_id: str, status: str) -> None:
        """Nothing is recorded of the call."""

    async def add_reward(self, reward: Reward) -> None:
        raise CallError(
            404, f"a reward of {reward.value:g} is for a model that is trained; this one is served", code="not_served"
        )

    async def rewards(self, rollout_id: str) -> list[Reward]:
        del rollout_id
        return []


class _Bounded(OrderedDict[str, V]):
    """A mapping that forgets its oldest entries."""

    def __setitem__(self, key: str, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > KEPT_REPLIES:
            self.popitem(last=False)


class RecentReplies(KeptReplies):
    """The last replies of all clients."""

    def __init__(self) -> None:
        super().__init__()
        self.conversations = _Bounded[Conversation]()
        self._order: OrderedDict[str, None] = OrderedDict()

    def keep(self, request: WireRequest, reply: Reply, leaf: Leaf) -> None:
        super().keep(request, reply, leaf)
        self._order[reply.id] = None
        while len(self._order) > KEPT_REPLIES:
            oldest, _ = self._order.popitem(last=False)
            self.forget(oldest)

    def forget(self, call_id: str) -> bool:
        self._order.pop(call_id, None)
        return super().forget(call_id)


class UnrecordedSession(Session):
    """One request. A client's own seed repeats its reply."""

    def _params(
        self, call: OpenCall, request: WireRequest, policy: Served, grammar: str | None
    ) -> list[SamplingParams]:
        if request.sampling.seed is not None:
            self.rollout = replace(self.rollout, seed=0)
        return super()._params(call, request, policy, grammar)


class ModelServer(Gateway):
    """Answers on all wires below ``/`` and ``/v1``. ``key`` is what clients have to send, None lets everybody in.
    ``sampling`` are defaults: the client's own values win, but for its ``max_tokens``, which are at most those."""

    def __init__(self, policy: Served, config: GatewayConfig, sampling: SamplingConfig, key: str | None) -> None:
        self.record = NullStore()
        config = config.model_copy(update={"orphan_grace": 0.0})
        # Of a store a session needs what NullStore has.
        super().__init__(cast("Store", self.record), {policy.name: policy}, config)
        self._sampling = sampling.model_copy(update={"owner": "agent"})
        self._key = key
        self._kept_replies = RecentReplies()
        self._live: WeakSet[Session] = WeakSet()

    def _addressed(self, request: web.BaseRequest) -> tuple[str | None, str | None, Target]:
        path, _, query = request.raw_path.partition("?")
        target = below([part for part in path.split("/") if part], request.method, query)
        return _key_of(request, target.query), None, target

    def _session(self, key: str) -> Session:
        if self._key is not None and not hmac.compare_digest(
            key.encode("utf-8", "surrogateescape"), self._key.encode()
        ):
            what = "no key was sent" if not key else "the key that was sent is not valid"
            raise CallError(
                401,
                f"{what}: send the one that `agl serve` printed (OPENAI_API_KEY)",
                code="invalid_api_key",
                retry=False,
            )
        if self._draining:
            raise CallError(503, "the server is shutting down", code="shutting_down", retry=False)
        rollout = Rollout(ID, ID, None, Mode.VAL, 0, 0, secrets.randbits(62), 0)
        session = UnrecordedSession(
            self._shared,
            rollout,
            Attempt(ID, ID, 1, ID, Status.RUNNING, 0.0, 0.0),
            tries=1,
            sampling=self._sampling,
            resources={},
            kept_replies=self._kept_replies,
        )
        self._live.add(session)
        return session

    async def _drain(self) -> None:
        live = list(self._live)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain):
                for session in live:
                    await session.calls.idle()
        for session in live:
            await session.end()
        await asyncio.sleep(0)  # let those whose call was withdrawn hear of it


def _key_of(request: web.BaseRequest, query: Mapping[str, Any]) -> str:
    """The key that a client sends, in the way of its API; "" where it sends none."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    return (
        request.headers.get("x-api-key")
        or request.headers.get("x-goog-api-key")
        or request.headers.get("api-key")
        or query.get("key", "")
    )
