"""Attempts that have ended, and the requests that still come with their keys. Each is refused, counted, and recorded
with its attempt.

An agent that returns while threads, tasks or processes of its own still call the model loses those calls: nothing is
sampled for them.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from agentlightning.errors import StoreError
from agentlightning.gateway.wires.base import CallError, Wire
from agentlightning.gateway.wires.unserved import Unserved
from agentlightning.nouns import Call, CallStatus
from agentlightning.records.usage import AttemptUsage
from agentlightning.store.base import Store

logger = logging.getLogger("agentlightning.gateway")

REMEMBERED = 10_000
"""EndedAttempts attempts whose keys still answer 410 rather than 401."""

RECORDED = 100
"""Late calls of one attempt that are recorded; the others are counted alone."""


@dataclass(slots=True)
class _Attempt:
    id: str
    usage: AttemptUsage


@dataclass(slots=True)
class EndedAttempts:
    """The attempts that have ended, by the digest of their keys. ``calls`` and ``rewards`` count what came late, of all
    of them together."""

    store: Store
    calls: int = 0
    rewards: int = 0
    _attempts: OrderedDict[bytes, _Attempt] = field(default_factory=OrderedDict[bytes, _Attempt])

    def add(self, digest: bytes, attempt_id: str, usage: AttemptUsage) -> None:
        self._attempts[digest] = _Attempt(attempt_id, usage)
        if len(self._attempts) > REMEMBERED:
            self._attempts.popitem(last=False)

    def usage_of(self, attempt_id: str) -> AttemptUsage | None:
        return next((attempt.usage for attempt in reversed(self._attempts.values()) if attempt.id == attempt_id), None)

    async def refusal(
        self, digest: bytes, wire: Wire | Unserved | None, path: str, agent: str | None
    ) -> CallError | None:
        """What a request with such a key is answered with; None where the key is of no ended attempt."""
        attempt = self._attempts.get(digest)
        if attempt is None:
            return None
        if path == "rewards":
            attempt.usage.late_rewards += 1
            self.rewards += 1
            what = "this reward"
        elif path == "spans":
            what = "what it tells"
        else:
            attempt.usage.late += 1
            self.calls += 1
            what = "this call"
            if attempt.usage.late <= RECORDED:
                await self._record(attempt, wire.name if wire is not None else path, agent)
        said = (
            f"this attempt has ended, and {what} came after it: wait for everything that the agent has begun before "
            "it returns"
        )
        return CallError(410, said, code="attempt_ended", retry=False)

    async def _record(self, attempt: _Attempt, wire: str, agent: str | None) -> None:
        try:
            index = max((call.index for call in await self.store.calls(attempt.id)), default=-1) + 1
            await self.store.record(
                Call(
                    id=f"late-{attempt.id}-{attempt.usage.late}", attempt_id=attempt.id, index=index, wire=wire,
                    model="", policy="",
                    status=CallStatus.LATE, branch="", prompt_node=None, samples=(), asked={}, used=None, agent=agent,
                    error="it came after its attempt had ended", received_at=time.time(),
                ),
                (),
            )  # fmt: skip
        except StoreError as error:  # it was refused and counted in any case
            logger.warning("a call that came after attempt %s had ended could not be recorded: %s", attempt.id, error)
