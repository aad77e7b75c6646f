"""``LitAgentRunner`` as programs use it: an agent is run on single tasks, or on what a store has queued, without a
Trainer. It is a run without a model over the store's record, open from the first step to the end of ``run_context``, on
a thread with an event loop of its own, since ``with`` cannot wait for one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

from agentlightning.agent.calling import as_agent
from agentlightning.agent.resources import NamedResources
from agentlightning.agent.rollouts import Rollout
from agentlightning.agent.tasks import check_tasks
from agentlightning.compat.store import LightningStore, mode_of
from agentlightning.compat.trainer import Trainer
from agentlightning.errors import ConfigError
from agentlightning.run.opening import OpenRun

__all__ = ["LitAgentRunner"]

logger = logging.getLogger("agentlightning.runners")

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Steps that may run at the same time."""


class LitAgentRunner(Generic[T]):
    """Runs an agent, ``LitAgentRunner(tracer)`` or ``LitAgentRunner[TASK](tracer)``. ``max_rollouts`` bounds
    ``iter``."""

    def __init__(self, tracer: Any = None, max_rollouts: int | None = None) -> None:
        self.tracer = tracer
        self.max_rollouts = max_rollouts
        self._scene: _Scene | None = None

    @contextmanager
    def run_context(
        self, *, agent: Any, store: Any, hooks: Any = None, worker_id: int | None = None
    ) -> Generator[Self]:
        """While entered, ``step`` and ``iter`` run this agent and record in this store. Raises ConfigError for what is
        no agent or no store."""
        if not isinstance(store, LightningStore):
            raise ConfigError(f"run_context(store={type(store).__name__}): expected InMemoryLightningStore()")
        if self._scene is not None:
            raise ConfigError("run_context was entered before and not left: use one runner for one agent at a time")
        trainer = Trainer(
            store=store,
            output_dir=store.folder,
            progress=False,
            runner={"n_runners": AT_ONCE},
            tracer=self.tracer,
            hooks=hooks,
        )
        as_agent(agent)  # says at once what is wrong with it
        self._scene = _Scene(trainer, agent, store, worker_id or 0)
        try:
            yield self
        finally:
            scene, self._scene = self._scene, None
            scene.close()

    async def step(self, input: Any, *, resources: Mapping[str, Any] | None = None, mode: str | None = None) -> Rollout:
        """Runs the agent on one task and returns the rollout once it has ended, with its attempt. ``resources`` are
        laid over those that the store has. A failure of the agent is the rollout's status, with the reason in its
        ``metadata`` and in the log, not an exception."""
        scene, kind = self._entered(), mode_of(mode)
        (task,) = check_tasks([input], "input")

        async def run_one(run: OpenRun) -> str:
            version = None if resources is None else await run.ports.resources.publish(NamedResources(resources))
            (queued,) = await run.ports.rollouts.ask([task], 1, kind, resources=version)
            while not await run.store.wait([queued.id], timeout=LOOK):
                run.rollouts.watch.check()
            return queued.id

        rollout = await scene.store.get_rollout_by_id(await scene.call(run_one))
        assert rollout is not None
        if failure := (rollout.metadata or {}).get("failure"):
            logger.warning("rollout %s failed: %s: %s", rollout.rollout_id, failure["reason"], failure["message"])
        return rollout

    async def iter(self, *, event: Any = None) -> None:
        """Runs what the store has queued, until ``event`` is set (anything with ``is_set``), or ``max_rollouts`` have
        ended, or, without either, nothing is queued."""
        scene = self._entered()

        async def attend(run: OpenRun) -> None:
            before = len(await scene.store.query_rollouts(status=_ENDED))
            while event is None or not event.is_set():
                ended = len(await scene.store.query_rollouts(status=_ENDED)) - before
                waiting = await scene.store.query_rollouts(status=("queuing", "running"))
                if self.max_rollouts is not None and ended >= self.max_rollouts:
                    return
                if event is None and self.max_rollouts is None and not waiting:
                    return
                run.rollouts.watch.check()
                ids = [rollout.rollout_id for rollout in waiting]
                await (run.store.wait(ids, timeout=LOOK) if ids else asyncio.sleep(LOOK))

        await scene.call(attend)

    # ------------------------------------------------------------------ what hooks and agents ask

    def get_agent(self) -> Any:
        return self._entered().agent

    def get_store(self) -> LightningStore:
        return self._entered().store

    def get_worker_id(self) -> int:
        return self._entered().worker_id

    @property
    def worker_id(self) -> int | None:
        return None if self._scene is None else self._scene.worker_id

    def _entered(self) -> _Scene:
        if self._scene is None:
            raise ConfigError(
                "the runner has no agent and no store: with runner.run_context(agent=..., store=InMemoryLightningStore"
                "()): ..."
            )
        return self._scene


LOOK = 0.2
"""Seconds, at most, between looks at whether to end."""

_ENDED = ("succeeded", "failed", "cancelled")


class _Scene:
    """One ``run_context``: its run, from the first call on."""

    def __init__(self, trainer: Trainer, agent: Any, store: LightningStore, worker_id: int) -> None:
        self.agent = agent
        self.store = store
        self.worker_id = worker_id
        self._trainer = trainer
        self._opened: concurrent.futures.Future[OpenRun] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    async def call(self, work: Callable[[OpenRun], Awaitable[R]]) -> R:
        """Runs it on the run's loop. Raises what opening the run raises."""
        if self._opened is None:
            self._opened = concurrent.futures.Future()
            self._thread = threading.Thread(target=self._serve, name="agentlightning-runner", daemon=True)
            self._thread.start()
        run = await asyncio.shield(asyncio.wrap_future(self._opened))
        assert self._loop is not None

        async def awaited() -> R:
            return await work(run)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), self._loop))

    def close(self) -> None:
        """Ends what runs, and the run."""
        if self._thread is None or self._opened is None:
            return
        concurrent.futures.wait([self._opened])
        if self._opened.exception() is None and self._loop is not None and self._over is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _serve(self) -> None:
        assert self._opened is not None
        try:
            asyncio.run(self._main(self._opened))
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _main(self, opened: concurrent.futures.Future[OpenRun]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self._trainer.running_alone(self.agent) as run:
            opened.set_result(run)
            await self._over.wait()
