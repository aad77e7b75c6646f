"""Grading: asks a user's grader what an output is worth, in a process of its own where the grader can be imported
again, else in a thread.

A process has a main thread, so that graders may use signals (math_verify does); it can be killed at the deadline; and
what a grader does to it costs one attempt at most. Processes are kept and asked again and again. In a process that
grades, ``serve`` is what runs.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import hashlib
import inspect
import itertools
import logging
import os
import signal
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, cast

from agentlightning.agent.loading import AgentSource, describe, find_source, import_source, parsed, user_traceback
from agentlightning.agent.rewards import check_reward
from agentlightning.errors import ConfigError, RewardError
from agentlightning.runners.assignment import ENDPOINT_VARIABLES
from agentlightning.runners.environment import KEPT_BACK
from agentlightning.runners.execution import needs_main_thread, seed_everything
from agentlightning.runners.frames import read_frame
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Child, Launcher, Requests, exit_failure
from agentlightning.runners.thread import in_thread, prints_go_to, redirect
from agentlightning.types import Attempt, Failure, Json, Reason, Rollout, Status

_logger = logging.getLogger("agentlightning")

Grader = Callable[..., Any]

MOST = 16
"""Processes that grade for one run, at most."""
MOST_HEAVY = 2
"""The same for graders that load torch: each process holds a copy of what their module loads."""
PATIENCE = 0.25
"""Seconds that an output waits for a process to be free before another one is started."""
IMPORT_TIMEOUT = 120.0
"""Seconds that importing a grader may take."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader said: None leaves it to what the agent emitted."""

    value: float | Failure | None


# --------------------------------------------------------------------------- the grader itself


def grade(grader: Grader, arguments: tuple[Any, ...], run: Callable[[Any], Any], no_process: str = "") -> Grade:
    """Calls a grader. Nothing it raises gets out of here. ``run`` runs the coroutine that an async one returns;
    ``no_process`` is why it is called in a thread."""
    try:
        value = grader(*arguments)
        if inspect.isawaitable(value):
            value = run(_await(value))
        return Grade(None if value is None else check_reward(value, "the grader's reward"))
    except RewardError as error:
        return Grade(Failure(Reason.BAD_REWARD, str(error)))
    except BaseException as error:  # noqa: BLE001  # also SystemExit: whatever a grader raises fails the attempt, not the run
        message = f"the grader raised {describe(error)}"
        if no_process and needs_main_thread(error):
            message += f": one that uses signals needs a process of its own, and {no_process}"
        return Grade(Failure(Reason.AGENT_ERROR, message, user_traceback(error)))


async def _await(value: Any) -> Any:
    return await value


def count_arguments(grader: Grader) -> int:
    """How many of (task, output, attempt) it takes: 3 or 2. Raises ConfigError."""
    if not callable(grader):
        raise ConfigError(f"grader={grader!r} cannot be called: pass a function of (task, output, attempt)")
    try:
        signature = inspect.signature(grader)
    except (TypeError, ValueError):
        return 3
    for count in (3, 2):
        with suppress(TypeError):
            signature.bind(*range(count))
            return count
    raise ConfigError(
        f"grader {getattr(grader, '__name__', grader)!r} takes {signature}: it is called with (task, output, attempt) "
        "or (task, output)"
    )


def source_of(grader: Grader) -> AgentSource | None:
    """Where a grader can be imported from again: a function, an object that can be called, or the method of one."""
    if inspect.ismethod(grader) and not isinstance(grader.__self__, type):
        owner = find_source(grader.__self__)
        return None if owner is None else replace(owner, attribute=f"{owner.attribute}.{grader.__name__}")
    return find_source(grader)


def why_no_process(grader: Grader, source: AgentSource | None) -> str:
    """Why a grader cannot be imported in another process, in words; empty where nothing speaks against it."""
    if source is None:
        return "it is no top-level name of a file (a closure, a lambda, a notebook cell): put it into FILE.py"
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if (
        source.file is not None
        and script is not None
        and Path(script).resolve() == Path(source.file)
        and not _is_guarded(Path(source.file))
    ):
        return (
            f"{Path(source.file).name} would start its run again where it is imported: put that under `if __name__ "
            "== '__main__':`"
        )
    return ""


def _is_guarded(script: Path) -> bool:
    """Whether a script does its work under ``if __name__ == "__main__":``."""
    tree = parsed(script.read_bytes())
    return any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and "__main__" in ast.unparse(node.test)
        for node in tree.body
    )


def plain_state(grader: Grader) -> dict[str, str]:
    """Prints of the plain values that a grader reads from its module and its own attributes, by name: a copy of it that
    is imported elsewhere has to have the same."""
    owner = getattr(grader, "__self__", None) if inspect.ismethod(grader) else None
    function: Any = inspect.unwrap(getattr(grader, "__func__", grader))
    if not isinstance(function, FunctionType):
        owner, function = grader, inspect.getattr_static(type(grader), "__call__", None)
    values = dict(_read_by(function, set())) if isinstance(function, FunctionType) else {}
    if owner is not None and not isinstance(owner, ModuleType):
        values.update(
            {f"self.{name}": value for name, value in vars(owner).items()} if hasattr(owner, "__dict__") else {}
        )
    prints = {name: _print(value) for name, value in values.items()}
    return {name: text for name, text in prints.items() if text is not None}


def _read_by(function: FunctionType, seen: set[FunctionType]) -> Iterator[tuple[str, object]]:
    """The globals that a function reads, and those that the functions of its module which it calls read."""
    seen.add(function)
    for name in _names(function.__code__):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if not isinstance(value, FunctionType):
            yield name, value
        elif value.__globals__ is function.__globals__ and value not in seen:
            yield from _read_by(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _print(value: object) -> str | None:
    """A print of a plain value; None for anything else, of which nothing can be said."""
    try:
        text = _plain_text(value, itertools.count())
    except (TypeError, RecursionError):
        return None
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _plain_text(value: object, count: Iterator[int]) -> str:
    """Raises TypeError for what is not plain. Of a very large value the first items and the number of each
    container's."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, Namespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        value = dict(vars(value)) if hasattr(value, "__dict__") else repr(value)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        pairs = [f"{_plain_text(k, count)}:{_plain_text(v, count)}" for k, v in items if next(count) < 100_000]
        return f"{len(items)}{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        members = cast("list[object]", value)
        return f"{len(members)}[{','.join(_plain_text(item, count) for item in members if next(count) < 100_000)}]"
    if isinstance(value, set | frozenset):
        found = cast("set[object]", value)
        return f"{len(found)}({','.join(sorted(_plain_text(item, count) for item in found if next(count) < 100_000))})"
    raise TypeError(type(value).__name__)


# --------------------------------------------------------------------------- the process' side


def serve(source: AgentSource, state: Mapping[str, str], requests_fd: int, answer: Callable[[Json], None]) -> None:
    """Imports the grader, says whether it can be used here, and answers until there are no more requests."""
    try:
        grader: Grader = import_source(source)
        here = plain_state(grader)
    except ConfigError as error:
        answer({"cannot": str(error)})
        return
    differing = [name for name, text in state.items() if here.get(name) != text]
    if differing:
        answer(
            {
                "cannot": f"it reads {', '.join(sorted(differing))}, which a process that imports {source.given!r} "
                "does not have as this one does"
            }
        )
        return
    answer({"ready": True, "heavy": "torch" in sys.modules})
    with asyncio.Runner() as runner:
        while (request := read_frame(requests_fd)) is not None:
            sys.stdout, sys.stderr = (
                sys.__stdout__,
                sys.__stderr__,
            )  # an earlier output's grading may have put something else there
            seed_everything(request["seed"])
            arguments = (request["task"], request["output"], _attempt(request["attempt"]))[: request["count"]]
            value = grade(grader, arguments, runner.run).value
            answer({"failure": asdict(value)} if isinstance(value, Failure) else {"value": value})


def grading_seed(rollout: Rollout, attempt: Attempt) -> int:
    """What a grader draws from: another seed than its agent's."""
    return (rollout.seed + attempt.number) ^ 0x9E3779B9


def _attempt(record: Mapping[str, Json]) -> Attempt:
    values: dict[str, Any] = {**record, "status": Status(record["status"]), "marked": tuple(record["marked"])}
    return Attempt(**values)


# --------------------------------------------------------------------------- the runner's side


class _Worker:
    """One process that grades."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._child: Child | None = None
        self._answer: asyncio.Future[Json] | None = None
        self._log = OutputLog()

    async def open(self, launcher: Launcher, order: Mapping[str, Json]) -> Json:
        """Starts the process and returns what it said when it had imported the grader. Raises ConfigError where it
        never did."""
        self._child = await launcher.launch(order, self._printed, self._answered, self._requests)
        said = await self._wait(IMPORT_TIMEOUT, asyncio.Event())
        if said is None:
            code = self._child.exited.result() if self._child.exited.done() else None
            self.kill()
            raise ConfigError(
                f"importing it {'took too long' if code is None else f'ended a process with exit code {code}'}"
            )
        return said

    async def ask(self, request: Json, log: OutputLog, deadline: float, stop: asyncio.Event) -> Json:
        """What the grader answered. None when stopped, at the deadline, or when the process ended."""
        self._log = log
        self._requests.send(request)
        try:
            return await self._wait(deadline, stop)
        finally:
            self._log = OutputLog()

    async def _wait(self, deadline: float, stop: asyncio.Event) -> Json:
        assert self._child is not None
        self._answer = asyncio.get_running_loop().create_future()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                {self._answer, self._child.exited, stopped}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED
            )
            self._child.drain()
            return self._answer.result() if self._answer.done() and not stop.is_set() else None
        finally:
            stopped.cancel()

    def _answered(self, said: Json) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(said)

    def _printed(self, data: bytes) -> None:
        self._log.write(data)

    @property
    def ended(self) -> Failure | None:
        """What it means that it ended by itself; None where it still runs."""
        if self._child is None or not self._child.exited.done():
            return None
        return exit_failure(self._child.exited.result(), "grader")

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill(signal.SIGKILL)
            self._child.close()
        self._requests.close()


class Graders:
    """Grades outputs with ``grader``, as many at once as are asked for. ``wanted`` is the setting ``runner.grader``;
    ``launcher`` starts processes, None where none is started yet.

    Raises ConfigError, here or in ``start``, for what cannot work.
    """

    def __init__(
        self, grader: Grader, wanted: Literal["auto", "process", "thread"], limit: int, keys: Collection[str]
    ) -> None:
        self._grader = grader
        self._count = count_arguments(grader)
        self._limit = min(limit, MOST)
        self._keys = [key for key in keys if key]
        self._source = source_of(grader)
        self._why = "runner.grader is 'thread'" if wanted == "thread" else why_no_process(grader, self._source)
        self._insist = wanted == "process"
        self._launcher: Launcher | None = None
        self._own: Launcher | None = None
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._opening = 0
        self._waiters: deque[asyncio.Future[_Worker | None]] = deque()
        self._ready: asyncio.Task[None] | None = None
        self._names = itertools.count(1)
        self._redirecting = False

    async def start(self, launcher: Launcher | None, new: Callable[[], Launcher]) -> None:
        """Begins to import the grader, in a process of ``launcher`` (None: of one that ``new`` makes), while the run
        goes on."""
        if self._why and self._insist:
            raise ConfigError(f"runner.grader='process' cannot hold: {self._why}")
        if not self._why:
            self._own = None if launcher is not None else new()
            self._launcher = launcher or self._own
            self._ready = asyncio.create_task(self._first())
        if self._insist and self._ready is not None:
            await self._ready
            if self._why:
                raise ConfigError(f"runner.grader='process' cannot hold: {self._why}")

    async def close(self) -> None:
        """Ends its processes. None is asked any more."""
        if self._ready is not None:
            self._ready.cancel()
            await asyncio.gather(self._ready, return_exceptions=True)
        for worker in (*self._idle, *self._busy):
            worker.kill()
        if self._own is not None:
            await self._own.close()
        if self._redirecting:
            redirect.leave()

    async def _first(self) -> None:
        """Opens the first process, or finds out why there can be none."""
        assert self._launcher is not None
        try:
            await self._launcher.start()
            self._idle.append(await self._open())
        except ConfigError as error:
            self._why = str(error)
            _logger.info("the grader runs in the program that trains: %s", self._why)

    async def _open(self) -> _Worker:
        assert self._launcher is not None and self._source is not None
        worker = _Worker()
        order = {
            "op": "grade",
            "id": f"grader-{next(self._names)}",
            "source": asdict(self._source),
            "env": self._environment(),
            "argv": sys.argv,
            "state": plain_state(self._grader),
        }
        try:
            said = await worker.open(self._launcher, order)
        except BaseException:
            worker.kill()
            raise
        if "cannot" in said:
            worker.kill()
            raise ConfigError(said["cannot"])
        if said["heavy"]:
            self._limit = min(self._limit, MOST_HEAVY)
        return worker

    def _environment(self) -> dict[str, str]:
        """What agents' processes are kept free of and a grader may want: its own model's address and key."""
        own = {name: os.environ[name] for name in ENDPOINT_VARIABLES if name in os.environ}
        return {name: KEPT_BACK if any(key in value for key in self._keys) else value for name, value in own.items()}

    async def _free(self, stop: asyncio.Event) -> _Worker | None:
        """A process that is free, or a new one where none will be soon. None when stopped."""
        while self._idle:
            worker = self._idle.pop()
            if worker.ended is None:
                return worker
            worker.kill()
        if not self._busy and not self._opening:
            return await self._another()
        waiter: asyncio.Future[_Worker | None] = asyncio.get_running_loop().create_future()
        stopped = asyncio.ensure_future(stop.wait())
        self._waiters.append(waiter)
        try:
            while not stop.is_set():
                await asyncio.wait({waiter, stopped}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                live = len(self._busy) + len(self._idle) + self._opening
                if waiter.done() and not stop.is_set():
                    worker = waiter.result()
                    return worker if worker is not None else await self._another()
                if live < self._limit and not stop.is_set():
                    self._waiters.remove(waiter)
                    return await self._another()
            return None
        finally:
            stopped.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and stop.is_set():
                self._release(waiter.result())

    async def _another(self) -> _Worker:
        self._opening += 1
        try:
            return await self._open()
        finally:
            self._opening -= 1

    def _release(self, worker: _Worker | None) -> None:
        """Hands a process on to whoever waits longest; None: one has ended, and another may be started."""
        if self._waiters:
            self._waiters.popleft().set_result(worker)  # it stays among the busy
        elif worker is not None:
            self._busy.discard(worker)
            self._idle.append(worker)

    async def grade(
        self, rollout: Rollout, output: Json, attempt: Attempt, log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> float | Failure | None:
        """What an output is worth. None when stopped, or when the grader says nothing."""
        if self._ready is not None:
            await asyncio.shield(self._ready)
        if self._why:
            return await self._in_thread((rollout.task, output, attempt), log, deadline=deadline, stop=stop)
        try:
            worker = await self._free(stop)
        except ConfigError as error:
            return Failure(Reason.LOST, f"no process could be started for the grader: {error}")
        if worker is None:
            return None
        self._busy.add(worker)
        request = {
            "task": rollout.task,
            "output": output,
            "attempt": asdict(attempt),
            "count": self._count,
            "seed": grading_seed(rollout, attempt),
        }
        said: Json = None
        try:
            said = await worker.ask(request, log, deadline, stop)
        finally:
            ended = worker.ended
            if said is None:
                worker.kill()
                self._busy.discard(worker)
            self._release(worker if said is not None else None)
        if said is None:
            late = Failure(Reason.TIMEOUT, f"the grader did not return within {deadline:g} s; its process was killed")
            return None if stop.is_set() else ended or late
        if "failure" in said:
            return Failure(Reason(said["failure"]["reason"]), said["failure"]["message"], said["failure"]["traceback"])
        return said["value"]

    async def _in_thread(
        self, arguments: tuple[Any, ...], log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> float | Failure | None:
        if not self._redirecting:
            self._redirecting = True
            redirect.enter()
        redirect.streams()

        def call(deliver: Callable[[Grade], None]) -> None:
            prints_go_to(log)
            deliver(grade(self._grader, arguments[: self._count], asyncio.run, self._why))

        said = await in_thread(call, name="grader", deadline=deadline, stop=stop)
        if said is not None or stop.is_set():
            return said and said.value
        return Failure(Reason.TIMEOUT, f"the grader did not return within {deadline:g} s; its thread was abandoned")
