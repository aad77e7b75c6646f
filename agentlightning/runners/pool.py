"""RunnerPool: runs the attempts that a desk leases, several at once. Every attempt ends: by itself, at its deadline, or
stopped.

It holds no agent code, and knows of the rest of a run what its desk says. How agents are run is in thread.py and
process.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from agentlightning.agent.loading import describe
from agentlightning.errors import AgentLightningError, RunFailed
from agentlightning.runners.assignment import Assignment
from agentlightning.runners.desk import Desk
from agentlightning.runners.execution import AgentResult, or_failure
from agentlightning.runners.isolation import Isolation
from agentlightning.runners.said import Said

HEARTBEAT = 2.0
"""Seconds, at most, between renewals of a lease, and until a cancelled attempt is noticed."""


class RunnerPool:
    """Runs up to ``n_runners`` attempts of ``desk`` at once, in an ``isolation`` that has been started."""

    def __init__(self, desk: Desk, isolation: Isolation, n_runners: int) -> None:
        self.isolation = isolation
        self._desk = desk
        self._n_runners = n_runners
        self._held: dict[str, asyncio.Event] = {}
        """By the id of an attempt that is being run, what stops it from outside."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._leasing: asyncio.Task[None] | None = None
        self._closing = False
        self._error: BaseException | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Begins to lease, on the running loop."""
        self._leasing = asyncio.create_task(self._guard(self._lease))

    async def close(self) -> None:
        """Ends what runs, killed or abandoned, and reports it as stopped. Leases nothing more."""
        self._closing = True
        self._freed.set()
        if self._leasing is not None:  # not cancelled: what it may have leased this moment has to be given back
            await self._leasing
        self._stop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Waits a little for what ended attempts have left running: what it still calls has come then."""
        await self.isolation.settle()

    def raise_if_dead(self) -> None:
        """Raises what stopped the pool, if something has. Nothing would ever be run again."""
        if self._error is not None:
            raise (
                self._error
                if isinstance(self._error, AgentLightningError)
                else RunFailed(f"the runner failed: {describe(self._error)}")
            ) from self._error

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # kept, and raised where the run waits for its rollouts
            self._die(error)

    def _die(self, error: BaseException) -> None:
        self._error = self._error or error
        self._freed.set()
        self._stop_all()

    def _stop_all(self) -> None:
        for stop in self._held.values():
            stop.set()

    # ------------------------------------------------------------------ attempts

    async def _lease(self) -> None:
        while self._error is None and not self._closing:
            if (free := self._n_runners - len(self._held)) == 0:
                await self._freed.wait()
                self._freed.clear()
                continue
            assignments = await self._desk.lease(free)
            if assignments is None:
                return
            for assignment in assignments:
                self._held[assignment.attempt_id] = asyncio.Event()
                task = asyncio.create_task(
                    self._guard(partial(self._attend, assignment.reached_at(self._desk.address)))
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _attend(self, assignment: Assignment) -> None:
        stop = self._held[assignment.attempt_id]
        beating = asyncio.create_task(self._guard(partial(self._beat, assignment, stop)))
        said = Said()
        result: AgentResult | None = None
        try:
            log = _LogOf(self._desk, assignment.attempt_id)
            result = await or_failure(self.isolation.run(assignment, log, said, stop=stop))
        except Exception as error:  # noqa: BLE001  # as above: kept first, so that nothing more is leased
            self._die(error)
        try:
            await self._desk.report(assignment.attempt_id, None if stop.is_set() else result, said)
        finally:
            beating.cancel()
            del self._held[assignment.attempt_id]
            self._freed.set()

    async def _beat(self, assignment: Assignment, stop: asyncio.Event) -> None:
        """Keeps the lease while the attempt runs; stops the attempt when it is no longer ours."""
        while not stop.is_set():
            await asyncio.sleep(min(HEARTBEAT, assignment.lease_seconds / 3))
            if not await self._desk.beat(assignment.attempt_id):
                stop.set()


class _LogOf:
    """What one attempt prints, on its way to the desk."""

    def __init__(self, desk: Desk, attempt_id: str) -> None:
        self.write: Callable[[bytes], None] = partial(desk.log, attempt_id)
