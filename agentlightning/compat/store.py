"""``agentlightning.store`` as programs use it: they add resources, enqueue rollouts, wait for them and ask what came of
them. Everything is in the record that runs write (store/), in memory's place a folder of its own that goes with the
object; what is enqueued while a run is open is asked of that run, else of the one that takes this record up."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from agentlightning.agent.plain import Plain
from agentlightning.agent.resources import NamedResources
from agentlightning.agent.rollouts import Attempt, Rollout, RolloutConfig
from agentlightning.errors import ConfigError, RunFailed, StoreError
from agentlightning.nouns import Attempt as AttemptRecord
from agentlightning.nouns import Failure, Mode, Reason, RunRecord, RunStatus, Status
from agentlightning.nouns import Rollout as RolloutRecord
from agentlightning.records.json_values import exact_json
from agentlightning.run.opening import HeldRecord, OpenRun
from agentlightning.run.rollouts import queued, read_trace

if TYPE_CHECKING:
    from agentlightning.store.base import Store
    from agentlightning.tracing.spans import Span

__all__ = ["AttemptedRollout", "InMemoryLightningStore", "LightningStore", "ResourcesUpdate"]

T = TypeVar("T")

AttemptedRollout = Rollout
"""A rollout with its attempt: here that is a rollout's own field."""

_WORDS = {Status.QUEUED: "queuing", Status.SCORING: "running"}
_FAILED = {Reason.TIMEOUT: "timeout", Reason.LOST: "unresponsive"}
_MODES = {"test": Mode.VAL, None: Mode.DEV}
_OF_RUNNERS = (
    "start_rollout",
    "start_attempt",
    "dequeue_rollout",
    "update_rollout",
    "update_attempt",
    "update_worker",
    "query_workers",
    "add_span",
    "add_otel_span",
    "get_next_span_sequence_id",
)
"""What programs that run agents in their own way would call."""


@dataclass(kw_only=True)
class ResourcesUpdate(Plain):
    """A version of the resources."""

    resources_id: str
    resources: NamedResources
    version: int = 1


@dataclass(slots=True)
class Asked:
    """How many rollouts were asked of a run and not taken yet by whoever drives it. ``more`` is set when there is
    another."""

    outstanding: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Live:
    """A run that is open, and the event loop that it is open on."""

    run: OpenRun
    loop: asyncio.AbstractEventLoop
    asked: Asked = field(default_factory=Asked)

    async def call(self, work: Callable[[OpenRun], Awaitable[T]]) -> T:
        """Runs it on the run's own loop, whichever the caller's is."""

        async def awaited() -> T:
            return await work(self.run)

        if asyncio.get_running_loop() is self.loop:
            return await awaited()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self.loop))


class LightningStore:
    """What is recorded of the rollouts of a program. ``Trainer.store`` is one, over the record that its runs write;
    ``InMemoryLightningStore`` has a record of its own. Its methods may be awaited on any event loop."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        self.url = url
        self.folder = folder
        self._opened: Store | None = None
        self._runs: list[str] = []
        """Those whose rollouts are shown, the oldest first."""
        self._own: RunRecord | None = None
        """The run that what is enqueued between runs belongs to, once there is something."""
        self._given: dict[int, NamedResources] = {}
        """Its versions, with what is not recorded: where their external models are called."""
        self._live: _Live | None = None
        self._numbering = threading.Lock()
        self._next: Counter[Mode] | None = None
        """The next number of each mode between runs; None where a run may have given some out."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_RUNNERS:
            raise AttributeError(
                f"{type(self).__name__}.{name} has no part behind it: attempts are leased, recorded and ended by the "
                "runners here; run the agent with LitAgentRunner or Trainer",
                name=name,
                obj=self,
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    # ------------------------------------------------------------------ resources

    async def add_resources(self, resources: Mapping[str, Any]) -> ResourcesUpdate:
        """A new version, which rollouts get that are enqueued from now on. In an open run it is laid over what that
        run hands out."""
        given = NamedResources(resources)

        async def publish(run: OpenRun) -> int:
            version = await run.ports.resources.publish(given)
            await run.ports.resources.promote(version)
            return version

        if self._live is not None:
            version = await self._live.call(publish)
            if self._own is not None and self._live.run.record.id == self._own.id:
                self._given[version] = NamedResources({**self.latest_given(), **given})
        else:
            given.external()  # says what cannot be called
            version = await (await self._store()).put_resources((await self._record()).id, given.to_json())
            self._given[version] = given
        return _update(version, given)

    async def update_resources(self, resources_id: str, resources: Mapping[str, Any]) -> ResourcesUpdate:
        """As ``add_resources``: a version never changes, so this is a new one."""
        await self.get_resources_by_id(resources_id)
        return await self.add_resources(resources)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """None where there is no such version."""
        return await self._resources(_version(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """None where there are none."""
        return await self._resources(None if self._live is None else self._live.run.ports.resources.current)

    async def _resources(self, version: int | None) -> ResourcesUpdate | None:
        if not self._runs:
            return None
        try:
            values = await (await self._store()).get_resources(self._runs[-1], version)
        except StoreError:  # no such version
            return None
        return _update(version or 0, NamedResources.from_json(values))

    # ------------------------------------------------------------------ rollouts

    async def enqueue_rollout(
        self,
        input: Any,
        mode: str | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Rollout:
        """Queues a rollout on a task and returns it at once. ``mode`` is ``train``, ``val`` (or ``test``), or None for
        a rollout that is neither. Raises ConfigError for a task that is no JSON, and for what is a setting of the whole
        run."""
        if config is not None and config != RolloutConfig():
            raise ConfigError(
                "enqueue_rollout(config=...): deadlines and attempts are settings of the run, runner.deadline and "
                "runner.max_attempts"
            )
        if metadata:
            raise ConfigError("enqueue_rollout(metadata=...) has no part behind it: put it into the task, input=")
        task, kind = exact_json(input, "input"), mode_of(mode)
        version = None if resources_id is None else _version(resources_id)

        async def ask(run: OpenRun) -> RolloutRecord:
            (rollout,) = await run.ports.rollouts.ask([task], 1, kind, resources=version)
            self.asked.outstanding += 1
            self.asked.more.set()
            return rollout

        async with self._alone():
            if (live := self._live) is None:
                store, record = await self._store(), await self._record()
                if self._next is None:
                    self._next = await self._numbers(record.id)
                number = self._next[kind]
                self._next[kind] += 1
                version = version or max(self._given, default=0)
                (stored,) = await store.enqueue([queued(record.id, 0, task, kind, number, 0, version)])
                return rollout_view(stored)
        return rollout_view(await live.call(ask))

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """Waits until all of them are final, or ``timeout`` seconds have passed, and returns those that are."""
        store, live = await self._store(), self._live
        pending, done = list(rollout_ids), dict[str, RolloutRecord]()
        until = None if timeout is None else time.monotonic() + timeout
        while pending:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                ended = await store.wait(pending, timeout=0.5 if left is None else min(left, 0.5))
            except StoreError as error:
                if live is None or self._live is live:
                    raise
                raise _ended(pending) from error
            done |= {rollout.id: rollout for rollout in ended}
            pending = [rollout_id for rollout_id in pending if rollout_id not in done]
            if left == 0.0:
                break
            if pending and live is not None and self._live is not live:
                raise _ended(pending)
        return [rollout_view(done[rollout_id]) for rollout_id in rollout_ids if rollout_id in done]

    async def query_rollouts(
        self,
        *,
        status: Sequence[str] | None = None,
        rollout_ids: Sequence[str] | None = None,
        status_in: Sequence[str] | None = None,
        rollout_id_in: Sequence[str] | None = None,
    ) -> list[Rollout]:
        """In the order in which they were queued; with ``status`` or ``rollout_ids`` of those alone."""
        states, ids = status_in if status is None else status, rollout_id_in if rollout_ids is None else rollout_ids
        found = [rollout_view(record) for record in await self._rollouts()]
        return [
            rollout
            for rollout in found
            if (states is None or rollout.status in states) and (ids is None or rollout.rollout_id in ids)
        ]

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """With its last attempt; None where there is none of this id."""
        record = await (await self._store()).get_rollout(rollout_id)
        return None if record is None else rollout_view(record, await self.get_latest_attempt(rollout_id))

    async def query_attempts(self, rollout_id: str) -> list[Attempt]:
        """In the order of their numbers."""
        return [attempt_view(attempt) for attempt in await (await self._store()).attempts(rollout_id)]

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return next(iter((await self.query_attempts(rollout_id))[::-1]), None)

    async def query_spans(self, rollout_id: str, attempt_id: str | Literal["latest"] | None = None) -> list[Span]:
        """What was recorded of a rollout as spans: its calls with their tokens, what its agent told, its rewards. Of
        one attempt, the latest, or all."""
        from agentlightning.tracing.spans import spans_of

        store = await self._store()
        if (record := await store.get_rollout(rollout_id)) is None:
            return []
        attempts = (await read_trace(store, record)).attempts
        if attempt_id == "latest":
            attempts = attempts[-1:]
        return [
            span for trace in attempts if attempt_id in (None, "latest", trace.attempt.id) for span in spans_of(trace)
        ]

    # ------------------------------------------------------------------ for Trainer and LitAgentRunner

    async def held(self, *, as_own: bool = False) -> HeldRecord:
        """The record for a run to go into; ``as_own``: that run is the one that things are enqueued in."""
        return HeldRecord(await self._store(), await self._record() if as_own else None)

    def latest_given(self) -> NamedResources:
        """The newest version that was added between runs, with the endpoints of its external models."""
        return self._given[max(self._given)] if self._given else NamedResources()

    async def attach(self, run: OpenRun) -> None:
        """From now on this run is asked. Called on its event loop."""
        async with self._alone():
            self._next = None
            if self._own is not None and run.record.id == self._own.id:
                for mode, number in (await self._numbers(self._own.id)).items():
                    run.rollouts.number_from(mode, number)
                for version, given in self._given.items():
                    run.resources.keep(version, given.external())
            if run.record.id not in self._runs:
                self._runs.append(run.record.id)
            self._live = _Live(run, asyncio.get_running_loop())

    @property
    def asked(self) -> Asked:
        """Of the run that is open."""
        assert self._live is not None
        return self._live.asked

    async def close(self) -> None:
        """Closes the record; what asks again opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def detach(self) -> None:
        """The run is being closed."""
        self._live = None

    # ------------------------------------------------------------------ parts

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """While entered, nothing else numbers rollouts, on whichever event loop."""
        await asyncio.to_thread(self._numbering.acquire)
        try:
            yield
        finally:
            self._numbering.release()

    async def _store(self) -> Store:
        if self._live is not None:
            return self._live.run.store
        if self._opened is None:
            from agentlightning.store import open_store

            self._opened = await asyncio.to_thread(open_store, self.url)
        return self._opened

    async def _record(self) -> RunRecord:
        if self._own is None:
            run_id = f"store-{secrets.token_hex(4)}"
            folder = (self.folder or Path(self.url.removeprefix("sqlite:///")).parent) / run_id
            record = RunRecord(run_id, "store", str(folder), RunStatus.STOPPED, {"mode": str(Mode.DEV)}, time.time())
            await (await self._store()).create_run(record)
            self._own = record
            self._runs.append(run_id)
        return self._own

    async def _rollouts(self) -> list[RolloutRecord]:
        store = await self._store()
        return [rollout for run in self._runs for rollout in await store.rollouts(run)]

    async def _numbers(self, run_id: str) -> Counter[Mode]:
        """The next number of each mode."""
        found: Counter[Mode] = Counter()
        for rollout in await (await self._store()).rollouts(run_id):
            found[rollout.mode] = max(found[rollout.mode], rollout.group + 1)
        return found


class InMemoryLightningStore(LightningStore):
    """A store of its own. What it acknowledges is in a SQLite file that goes with the object, and not in memory: so
    agents in processes of their own are recorded as any are."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="agentlightning-", ignore_cleanup_errors=True)
        folder = Path(self._place.name)
        super().__init__(f"sqlite:///{folder}/record.db", folder)


# --------------------------------------------------------------------------- records as programs see them


def rollout_view(record: RolloutRecord, attempt: Attempt | None = None) -> Rollout:
    """A stored rollout as programs are handed it."""
    return Rollout(
        rollout_id=record.id,
        input=record.task,
        start_time=record.started_at or record.created_at,
        end_time=record.ended_at,
        mode=str(record.mode),
        resources_id=str(record.resources_version),
        status=_WORDS.get(record.status, str(record.status)),
        metadata=_why(record.failure),
        attempt=attempt,
        group=record.group,
        index=record.index,
        seed=record.seed,
    )


def attempt_view(record: AttemptRecord) -> Attempt:
    """A stored attempt as programs are handed it."""
    failed = None if record.failure is None else _FAILED.get(record.failure.reason)
    return Attempt(
        attempt_id=record.id,
        sequence_id=record.number,
        rollout_id=record.rollout_id,
        start_time=record.started_at,
        end_time=record.ended_at,
        status=failed or _WORDS.get(record.status, str(record.status)),
        worker_id=record.runner_id,
        metadata=_why(record.failure),
    )


def _why(failure: Failure | None) -> dict[str, Any] | None:
    """Why it failed, where it did."""
    return None if failure is None else {"failure": {"reason": str(failure.reason), "message": failure.message}}


def _ended(pending: Sequence[str]) -> RunFailed:
    return RunFailed(f"the run has ended before {pending[0]} had: nothing more of it will be run")


def mode_of(mode: object) -> Mode:
    found = _MODES.get(cast("str | None", mode)) or next((each for each in Mode if each == mode), None)
    if found is None:
        raise ConfigError(f"mode={mode!r}: it is train, val, test or None")
    return found


def _version(resources_id: str) -> int:
    if not str(resources_id).isdecimal():
        raise ConfigError(f"there are no resources {resources_id!r}: pass the resources_id that add_resources gave")
    return int(resources_id)


def _update(version: int, resources: NamedResources) -> ResourcesUpdate:
    return ResourcesUpdate(resources_id=str(version), resources=resources, version=version)
