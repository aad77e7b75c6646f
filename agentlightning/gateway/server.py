"""The gateway's HTTP server: routing, keys, error bodies, disconnects and drain. It runs on a thread and an event loop
of its own.

What a call means is the session's business, what a body means the wire's. A key in the path is good for its own attempt
alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import gc
import logging
import math
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import orjson
from aiohttp import web

from agentlightning.agent.resources import LLM
from agentlightning.errors import AgentLightningError, ConfigError, RewardRefused, StoreError
from agentlightning.gateway.agent_names import GUESSED, named_by_body, named_by_request
from agentlightning.gateway.call_order import CallOrder
from agentlightning.gateway.calls import OpenCall
from agentlightning.gateway.compaction import Compact
from agentlightning.gateway.connections import Listener
from agentlightning.gateway.encoder import Encoder
from agentlightning.gateway.ended_attempts import EndedAttempts
from agentlightning.gateway.external.http import pass_on
from agentlightning.gateway.external.upstream import ROUTES, Outgoing, Upstreams, described
from agentlightning.gateway.http_responses import EVENTS, JSON, begin, drop, identity_of, retry_count, send
from agentlightning.gateway.request_bodies import parse, parse_list, read_body, readable
from agentlightning.gateway.served import Notices, Served
from agentlightning.gateway.session import Session, Shared
from agentlightning.gateway.wires import find_wire, read_request, wire_of_client
from agentlightning.gateway.wires.base import Begun, CallError, Count, Lookup, Reply, ReplyStream, Target, Wire
from agentlightning.gateway.wires.models import model, models
from agentlightning.gateway.wires.unserved import TAKES, Unserved
from agentlightning.nouns import MAX_REWARD, Attempt, Json, Reason, Reward, Rollout
from agentlightning.records.traces import AttemptTrace
from agentlightning.records.usage import AttemptUsage
from agentlightning.settings.fields import EvaluationConfig, GatewayConfig, SamplingConfig
from agentlightning.store.base import Store
from agentlightning.text import clean_name
from agentlightning.tracing.names import CALL_ID
from agentlightning.tracing.spans import spans_of

logger = logging.getLogger("agentlightning.gateway")

T = TypeVar("T")

LAST_WORDS = 1.0
"""Seconds after an attempt's end in which what is still being written to its clients may go out."""


@dataclass(frozen=True, slots=True)
class AgentEndpoint:
    """What an agent is given: `base_url` for clients that append `/chat/completions`, `root_url` for those that append
    `/v1/...`."""

    base_url: str
    root_url: str
    key: str
    model: str


class Gateway:
    """The endpoint that agents take for an ordinary LLM API. One per run; ``policies`` maps names to what they are
    served by, the default first, and ``external`` those of other people's models to where their calls are passed on.
    ``compact`` shortens histories that have grown past a model's context. Without any policy only the external models
    are served, and a name that none of them has is refused.

    Its methods may be awaited from any event loop.
    """

    def __init__(
        self,
        store: Store,
        policies: Mapping[str, Served],
        config: GatewayConfig,
        *,
        deterministic: bool = False,
        external: Mapping[str, LLM] = {},
        compact: Compact | None = None,
    ) -> None:
        self._store = store
        self._policies = dict(policies)
        self._config = config
        self._encoder = Encoder()
        own = {name for key, policy in policies.items() for name in (key, policy.name, *policy.model_names)}
        self._upstreams = Upstreams(external, own, config.upstream_timeout)
        self._shared = Shared(
            store,
            self._policies,
            self._encoder,
            self._upstreams,
            Notices(),
            CallOrder() if deterministic else None,
            config.orphan_grace,
            compact,
            config.tool_error_reward,
        )
        self._sessions: dict[bytes, Session] = {}
        self._keys: dict[str, bytes] = {}
        self.ended = EndedAttempts(store)
        self._answering: dict[str, set[asyncio.Transport]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._draining = False
        self._url = ""

    # ----------------------------------------------------------------- life
    @property
    def url(self) -> str:
        """`http://HOST:PORT`, once started."""
        if not self._url:
            raise AgentLightningError("the gateway has not been started")
        return self._url

    @property
    def default_policy(self) -> str:
        """The name of the policy that a call gets which names no other; "" where there is none."""
        return next((policy.name for policy in self._policies.values()), "")

    def has_token(self, token: int) -> bool:
        """Whether the default policy's vocabulary has a token of this id; of all where there is no policy."""
        return all(policy.template.decode([token]) for policy in list(self._policies.values())[:1])

    async def start(self) -> None:
        """Binds the port and serves. Raises ConfigError where the address cannot be used."""
        if self._thread is not None:
            raise AgentLightningError("a gateway is started once")
        listener = bind(self._config)
        started: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._serve, args=(listener, started), name="agl-gateway", daemon=True)
        self._thread.start()
        self._url = await asyncio.wrap_future(started)

    async def open(
        self,
        rollout: Rollout,
        attempt: Attempt,
        *,
        sampling: SamplingConfig | EvaluationConfig,
        resources: Mapping[str, Json] = {},
        external: Mapping[str, LLM] = {},
    ) -> AgentEndpoint:
        """Opens an attempt, which must be in the store, under a fresh key. ``external`` are models of somebody else's
        that its version of the resources has besides those of the gateway, or in their place."""
        return await self._call(self._open(rollout, attempt, sampling, resources, external))

    async def end(self, attempt_id: str) -> AttemptUsage:
        """Revokes the attempt's key (410 from now on), settles or withdraws its open calls and forgets it. A second
        call gives the same usage."""
        return await self._call(self._end(attempt_id))

    async def close(self) -> None:
        """Takes no new connections, gives open calls ``drain`` seconds, then ends what is left and stops. A second call
        does nothing."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None or self._stop is None or not thread.is_alive():
            return
        if not self._draining:
            self._draining = True
            loop.call_soon_threadsafe(self._stop.set)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` on the gateway's own loop."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise AgentLightningError("the gateway is not running")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _serve(self, listener: socket.socket, started: concurrent.futures.Future[str]) -> None:
        loop = self._loop = _new_loop()
        asyncio.set_event_loop(loop)
        collected = _collect_rarely()
        try:
            loop.run_until_complete(self._main(listener, started))
            loop.run_until_complete(loop.shutdown_asyncgens())
        except Exception as error:  # the thread's only way to tell is the future
            if started.done():
                raise
            started.set_exception(error)
        finally:
            gc.set_threshold(*collected)
            asyncio.set_event_loop(None)
            loop.close()

    async def _main(self, listener: socket.socket, started: concurrent.futures.Future[str]) -> None:
        self._stop = asyncio.Event()
        server = Listener(self._handle, _told, int(self._config.max_body_mb * 2**20))
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        site = web.SockSite(runner, listener, backlog=1024)
        await site.start()
        started.set_result(f"http://{_reached_by(self._config.host)}:{listener.getsockname()[1]}")
        await self._stop.wait()
        await site.stop()
        await self._drain()
        await self._upstreams.close()
        await runner.cleanup()
        self._encoder.close()

    async def _drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain):
                for session in list(self._sessions.values()):
                    await session.calls.idle()
        for attempt_id in list(self._keys):
            await self._end(attempt_id)
        await asyncio.sleep(0)  # let those whose call was withdrawn hear of it

    async def _open(
        self,
        rollout: Rollout,
        attempt: Attempt,
        sampling: SamplingConfig | EvaluationConfig,
        resources: Mapping[str, Json],
        external: Mapping[str, LLM],
    ) -> AgentEndpoint:
        if attempt.id in self._keys:
            raise AgentLightningError(f"attempt {attempt.id} is already open at the gateway")
        if self._draining:
            raise AgentLightningError("the gateway is shutting down")
        tries = await self._tries(attempt)
        key = secrets.token_urlsafe(32)
        digest = _hash(key)
        shared = replace(self._shared, upstreams=self._upstreams.laid_over(external)) if external else self._shared
        self._keys[attempt.id] = digest
        self._sessions[digest] = Session(shared, rollout, attempt, tries=tries, sampling=sampling, resources=resources)
        root = f"{self._url}/a/{key}"
        return AgentEndpoint(f"{root}/v1", root, key, self._default_model(shared.upstreams))

    def _default_model(self, upstreams: Upstreams) -> str:
        """What an agent that names no model of its own is told to ask for; "" where no model is served."""
        for policy in self._policies.values():
            return policy.model_names[0] if policy.model_names else policy.name
        return upstreams.default

    async def _tries(self, attempt: Attempt) -> int:
        """Which try of the agent's this is. One that was cut short from outside is tried again as it was, with the same
        seeds: so a resumed run repeats itself."""
        if attempt.number == 1:
            return 1
        before = [
            other.failure for other in await self._store.attempts(attempt.rollout_id) if other.number < attempt.number
        ]
        return 1 + sum(
            1 for failure in before if failure is not None and failure.reason not in (Reason.LOST, Reason.CANCELLED)
        )

    async def _end(self, attempt_id: str) -> AttemptUsage:
        digest = self._keys.pop(attempt_id, None)
        if digest is None:
            if (usage := self.ended.usage_of(attempt_id)) is not None:
                return usage
            raise AgentLightningError(f"attempt {attempt_id} was never opened at this gateway")
        session = self._sessions.pop(digest)
        self.ended.add(digest, attempt_id, session.usage)
        session.usage.engine.note_end()
        usage = await session.end()
        if answering := self._answering.pop(attempt_id, None):
            asyncio.get_running_loop().call_later(LAST_WORDS, _cut, answering)
        return usage

    # ----------------------------------------------------------------- requests
    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request. What goes wrong is answered in the shape of the wire that the path belongs to."""
        key, agent, target = self._addressed(request)
        path = target.path
        found = find_wire(path)
        shape = wire_of_client(request.raw_path, request.headers) if found is None or _is_shared(found) else found
        try:
            if key is None:
                raise CallError(
                    404,
                    "there is nothing at this path: use the base URL that the agent was given (OPENAI_BASE_URL)",
                    code="unknown_url",
                )
            if agent == "":
                raise CallError(
                    404,
                    "the path names no agent: write /a/KEY/agent/NAME/v1/... with the agent's name for NAME",
                    code="unknown_url",
                )
            if (late := await self.ended.refusal(_hash(key), found, path, agent)) is not None:
                raise late
            session = self._session(key)
            answering, transport = self._answering.setdefault(session.attempt.id, set()), request.transport
            if transport is None:
                raise ConnectionResetError("the client has left")
            answering.add(transport)
            try:
                return await self._route(request, session, found, target, agent)
            finally:
                answering.discard(transport)
        except CallError as error:
            return await _send_error(request, shape, error)
        except ConnectionError:
            raise
        except Exception:  # a defect of ours is answered in the caller's shape too
            logger.exception("a request for %s could not be answered", path)
            return await _send_error(
                request, shape, CallError(500, "the gateway failed; its log says how", code="internal_error")
            )

    def _addressed(self, request: web.BaseRequest) -> tuple[str | None, str | None, Target]:
        return _target(request.method, request.raw_path)

    async def _route(
        self,
        request: web.BaseRequest,
        session: Session,
        found: Wire | Unserved | None,
        target: Target,
        agent: str | None,
    ) -> web.StreamResponse:
        path = target.path
        session.usage.note_client(readable(request.headers.get("User-Agent", "")))
        if path == "rewards":
            return await self._rewards(request, session)
        if path == "spans":
            return await self._spans(request, session)
        if found is None and path.split("/", 1)[0] == "models":
            return await self._models(request, session, path)
        if isinstance(found, Unserved) and path in ROUTES and request.method == "POST" and session.external.names:
            body = await read_body(request)
            parsed = parse(body)
            if (upstream := session.external.named(target, parsed)) is not None:
                named = named_by_request(agent, request.headers, target.query)
                name, _ = named or named_by_body(described(parsed), request.headers, self._config.agents)
                return await pass_on(
                    request, session, found, upstream, Outgoing.of(target, body, request.headers), name
                )
        if found is None or isinstance(found, Unserved):
            refusal = found.refusal() if found is not None else _nothing_at(path)
            session.usage.note_unserved(path, refusal.message)
            raise refusal
        return await self._answer(request, session, found, target, agent)

    def _session(self, key: str) -> Session:
        # Found by a hash of the key: how long the look-up takes says nothing about a key that is nearly right.
        digest = _hash(key)
        session = self._sessions.get(digest)
        if session is None:
            raise CallError(401, "the key in the base URL's path is not valid", code="invalid_api_key", retry=False)
        if self._draining:
            raise CallError(503, "the gateway is shutting down", code="shutting_down", retry=False)
        return session

    async def _answer(
        self, request: web.BaseRequest, session: Session, wire: Wire, target: Target, agent: str | None
    ) -> web.StreamResponse:
        named = named_by_request(agent, request.headers, target.query)
        agent = named[0] if named is not None else None
        use = wire.use(target)
        if use is None and request.headers.get("Upgrade", "").lower() == "websocket":
            raise CallError(
                404,
                f"a WebSocket on {target.path} is not served: send each request with POST, with stream=true for events",
                code="not_served",
            )
        if use is None:
            raise CallError(
                405,
                f"{target.path} does not take {target.method}: {TAKES.get(target.path, 'it takes POST')}",
                code="method_not_allowed",
            )
        if isinstance(use, Lookup):
            body = await read_body(request) if request.can_read_body else b""
            return await send(request, use.answer(parse(body) if body else {}, session.kept_replies), 200, JSON)
        try:
            body = await read_body(request)
            parsed = parse(body)
            upstream = session.external.named(target, parsed)
            asked = (
                read_request(wire, target, parsed, body, session.kept_replies)
                if upstream is None
                else described(parsed)
            )
        except CallError as error:
            await session.refuse(wire, error, agent=agent)
            raise
        except (
            RecursionError,
            orjson.JSONEncodeError,
        ) as error:  # what was JSON once can only be too deep to be written again
            refusal = CallError(400, "the request is nested too deeply")
            await session.refuse(wire, refusal, agent=agent)
            raise refusal from error
        agent, how = named or named_by_body(asked, request.headers, self._config.agents)
        if upstream is not None:
            return await pass_on(request, session, wire, upstream, Outgoing.of(target, body, request.headers), agent)
        session.usage.note_agent(agent, how, asked.messages, asked.tools)
        if isinstance(use, Count):
            return await send(request, use.written(session.count(asked)), 200, JSON)
        identity = identity_of(request, body, target, agent)
        try:
            call = session.submit(wire, asked, identity, retry=retry_count(request), agent=agent)
        except CallError as error:
            await session.refuse(wire, error, model=asked.model, agent=agent)
            raise
        if how in GUESSED:
            session.usage.unsaid[call.id] = agent
        try:
            if asked.options.stream:
                return await self._stream(request, session, call, wire.stream(asked, call.id, int(call.received_at)))
            return await self._whole(request, session, call, partial(wire.reply, asked))
        finally:
            session.calls.left(call)

    async def _whole(
        self, request: web.BaseRequest, session: Session, call: OpenCall, written: Callable[[Reply], bytes]
    ) -> web.StreamResponse:
        """Sends the JSON body. While it is waited for, spaces before it keep the client from giving up: they commit
        status 200, so they begin once nothing about the request can be refused any more; what goes wrong after that
        drops the connection."""
        response: web.StreamResponse | None = None
        try:
            while not await call.settled(self._config.heartbeat):
                if call.begun:
                    response = response or await begin(request, _headers(call))
                    await response.write(b" ")
            reply = call.reply()
            await session.calls.acknowledge(call)
        except CallError:
            if response is None:
                raise
            return drop(request, response)
        session.calls.delivered(call)
        try:
            if response is None:
                return await send(request, written(reply), 200, _headers(call))
            await response.write(written(reply))
            await response.write_eof()
            return response
        except BaseException:
            session.calls.undelivered(call)
            raise

    async def _stream(
        self, request: web.BaseRequest, session: Session, call: OpenCall, events: ReplyStream
    ) -> web.StreamResponse:
        """Sends the events. The status line waits for the first of them (or for a heartbeat), so that what fails before
        it is answered properly; after it, a failure drops the connection: a stream that was cut is no reply. A client
        that reads slowly is waited for, and holds nothing up."""
        headers = {**EVENTS, **_headers(call, events.content_type)}
        response: web.StreamResponse | None = None
        seen, begun = 0, False
        try:
            while (deltas := await call.more(seen, self._config.heartbeat)) or call.outcome is None:
                seen += len(deltas)
                if deltas and call.begun:
                    data = b"".join(
                        [
                            b"" if begun else events.begin(call.begun),
                            *(events.delta(index, delta) for index, delta in deltas),
                        ]
                    )
                    begun = True
                elif call.begun:
                    data = events.heartbeat
                else:
                    continue
                response = response or await begin(request, headers)
                await response.write(data)
            reply = call.reply()
            await session.calls.acknowledge(call)
        except CallError:
            if response is None:
                raise
            return drop(request, response)
        data = events.end(reply) if begun else events.begin(Begun(reply.prompt_tokens, reply.used)) + events.end(reply)
        response = response or await begin(request, headers)
        session.calls.delivered(call)
        try:
            await response.write(data)
        except BaseException:
            session.calls.undelivered(call)
            raise
        await response.write_eof()
        return response

    async def _models(self, request: web.BaseRequest, session: Session, path: str) -> web.StreamResponse:
        if request.method != "GET":
            raise CallError(405, f"{path} takes GET, not {request.method}", code="method_not_allowed")
        name = unquote(path.partition("/")[2])
        names = (
            [name]
            if name
            else [each for policy in self._policies.values() for each in (policy.name, *policy.model_names)]
        )
        names += [] if name else session.external.names
        api = wire_of_client(request.raw_path, request.headers).name
        return await send(request, model(api, name) if name else models(api, list(dict.fromkeys(names))), 200, JSON)

    async def _rewards(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        try:
            if request.method == "GET":
                return await send(
                    request,
                    orjson.dumps({"rewards": [_shown(reward) for reward in await session.rewards()]}),
                    200,
                    JSON,
                )
            if request.method != "POST":
                raise CallError(405, f"rewards takes GET and POST, not {request.method}", code="method_not_allowed")
            reward = _reward(parse(await read_body(request), constants=True), session)
            await session.add_reward(reward)
            return await send(request, orjson.dumps({"ok": True, "reward": _shown(reward)}), 200, JSON)
        except RewardRefused as error:
            raise CallError(422, str(error)) from error
        except StoreError as error:
            raise CallError(500, f"the reward could not be stored: {error}", code="not_recorded") from error

    async def _spans(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        if request.method not in ("GET", "POST"):
            raise CallError(405, f"spans takes GET and POST, not {request.method}", code="method_not_allowed")
        if request.method == "GET":
            try:
                trace = await session.trace()
            except StoreError as error:
                raise CallError(500, f"the spans could not be read: {error}", code="not_recorded") from error
            return await send(request, await asyncio.to_thread(_spans_json, trace), 200, JSON)
        body = await read_body(request)
        try:
            taken = await session.add_spans(parse_list(body), len(body))
        except StoreError as error:
            raise CallError(500, f"the spans could not be stored: {error}", code="not_recorded") from error
        return await send(request, orjson.dumps({"ok": True, "spans": taken}), 200, JSON)


# --------------------------------------------------------------------------- helpers


def _spans_json(trace: AttemptTrace) -> bytes:
    return orjson.dumps({"spans": [span.model_dump(mode="json") for span in spans_of(trace)]})


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: a fifth less time per request."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", import_module("uvloop").new_event_loop())


def _collect_rarely() -> tuple[int, int, int]:
    """Has the garbage collector wait for more objects, and gives what it waited for: with many open attempts it took
    much of the gateway's time."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 20_000) if before[0] else 0, *before[1:])
    return before


def bind(config: GatewayConfig) -> socket.socket:
    """A bound socket. Raises ConfigError, which names the address and what to do."""
    where = f"gateway.host={config.host!r}, gateway.port={config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"the gateway has no such address ({where}): {error}; 127.0.0.1 serves this machine"
        ) from error
    try:
        with suppress(OSError, AttributeError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {config.port} on {config.host} is taken by another program: set gateway.port=0 for a free one, "
                "or stop that program"
            ) from error
        raise ConfigError(
            f"the gateway cannot listen there ({where}): {error.strerror}; set gateway.port=0 for a free port"
        ) from error
    return listener


def _reached_by(host: str) -> str:
    """The host part of a URL for what listens there: an address that means all of them is no address to call."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _headers(call: OpenCall, content_type: str = JSON["Content-Type"]) -> dict[str, str]:
    """Of a reply. They say its id, so that an agent's process can tell whose reply it is without reading that."""
    return {"Content-Type": content_type, CALL_ID: call.id}


def _hash(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _nothing_at(path: str) -> CallError:
    begun = any(letter == "/" and find_wire(path[:at]) is not None for at, letter in enumerate(path))
    hint = (
        "the client appends the path itself, so its base URL is OPENAI_BASE_URL and no more"
        if begun
        else "this endpoint serves chat/completions, responses, messages, models/NAME:generateContent, completions, "
        "models, rewards and spans"
    )
    return CallError(404, f"there is nothing at {path!r}: {hint}", code="unknown_url")


def _told(raw_path: str, error: CallError) -> bytes:
    """An error in the shape of the wire that a path belongs to."""
    found = find_wire(_target("POST", raw_path)[2].path)
    return (wire_of_client(raw_path, {}) if found is None or _is_shared(found) else found).error(error)


def _is_shared(found: Wire | Unserved) -> bool:
    return isinstance(found, Unserved) and found.shared


def _cut(answering: set[asyncio.Transport]) -> None:
    """Closes what is still open: a client that does not read would hold its connection, and what was to be written, for
    as long as it likes."""
    for transport in answering:
        transport.abort()


_VERSIONS = ("v1", "v1beta")
_UNNAMED = re.compile(r"/+a/+[^/]+/+agent(/*$|//|/v1(beta)?(/|$)|/chat/completions$)")


def _target(method: str, raw_path: str) -> tuple[str | None, str | None, Target]:
    """The key, the agent's name ("" where it is left out) and what lies below them."""
    raw_path, _, query = raw_path.partition("?")
    parts = [part for part in raw_path.split("/") if part]
    if len(parts) < 2 or parts[0] != "a":
        return None, None, Target(method, "/".join(parts))
    key, rest = parts[1], parts[2:]
    agent = None
    if rest and rest[0] == "agent":
        agent = "" if _UNNAMED.match(raw_path) else clean_name(unquote(rest[1])) or ""
        rest = rest[2:] if agent else rest[1:]
    return key, agent, below(rest, method, query)


def below(parts: Sequence[str], method: str, query: str) -> Target:
    """What is asked for below a base URL, without `/v1`, which clients append never, once or twice."""
    for _ in range(2):
        if parts and parts[0] in _VERSIONS:
            parts = parts[1:]
    return Target(method, "/".join(parts), dict(parse_qsl(query)) if query else {})


def _reward(body: Mapping[str, Json], session: Session) -> Reward:
    value = body.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CallError(422, f"value must be a number, not {value!r:.80}", param="value")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise CallError(422, f"value must be a finite number, not {value!r:.80}", param="value")
    if abs(number) > MAX_REWARD:
        raise CallError(
            422, f"value must be within {-MAX_REWARD:g} and {MAX_REWARD:g}, not {number:g}: scale it", param="value"
        )
    texts: dict[str, str | None] = {}
    for name in ("name", "call_id", "agent", "reason"):
        text = body.get(name)
        if text is not None and not isinstance(text, str):
            raise CallError(422, f"{name} must be a string, not {text!r:.80}", param=name)
        texts[name] = None if text is None else readable(text)
    attributes = body.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise CallError(422, f"attributes must be an object, not {attributes!r:.80}", param="attributes")
    unknown = sorted(body.keys() - {"value", "attributes", *texts})
    if unknown:
        raise CallError(
            422,
            f"unknown field {unknown[0]!r}: a reward has value, name, call_id, agent, reason and attributes",
            param=unknown[0],
        )
    return Reward(
        session.rollout.id, session.attempt.id, number, texts["name"] or "reward", "emit", texts["call_id"],
        texts["agent"], texts["reason"],
        time.time(),
        attributes=cast("dict[str, Json] | None", attributes),
    )  # fmt: skip


def _shown(reward: Reward) -> dict[str, Json]:
    return {
        "value": reward.value, "name": reward.name, "source": reward.source, "call_id": reward.call_id,
        "agent": reward.agent,
        "reason": reward.reason, "attributes": reward.attributes,
    }  # fmt: skip


async def _send_error(request: web.BaseRequest, shape: Wire | Unserved, error: CallError) -> web.StreamResponse:
    headers = JSON if error.retry else {**JSON, "X-Should-Retry": "false"}
    return await send(request, shape.error(error), error.status, headers)
