"""Threads: runs each attempt in a daemon thread of its own. Cheap and close to the user's notebook, but nothing here
can kill an agent.

What is past its deadline is abandoned: an async agent is cancelled, a blocked one is left behind, its thread counted.
Coroutines are awaited on a loop that attempts share (event_loops.py). A thread has no environment of its own, so agents
under this isolation take ``llm``. While it runs, what agents print goes to their own logs, and threads that an agent
starts belong to its attempt, as they will by default in later Pythons.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from agentlightning.agent.calling import Agent
from agentlightning.agent.rewards import current_endpoint
from agentlightning.errors import AgentLightningError
from agentlightning.nouns import Failure, Reason
from agentlightning.runners.assignment import Assignment
from agentlightning.runners.companions import Companions, Company, Say
from agentlightning.runners.event_loops import AgentCoroutine, AgentLoops, attempt_log, end_if_forked, quieten
from agentlightning.runners.execution import LEFTOVERS, AgentResult, execute
from agentlightning.runners.output_log import Log
from agentlightning.runners.proxies import bypass
from agentlightning.runners.said import Said
from agentlightning.tracing.instruments import instrument
from agentlightning.tracing.names import CallNames, listen_here

logger = logging.getLogger("agentlightning.runners")

T = TypeVar("T")

COMPANY_TIMEOUT = 60.0
"""Seconds that a program's tracer may take to begin, and to end."""

_OURS = ("store-", "asyncio_", "agl-", "ThreadPoolExecutor")
"""Names of threads that a run starts for itself, and of pools, which idle."""


class ThreadIsolation:
    """Runs attempts of one agent in threads, which call ``url``, with its companions. ``abandoned`` counts threads of
    ended attempts that still run."""

    launcher = None

    def __init__(self, agent: Agent, url: str, companions: Companions | None = None, say: Say = logger.warning) -> None:
        self._agent = agent
        self._company = Company(companions, say)
        self._say = say
        self._url = url
        self._loops = AgentLoops()
        self._left: list[threading.Thread] = []
        self._before: set[threading.Thread] = set()

    @property
    def abandoned(self) -> int:
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    async def start(self) -> None:
        self._before = set(threading.enumerate())
        instrument()
        redirect.enter()
        bypass.enter(self._url)
        quieten()
        if not await self._has_time(self._company.begin):
            self._company.fail(AgentLightningError(f"the tracer did not begin within {COMPANY_TIMEOUT:g} s"))

    async def settle(self) -> None:
        """Until threads and tasks that attempts left behind have ended, or had ``LEFTOVERS`` seconds for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEFTOVERS):
                while self._loops.busy or any(  # noqa: ASYNC110
                    thread not in self._before and not thread.name.startswith(_OURS) for thread in threading.enumerate()
                ):
                    await asyncio.sleep(0.02)

    async def close(self) -> None:
        if not await self._has_time(self._company.end):
            self._say(f"the tracer did not end within {COMPANY_TIMEOUT:g} s; its thread was abandoned")
        self._loops.close()
        bypass.leave(self._url)
        redirect.leave()

    async def _has_time(self, function: Callable[[], None]) -> bool:
        """Whether a function of the companions, which are a user's, returned in time."""

        def call(deliver: Callable[[bool], None]) -> None:
            function()
            deliver(True)

        done = await in_thread(call, name="agent-tracer", deadline=COMPANY_TIMEOUT, stop=asyncio.Event())
        return done is True

    async def run(self, assignment: Assignment, log: Log, said: Said, *, stop: asyncio.Event) -> AgentResult | None:
        """See `Isolation.run`. ``said`` is told from the agent's threads."""
        deadline = assignment.seconds_left
        running = _Running()
        names = CallNames(said.name)
        redirect.streams()

        def call(deliver: Callable[[AgentResult], None]) -> None:
            current_endpoint.set(assignment.endpoint.root_url)
            prints_go_to(log)
            listen_here(names)

            def end(result: AgentResult) -> None:
                names.close()
                redirect.streams()  # for whatever runs now, where the agent deleted them
                deliver(result)

            wait_for = partial(self._loops.wait_for, hold=running.hold)
            execute(self._agent, assignment, end, said.mark, wait_for, self._company)
            running.close()

        name = f"agent-{assignment.attempt_id}"
        result = await in_thread(call, name=name, deadline=deadline, stop=stop, threads=self._left, began=running.began)
        names.close()
        if result is not None:
            return result
        where = await self._loops.revive(running.cancel())
        if stop.is_set():
            return None
        what = "its thread was abandoned"
        if where is not None:
            what = (
                f"the event loop that its attempts share stands still{f' in {where}' if where else ''}: what blocks "
                "there belongs into asyncio.to_thread"
            )
        return Failure(Reason.TIMEOUT, f"the agent did not return within {deadline:g} s; {what}")


class _Running:
    """The coroutine that an async agent is, so that it can be cancelled from outside."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._coroutine: AgentCoroutine | None = None
        self._cancelled = False

    def hold(self, coroutine: AgentCoroutine) -> None:
        self._coroutine = coroutine
        if self._cancelled:
            coroutine.cancel()

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()

    def began(self) -> float | None:
        """When the agent's code began; None while it waits for the loop that attempts share."""
        return self._began if self._coroutine is None else self._coroutine.began

    def cancel(self) -> asyncio.AbstractEventLoop | None:
        """Cancels it, and returns the loop it is on."""
        self._cancelled = True
        if self._coroutine is None:
            return None
        self._coroutine.cancel()
        return self._coroutine.loop


async def in_thread(
    call: Callable[[Callable[[T], None]], None],
    *,
    name: str,
    deadline: float,
    stop: asyncio.Event,
    threads: list[threading.Thread] | None = None,
    began: Callable[[], float | None] | None = None,
) -> T | None:
    """Runs ``call(deliver)`` in a new daemon thread and returns what it delivers. None after ``deadline`` seconds or
    when ``stop`` is set.

    ``call`` must deliver. A thread that is still alive when this returns is added to ``threads``. ``began`` tells when
    the seconds began to count, where they may not have yet; by default that is now.
    """
    loop = asyncio.get_running_loop()
    delivered: Future[T] = Future()
    # from here on a result that nobody waits for any more is dropped, not an error
    delivered.set_running_or_notify_cancel()
    own = os.getpid()

    def deliver(result: T) -> None:
        end_if_forked(own)
        delivered.set_result(result)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(call, deliver), name=name, daemon=True)
    thread.start()
    result = asyncio.wrap_future(delivered, loop=loop)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        now = time.monotonic()
        while not result.done() and not stop.is_set():
            since = began() if began is not None else now
            left = deadline if since is None else since + deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.wait({result, stopped}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return result.result() if result.done() and not stop.is_set() else None
    finally:
        stopped.cancel()
        result.cancel()
        if thread.is_alive() and threads is not None:
            threads.append(thread)


# --------------------------------------------------------------------------- one process, many attempts


class _AttemptOutput(io.TextIOBase):
    """Stands in for sys.stdout or sys.stderr: what an attempt's context writes goes to its log, all else to the real
    stream, which may be any object that somebody put there, or None."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def write(self, text: str, /) -> int:
        log = attempt_log.get()
        if log is not None:
            log.write(text.encode("utf-8", "replace"))
        elif self.real is not None:
            self.real.write(text)
        return len(text)

    def flush(self) -> None:
        if (
            attempt_log.get() is None
            and not getattr(self.real, "closed", False)
            and (flush := getattr(self.real, "flush", None)) is not None
        ):
            flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return attempt_log.get() is None and hasattr(self.real, "isatty") and self.real.isatty()

    def fileno(self) -> int:
        return self.real.fileno()

    @property
    def buffer(self) -> Any:
        log = attempt_log.get()
        return self.real.buffer if log is None else _AttemptBytes(log)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # a plain attribute of the base
        return getattr(self.real, "encoding", None) or "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _AttemptBytes(io.RawIOBase):
    """The bytes below it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, data: Any, /) -> int:
        self._log.write(bytes(data))
        return len(data)

    def writable(self) -> bool:
        return True


class _Redirect:
    """What has to be patched process-wide while thread isolation runs, entered once however many pools there are."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()
        self._undo: list[Callable[[], None]] = []
        self._ours: dict[str, _AttemptOutput] = {}

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._undo = [_wrap_threads(), _wrap_executors()]

    def streams(self) -> None:
        """Wraps the streams as they are now: a live view or a test may have replaced them since."""
        with self._lock:
            for name in ("stdout", "stderr") if self._users else ():  # an abandoned agent may end when the run has
                stream = getattr(sys, name, None)
                if name in self._ours and (stream is None or getattr(stream, "closed", False)):
                    stream = self._ours[name]  # an agent took it away from the whole process
                self._ours[name] = stream if isinstance(stream, _AttemptOutput) else _AttemptOutput(stream)
                setattr(sys, name, self._ours[name])

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for undo in reversed(self._undo):
                    undo()
                self._ours.clear()
                for name in ("stdout", "stderr"):
                    stream = getattr(sys, name, None)
                    # Else somebody put another over ours, and ours passes through
                    if isinstance(stream, _AttemptOutput):
                        setattr(sys, name, stream.real)


redirect = _Redirect()


def prints_go_to(log: Log) -> None:
    """What this context prints from now on goes to ``log``, while the streams are redirected."""
    attempt_log.set(log)


def _wrap_threads() -> Callable[[], None]:
    """A thread started by an agent inherits its context, hence its attempt."""
    real = threading.Thread.start

    @functools.wraps(real)
    def start(self: threading.Thread) -> None:
        if current_endpoint.get() is not None:
            self.run = functools.partial(contextvars.copy_context().run, self.run)
        real(self)

    threading.Thread.start = start
    return lambda: setattr(threading.Thread, "start", real)


def _wrap_executors() -> Callable[[], None]:
    """What is submitted to an executor belongs to whoever submitted it, not to whoever made the worker thread."""
    real = ThreadPoolExecutor.submit

    @functools.wraps(real)
    def submit(self: ThreadPoolExecutor, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return real(self, contextvars.copy_context().run, function, *args, **kwargs)

    ThreadPoolExecutor.submit = submit
    return lambda: setattr(ThreadPoolExecutor, "submit", real)
