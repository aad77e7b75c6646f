"""Replies of other people's endpoints, read as far as the gateway has to know them: where an event ends, which one ends
the reply, whether the reply tells of a failure, what it cost, and where it repeats what nobody may see. Pure; the bytes
themselves stay as they are but for what is blotted out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson

from agentlightning.gateway.wires.fields import mapping
from agentlightning.nouns import Json

REDACTED = b"***"

THEIR_FAULT = frozenset({401, 403, 404, 408, 429})
"""Statuses below 500 that say nothing about what the agent asked: the key, the model's name, the load."""

_ASKED_WRONG = frozenset(
    {"invalid_request_error", "BadRequestError", "request_too_large", "invalid_prompt", "context_length_exceeded"}
)
"""Types and codes of errors that say that the request was wrong."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that a reply tells of: in its words, and whether the endpoint is to blame rather than what was asked of
    it."""

    said: str
    theirs: bool


def read_json(text: bytes) -> Mapping[str, Json]:
    try:
        return mapping(orjson.loads(text))
    except ValueError:  # an endpoint's reply is its own business: what is no JSON says nothing
        return {}


def said_in(value: Mapping[str, Json], text: bytes) -> str:
    """An error's own words, bounded; ``text`` is what it came as."""
    error = value.get("error")
    said = (
        mapping(error).get("message")
        or error
        or value.get("message")
        or value.get("detail")
        or text.decode("utf-8", "replace")
    )
    line = " ".join(str(said).split())
    return line if len(line) <= 300 else line[:297] + "..."


def fault_in(value: Mapping[str, Json], text: bytes, kind: str = "") -> Fault | None:
    """The failure that a reply with a good status tells of, a whole body or one event of it; ``kind`` is what the event
    is called."""
    failed = kind in ("error", "response.failed") or (
        value.get("object") == "response" and value.get("status") == "failed"
    )
    holder = mapping(value.get("response")) if kind == "response.failed" else value
    error = holder.get("error")
    if not error and not failed:
        return None
    codes = [found.get(name) for found in (mapping(error), holder) for name in ("code", "type", "status")]
    return Fault(said_in(holder, text), not any(_asked_wrong(code) for code in codes))


def _asked_wrong(code: Json) -> bool:
    if isinstance(code, int):
        return 400 <= code < 500 and code not in THEIR_FAULT
    return isinstance(code, str) and code in _ASKED_WRONG


def usage_of(reply: bytes) -> dict[str, Json]:
    """What a reply, JSON or events, says of its usage; where several events do, the later over the earlier."""
    found: dict[str, Json] = {}
    events = [line.removeprefix(b"data:") for line in reply.splitlines() if line.startswith(b"data:")]
    for text in events or [reply]:
        if b'"usage"' in text:
            value = read_json(text)
            for holder in (value, mapping(value.get("message")), mapping(value.get("response"))):
                found.update({name: count for name, count in mapping(holder.get("usage")).items() if count is not None})
    return found


# --------------------------------------------------------------------------- events

_BETWEEN_EVENTS = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_REACH = 3
"""Bytes before a new piece with which it may make up the end of an event."""

_LINES = re.compile(rb"\r\n|\n|\r")
_LAST = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
_FINISHED = re.compile(rb'"finish_reason" ?: ?"')
"""In a Chat chunk that ends a choice. Within a text the quotes would have backslashes."""
_WORDS = (b"[DONE]", b"error", *(kind.encode() for kind in _LAST))
"""One of these is in every event that ends a reply."""


class EventGate:
    """Lets server-sent events through, each when it is whole. The one that ends a reply, with all that follows it,
    stays in ``rest``: an agent that has seen it takes the reply for given. An error ends it too, and is the ``fault``.
    Some endpoints leave ``[DONE]`` out: then a Chat stream has come to its end where
    a choice has, and nothing is left open."""

    def __init__(self) -> None:
        self.ended = False
        self.fault: Fault | None = None
        self._open = bytearray()
        self._searched = 0
        self._finished = False

    def feed(self, data: bytes) -> bytes:
        self._open += data
        if self.ended:
            return b""
        passed, at = 0, max(0, self._searched - _REACH)
        while (found := _BETWEEN_EVENTS.search(self._open, at)) is not None:
            if self._take(bytes(self._open[passed : found.end()]), whole=True):
                break
            passed = at = found.end()
        ready = bytes(self._open[:passed])
        del self._open[:passed]
        self._searched = len(self._open)
        return ready

    def close(self) -> bool:
        """Whether the reply has come to its end; asked when nothing more comes. Its last event may lack the empty
        line."""
        return self.ended or self._take(bytes(self._open), whole=False) or (self._finished and not self._open.strip())

    @property
    def rest(self) -> bytes:
        return bytes(self._open)

    def _take(self, event: bytes, *, whole: bool) -> bool:
        self._finished = self._finished or (whole and _FINISHED.search(event) is not None)
        if not any(word in event for word in _WORDS):
            return False
        kind, data = _read_event(event)
        if data.lstrip().startswith(b"[DONE]"):
            self.ended = True
        elif (value := read_json(data)) or whole:
            kind = named if isinstance(named := value.get("type"), str) else kind
            self.fault = fault_in(value, data, kind)
            self.ended = self.fault is not None or kind in _LAST
        return self.ended


def _read_event(event: bytes) -> tuple[str, bytes]:
    """What an event's own line calls it, and its data."""
    kind, data = "", list[bytes]()
    for line in _LINES.split(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            kind = value.decode("utf-8", "replace").strip()
    return kind, b"\n".join(data)


# --------------------------------------------------------------------------- what nobody may see


class Redactor:
    """Blots secrets out of bytes that come in pieces: an endpoint that repeats its key or its own address must not tell
    it to the agent."""

    def __init__(self, secrets: Collection[str]) -> None:
        texts = {form for secret in secrets if secret for form in (secret, secret.replace("/", "\\/"))}
        self._secrets = sorted((text.encode() for text in texts), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may go on. An end that may be the beginning of a secret is held back."""
        data = self._held + data
        out: list[bytes] = []
        at, cut = 0, len(data) - self._begun(data, 0)
        if self._in(data):
            while (found := self._pattern.search(data, at)) is not None and found.start() < cut:
                out += [data[at : found.start()], REDACTED]
                at = found.end()
                cut = len(data) - self._begun(data, at)
        self._held = data[cut:]
        return b"".join([*out, data[at:cut]])

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return self._redacted(held)

    def redact(self, text: str) -> str:
        return self._redacted(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _redacted(self, data: bytes) -> bytes:
        return self._pattern.sub(REDACTED, data) if self._in(data) else data

    def _in(self, data: bytes) -> bool:
        """Finding a literal is far quicker than the pattern, and hardly any reply holds one."""
        return any(secret in data for secret in self._secrets)

    def _begun(self, data: bytes, at: int) -> int:
        """How many bytes of a secret the data ends with, as far as it is looked at from ``at``."""
        return max((_begun(data, at, secret) for secret in self._secrets), default=0)


def _begun(data: bytes, at: int, secret: bytes) -> int:
    found = data.find(secret[:1], max(at, len(data) - len(secret) + 1))
    while found >= 0 and not secret.startswith(data[found:]):
        found = data.find(secret[:1], found + 1)
    return len(data) - found if found >= 0 else 0
