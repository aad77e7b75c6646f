"""The open calls of one attempt: those in flight, and those whose reply a client may still come back for (ruling 2).

Says which call a request repeats, keeps a call going while its connection is lost, and ends what nobody waits for.
Belongs to the gateway's event loop. What a call asks for, and how it is answered, is the session's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, cast

from agentlightning.errors import StoreError
from agentlightning.gateway.calls import Forwarded, Identity, OpenCall, attempt_ended
from agentlightning.gateway.wires.base import CallError
from agentlightning.nouns import CallStatus
from agentlightning.records.usage import AttemptUsage
from agentlightning.store.base import Store

logger = logging.getLogger("agentlightning.gateway")

MAX_KEPT = 128
"""Delivered replies that an attempt keeps for clients that come back for one, and calls without a reply that it
remembers."""

END_DEADLINE = 30.0
"""Seconds that an ending attempt waits for its open calls to be withdrawn and recorded."""


class OpenCalls:
    """A request either joins a call (``join``) or begins one (``start``); its connection follows the call, then says
    ``acknowledge`` and ``delivered``, and in any case ``left``. ``end`` is the last thing called on it."""

    def __init__(self, store: Store, attempt_id: str, usage: AttemptUsage, orphan_grace: float) -> None:
        self.ended = False
        self._store = store
        self._attempt_id = attempt_id
        self._usage = usage
        self._grace = orphan_grace
        self._numbered = 0
        self._ids: set[str] = set()
        self._by_request: dict[bytes, list[OpenCall]] = {}
        self._delivered: deque[OpenCall] = deque()
        self._unanswered = UnansweredRetries(MAX_KEPT, orphan_grace)
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, call_id: str) -> bool:
        """Whether the attempt has had a call of this id."""
        return call_id in self._ids

    @property
    def orphans(self) -> int:
        """Calls whose connection closed before their full reply was written."""
        return sum(call.orphaned for calls in self._by_request.values() for call in calls)

    @property
    def running(self) -> int:
        """Calls that are being sampled or recorded."""
        return len(self._tasks)

    @property
    def waited_for(self) -> bool:
        """Whether a connection waits for one of them."""
        return any(call.readers for calls in self._by_request.values() for call in calls)

    @property
    def kept(self) -> int:
        """Delivered replies that may be asked for again."""
        return len(self._delivered)

    # ----------------------------------------------------------------- beginning
    def next_index(self) -> int:
        """The place of a call among all of the attempt's."""
        self._numbered += 1
        return self._numbered - 1

    def join(self, identity: Identity, now: float, retry: int) -> OpenCall | None:
        """The open call that a request repeats, which it has joined then; None where it is a new one. Raises
        CallError."""
        while self._delivered and (
            cast("float", self._delivered[0].delivered_at) + self._grace < now or len(self._delivered) > MAX_KEPT
        ):
            self.forget(self._delivered.popleft())
        equal = self._by_request.get(identity.lookup_key, ())
        call = named(equal, identity) if identity.key else repeated(equal, identity, retry, self._unanswered)
        if call is not None:
            call.readers += 1
            call.retry = max(call.retry, retry)
            if call.grace is not None:
                call.grace.cancel()
            self._usage.repeats += 1
        return call

    def start(self, call: OpenCall, life: Coroutine[Any, Any, None]) -> None:
        """``life`` brings the call to its outcome, and never raises."""
        self._ids.add(call.id)
        self._by_request.setdefault(call.identity.lookup_key, []).append(call)
        call.task = self._spawn(life)
        call.task.add_done_callback(call.closed)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ----------------------------------------------------------------- connections
    async def acknowledge(self, call: OpenCall) -> None:
        """Comes before the last bytes of a reply: the record says that they were written, also where the call had been
        left. Raises CallError."""
        if call.given_up:
            raise attempt_ended()
        if call.stored is CallStatus.COMPLETE:
            return
        try:
            await self._store.set_call_status(call.id, CallStatus.COMPLETE)
        except StoreError as error:
            raise self.lost(error) from error
        call.stored = CallStatus.COMPLETE

    def delivered(self, call: OpenCall) -> None:
        """The last bytes of the reply are about to be written."""
        if call.delivered_at is None:
            call.delivered_at = time.monotonic()
            self._delivered.append(call)

    def undelivered(self, call: OpenCall) -> None:
        """They could not be written after all."""
        if call in self._delivered:
            self._delivered.remove(call)
            call.delivered_at = None

    def left(self, call: OpenCall) -> None:
        """A connection no longer waits for the call, for whatever reason."""
        call.readers -= 1
        if not call.orphaned or not call.claimable:
            return
        if self.ended:
            self._give_up(call)
        else:
            call.grace = asyncio.get_running_loop().call_later(self._grace, self._give_up, call)

    # ----------------------------------------------------------------- ending
    def fail(self, call: OpenCall, error: CallError) -> None:
        """The call ends with an error."""
        call.settle(error)
        self.forget(call)

    def lost(self, error: Exception) -> CallError:
        """Something could not be recorded: the attempt is incomplete, whatever its agent does now."""
        self._usage.incomplete += 1
        self._usage.last_error = f"{type(error).__name__}: {error}"
        return CallError(500, f"the call could not be recorded: {error}", code="not_recorded", retry=False)

    def forget(self, call: OpenCall) -> None:
        """No request can repeat the call any more."""
        calls = self._by_request.get(call.identity.lookup_key, [])
        if call in calls:
            calls.remove(call)
            if call.unanswered:
                self._unanswered.note(call)
        if not calls:
            self._by_request.pop(call.identity.lookup_key, None)

    async def mark_abandoned(self, call: OpenCall) -> None:
        """The record says that nobody got the reply."""
        if call.stored is CallStatus.ABANDONED:
            return
        try:
            await self._store.set_call_status(call.id, CallStatus.ABANDONED)
        except StoreError as error:
            self.lost(error)
        call.stored = CallStatus.ABANDONED

    def _give_up(self, call: OpenCall) -> None:
        """Nobody is going to claim the reply any more."""
        if call.delivered_at is not None or not call.claimable:
            return
        call.given_up = True
        if call.grace is not None:
            call.grace.cancel()
        if not isinstance(call, Forwarded):
            self._usage.abandoned += 1
        self.forget(call)
        if not call.recording and call.task is not None:
            call.task.cancel()
        elif call.outcome is not None:
            self._spawn(self.mark_abandoned(call))

    async def idle(self) -> None:
        """Returns once no call is being sampled, recorded or waited for."""
        while self._tasks or self.waited_for:
            await (asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0.01))

    async def end(self) -> None:
        """Withdraws what is still being sampled, waits for what is being recorded, and gives up the replies that nobody
        got."""
        self.ended = True
        for calls in list(self._by_request.values()):
            for call in list(calls):
                self._give_up(call)
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=END_DEADLINE)
            if stuck:
                logger.error(
                    "attempt %s: %d calls could not be withdrawn within %g s",
                    self._attempt_id,
                    len(stuck),
                    END_DEADLINE,
                )
        self._by_request.clear()
        self._delivered.clear()


def named(calls: Sequence[OpenCall], identity: Identity) -> OpenCall | None:
    """The call that a client means by a name of its own. Raises CallError where it asked something else under that
    name."""
    call = next((call for call in calls if call.claimable), None)
    if call is not None and call.identity != identity:
        message = (
            "this Idempotency-Key was sent with another request (another body, path or agent): each request "
            "needs a key of its own"
        )
        raise CallError(422, message, code="idempotency_key_reuse", retry=False)
    return call


def repeated(
    calls: Sequence[OpenCall], identity: Identity, retry: int, unanswered: UnansweredRetries
) -> OpenCall | None:
    """Which of the calls that asked the same a new request repeats, if any.

    One whose connection closed early is claimed by any equal request. One that says it is a retry may be that of a call
    without a reply: ``unanswered`` says so and forgets it, and it is sampled. Else it may also get a reply that was
    written but did not arrive, or one whose connection has not been seen to close; one that answered this retry count
    already is somebody else's.
    """
    orphans = [call for call in calls if call.orphaned and call.claimable]
    if orphans:
        return orphans[0]
    if retry <= 0 or unanswered.take(identity, retry):
        return None
    others = [call for call in calls if call.retry < retry and call.claimable]
    return max(others, key=lambda call: (call.delivered_at is None, call.started), default=None)


class UnansweredRetries:
    """Notes of the last calls that ended without a reply. The retry of such a call must not be taken for that of an
    equal one whose reply is there."""

    def __init__(self, most: int, seconds: float) -> None:
        self._notes: deque[tuple[Identity, int, float]] = deque(maxlen=most)
        self._seconds = seconds

    def note(self, call: OpenCall) -> None:
        self._notes.append((call.identity, call.retry, time.monotonic() + self._seconds))

    def take(self, identity: Identity, retry: int) -> bool:
        """Whether a retry may be that of such a call, which is then forgotten. Of several the one that had been retried
        most often."""
        now = time.monotonic()
        notes = [note for note in self._notes if note[0] == identity and note[1] < retry and now < note[2]]
        if notes:
            self._notes.remove(max(notes, key=lambda note: note[1]))
        return bool(notes)
