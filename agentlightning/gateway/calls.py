"""One open model call: its progress as the connections that wait for it see it, and whether its reply arrived (ruling
2).

Belongs to the gateway's event loop. Knows nothing of HTTP, engines or the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentlightning.gateway.external.replies import Fault
from agentlightning.gateway.wires.base import Begun, CallError, Reply
from agentlightning.nouns import CallStatus
from agentlightning.templates.base import ParsedDelta


def attempt_ended() -> CallError:
    return CallError(410, "this attempt has ended", code="attempt_ended")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an external model's endpoint answered. ``rest`` is what may be written only once the call is recorded: the
    whole body, or the end of a stream. ``fault`` is the failure that it tells of under a good status."""

    status: int
    headers: Mapping[str, str]
    rest: bytes
    fault: Fault | None = None

    @property
    def failed(self) -> bool:
        return self.status >= 400 or self.fault is not None


@dataclass(frozen=True, slots=True)
class Identity:
    """Digests of what a request asks and, where its client names its calls itself (``Idempotency-Key``), of that
    name."""

    asked: bytes
    key: bytes | None = None

    @property
    def lookup_key(self) -> bytes:
        """Where the calls that it may repeat are kept."""
        return self.key or self.asked


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call from its arrival until nobody can claim its reply any more.

    ``identity`` says what was asked. ``outcome`` is the reply or what went wrong, None until there is either.
    ``readers`` counts the connections that wait for it, ``retry`` is the highest retry count that it answered,
    ``stored`` is the status it has in the record (None: not recorded), ``begun`` says that nothing about the request
    can be refused any more, ``recording`` that its samples are whole, ``given_up`` that nobody is going to claim it.
    ``policy_index`` is its place among the attempt's calls to policies, which seeds its samples.
    """

    id: str
    index: int
    policy_index: int
    identity: Identity
    wire: str
    agent: str | None
    received_at: float
    started: float
    retry: int = 0
    readers: int = 1
    outcome: Reply | Answer | CallError | None = None
    delivered_at: float | None = None
    stored: CallStatus | None = None
    begun: Begun | None = None
    recording: bool = False
    given_up: bool = False
    grace: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    deltas: list[tuple[int, ParsedDelta]] | None = None
    _waiting: list[asyncio.Future[None]] | None = None

    @property
    def orphaned(self) -> bool:
        """The connection closed before its full reply was written, and nobody has claimed it since."""
        return self.readers == 0 and self.delivered_at is None

    @property
    def claimable(self) -> bool:
        """An error is nobody's reply: who asks again is meant to."""
        outcome = self.outcome
        return not (self.given_up or isinstance(outcome, CallError) or (isinstance(outcome, Answer) and outcome.failed))

    @property
    def unanswered(self) -> bool:
        """Its client got no reply and is going to ask again, where it is one that does."""
        outcome = self.outcome
        if self.delivered_at is not None or self.given_up:
            return self.delivered_at is None
        return (
            isinstance(outcome, CallError | Answer)
            and retried(outcome.status)
            and (isinstance(outcome, Answer) or outcome.retry)
        )

    def add(self, index: int, delta: ParsedDelta) -> None:
        """Appends what sample ``index`` of a streamed call adds and wakes the readers."""
        if delta.content or delta.reasoning or delta.tool_calls:
            if self.deltas is None:
                self.deltas = []
            self.deltas.append((index, delta))
            self._wake()

    def begin(self, begun: Begun) -> None:
        """It has been checked and is going to be sampled."""
        self.begun = begun

    def settle(self, outcome: Reply | Answer | CallError) -> None:
        """Ends the call; only the first outcome counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._wake()

    def closed(self, task: asyncio.Task[None]) -> None:
        """Its task is over; one that was withdrawn before it began has nothing else to say it."""
        self.task = None
        if task.cancelled():
            self.settle(attempt_ended())

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        for future in waiting or ():
            _release(future)

    async def _woken(self, seconds: float) -> None:
        """Returns when something has happened, or after ``seconds``. Cancelling the one who waits does not touch the
        call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(future)
        timer = loop.call_later(seconds, _release, future)
        try:
            await future
        finally:
            timer.cancel()

    async def more(self, seen: int, seconds: float) -> Sequence[tuple[int, ParsedDelta]]:
        """The deltas after the first ``seen`` ones, waiting ``seconds`` for one; none where none came, or once the call
        has ended."""
        if len(self.deltas or ()) == seen and self.outcome is None:
            await self._woken(seconds)
        return self.deltas[seen:] if self.deltas else ()

    async def settled(self, seconds: float) -> bool:
        """Whether the call has ended, waiting ``seconds`` for it."""
        if self.outcome is None:
            await self._woken(seconds)
        return self.outcome is not None

    def reply(self) -> Reply:
        """The reply of a call that has ended. Raises CallError."""
        if isinstance(self.outcome, CallError):
            raise self.outcome
        assert isinstance(self.outcome, Reply)
        return self.outcome


@dataclass(slots=True, eq=False)
class Forwarded(OpenCall):
    """A call to an external model. Of a stream, ``chunks`` are the events that have come, under ``headers``; ``came``
    is the whole reply so far, as it is recorded, ``status`` its HTTP status, ``first_s`` the seconds until its first
    byte. ``heard`` is when the endpoint last said something (None: never),
    ``silence`` the longest time that it let pass before it did; ``left_at`` is when a connection last left,
    ``left_in_silence`` how long it had said nothing then."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    chunks: list[bytes] = field(default_factory=list[bytes])
    came: bytearray = field(default_factory=bytearray)
    status: int | None = None
    first_s: float | None = None
    heard: float | None = None
    silence: float = 0.0
    left_at: float | None = None
    left_in_silence: float = 0.0

    def hear(self, data: bytes) -> None:
        """Spaces and comments only keep a connection open."""
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self.started
        if not data.isspace() and not data.startswith(b":"):
            self.silence = max(self.silence, self.silent(now))
            self.heard = now

    def silent(self, now: float) -> float:
        """Seconds for which nothing has come."""
        return now - (self.started if self.heard is None else self.heard)

    def leave(self) -> None:
        """A connection no longer waits for it."""
        self.left_at = time.monotonic()
        self.left_in_silence = self.silent(self.left_at)

    def add_events(self, events: bytes) -> None:
        self.chunks.append(events)
        self._wake()

    async def events(self, seen: int, seconds: float) -> Sequence[bytes]:
        """The chunks after the first ``seen`` ones, waiting ``seconds`` for one; none where none came, or once the call
        has ended."""
        if len(self.chunks) == seen and self.outcome is None:
            await self._woken(seconds)
        return self.chunks[seen:]

    def answer(self) -> Answer:
        """The answer to a call that has ended. Raises CallError."""
        if isinstance(self.outcome, CallError):
            raise self.outcome
        assert isinstance(self.outcome, Answer)
        return self.outcome


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def retried(status: int) -> bool:
    """Whether clients ask again after an answer with this status."""
    return status >= 500 or status in (408, 409, 429)
