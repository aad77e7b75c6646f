"""Algorithms as programs write them: a class with ``run``, or a function under ``@algo``, that enqueues rollouts in a
store, waits for them and looks at what came of them. Here such a one drives a run through the run's ports: the store it
is handed asks those. It trains no weights."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from agentlightning.agent.resources import NamedResources
from agentlightning.algorithms import Algorithm as OurAlgorithm
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode
from agentlightning.nouns import Rollout as RolloutRecord
from agentlightning.records.ledger import Ledger, count_calls, count_external, count_outcomes
from agentlightning.settings.fields import RunConfig
from agentlightning.spellings.absent import why

if TYPE_CHECKING:
    from agentlightning.algorithms.ports import Run
    from agentlightning.compat.store import LightningStore
    from agentlightning.records.traces import Group

__all__ = ["Algorithm", "Baseline", "FastAlgorithm", "algo", "as_ours"]

logger = logging.getLogger("agentlightning")

T = TypeVar("T")

_HANDED = ("store", "train_dataset", "val_dataset", "adapter", "initial_resources", "tracer", "trainer")
"""What a function under ``@algo`` is handed, by the names of its parameters."""


class Algorithm(Generic[T]):
    """Base of a program's own algorithms, ``Algorithm`` or ``Algorithm[TASK]``: a subclass defines ``run``, plain or
    async. It need not call ``super().__init__()``."""

    tasks: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    """Those that its run is for: to train on, and to validate with."""

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Awaitable[None] | None:
        """The whole of it. A plain one runs in a thread of its own, and awaits the store in a loop of its own."""
        raise ConfigError(
            f"algorithm {type(self).__name__} defines no run: write run(self, train_dataset, val_dataset)"
        )

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    # ------------------------------------------------------------------ what a run gives it

    def get_store(self) -> LightningStore:
        return self._got("store")

    def get_trainer(self) -> Any:
        return self._got("trainer")

    def get_adapter(self) -> Any:
        return self._got("adapter")

    def get_tracer(self) -> Any:
        return self._got("tracer")

    def get_initial_resources(self) -> NamedResources | None:
        """Those that the Trainer was given; None where it was given none."""
        return self._got("initial_resources") or None

    def set_store(self, store: Any) -> None:
        self._hand("store", store)

    def set_trainer(self, trainer: Any) -> None:
        self._hand("trainer", trainer)

    def set_adapter(self, adapter: Any) -> None:
        self._hand("adapter", adapter)

    def set_tracer(self, tracer: Any) -> None:
        self._hand("tracer", tracer)

    def set_initial_resources(self, resources: Any) -> None:
        self._hand("initial_resources", NamedResources(resources))

    def get_llm_proxy(self) -> Any:
        raise ConfigError(f"get_llm_proxy(): {why('LLMProxy')}")

    def _hand(self, name: str, value: Any) -> None:
        self.__dict__.setdefault("_handed", {})[name] = value

    def _got(self, name: str) -> Any:
        handed = self.__dict__.get("_handed", {})
        if name not in handed:
            raise ConfigError(
                f"get_{name}() was called outside a run: Trainer(algorithm=...) sets it when fit is called"
            )
        return handed[name]


class FastAlgorithm(Algorithm[T]):
    """A program's own algorithm that is done in a minute; here that makes no difference."""


class FunctionalAlgorithm(Algorithm[Any]):
    """A function under ``@algo``. It can still be called as the function it is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._takes = _parameters(function, self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Any:
        tasks = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        given = {name: tasks[name] if name in tasks else self._got(name) for name in self._takes}
        return self.function(**given)


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Makes an algorithm of a function, plain or async, that takes what it needs of ``store``, ``train_dataset``,
    ``val_dataset``, ``adapter``, ``tracer``, ``trainer`` and ``initial_resources``. Raises ConfigError for another
    parameter without a default."""
    return FunctionalAlgorithm(function)


def _parameters(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    taken: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _HANDED:
            taken.append(parameter.name)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            taken += [each for each in _HANDED if each not in taken]
        elif parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            sentence = why(parameter.name) or f"known are {', '.join(_HANDED)}; give it a default, or remove it"
            raise ConfigError(f"algorithm {name!r} takes {parameter.name!r}, which nothing is known for: {sentence}")
    return tuple(dict.fromkeys(taken))


class Baseline(FastAlgorithm[Any]):
    """Runs the agent on every task, ``n_epochs`` times, and then on the validation tasks, at most ``max_queue_length``
    at a time, and logs what each was worth. It changes nothing."""

    def __init__(self, *, n_epochs: int = 1, max_queue_length: int = 4) -> None:
        self.n_epochs = n_epochs
        self.max_queue_length = max_queue_length

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        free = asyncio.Semaphore(self.max_queue_length)
        tasks = [(task, "train") for _ in range(self.n_epochs) for task in train_dataset or ()]
        tasks += [(task, "val") for task in val_dataset or ()]
        await asyncio.gather(*(self._one(task, mode, free) for task, mode in tasks))

    async def _one(self, task: Any, mode: str, free: asyncio.Semaphore) -> None:
        store = self.get_store()
        async with free:
            queued = await store.enqueue_rollout(task, mode)
            (done,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])
            logger.info("%s: %s", done.rollout_id, done.status)


# --------------------------------------------------------------------------- as an algorithm of ours


class ProgramsAlgorithm(OurAlgorithm):
    """What a program's own algorithm is to a run. Each has a class of its own, made by `as_ours`, since settings are
    made anew wherever they are resolved."""

    name: ClassVar[str] = "own"
    needs_llm: ClassVar[bool] = False
    own: ClassVar[Algorithm[Any]]

    def check(self, config: RunConfig) -> None:
        """Whatever is set, it drives the run."""

    def total_steps(self, config: RunConfig, tasks: int) -> int:
        return 1

    async def fit(self, run: Run) -> None:
        """Calls its ``run``, and hands over, one step, what it asked for. Raises what it raises."""
        run.rollouts.mix_modes()
        groups: list[Group] = []
        working = asyncio.ensure_future(self._call())
        taking = asyncio.ensure_future(self._take(run, groups, working))
        try:
            done, _ = await asyncio.wait({working, taking}, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            working.cancel()
            taking.cancel()
            await asyncio.wait({working, taking})
        trained = [group for group in groups if group.traces[0].rollout.mode is Mode.TRAIN]
        if groups and run.journal.last_step == 0:
            await run.journal.commit(1, {"step": 1, "reward": _mean(groups)}, _ledger(groups), trained)

    async def _call(self) -> None:
        train, val = self.own.tasks
        if self.own.is_async():
            await cast("Awaitable[None]", self.own.run(train, val))
            return
        value = await asyncio.to_thread(self.own.run, train, val)
        if inspect.isawaitable(value):
            await value

    async def _take(self, run: Run, groups: list[Group], working: asyncio.Future[None]) -> None:
        """Takes what was asked for when it is finished, until there is nothing more to come."""
        asked = self.own.get_store().asked
        while asked.outstanding or not working.done():
            if asked.outstanding:
                groups.append(await run.rollouts.next())
                asked.outstanding -= 1
            else:
                more = asyncio.ensure_future(asked.more.wait())
                await asyncio.wait({more, working}, return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
                asked.more.clear()


def as_ours(own: Algorithm[Any]) -> OurAlgorithm:
    """The algorithm that a run is driven by, for one of a program's."""
    name = getattr(own, "__name__", type(own).__name__)
    made = type(name, (ProgramsAlgorithm,), {"name": name, "own": own, "__doc__": type(own).__doc__})
    return cast("type[ProgramsAlgorithm]", made)()


def _rollouts(groups: Sequence[Group]) -> list[RolloutRecord]:
    return [trace.rollout for group in groups for trace in group.traces]


def _mean(groups: Sequence[Group]) -> float:
    """Of those that were scored: a failure is none."""
    return fmean([rollout.reward for rollout in _rollouts(groups) if rollout.reward is not None] or [0.0])


def _ledger(groups: Sequence[Group]) -> Ledger:
    """What happened, where nothing is trained."""
    calls = [call for group in groups for trace in group.traces for attempt in trace.attempts for call in attempt.calls]
    counted, branches = count_calls(calls)
    return Ledger(
        rollouts=count_outcomes(_rollouts(groups)), calls=counted, branches=branches, external=count_external(calls)
    )
