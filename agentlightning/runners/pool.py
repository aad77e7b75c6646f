"""RunnerPool: leases rollouts from the store, runs the agent on each, and reports what came of it. Every attempt ends:
by itself, at its deadline, or killed.

It runs on the main loop and holds no agent code there. What an attempt's outcome means is decided in report.py; how
agents are run, in thread.py and process.py.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentlightning.agent.calling import NO_TEMPLATE, AgentSpec
from agentlightning.agent.loading import describe, user_traceback
from agentlightning.agent.resources import NamedResources
from agentlightning.errors import AgentLightningError, ConfigError, LeaseLost, RunFailed, StoreError
from agentlightning.records.attempts import AttemptReport
from agentlightning.records.probe import AgentProbe
from agentlightning.runners.check import check_agent, new_launcher, refuse_inside_agent
from agentlightning.runners.grading import Grader, Graders
from agentlightning.runners.job import Assignment, Mark, Ran, Returned
from agentlightning.runners.process import ProcessIsolation
from agentlightning.runners.report import OutputLog, needs_grader, resolve
from agentlightning.runners.thread import ThreadIsolation
from agentlightning.settings.fields import EvaluationConfig, RunnerConfig, SamplingConfig
from agentlightning.types import Attempt, AttemptResult, Failure, Json, Mode, Reason, Rollout

if TYPE_CHECKING:
    from agentlightning.gateway import Gateway
    from agentlightning.records.usage import AttemptUsage
    from agentlightning.store.base import Store

POLL = 0.05
"""Seconds between looks at an empty queue; ``wake`` cuts them short."""
HEARTBEAT = 2.0
"""Seconds, at most, between renewals of a lease, and until a cancelled attempt is noticed."""

T = TypeVar("T")


class Isolation(Protocol):
    """How agents are run. ``run`` returns None when ``stop`` was set before the attempt ended."""

    @property
    def abandoned(self) -> int: ...
    async def start(self) -> None: ...
    async def run(
        self, job: Assignment, log: OutputLog, mark: Mark, *, deadline: float, stop: asyncio.Event
    ) -> Ran | None: ...
    async def settle(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """An attempt that is being run. ``stop`` ends it from outside."""

    rollout_id: str
    stop: asyncio.Event


class RunnerPool:
    """Runs up to ``config.n_runners`` attempts at once.

    ``grader(task, output, attempt)``, plain or async, scores what returns no number. ``resources`` are the user's, with
    their API keys; versions in the store are laid over them. Logs go to ``folder/logs``. ``probe`` is what
    ``check_agent`` found, where that was called before. ``on_attempt`` is called with each AttemptReport, on the loop
    of ``start``.

    Raises ConfigError, here or in ``start``, for what cannot work.
    """

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        agent: AgentSpec,
        config: RunnerConfig,
        *,
        run_id: str,
        sampling: Mapping[Mode, SamplingConfig | EvaluationConfig],
        grader: Grader | None = None,
        resources: Mapping[str, Any] | None = None,
        extra_env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        probe: AgentProbe | None = None,
    ) -> None:
        refuse_inside_agent()
        self.on_attempt: Callable[[AttemptReport], Any] | None = None
        self.probe = probe
        self._store = store
        self._gateway = gateway
        self._spec = agent
        self._config = config
        self._run_id = run_id
        self._sampling = sampling
        self._given = NamedResources(resources or {})
        self._given.to_json()  # says by name what cannot be a resource
        self._keys = self._given.keys_of_external()
        self._graders = None if grader is None else Graders(grader, config.grader, config.n_runners, self._keys)
        self._resources: dict[int, NamedResources] = {}
        self._extra_env = dict(extra_env or {})
        self._logs = None if folder is None else folder / "logs"
        self._runner_id = f"runner-{secrets.token_hex(4)}"
        self._isolation: Isolation | None = None
        self._held: dict[str, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._scope: tuple[Mode, Collection[int] | None] | None = None
        self._leasing: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._closing = False
        self._error: BaseException | None = None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Checks the agent, starts what runs it, and begins to lease. Raises ConfigError when the agent cannot be
        used."""
        self.probe = probe = self.probe or await check_agent(
            self._spec, self._config.isolation, extra_env=self._extra_env, keys=self._keys
        )
        if probe.needs_template and (await self._latest_resources()).prompt_template() is None:
            raise ConfigError(f"agent {self._spec.name!r}: {NO_TEMPLATE}")
        if probe.isolation == "process":
            assert self._spec.source is not None
            self._isolation = ProcessIsolation(
                self._spec.source, self._spec.name, self._extra_env, new_launcher(probe, self._keys)
            )
        else:
            self._isolation = ThreadIsolation(self._spec.load(), self._gateway.url)
        await self._isolation.start()
        if self._graders is not None:
            launcher = self._isolation.launcher if isinstance(self._isolation, ProcessIsolation) else None
            try:
                await self._graders.start(launcher, partial(new_launcher, keys=self._keys))
            except BaseException:
                await self.close()
                raise
        self._leasing = asyncio.create_task(self._guard(self._lease_loop))
        self._expiring = asyncio.create_task(self._guard(self._expire_loop))

    async def close(self) -> None:
        """Ends what runs: kills or abandons it, revokes its keys, and queues its rollouts again, so that a resumed run
        runs them anew."""
        self._closing = True
        self._wake.set()
        if self._expiring is not None:
            self._expiring.cancel()
        if self._leasing is not None:  # not cancelled: what it may have leased this moment has to be given back
            await self._leasing
        for held in self._held.values():
            held.stop.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._graders is not None:
            await self._graders.close()
        if self._isolation is not None:
            await self._isolation.close()
            self._isolation = None

    def serve(self, mode: Mode, groups: Collection[int] | None) -> None:
        """Leases rollouts of this mode and these groups alone from now on (None: of all), and looks for them at once.
        Before the first call whatever is queued is leased.

        A resumed run finds rollouts of a later step queued while it still makes earlier steps again: run now, they
        would be sampled from the wrong weights.
        """
        self._scope = (mode, groups)
        self._wake.set()

    def holds(self, rollout_ids: Collection[str]) -> bool:
        """Whether any of the rollouts is being run right now."""
        return any(held.rollout_id in rollout_ids for held in self._held.values())

    async def settle(self) -> None:
        """Waits a little for what ended attempts have left running: what it still calls has come then."""
        if self._isolation is not None:
            await self._isolation.settle()

    @property
    def abandoned(self) -> int:
        """Threads of ended attempts that still run."""
        return self._isolation.abandoned if self._isolation is not None else 0

    def raise_if_dead(self) -> None:
        """Raises what stopped the pool, if something has. Nothing would ever be run again."""
        if self._error is not None:
            raise (
                self._error
                if isinstance(self._error, AgentLightningError)
                else RunFailed(f"the runner failed: {describe(self._error)}")
            ) from self._error

    # ------------------------------------------------------------------ leases

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # kept, and raised where the run waits for its rollouts
            self._error = self._error or error
            for held in self._held.values():
                held.stop.set()

    async def _lease_loop(self) -> None:
        while self._error is None and not self._closing:
            free = self._config.n_runners - len(self._held)
            leased: list[tuple[Rollout, Attempt]] = []
            if free > 0:
                mode, groups = self._scope or (None, None)
                leased = await self._store.lease(
                    self._run_id, self._runner_id, limit=free, seconds=self._config.lease, mode=mode, groups=groups
                )
            for rollout, attempt in leased:
                stop = asyncio.Event()
                self._held[attempt.id] = _Held(rollout.id, stop)
                task = asyncio.create_task(self._guard(partial(self._attend, rollout, attempt, stop)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if not leased:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await self._wake.wait()
                self._wake.clear()

    async def _expire_loop(self) -> None:
        """Ends the leases of runners that died, this or another process's."""
        while True:
            await self._store.expire(max_attempts=self._config.max_attempts)
            await asyncio.sleep(self._config.lease / 2)

    async def _renew(self, attempt: Attempt, stop: asyncio.Event) -> None:
        """Keeps the lease while the attempt runs; stops the attempt when it is no longer ours."""
        while not stop.is_set():
            await asyncio.sleep(min(HEARTBEAT, self._config.lease / 3))
            if not await self._store.renew(attempt.id, seconds=self._config.lease):
                stop.set()

    # ------------------------------------------------------------------ one attempt

    async def _attend(self, rollout: Rollout, attempt: Attempt, stop: asyncio.Event) -> None:
        renewing = asyncio.create_task(self._guard(partial(self._renew, attempt, stop)))
        log = OutputLog(None if self._logs is None else self._logs / f"{_file_name(attempt.id)}.log")
        try:
            await self._run(rollout, attempt, stop, log)
        finally:
            renewing.cancel()
            log.close()
            del self._held[attempt.id]
            self._wake.set()

    async def _run(self, rollout: Rollout, attempt: Attempt, stop: asyncio.Event, log: OutputLog) -> None:
        began = time.monotonic()
        assert self._isolation is not None
        resources = await self._resources_of(rollout)
        sampling = self._sampling_of(rollout.mode)
        marked: list[str] = []
        endpoint = await self._gateway.open(rollout, attempt, sampling=sampling, resources=resources.to_json())
        try:
            job = Assignment.of(rollout, attempt, endpoint, _handed_sampling(sampling), resources)
            ran = await _own_fault(
                self._isolation.run(job, log, marked.append, deadline=self._config.deadline, stop=stop)
            )
        finally:
            usage = await self._gateway.end(attempt.id)
        if ran is None:
            await self._stopped(attempt, marked)
            return
        graded: float | Failure | None = None
        if self._graders is not None and isinstance(ran, Returned) and needs_grader(ran, rollout, usage):
            grading = self._graders.grade(rollout, ran.output, attempt, log, deadline=self._config.deadline, stop=stop)
            graded = await _own_fault(grading)
        if stop.is_set():
            await self._stopped(attempt, marked)
            return
        emitted = [reward for reward in await self._store.rewards(rollout.id) if reward.attempt_id == attempt.id]
        result = resolve(
            rollout, attempt, ran, usage, emitted=emitted, graded=graded, failure_reward=self._config.failure_reward,
            marked=marked,
            now=time.time(),
        )  # fmt: skip
        await self._report(rollout, attempt, result, usage, log.text(), time.monotonic() - began)

    async def _report(
        self,
        rollout: Rollout,
        attempt: Attempt,
        result: AttemptResult,
        usage: AttemptUsage,
        stdout: str,
        seconds: float,
    ) -> None:
        retried = result.failure is not None and attempt.number < self._config.max_attempts
        try:
            if retried:
                assert result.failure is not None
                ended = await self._store.retry(attempt.id, result.failure, marked=result.marked)
            else:
                ended = await self._store.finish(attempt.id, result)
        except LeaseLost:
            return  # cancelled or expired in this very moment: what ended it has been recorded
        if self.on_attempt is not None:
            reported = self.on_attempt(AttemptReport(ended, attempt, result, usage, stdout, seconds, retried))
            if inspect.isawaitable(reported):
                await reported

    async def _stopped(self, attempt: Attempt, marked: Sequence[str]) -> None:
        """An attempt that was stopped from outside reports nothing; when the pool closes, its rollout goes back to the
        queue."""
        if self._closing:
            with suppress(LeaseLost):
                await self._store.retry(
                    attempt.id, Failure(Reason.CANCELLED, "the run was closed while it was running"), marked=marked
                )

    async def _resources_of(self, rollout: Rollout) -> NamedResources:
        version = rollout.resources_version
        if version not in self._resources:
            recorded = (
                NamedResources.from_json(await self._store.get_resources(self._run_id, version))
                if version > 0
                else NamedResources()
            )
            self._resources[version] = self._given.merged(recorded)
        return self._resources[version]

    async def _latest_resources(self) -> NamedResources:
        try:
            return self._given.merged(NamedResources.from_json(await self._store.get_resources(self._run_id)))
        except StoreError:  # none recorded yet
            return self._given

    def _sampling_of(self, mode: Mode) -> SamplingConfig | EvaluationConfig:
        found = self._sampling.get(mode) or (self._sampling.get(Mode.TRAIN) if mode is Mode.DEV else None)
        if found is None:
            raise ConfigError(f"no sampling settings for {str(mode)!r} rollouts")
        return found


async def _own_fault(running: Awaitable[T]) -> T | Failure:
    """What came of an attempt, or its failure where it could not even be run: one attempt's fault is never the run's.

    What the run itself cannot do without (the record, the endpoint, the process that starts agents) says so by an error
    of its own, which ends the run.
    """
    try:
        return await running
    except AgentLightningError:
        raise
    except Exception as error:  # noqa: BLE001  # recorded with its type on the rollout
        return Failure(Reason.LOST, f"the runner could not run it: {describe(error)}", user_traceback(error))


def _handed_sampling(config: SamplingConfig | EvaluationConfig) -> dict[str, Json]:
    """The run's settings as an agent may pass them on: OpenAI's names, and only what differs from their defaults."""
    return {"temperature": config.temperature} | ({"top_p": config.top_p} if config.top_p < 1 else {})


def _file_name(attempt_id: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in attempt_id)
