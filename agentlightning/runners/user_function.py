"""A user's function that a run calls beside its agents (a grader, what shortens histories): in a process of its own
where it can be imported again, else in a thread.

A process has a main thread, so that the function may use signals (math_verify does); it can be killed at the deadline;
and what the function does to it costs one request at most. Processes are kept and asked again and again.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from agentlightning.agent.loading import AgentSource, find_source, import_source, parsed
from agentlightning.errors import ConfigError
from agentlightning.nouns import Failure, Json, Reason
from agentlightning.runners.assignment import ENDPOINT_VARIABLES
from agentlightning.runners.environment import KEPT_BACK
from agentlightning.runners.function_processes import FunctionProcesses, Respond, no_questions
from agentlightning.runners.function_state import plain_state
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Launcher
from agentlightning.runners.thread import in_thread, prints_go_to, redirect

_logger = logging.getLogger("agentlightning")

T = TypeVar("T")


def source_of(function: Callable[..., Any]) -> AgentSource | None:
    """Where a function can be imported from again: a function, an object that can be called, or the method of one."""
    if inspect.ismethod(function) and not isinstance(function.__self__, type):
        owner = find_source(function.__self__)
        return None if owner is None else replace(owner, attribute=f"{owner.attribute}.{function.__name__}")
    return find_source(function)


def why_no_process(function: Callable[..., Any], source: AgentSource | None) -> str:
    """Why a function cannot be imported in another process, in words; empty where nothing speaks against it."""
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


async def awaited(value: Any) -> Any:
    """An awaitable that a function returned, as the coroutine that a loop can be run for."""
    return await value


# --------------------------------------------------------------------------- the process' side


def imported(source: AgentSource, state: Mapping[str, str], answer: Callable[[Json], None]) -> Any:
    """The function, imported in a process of its own, whose runner is told whether it can be used here; None where it
    cannot."""
    try:
        function: Any = import_source(source)
        here = plain_state(function)
    except ConfigError as error:
        answer({"cannot": str(error)})
        return None
    differing = [name for name, text in state.items() if here.get(name) != text]
    if differing:
        answer(
            {
                "cannot": f"it reads {', '.join(sorted(differing))}, which a process that imports {source.given!r} "
                "does not have as this one does"
            }
        )
        return None
    answer({"ready": True, "heavy": "torch" in sys.modules})
    return function


def own_streams() -> None:
    """Puts the process's own streams back: an earlier request may have put something else there."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


# --------------------------------------------------------------------------- the run's side


class UserFunction:
    """Calls ``function``, as often at once as it is asked to, up to ``limit`` processes, which are not given ``keys``.
    ``what`` is how messages name it, ``op`` the order that its process carries out (child.py). ``why_thread`` says why
    it has to run in a thread, empty where it need not.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        op: str,
        what: str,
        limit: int,
        keys: Collection[str],
        *,
        why_thread: str = "",
    ) -> None:
        self._function = function
        self._op = op
        self._what = what
        self._limit = limit
        self._keys = [key for key in keys if key]
        self._source = source_of(function)
        self.why_thread = why_thread or why_no_process(function, self._source)
        self._processes: FunctionProcesses | None = None
        self._own_launcher: Launcher | None = None
        self._ready: asyncio.Task[None] | None = None
        self._redirecting = False

    def start(self, launcher: Launcher | None, new: Callable[[], Launcher]) -> None:
        """Begins to import the function, in a process of ``launcher`` (None: of one that ``new`` makes), while the run
        goes on."""
        if not self.why_thread:
            self._own_launcher = None if launcher is not None else new()
            chosen = launcher or self._own_launcher or new()
            self._processes = FunctionProcesses(chosen, self._order(), self._limit, self._what)
            self._ready = asyncio.create_task(self._first(self._processes))

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
        """How many requests are being answered in processes."""
        return 0 if self._processes is None else self._processes.busy

    async def has_processes(self) -> bool:
        """Whether it runs in processes, once that is known; else ``why_thread`` says why not."""
        if self._ready is not None:
            await asyncio.shield(self._ready)
        return not self.why_thread and self._processes is not None

    async def ask(
        self,
        request: Json,
        log: OutputLog,
        *,
        deadline: float,
        stop: asyncio.Event,
        respond: Respond = no_questions,
    ) -> Json | Failure:
        """What a process of the function answers within ``deadline`` seconds, or its failure. None when stopped."""
        assert self._processes is not None
        try:
            return await self._processes.ask(request, log, deadline=deadline, stop=stop, respond=respond)
        except ConfigError as error:
            return Failure(Reason.LOST, f"no process could be started for the {self._what}: {error}")

    async def in_thread(
        self, call: Callable[[Callable[[T], None]], None], log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> T | Failure | None:
        """What ``call`` delivers, in a thread, within ``deadline`` seconds. None when stopped."""
        if not self._redirecting:
            self._redirecting = True
            redirect.enter()
        redirect.streams()

        def printing(deliver: Callable[[T], None]) -> None:
            prints_go_to(log)
            call(deliver)

        said = await in_thread(printing, name=self._what, deadline=deadline, stop=stop)
        if said is not None or stop.is_set():
            return said
        return Failure(
            Reason.TIMEOUT, f"the {self._what} did not return within {deadline:g} s; its thread was abandoned"
        )

    async def _first(self, processes: FunctionProcesses) -> None:
        """Opens the first process, or finds out why there can be none."""
        try:
            await processes.start()
        except ConfigError as error:
            self.why_thread = str(error)
            _logger.info("the %s runs in the program that trains: %s", self._what, self.why_thread)

    def _order(self) -> dict[str, Json]:
        assert self._source is not None
        return {
            "op": self._op,
            "source": asdict(self._source),
            "env": self._environment(),
            "argv": sys.argv,
            "state": plain_state(self._function),
        }

    def _environment(self) -> dict[str, str]:
        """What agents' processes are kept free of and a function may want: its own model's address and key."""
        own = {name: os.environ[name] for name in ENDPOINT_VARIABLES if name in os.environ}
        return {name: KEPT_BACK if any(key in value for key in self._keys) else value for name, value in own.items()}
