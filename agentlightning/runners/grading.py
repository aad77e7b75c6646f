"""Grading: asks a user's grader what an output is worth, in a process of its own where the grader can be imported
again, else in a thread.

A process has a main thread, so that graders may use signals (math_verify does); it can be killed at the deadline; and
what a grader does to it costs one attempt at most. Processes are kept and asked again and again. In a process that
grades, ``serve`` is what runs.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agentlightning.agent.loading import AgentSource, describe, find_source, import_source, parsed, user_traceback
from agentlightning.agent.rewards import check_reward
from agentlightning.errors import ConfigError, RewardError
from agentlightning.nouns import Attempt, Failure, Json, Reason, Rollout, Status
from agentlightning.runners.assignment import ENDPOINT_VARIABLES
from agentlightning.runners.environment import KEPT_BACK
from agentlightning.runners.execution import needs_main_thread, seed_everything
from agentlightning.runners.frames import read_frame
from agentlightning.runners.grader_processes import GraderProcesses
from agentlightning.runners.grader_state import plain_state
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Launcher
from agentlightning.runners.thread import in_thread, prints_go_to, redirect

_logger = logging.getLogger("agentlightning")

Grader = Callable[..., Any]


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
            # An earlier output's grading may have put something else there
            sys.stdout, sys.stderr = (
                sys.__stdout__,
                sys.__stderr__,
            )
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


# --------------------------------------------------------------------------- the desk's side


class Graders:
    """Grades outputs with ``grader``, as many at once as are asked for, up to ``limit``. ``wanted`` is the setting
    ``runner.grader``; a process that grades is not given ``keys``.

    Raises ConfigError, here or in ``start``, for what cannot work.
    """

    def __init__(
        self, grader: Grader, wanted: Literal["auto", "process", "thread"], limit: int, keys: Collection[str]
    ) -> None:
        self._grader = grader
        self._count = count_arguments(grader)
        self._limit = limit
        self._keys = [key for key in keys if key]
        self._source = source_of(grader)
        self._why_thread = "runner.grader is 'thread'" if wanted == "thread" else why_no_process(grader, self._source)
        self._insist = wanted == "process"
        self._processes: GraderProcesses | None = None
        self._own_launcher: Launcher | None = None
        self._ready: asyncio.Task[None] | None = None
        self._redirecting = False

    async def start(self, launcher: Launcher | None, new: Callable[[], Launcher]) -> None:
        """Begins to import the grader, in a process of ``launcher`` (None: of one that ``new`` makes), while the run
        goes on."""
        if self._why_thread and self._insist:
            raise ConfigError(f"runner.grader='process' cannot hold: {self._why_thread}")
        if not self._why_thread:
            self._own_launcher = None if launcher is not None else new()
            self._processes = GraderProcesses(launcher or self._own_launcher or new(), self._order(), self._limit)
            self._ready = asyncio.create_task(self._first(self._processes))
        if self._insist and self._ready is not None:
            await self._ready
            if self._why_thread:
                raise ConfigError(f"runner.grader='process' cannot hold: {self._why_thread}")

    async def close(self) -> None:
        """Ends its processes. None is asked any more."""
        if self._ready is not None:
            self._ready.cancel()
            await asyncio.gather(self._ready, return_exceptions=True)
        if self._processes is not None:
            self._processes.close()
        if self._own_launcher is not None:
            await self._own_launcher.close()
        if self._redirecting:
            redirect.leave()

    @property
    def busy(self) -> int:
        """How many outputs are being graded in processes."""
        return 0 if self._processes is None else self._processes.busy

    async def _first(self, processes: GraderProcesses) -> None:
        """Opens the first process, or finds out why there can be none."""
        try:
            await processes.start()
        except ConfigError as error:
            self._why_thread = str(error)
            _logger.info("the grader runs in the program that trains: %s", self._why_thread)

    def _order(self) -> dict[str, Json]:
        assert self._source is not None
        return {
            "op": "grade",
            "source": asdict(self._source),
            "env": self._environment(),
            "argv": sys.argv,
            "state": plain_state(self._grader),
        }

    def _environment(self) -> dict[str, str]:
        """What agents' processes are kept free of and a grader may want: its own model's address and key."""
        own = {name: os.environ[name] for name in ENDPOINT_VARIABLES if name in os.environ}
        return {name: KEPT_BACK if any(key in value for key in self._keys) else value for name, value in own.items()}

    async def grade(
        self, rollout: Rollout, output: Json, attempt: Attempt, log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> float | Failure | None:
        """What an output is worth. None when stopped, or when the grader says nothing."""
        if self._ready is not None:
            await asyncio.shield(self._ready)
        if self._why_thread or self._processes is None:
            return await self._in_thread((rollout.task, output, attempt), log, deadline=deadline, stop=stop)
        request = {
            "task": rollout.task,
            "output": output,
            "attempt": asdict(attempt),
            "count": self._count,
            "seed": grading_seed(rollout, attempt),
        }
        try:
            answer = await self._processes.ask(request, log, deadline=deadline, stop=stop)
        except ConfigError as error:
            return Failure(Reason.LOST, f"no process could be started for the grader: {error}")
        if answer is None or isinstance(answer, Failure):
            return answer
        if "failure" in answer:
            failure = answer["failure"]
            return Failure(Reason(failure["reason"]), failure["message"], failure["traceback"])
        return answer["value"]

    async def _in_thread(
        self, arguments: tuple[Any, ...], log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> float | Failure | None:
        if not self._redirecting:
            self._redirecting = True
            redirect.enter()
        redirect.streams()

        def call(deliver: Callable[[Grade], None]) -> None:
            prints_go_to(log)
            deliver(grade(self._grader, arguments[: self._count], asyncio.run, self._why_thread))

        said = await in_thread(call, name="grader", deadline=deadline, stop=stop)
        if said is not None or stop.is_set():
            return said and said.value
        return Failure(Reason.TIMEOUT, f"the grader did not return within {deadline:g} s; its thread was abandoned")
