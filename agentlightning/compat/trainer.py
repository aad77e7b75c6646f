"""``Trainer`` as programs of any version call it: ours, with a store of the program's, its own algorithm,
and the forms of the first version, in which ``fit`` joins a server or, with ``dev=True``, tries an agent out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from agentlightning.agent.calling import as_agent
from agentlightning.agent.loading import short_errors
from agentlightning.agent.resources import NamedResources
from agentlightning.agent.task_files import TABLES_AND_LINES
from agentlightning.agent.tasks import check_tasks
from agentlightning.compat.first_version import DevTaskLoader
from agentlightning.compat.own_algorithm import Algorithm, as_ours
from agentlightning.compat.store import LightningStore
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode, RunStatus
from agentlightning.run.entry import Interrupts
from agentlightning.run.opening import OpenRun, Plan
from agentlightning.run.trainer import Trainer as OurTrainer
from agentlightning.spellings.absent import why
from agentlightning.views.result import FitResult

__all__ = ["Trainer"]


class Trainer(OurTrainer):
    __doc__ = f"""{OurTrainer.__doc__}
    Programs of this package's name may also pass: ``store``, which the runs are then recorded in, and ``algorithm`` of
    their own, a subclass of ``Algorithm`` or a function under ``@algo``. With ``dev`` True ``fit`` tries the agent
    out, as ``dev`` does, on all tasks (or ``max_tasks``), and returns its report.
    """

    def __init__(
        self,
        *args: Any,
        algorithm: Any = None,
        store: Any = None,
        dev: bool = False,
        **settings: Any,
    ) -> None:
        own = cast("Algorithm[Any] | None", algorithm) if isinstance(algorithm, Algorithm) else None
        if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
            name = cast("type[Any]", algorithm).__name__
            raise ConfigError(f"Trainer(algorithm={name}): it is a class: pass an instance, algorithm={name}()")
        ours = cast("Any", algorithm) if own is None else as_ours(own)
        if isinstance(store, Mapping):  # the settings of the record
            settings["store"], store = cast("Mapping[str, Any]", store), None
        if store is not None and not isinstance(store, LightningStore):
            raise ConfigError(
                f"Trainer(store={type(store).__name__}): expected InMemoryLightningStore(), or settings, "
                "store={'url': 'sqlite:///...'}"
            )
        if store is not None:
            settings["store"] = {"url": store.url}
        super().__init__(*args, algorithm=ours, **settings)
        self.own_algorithm: Algorithm[Any] | None = own
        self._dev_only = bool(dev)
        self._given_store = store
        self.store: LightningStore = store or LightningStore(self.config.anchored().record_url)
        """What its runs record, as programs ask for it."""

    def fit(
        self,
        *args: Any,
        endpoint: str | None = None,
        backend: str | None = None,
        dev_data: Any = None,
        **kwargs: Any,
    ) -> FitResult:
        """As ours: ``fit(agent, train_dataset, val_dataset)``. ``endpoint`` (or ``backend``, or an address in the place
        of ``train_dataset``) is a server that would be joined: it may be given with ``dev=True`` alone, which does
        without one. Then ``dev_data``, or what stands in the place of ``val_dataset``, has the tasks."""
        agent, train, val = (*args[:3], *(None,) * (3 - len(args)))
        agent, train, val = (
            kwargs.get(name, value)
            for name, value in (("agent", agent), ("train_dataset", train), ("val_dataset", val))
        )
        server = endpoint or backend or (train if _is_address(train) else None)
        if self._dev_only:
            data = next((each for each in (dev_data, val, train) if each is not None and each is not server), None)
            report: Any = self._try_out(agent, data)
            return report
        if dev_data is not None or isinstance(val, DevTaskLoader):
            raise ConfigError("dev_data is for trying an agent out: Trainer(dev=True).fit(agent, dev_data=...)")
        if server is not None:
            raise ConfigError(f"fit(agent, {server!r}): {why('server')}")
        return super().fit(*args, **kwargs)

    def _try_out(self, agent: Any, data: Any) -> Any:
        """`dev` on all of the tasks, with the resources that they came with."""
        if data is None and self.train_dataset is None:
            raise ConfigError(
                "Trainer(dev=True).fit needs tasks: fit(agent, dev_data=DevTaskLoader(tasks=..., resources=...)), or "
                "fit(agent, tasks)"
            )
        loader = data if isinstance(data, DevTaskLoader) else None
        given: Any = loader.tasks if loader is not None else self.train_dataset if data is None else data
        tasks = check_tasks(given, "dev_data", self.max_tasks)
        before = self.resources
        if loader is not None:
            self.resources = {**before, **loader.resources}
        try:
            return self.dev(agent, tasks, len(tasks))
        finally:
            self.resources = before

    @asynccontextmanager
    async def running_alone(self, agent: Any) -> AsyncGenerator[OpenRun]:
        """A run without tasks and without a model, in what its store has queued, for whoever hands it rollouts."""
        plan = Plan(
            mode=Mode.DEV,
            agent=as_agent(agent),
            config=self.config,
            resolved=self.resolved,
            train=[],
            val=[],
            grader=self.grader,
            compact=self.compact,
            resources={**self.store.latest_given(), **self.resources},
            resume=False,
            progress=self.progress,
            held=await self.store.held(as_own=True),
            companions=self.companions,
        )
        async with self._running(plan, Interrupts()) as run:
            run.rollouts.mix_modes()
            yield run
            await run.store.end_run(run.record.id, RunStatus.FINISHED)

    # ------------------------------------------------------------------ parts

    @asynccontextmanager
    async def _running(self, plan: Plan, interrupts: Interrupts) -> AsyncGenerator[OpenRun]:
        if self._given_store is not None and plan.held is None:
            resources = {**self._given_store.latest_given(), **plan.resources}
            plan = replace(plan, held=await self._given_store.held(), resources=resources)
        async with super()._running(plan, interrupts) as run:
            await self.store.attach(run)
            if self.own_algorithm is not None:
                self._introduce(self.own_algorithm, plan)
            try:
                yield run
            finally:
                self.store.detach()

    def _introduce(self, own: Algorithm[Any], plan: Plan) -> None:
        """Gives a program's own algorithm what it asks for."""
        own.tasks = (plan.train, plan.val)
        own.set_trainer(self)
        own.set_store(self.store)
        own.set_adapter(self.adapter)
        own.set_tracer(self.tracer)
        own.set_initial_resources(NamedResources(plan.resources))


def _is_address(value: object) -> bool:
    """Whether it is a server's, and not that of a file of tasks."""
    is_address = isinstance(value, str) and value.startswith(("http://", "https://"))
    return is_address and Path(str(value)).suffix not in TABLES_AND_LINES


def _with(ours: Any, own: Any) -> inspect.Signature:
    """What both take, for people and for whoever makes one from a command line."""
    taken = dict(inspect.signature(ours).parameters)
    more = {
        name: each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(own).parameters.items()
        if each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) and name != "self"
    }
    rest = [taken.pop(name) for name in list(taken) if taken[name].kind is inspect.Parameter.VAR_KEYWORD]
    return inspect.Signature([*{**taken, **more}.values(), *rest])


def _entry(name: str) -> Any:
    """A method as what users call: its errors are their sentence, and its arguments those of both."""
    own = getattr(Trainer, name)

    @functools.wraps(own)
    def called(*args: Any, **kwargs: Any) -> Any:
        with short_errors():
            return own(*args, **kwargs)

    called.__signature__ = _with(getattr(OurTrainer, name), own)  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    return called


for _name in ("__init__", "fit"):
    setattr(Trainer, _name, _entry(_name))
