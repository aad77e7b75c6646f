"""Function processes: processes that have imported a user's function, a grader say, and are asked again and again, how
many there are, and who waits for one."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from agentlightning.errors import ConfigError
from agentlightning.nouns import Failure, Json, Reason
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Child, Launcher, Requests, exit_failure

MOST = 16
"""Processes that one function has in a run, at most."""
MOST_HEAVY = 2
"""The same for functions that load torch: each process holds a copy of what their module loads."""
PATIENCE = 0.25
"""Seconds that a request waits for a process to be free before another one is started."""
IMPORT_TIMEOUT = 120.0
"""Seconds that importing a function may take."""

Respond = Callable[[Json], Awaitable[Json]]
"""Answers what a function asks while it works."""


async def no_questions(question: Json) -> Json:
    """A `Respond` for functions that ask nothing."""
    raise ValueError(f"nobody answers {question!r:.80}")


class FunctionProcess:
    """One process. ``what`` is how messages name its function."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._requests = Requests()
        self._child: Child | None = None
        self._answer: asyncio.Future[Json] | None = None
        self._log = OutputLog()
        self._respond: Respond = no_questions
        self._responding: set[asyncio.Task[None]] = set()

    async def open(self, launcher: Launcher, order: Mapping[str, Json]) -> Json:
        """Starts the process and returns what it said when it had imported the function. Raises ConfigError where it
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

    async def ask(self, request: Json, log: OutputLog, deadline: float, stop: asyncio.Event, respond: Respond) -> Json:
        """What the function answered; ``respond`` is asked what it asks meanwhile. None when stopped, at the deadline,
        or when the process ended."""
        self._log, self._respond = log, respond
        self._requests.send(request)
        try:
            return await self._wait(deadline, stop)
        finally:
            self._log, self._respond = OutputLog(), no_questions

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
        if "question" in said:
            task = asyncio.create_task(self._told(said["question"]))
            self._responding.add(task)
            task.add_done_callback(self._responding.discard)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(said)

    async def _told(self, question: Json) -> None:
        try:
            self._requests.send({"told": await self._respond(question)})
        except ValueError as error:  # the function asked for what cannot be answered, and is told so
            self._requests.send({"cannot": str(error)})

    def _printed(self, data: bytes) -> None:
        self._log.write(data)

    @property
    def ended(self) -> Failure | None:
        """What it means that it ended by itself; None where it still runs."""
        if self._child is None or not self._child.exited.done():
            return None
        return exit_failure(self._child.exited.result(), self._what)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill(signal.SIGKILL)
            self._child.close()
        self._requests.close()


class FunctionProcesses:
    """At most ``limit`` processes of ``launcher`` with one function, each started by ``order`` when a request would
    else wait for long. ``what`` is how messages name the function."""

    def __init__(self, launcher: Launcher, order: Mapping[str, Json], limit: int, what: str) -> None:
        self._what = what
        self._launcher = launcher
        self._order = order
        self._limit = min(limit, MOST)
        self._idle: list[FunctionProcess] = []
        self._busy: set[FunctionProcess] = set()
        self._opening = 0
        self._waiters: deque[asyncio.Future[FunctionProcess | None]] = deque()
        self._numbers = itertools.count(1)

    @property
    def busy(self) -> int:
        """How many requests are being answered."""
        return len(self._busy)

    async def start(self) -> None:
        """Opens the first process. Raises ConfigError where there can be none."""
        await self._launcher.start()
        self._idle.append(await self._open())

    def close(self) -> None:
        """Ends them all. None is asked any more."""
        for process in (*self._idle, *self._busy):
            process.kill()

    async def ask(
        self,
        request: Json,
        log: OutputLog,
        *,
        deadline: float,
        stop: asyncio.Event,
        respond: Respond = no_questions,
    ) -> Json | Failure:
        """What the function answered within ``deadline`` seconds, or its failure. None when stopped. Raises ConfigError
        where no process could be started for it."""
        process = await self._free(stop)
        if process is None:
            return None
        self._busy.add(process)
        answer: Json = None
        try:
            answer = await process.ask(request, log, deadline, stop, respond)
        finally:
            ended = process.ended
            if answer is None:
                process.kill()
                self._busy.discard(process)
            self._release(process if answer is not None else None)
        if answer is not None or stop.is_set():
            return answer
        late = f"the {self._what} did not return within {deadline:g} s; its process was killed"
        return ended or Failure(Reason.TIMEOUT, late)

    async def _open(self) -> FunctionProcess:
        process = FunctionProcess(self._what)
        try:
            said = await process.open(self._launcher, {**self._order, "id": f"{self._what}-{next(self._numbers)}"})
        except BaseException:
            process.kill()
            raise
        if "cannot" in said:
            process.kill()
            raise ConfigError(said["cannot"])
        if said["heavy"]:
            self._limit = min(self._limit, MOST_HEAVY)
        return process

    async def _free(self, stop: asyncio.Event) -> FunctionProcess | None:
        """A process that is free, or a new one where none will be soon. None when stopped."""
        while self._idle:
            process = self._idle.pop()
            if process.ended is None:
                return process
            process.kill()
        if not self._busy and not self._opening:
            return await self._another()
        waiter: asyncio.Future[FunctionProcess | None] = asyncio.get_running_loop().create_future()
        stopped = asyncio.ensure_future(stop.wait())
        self._waiters.append(waiter)
        try:
            while not stop.is_set():
                await asyncio.wait({waiter, stopped}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                live = len(self._busy) + len(self._idle) + self._opening
                if waiter.done() and not stop.is_set():
                    process = waiter.result()
                    return process if process is not None else await self._another()
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

    async def _another(self) -> FunctionProcess:
        self._opening += 1
        try:
            return await self._open()
        finally:
            self._opening -= 1

    def _release(self, process: FunctionProcess | None) -> None:
        """Hands a process on to whoever waits longest; None: one has ended, and another may be started."""
        if self._waiters:
            self._waiters.popleft().set_result(process)  # it stays among the busy
        elif process is not None:
            self._busy.discard(process)
            self._idle.append(process)
