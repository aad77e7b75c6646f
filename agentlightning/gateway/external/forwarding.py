"""An attempt's calls to external models: how they are told from calls to policies, and their life from the first byte
to the record.

Which call repeats which, who waits for one and what becomes of one that is left is told by the attempt's open calls, as
for any call. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import cast

from agentlightning.errors import StoreError
from agentlightning.gateway.calls import Answer, Forwarded, Identity, attempt_ended
from agentlightning.gateway.external import upstream as upstream_module
from agentlightning.gateway.external.upstream import (
    Outgoing,
    Upstream,
    Upstreams,
    asked_model,
    no_such_model,
    recorded,
    refuse_path,
)
from agentlightning.gateway.open_calls import OpenCalls
from agentlightning.gateway.wires.base import CallError, Target
from agentlightning.nouns import CallStatus, Json
from agentlightning.records.usage import AttemptUsage, ExternalUsage
from agentlightning.store.base import Store

logger = logging.getLogger("agentlightning.gateway")


class Forwarding:
    """The external models as one attempt may call them. ``resources`` are the attempt's, as they are recorded."""

    def __init__(
        self,
        store: Store,
        attempt_id: str,
        usage: AttemptUsage,
        upstreams: Upstreams,
        resources: Mapping[str, Json],
        calls: OpenCalls,
    ) -> None:
        self._store = store
        self._attempt_id = attempt_id
        self._usage = usage
        self._upstreams = upstreams
        self._resources = resources
        self._calls = calls
        self._answered: dict[str, float] = {}

    @property
    def names(self) -> Sequence[str]:
        """What they are called by."""
        return self._upstreams.names

    def named(self, target: Target, body: Mapping[str, Json]) -> Upstream | None:
        """The external model that a request is for, None for one to a policy. Raises CallError where it cannot be
        passed on, or there is neither."""
        name = asked_model(target, body)
        upstream = self._upstreams.get(name)
        if upstream is not None:
            refuse_path(name, target.path)
        elif "external" in cast(
            "dict[str, Json]", found if isinstance(found := self._resources.get(name), dict) else {}
        ):
            message = (
                f"the endpoint of external model {name!r} is not known to this process: pass the resource to the "
                "Trainer again"
            )
            raise CallError(503, message, code="upstream_error", retry=False)
        elif (upstream := self._upstreams.in_place_of_a_policy(name)) is not None:
            refuse_path(upstream.name, target.path)
        elif self._upstreams.alone:
            raise no_such_model(name, self._upstreams.names)
        return upstream

    def submit(
        self, wire: str, upstream: Upstream, sent: Outgoing, identity: Identity, *, retry: int, agent: str | None
    ) -> Forwarded:
        """Passes a call on, or joins the one that it repeats: as the session's ``submit``, and with the same duties for
        its caller."""
        now = time.monotonic()
        if isinstance(call := self._calls.join(identity, now, retry), Forwarded):
            return call
        call = Forwarded(
            id=f"external_{secrets.token_hex(12)}",
            index=self._calls.next_index(),
            policy_index=-1,
            identity=identity,
            wire=wire,
            agent=agent,
            received_at=time.time(),
            started=now,
            retry=retry,
        )
        self._calls.start(call, self._run(call, upstream, sent))
        return call

    def answered(self, call: Forwarded, upstream: Upstream) -> None:
        """An answer is being given: the agent got over what went wrong with this model before."""
        self._answered[upstream.name] = time.monotonic()
        self._usage.external[upstream.name].trouble = None

    def _silence(self, call: Forwarded, upstream: Upstream) -> float | None:
        """The seconds without a word after which a call was left, or which it had waited when the attempt ended; None
        where they say nothing of the endpoint: where it was left at once, or another call was answered since."""
        now = time.monotonic()
        if call.readers or call.left_at is None:
            silence = call.silent(now)
        elif call.left_at < self._answered.get(upstream.name, 0.0):
            return None
        else:
            silence = call.left_in_silence
        return silence if silence >= upstream_module.PATIENCE else None

    async def _run(self, call: Forwarded, upstream: Upstream, sent: Outgoing) -> None:
        """Asks the endpoint, records the call, and tells those who wait. Never raises: what goes wrong is the call's
        outcome."""
        use = self._usage.external.setdefault(upstream.name, ExternalUsage())
        use.calls += 1
        outcome: Answer | CallError = attempt_ended()
        try:
            outcome = await self._upstreams.ask(call, upstream, sent)
        except asyncio.CancelledError:
            use.left += self._calls.ended
        except CallError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - a defect of ours: its text and traceback may hold the endpoint, which no log may
            logger.error("a call to external model %r could not be passed on: %s", upstream.name, type(error).__name__)
            outcome = CallError(
                500, f"external model {upstream.name!r} failed: {type(error).__name__}", code="internal_error"
            )
        call.recording = True
        left = call.given_up or not call.readers
        silence = self._silence(call, upstream) if left else None
        record = recorded(
            call, upstream, sent, outcome, attempt_id=self._attempt_id, use=use, left=left, silence=silence
        )
        try:
            await self._store.record(record, ())
        except StoreError as error:
            self._calls.fail(call, self._calls.lost(error))
            return
        call.stored = record.status
        call.settle(outcome)
        if not call.claimable:
            self._calls.forget(call)
        if call.given_up and record.status is CallStatus.COMPLETE:
            await self._calls.mark_abandoned(call)
