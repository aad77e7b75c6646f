"""Companions: what a program has go along with its attempts where the agent runs: a tracer of its own, and hooks.

They set up what the agent counts on (an instrumentation, say) and look at what it did; the endpoint records the calls
with or without them. A tracer that cannot begin fails the attempt, since its agent may count on it; what fails at the
end of one, and a hook, is a line in the log. None of them ends a run.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import inspect
import logging
import pickle
import pickletools
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from agentlightning.agent.calling import Agent, LitAgent
from agentlightning.agent.loading import AgentSource, describe, find_source, import_source, user_traceback, where
from agentlightning.agent.rollouts import Rollout
from agentlightning.errors import AgentLightningError, ConfigError
from agentlightning.nouns import Json
from agentlightning.tracing.tracer import Tracer

logger = logging.getLogger("agentlightning.runners")

T = TypeVar("T")

Say = Callable[[str], object]
"""Is told one line that a user should read."""

_OURS = __name__.partition(".")[0] + "."

HOOKS = ("on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end")
"""What a hook may have, in the order in which they are called: ``rollout`` around all, ``trace`` around the agent
within the tracer's context."""


def is_hook(value: object) -> bool:
    """Whether it has anything to be told."""
    return not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in HOOKS)


def hooks_of(value: Any) -> tuple[Any, ...]:
    """One hook, or several, or none."""
    if value is None:
        return ()
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else (value,)


@dataclass(frozen=True, slots=True)
class Companions:
    """As a program hands them over. A plain ``Tracer`` is handed to agents and has nothing to begin. ``agent_match`` is
    what agents are told of which of them are trained."""

    tracer: Any = field(default_factory=Tracer)
    hooks: tuple[Any, ...] = ()
    agent_match: str | None = None

    @property
    def traces(self) -> bool:
        """Whether the tracer is one of the program's own."""
        return type(self.tracer) is not Tracer

    def to_json(self) -> dict[str, Json]:
        """How they can be made again in an agent's process. Raises ConfigError for one that cannot."""
        return {
            "tracer": _portable(self.tracer, "the tracer") if self.traces else None,
            "hooks": [_portable(hook, "the hook") for hook in self.hooks],
            "agent_match": self.agent_match,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Companions:
        """Imports them. Raises whatever their modules raise."""
        tracer = value["tracer"]
        hooks = tuple(map(_made_again, value["hooks"]))
        return cls(Tracer() if tracer is None else _made_again(tracer), hooks, value["agent_match"])


def _portable(companion: object, what: str) -> dict[str, Json]:
    """The name it is bound to, and its class with its attributes, for a name that its module has only as a program."""
    kind = type(companion)
    portable: dict[str, Json] = {}
    if (source := find_source(companion)) is not None:
        portable["source"] = asdict(source)
    try:
        state = pickle.dumps(getattr(companion, "__dict__", {}))
        made_in = find_source(kind)
        why = ""
    except Exception as error:  # noqa: BLE001  # a user's object may refuse to be pickled in any way
        state, made_in, why = b"", None, f" ({describe(error)})"
    if made_in is not None and not _names_main(state):
        portable |= {"class": asdict(made_in), "state": base64.b64encode(state).decode()}
    if not portable:
        raise ConfigError(
            f"{what} {kind.__name__} cannot be made again in the agents' processes (isolation='process'){why}: bind it "
            "to a name at the top of its file, or use isolation='thread'"
        )
    return portable


def _names_main(state: bytes) -> bool:
    """Whether a pickle refers to what only the program that was started has."""
    return any(argument == "__main__" for _, argument, _ in pickletools.genops(state))


def _made_again(value: Mapping[str, Json]) -> Any:
    if "source" in value:
        try:
            return import_source(AgentSource(**value["source"]))
        except ConfigError as error:
            if error.__cause__ is not None or "class" not in value:
                raise
    kind: Any = import_source(AgentSource(**value["class"]))
    companion: Any = kind.__new__(kind)
    companion.__dict__.update(pickle.loads(base64.b64decode(value["state"])))
    return companion


@dataclass(frozen=True, slots=True)
class AdapterView:
    """Which agents are trained, as ``trainer.adapter`` says it. None: all."""

    agent_match: str | None = None


class TrainerView:
    """What an agent's process knows of the Trainer, which is in another."""

    def __init__(self, tracer: Any, adapter: AdapterView) -> None:
        self.tracer = tracer
        self.adapter = adapter

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trainer.{name} is not there: the Trainer is in another process; what an agent needs of it is passed as a "
            "resource, or the agent runs with isolation='thread'",
            name=name,
            obj=self,
        )


@dataclass(frozen=True, slots=True)
class RunnerView:
    """What runs an agent, as hooks are handed it and as ``agent.runner``. ``worker_id`` counts the processes that run
    agents at the same time, from 0."""

    agent: Any
    tracer: Any
    worker_id: int = 0

    def get_agent(self) -> Any:
        return self.agent

    def get_worker_id(self) -> int:
        return self.worker_id


class Once:
    """Says each text once, and a hundred at most: a thousand attempts would say the same. May be called from any
    thread."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, text: str, /) -> None:
        with self._lock:
            new = text not in self._said and len(self._said) < 100
            self._said.add(text)
        if new:
            self._say(text)


class Company:
    """The companions in one process that runs agents, the ``worker_id``-th: begun before its first attempt, ended after
    its last. ``say`` is told what went wrong and changes no result. ``apart``: its Trainer is in another process."""

    def __init__(
        self,
        companions: Companions | None = None,
        say: Say = logger.warning,
        worker_id: int = 0,
        *,
        apart: bool = False,
    ) -> None:
        given = companions or Companions()
        self._tracer: Any = given.tracer
        self._own: Any = given.tracer if given.traces else None
        self._hooks = given.hooks
        self._say = say
        self._worker_id = worker_id
        self._around: dict[str, Any] = {"tracer": self._tracer}
        if apart:
            self._around["trainer"] = TrainerView(self._tracer, AdapterView(given.agent_match))
        self._trouble: AgentLightningError | None = None
        """Why the tracer never began."""

    def begin(self) -> None:
        """Has the tracer set up what its agents count on."""
        for name, arguments in (("init", ()), ("init_worker", (self._worker_id,))):
            if (method := getattr(self._own, name, None)) is not None and self._trouble is None:
                try:
                    _waited(method(*arguments))
                except BaseException as error:  # noqa: BLE001  # said by every attempt that it fails
                    self.fail(self._failure(self._own, name, error), error)

    def fail(self, trouble: AgentLightningError, cause: BaseException | None = None) -> None:
        """From now on every attempt fails: the tracer did not begin."""
        self._trouble = trouble
        self._trouble.__cause__ = cause

    def end(self) -> None:
        for name, arguments in (("teardown_worker", (self._worker_id,)), ("teardown", ())):
            if (method := getattr(self._own, name, None)) is not None:
                try:
                    _waited(method(*arguments))
                except BaseException as error:  # noqa: BLE001  # the results stand
                    self._say(str(self._failure(self._own, name, error)))

    def attend(self, agent: Agent, rollout: Rollout, call: Callable[[], T]) -> T:
        """Calls the agent with ``call`` and returns what it returns; the companions are called around it, in its thread
        and its context. Raises what it raises, and AgentLightningError where the tracer could not begin."""
        owner: Any = owner_of(agent)
        runner = RunnerView(owner, self._tracer, self._worker_id)
        _introduce(owner, {**self._around, "runner": runner})
        if self._trouble is not None:
            raise AgentLightningError(str(self._trouble)) from self._trouble.__cause__
        if self._own is None and not self._hooks:
            return call()
        scene = {"agent": owner, "runner": runner, "tracer": self._tracer, "rollout": rollout, "task": rollout}
        steps = _Steps()
        try:
            with (
                self._told(steps, "on_rollout_start", "on_rollout_end", scene),
                self._traced(steps, rollout),
                self._told(steps, "on_trace_start", "on_trace_end", scene),
            ):
                return steps.context.run(call)
        finally:
            steps.close()

    # ------------------------------------------------------------------ parts

    @contextmanager
    def _told(self, steps: _Steps, before: str, after: str, scene: Mapping[str, Any]) -> Generator[None]:
        """Hooks hear of the end also where what lies between fails: what one opened it can close."""
        self._tell(steps, before, scene)
        try:
            yield
        finally:
            self._tell(steps, after, scene)

    def _tell(self, steps: _Steps, name: str, scene: Mapping[str, Any]) -> None:
        for hook in self._hooks:
            method = getattr(hook, name, None)
            if method is None or str(getattr(method, "__module__", "")).startswith(_OURS):  # the base's does nothing
                continue
            try:
                if name == "on_rollout_end" and "spans" in _names(method):
                    scene = {**scene, "spans": steps.call(self._tracer.get_last_trace)}
                steps.call(method, **_accepted(method, scene))
            except BaseException as error:  # noqa: BLE001  # a hook looks on: what it watches goes on
                self._goes_on(hook, name, error)

    @contextmanager
    def _traced(self, steps: _Steps, rollout: Rollout) -> Generator[None]:
        if self._own is None or (make := getattr(self._own, "trace_context", None)) is None:
            yield
            return
        ids = {"name": rollout.rollout_id, "rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt_id}
        try:
            context = steps.enter(make, **_accepted(make, ids))
        except BaseException as error:
            raise self._failure(self._own, "trace_context", error) from error
        try:
            yield
        except BaseException as error:
            self._leave(steps, context, error)
            raise
        self._leave(steps, context, None)

    def _leave(self, steps: _Steps, context: Any, error: BaseException | None) -> None:
        try:
            steps.leave(context, error)
        except BaseException as second:  # noqa: BLE001  # what came of the agent stands
            if second is not error:
                self._goes_on(self._own, "trace_context", second)

    def _failure(self, companion: object, name: str, error: BaseException) -> AgentLightningError:
        place = where(error)
        what = "hook" if name in HOOKS else "tracer"
        return AgentLightningError(
            f"the {what} {type(companion).__name__} failed in {name}: {describe(error)}{f' ({place})' if place else ''}"
        )

    def _goes_on(self, companion: object, name: str, error: BaseException) -> None:
        """Says what went wrong around an attempt that goes on; the attempt's log shows where."""
        self._say(f"{self._failure(companion, name, error)}; the attempt goes on")
        with suppress(Exception):  # where the agent left a stream
            sys.stderr.write(user_traceback(error))


class _Steps:
    """What is called around one agent, one after the other, in one context, so that what a companion sets there is seen
    by the agent. Awaitables are waited for on a loop of their own."""

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self._runner: asyncio.Runner | None = None

    def call(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        value = self.context.run(partial(function, **arguments))
        return self._wait(value) if inspect.isawaitable(value) else value

    def _wait(self, value: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner.run(_awaited(value), context=self.context)

    def enter(self, make: Callable[..., Any], **arguments: Any) -> Any:
        context = self.call(make, **arguments)
        if isinstance(context, AbstractAsyncContextManager):
            self.call(context.__aenter__)
        elif isinstance(context, AbstractContextManager):
            self.call(context.__enter__)
        else:
            raise TypeError(f"it returned {type(cast(object, context)).__name__}, which is no context manager")
        return cast(Any, context)

    def leave(self, context: Any, error: BaseException | None) -> None:
        raised: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] = (
            (None, None, None) if error is None else (type(error), error, error.__traceback__)
        )
        leave = context.__aexit__ if isinstance(context, AbstractAsyncContextManager) else context.__exit__
        self.call(cast("Callable[..., Any]", partial(leave, *raised)))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


async def _awaited(value: Any) -> Any:
    return await value


def _waited(value: Any) -> None:
    if inspect.isawaitable(value):
        asyncio.run(_awaited(value))


def _names(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is offered, what a function takes: companions are written for several versions."""
    parameters = _names(function)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(offered)
    return {name: value for name, value in offered.items() if name in parameters}


def owner_of(agent: Agent) -> Any:
    """The user's own object behind an agent: its LitAgent, else the function."""
    for method in agent.methods.values():
        return getattr(method.function, "__self__", method.function)
    return None


def _introduce(owner: object, around: Mapping[str, Any]) -> None:
    """Has a LitAgent know who runs it."""
    if isinstance(owner, LitAgent):
        vars(cast("LitAgent[Any]", owner)).update(around)
