"""External models: what agents ask of somebody else's endpoint, passed on as it is under the key that only this process
holds.

What goes there and what comes back is bytes; nothing of it becomes messages or tokens. A call's life is the session's
business, HTTP towards the agent the server's. No error, log line or record made here holds an endpoint or a key.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from agentlightning.agent.resources import LLM, MAIN, SHORTEST_KEY, refuse_clash
from agentlightning.gateway.calls import Answer, Forwarded
from agentlightning.gateway.external.replies import (
    THEIR_FAULT,
    EventGate,
    Redactor,
    fault_in,
    read_json,
    said_in,
    usage_of,
)
from agentlightning.gateway.served import Notices
from agentlightning.gateway.wires.base import CallError, Target, WireRequest
from agentlightning.gateway.wires.fields import mapping, objects
from agentlightning.nouns import Call, CallStatus, External, Json, Message, Tool
from agentlightning.records.usage import ExternalUsage

CONNECT_DEADLINE = 10.0
"""Seconds, at most, until a connection to an endpoint stands."""

AFTER_THE_END = 2.0
"""Seconds that an endpoint may keep a stream open after its last event."""

KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: less than servers keep theirs, so that a call is not sent into one that is
being closed."""

PATIENCE = 1.0
"""Seconds without a word that say something of an endpoint."""

MAX_REPLY = 64 * 2**20
"""Bytes of a reply."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_SENT = ("Accept", "User-Agent", "anthropic-version", "anthropic-beta", "OpenAI-Beta")
"""Headers of the agent's that are passed on."""

_RETURNED = ("Retry-After", "retry-after-ms", "x-should-retry", "x-request-id", "request-id")
"""Headers of the endpoint's that are passed back, besides the content type."""


@dataclass(frozen=True, slots=True)
class Route:
    """How one path is passed on: the header that carries the key, and what an event that tells an error begins with."""

    key_header: str
    error_event: bytes = b"data: "


ROUTES: Mapping[str, Route] = {
    "chat/completions": Route("Authorization"),
    "completions": Route("Authorization"),
    "embeddings": Route("Authorization"),
    "responses": Route("Authorization", b"event: error\ndata: "),
    "messages": Route("x-api-key", b"event: error\ndata: "),
    "messages/count_tokens": Route("x-api-key"),
}
"""What is passed on, each to the same path below the endpoint."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """An external model: ``name`` is what agents call it by, ``model`` what its endpoint does. ``proxy`` is the one
    that this machine is set to use. ``secrets`` are what its replies must not tell."""

    name: str
    model: str
    url: SplitResult = field(repr=False)
    key: str | None = field(repr=False)
    proxy: str | None = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, name: str, llm: LLM) -> Upstream:
        url = urlsplit(llm.endpoint)
        host = url.hostname or ""
        direct = host in _LOOPBACK or bool(proxy_bypass(host))
        proxy = None if direct else getproxies().get(url.scheme)
        return cls(
            name, llm.model, url, llm.api_key or None, proxy, (*_secret_key(llm.api_key or ""), *_addresses(url))
        )

    def at(self, target: Target) -> str:
        """The endpoint's URL for a path, with the endpoint's own query (some need a version there) over the agent's."""
        path = self.url.path.rstrip("/") + "/" + target.path
        return self.url._replace(
            path=path, query=urlencode({**target.query, **dict(parse_qsl(self.url.query))}), fragment=""
        ).geturl()


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One call to be passed on: the agent's body as it came, and those of its headers that go along."""

    target: Target
    body: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, target: Target, body: bytes, headers: Mapping[str, str]) -> Outgoing:
        """``headers`` are all of the request's, looked up without regard to case."""
        return cls(target, body, {name: value for name in _SENT if (value := headers.get(name))})


class Upstreams:
    """The external models of a run by name, and the one client that calls them. From its first call on it belongs to
    the gateway's event loop."""

    def __init__(self, models: Mapping[str, LLM], taken: Collection[str], timeout: float) -> None:
        """``taken`` are the names that mean policies. Raises ConfigError where an external model has one of them."""
        refuse_clash(models, taken)
        self.alone = not taken
        """There is no policy, so that a call can only be for one of these."""
        self._models = {name: Upstream.of(name, llm) for name, llm in models.items()}
        self._taken = taken
        self._timeout = timeout
        self._notices = Notices()
        self._clients: list[aiohttp.ClientSession] = []
        """The one client, from its first call on."""

    def laid_over(self, models: Mapping[str, LLM]) -> Upstreams:
        """These with further ones, or others of their names, for an attempt whose resources have them: over the same
        client. Raises ConfigError as the constructor does."""
        if not models:
            return self
        refuse_clash(models, self._taken)
        made = copy.copy(self)
        made._models = {**self._models, **{name: Upstream.of(name, llm) for name, llm in models.items()}}
        return made

    @property
    def default(self) -> str:
        """The one that agents are told to ask for where there is no policy; "" where there is none."""
        return MAIN if MAIN in self._models else next(iter(self._models), "")

    def in_place_of_a_policy(self, name: str) -> Upstream | None:
        """The one that a name means which none of them has: where there is no policy, the one that agents are handed as
        theirs. Says so once, unless it is that one's true name."""
        main = self._models.get(MAIN) if self.alone and name else None
        if main is not None and name != main.model:
            self._notices.once(("external", name), f"no model is called {name!r}: its calls go to {MAIN!r}")
        return main

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._models)

    def get(self, name: str) -> Upstream | None:
        return self._models.get(name)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def ask(self, call: Forwarded, upstream: Upstream, sent: Outgoing) -> Answer:
        """Passes a call on and returns the answer, whatever its status. Events of a stream are added to the call as
        they come, all that comes to ``call.came``. Raises CallError, which names the model, where there is no whole
        answer."""
        try:
            body = with_model(sent.body, upstream.model)
            async with self._session().post(
                upstream.at(sent.target),
                data=body,
                headers=_headers(upstream, sent),
                allow_redirects=False,
                proxy=upstream.proxy,
            ) as response:
                return await self._read(call, upstream, response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failure(upstream.name, error) from None
        except RecursionError:
            raise CallError(400, "the request is nested too deeply") from None

    async def _read(self, call: Forwarded, upstream: Upstream, response: aiohttp.ClientResponse) -> Answer:
        call.status = status = response.status
        if 300 <= status < 400:
            message = (
                f"external model {upstream.name!r} answered {status}, a redirect, which is not followed with its "
                "key: set the endpoint to where it leads"
            )
            raise CallError(502, message, code="upstream_error", retry=False)
        redactor, gate = Redactor(upstream.secrets), EventGate()
        headers = _answer_headers(response.headers, redactor)
        streams = status < 300 and response.content_type == "text/event-stream"
        call.headers = headers
        try:
            async with asyncio.timeout(None) as deadline:
                async for data in response.content.iter_any():
                    call.hear(data)
                    _take(call, redactor.feed(data), gate if streams else None, upstream.name)
                    if gate.ended and deadline.when() is None:
                        deadline.reschedule(asyncio.get_running_loop().time() + AFTER_THE_END)
        except (aiohttp.ClientError, TimeoutError):
            if not gate.ended:
                raise
        _take(call, redactor.end(), gate if streams else None, upstream.name)
        if not streams:
            body = bytes(call.came)
            return Answer(
                status, headers, body, fault_in(read_json(body), body) if status < 300 and b'"error"' in body else None
            )
        if not gate.close():
            message = (
                f"external model {upstream.name!r} failed: its stream ended without its last event ([DONE], "
                "message_stop or response.completed)"
            )
            raise CallError(502, message, code="upstream_error")
        return Answer(status, headers, gate.rest, gate.fault)

    def _session(self) -> aiohttp.ClientSession:
        if not self._clients:
            client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=min(CONNECT_DEADLINE, self._timeout), sock_read=self._timeout
                ),
            )
            self._clients.append(client)
        return self._clients[0]

    def _failure(self, name: str, error: Exception) -> CallError:
        """In words of our own: the client's tell the host."""
        what, status, retry = f"its reply broke off ({type(error).__name__})", 502, True
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            what, status = "it could not be reached in time", 504
        elif isinstance(error, TimeoutError):
            what, status = f"it sent nothing for {self._timeout:g} s (gateway.upstream_timeout)", 504
        elif isinstance(error, aiohttp.ClientSSLError):
            what, retry = (
                "a TLS connection could not be made: its certificate is not trusted, or it speaks no TLS",
                False,
            )
        elif isinstance(error, aiohttp.ClientConnectorDNSError):
            what = "it could not be reached: its host name is unknown"
        elif isinstance(error, aiohttp.ClientConnectorError):
            cause = os.strerror(error.os_error.errno) if error.os_error.errno else type(error.os_error).__name__
            what = f"it could not be reached: {cause}"
        return CallError(status, f"external model {name!r} failed: {what}", code="upstream_error", retry=retry)


def _take(call: Forwarded, data: bytes, gate: EventGate | None, name: str) -> None:
    call.came += data
    if len(call.came) > MAX_REPLY:
        raise CallError(
            502,
            f"external model {name!r} failed: its reply is larger than {MAX_REPLY >> 20} MB",
            code="upstream_error",
            retry=False,
        )
    if gate is not None and (ready := gate.feed(data)):
        call.add_events(ready)


def _headers(upstream: Upstream, sent: Outgoing) -> dict[str, str]:
    header = ROUTES[sent.target.path].key_header
    key = (
        {}
        if upstream.key is None
        else {header: f"Bearer {upstream.key}" if header == "Authorization" else upstream.key}
    )
    return {**sent.headers, **key, "Content-Type": "application/json", "Accept-Encoding": "identity"}


def _answer_headers(headers: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    found = {name: redactor.redact(value) for name in _RETURNED if (value := headers.get(name))}
    return {"Content-Type": redactor.redact(headers.get("Content-Type", "application/json")), **found}


def _secret_key(key: str) -> tuple[str, ...]:
    return (key,) if len(key) >= SHORTEST_KEY else ()


def _addresses(url: SplitResult) -> tuple[str, ...]:
    """What an endpoint may be told by: its host and path, together and alone, and its query's values. Not what is
    everybody's or a word: a loopback address, a host's short name, a path such as `/v1`."""
    host, path = url.hostname or "", url.path.rstrip("/")
    told = [url.netloc + path, url.netloc.lower() + path] if path or url.port else []
    told += [url.netloc, url.netloc.lower()] if url.port else []
    told += [url.netloc, host] if ("." in host or ":" in host) and host not in _LOOPBACK else []
    values = [part.partition("=")[2] for part in url.query.split("&")]
    told += [
        each
        for text in (path, *values)
        for each in (text, unquote(text))
        if len(each) >= SHORTEST_KEY and not each.isdigit()
    ]
    return tuple(dict.fromkeys(told))


# --------------------------------------------------------------------------- what is asked


def asked_model(target: Target, body: Mapping[str, Json]) -> str:
    """The model that a request names, in its body or, as in Gemini's API, in its path; "" for none."""
    named = body.get("model")
    if isinstance(named, str):
        return named
    _, models, rest = target.path.rpartition("models/")
    return unquote(rest.partition(":")[0]) if models else ""


def no_such_model(name: str, served: Sequence[str]) -> CallError:
    """The answer to a name that no external model has, where there is no policy that takes any name."""
    asked = f"no model is called {name!r}" if name else "the request names no model"
    others = f"use {' or '.join(map(repr, served))}" if served else "it serves none; pass an LLM(endpoint=...) resource"
    return CallError(
        404,
        f"{asked}, and this run has no policy that would take its place: {others}",
        param="model",
        code="model_not_found",
        retry=False,
    )


def refuse_path(name: str, path: str) -> None:
    """Raises CallError for a path on which external models are not passed on."""
    if path not in ROUTES:
        raise CallError(
            404,
            f"external model {name!r} is not passed on from {path}: call it through {', '.join(ROUTES)}",
            code="not_served",
            retry=False,
        )


def described(body: Mapping[str, Json]) -> WireRequest:
    """As much of a request in any API's shape as tells which agent makes it: the system prompt, the tools' names,
    `user` and `metadata`."""
    prompts = [body.get("system"), body.get("instructions")]
    prompts += [
        message.get("content")
        for message in objects(body.get("messages"))
        if message.get("role") in ("system", "developer")
    ]
    system = "\n".join(text for prompt in prompts if (text := _text(prompt)))
    names = [tool.get("name") or mapping(tool.get("function")).get("name") for tool in objects(body.get("tools"))]
    return WireRequest(
        model="",
        messages=(Message("system", system),),
        tools=tuple(Tool(name) for name in names if isinstance(name, str)),
        asked={key: body[key] for key in ("user", "metadata") if key in body},
    )


def _text(value: Json) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(text for part in objects(value) if isinstance(text := part.get("text"), str))


_SPACE = re.compile(r"[ \t\n\r]*")
_JSON = json.JSONDecoder(parse_int=str, parse_float=str)


def with_model(body: bytes, model: str) -> bytes:
    """A JSON object with ``model`` as the value of its `model`, and every other byte as it was. ``body`` has been read
    as JSON before."""
    text = body.decode()
    parts: list[str] = []
    kept = 0
    at = _after_space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _JSON.raw_decode(text, at)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _JSON.raw_decode(text, start)
        if key == "model":
            parts += [text[kept:start], json.dumps(model)]
            kept = end
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return "".join([*parts, text[kept:]]).encode()


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


# --------------------------------------------------------------------------- what comes back


def recorded(
    call: Forwarded,
    upstream: Upstream,
    sent: Outgoing,
    outcome: Answer | CallError,
    *,
    attempt_id: str,
    use: ExternalUsage,
    left: bool,
    silence: float | None,
) -> Call:
    """The record of a call that has ended, which ``use`` has counted. ``left``: nobody waits for it any more;
    ``silence``: the seconds without a word after which it was left, where they say something of the endpoint."""
    failed = isinstance(outcome, CallError) or outcome.failed
    usage = {} if failed else usage_of(bytes(call.came))
    external = External(upstream.model, call.status, _as_text(sent.body), _as_text(bytes(call.came)), usage)
    error = None
    if left:
        error = "its client left before the answer was whole" if failed else None
        if silence is not None:
            seconds = f"{silence:.0f}" if silence >= 10 else f"{silence:.1f}"
            error = use.trouble = (
                f"external model {upstream.name!r} had said nothing for {seconds} s when its client gave up"
            )
    elif failed:
        error, theirs = (
            (outcome.message, True) if isinstance(outcome, CallError) else trouble_of(upstream.name, outcome)
        )
        use.failed += 1
        use.trouble = error if theirs else None
    else:
        prompt, reply = external.tokens
        use.prompt_tokens += prompt
        use.reply_tokens += reply
    return Call(
        id=call.id, attempt_id=attempt_id, index=call.index, wire=call.wire, model=upstream.name, policy="",
        status=CallStatus.ABANDONED if left else CallStatus.REFUSED if failed else CallStatus.COMPLETE,
        branch="", prompt_node=None, samples=(), asked={}, used=None, agent=call.agent, error=error,
        received_at=call.received_at,
        first_token_s=call.first_s, total_s=time.monotonic() - call.started,
        external=external,
    )  # fmt: skip


def _as_text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def trouble_of(name: str, answer: Answer) -> tuple[str, bool]:
    """An answer that is an error, in words, and whether the endpoint is to blame rather than what was asked of it."""
    if answer.fault is not None:
        return f"external model {name!r} failed in its reply: {answer.fault.said}", answer.fault.theirs
    said = said_in(read_json(answer.rest), answer.rest)
    return (
        f"external model {name!r} answered {answer.status}: {said}",
        answer.status >= 500 or answer.status in THEIR_FAULT,
    )
