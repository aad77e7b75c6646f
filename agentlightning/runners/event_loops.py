"""Event loops: where the coroutines of agents in threads are awaited. All on one, as in the user's own program, so that
attempts can share what belongs to a loop: a client's open connections, a session, a lock.

That loop has a thread of its own and is never closed, so that what is shared serves the next run too. It is no agent's:
where one blocks it past the deadline, another loop takes its place. An agent that blocks it all the time, with clients
that know no loop, shares nothing, and gets a loop for each attempt instead.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import sys
import threading
import time
from asyncio import AbstractEventLoop, Task
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, ContextVar
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

from agentlightning.agent.loading import is_foreign
from agentlightning.runners.output_log import Log

BLOCKS = 0.1
"""Seconds without an await from which an agent is taken for one that blocks."""
ANSWERS_IN = 1.0
"""Seconds within which a loop that is not blocked runs what it is given."""

WORKERS = 512
"""Threads, at most, that all coroutines together may wait for (``asyncio.to_thread``)."""

attempt_log: ContextVar[Log | None] = ContextVar("agentlightning_log", default=None)
"""The log of the attempt that a context belongs to, under ``thread`` isolation."""

_owner: ContextVar[AgentLoops | None] = ContextVar("agentlightning_loops", default=None)


class _Loop(asyncio.SelectorEventLoop):
    """``connected`` tells whether it ever opened a connection: only then can there be one that attempts share."""

    def __init__(self) -> None:
        super().__init__()
        self.connected = False
        self.thread: threading.Thread | None = None
        self.set_task_factory(_make_task)
        self.set_exception_handler(_to_the_log)

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        self.connected = True
        return await super().create_connection(*args, **options)

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        self.connected = True
        return await super().create_unix_connection(*args, **options)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        self.connected = True
        await super().sock_connect(sock, address)

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """The shared loop's executor is no attempt's to end: others wait for it, and more will."""
        if self.thread is None:
            await super().shutdown_default_executor(*args, **options)

    def begin(self) -> None:
        self.set_default_executor(ThreadPoolExecutor(WORKERS, "agl-agents"))
        self.thread = threading.Thread(target=self._serve, name="agl-agents", daemon=True)
        Context().run(self.thread.start)  # it is no attempt's, whichever is the first

    def _serve(self) -> None:
        asyncio.set_event_loop(self)
        while True:
            with suppress(BaseException):  # SystemExit out of a task that an agent left behind ends that task alone
                self.run_forever()

    async def answers(self) -> bool:
        """Whether it still does what it is given, asked from another loop."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asking = answered.get_loop()

        def answer() -> None:
            if not answered.done():
                answered.set_result(None)

        self.call_soon_threadsafe(lambda: asking.call_soon_threadsafe(answer))
        done, _ = await asyncio.wait({answered}, timeout=ANSWERS_IN)
        return bool(done)

    def stands_in(self) -> str:
        """``file.py:12``, the user's line that the loop is in right now, or nothing."""
        ident = self.thread.ident if self.thread is not None else None
        frame: FrameType | None = sys._current_frames().get(ident or 0)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and is_foreign(frame.f_code.co_filename):
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""


def _make_task(
    loop: AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> Task[Any]:
    """Notes whose a task is: the agents' it was made for, and the attempt's whose log its troubles go to."""
    task: Task[Any] = Task(coroutine, loop=loop, **options)  # pyright: ignore[reportArgumentType]
    context: Context = options.get("context") or contextvars.copy_context()
    owner = context.get(_owner)
    if owner is not None:
        owner.tasks.add(task)
    task.agentlightning_log = context.get(attempt_log)  # type: ignore[attr-defined]
    return task


def _to_the_log(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio says of tasks, sessions and connections that an agent left behind belongs in that attempt's log,
    where it has one, and nowhere else."""
    del loop
    log = getattr(context.get("task") or context.get("future"), "agentlightning_log", None) or attempt_log.get()
    if log is not None:
        error = context.get("exception")
        log.write(
            f"{context.get('message')}{f': {type(error).__name__}: {error}' if error is not None else ''}\n".encode(
                "utf-8", "replace"
            )
        )


class _Quiet(logging.Filter):
    """Keeps what asyncio logs in an attempt in that attempt's log, and from everybody what it says of loops that are
    closed and sessions that nobody closed."""

    def filter(self, record: logging.LogRecord) -> bool:
        log = attempt_log.get()
        if log is not None:
            log.write(f"{record.getMessage()}\n".encode("utf-8", "replace"))
            return False
        error = record.exc_info[1] if record.exc_info else None
        return not (
            isinstance(error, RuntimeError) and "Event loop is closed" in str(error)
        ) and not record.getMessage().startswith("Unclosed ")


_quiet = _Quiet()


def quieten() -> None:
    """From now on. It stays, for what agents leave behind is found at any time later, and what is told of it there is
    no use to anybody."""
    logging.getLogger("asyncio").addFilter(_quiet)


def end_if_forked(process: int) -> None:
    """Ends a process that user code forked from ``process``, where its copy of that code comes back: it has nothing to
    say here, and would wait for ever for threads that it does not have."""
    if os.getpid() != process:
        os._exit(0)


class AgentCoroutine:
    """One coroutine of an agent: which loop took it, when it began, what came of it. Taken once, by the shared loop or
    by its attempt's own thread."""

    def __init__(self, value: Awaitable[Any], context: Context) -> None:
        self.value = value
        self.began: float | None = None
        self.loop: AbstractEventLoop | None = None
        self.longest = 0.0
        self.done = threading.Event()
        """Set when it has ended, or was released to its attempt's own thread."""
        self.runner: asyncio.Runner | None = None
        self.outcome: tuple[Any, BaseException | None] | None = None
        self._context = context
        self._lock = threading.Lock()
        self._task: Task[None] | None = None
        self._cancelled = self._released = False

    def begin(self, loop: AbstractEventLoop) -> None:
        """On the loop's own thread, unless another has taken it."""
        with self._lock:
            if self.loop is not None or self._released:
                return
            self.loop, self.began = loop, time.monotonic()
        self.attach(loop.create_task(self._run(), context=self._context))

    def release(self) -> None:
        """Leaves it to its attempt's own thread, unless a loop has taken it."""
        with self._lock:
            self._released = self.loop is None
        if self._released:
            self.done.set()

    def here(self, loop: AbstractEventLoop) -> Any:
        """In the attempt's own thread, on a loop that ends with it. The loop is closed by ``close``."""
        self.loop, self.began = loop, time.monotonic()
        self.runner = asyncio.Runner(loop_factory=lambda: loop)

        async def run() -> Any:
            task = asyncio.current_task()
            if task is not None:
                self.attach(task)
            return await self

        return self.runner.run(run())

    def close(self) -> None:
        """Closes its own loop, where it had one. What it left behind there may take its time."""
        if self.runner is not None:
            with suppress(BaseException):  # the result has been delivered; what leftovers raise is nobody's
                self.runner.close()

    def attach(self, task: Task[Any]) -> None:
        self._task = task
        if self._cancelled:
            task.cancel()

    def cancel(self) -> None:
        """From any thread."""
        self._cancelled = True
        if self.loop is not None and self._task is not None:
            try:
                self.loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:  # its own loop was closed in this very moment: it has ended by itself
                self._task = None

    async def _run(self) -> None:
        own = os.getpid()
        try:
            self.outcome = await self, None
        except BaseException as error:  # noqa: BLE001  # handed to the attempt's thread, which says what it means
            self.outcome = None, error
        end_if_forked(own)
        self.done.set()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Awaits the value, and times its steps."""
        steps: Any = self.value.__await__()
        if not hasattr(steps, "send"):
            steps = _with_send(steps)
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            began = time.monotonic()
            try:
                waits_for = step(given)
            except StopIteration as stop:
                return stop.value
            finally:
                self.longest = max(self.longest, time.monotonic() - began)
            try:
                step, given = steps.send, (yield waits_for)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001  # a cancellation, above all
                step, given = steps.throw, error


def _with_send(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)


class AgentLoops:
    """The loops of one pool's coroutines."""

    def __init__(self) -> None:
        self.tasks: WeakSet[Task[Any]] = WeakSet()
        self._apart = False
        """Whether each attempt has a loop of its own."""
        self._connected = False
        self._waiting: set[AgentCoroutine] = set()
        self._lock = threading.Lock()

    def wait_for(self, value: Awaitable[Any], hold: Callable[[AgentCoroutine], None]) -> Any:
        """Awaits ``value`` from the attempt's thread and returns, or raises, what comes of it. ``hold`` is told
        what it is run as."""
        context = contextvars.copy_context()
        context.run(_owner.set, self)
        coroutine = AgentCoroutine(value, context)
        hold(coroutine)
        with self._lock:
            shared = not self._apart
            if shared:
                self._waiting.add(coroutine)
                loop = _shared.get()
                loop.call_soon_threadsafe(coroutine.begin, loop)
        if shared:
            coroutine.done.wait()
            with self._lock:
                self._waiting.discard(coroutine)
        if coroutine.outcome is None:
            own = _Loop()
            try:
                return coroutine.here(own)
            finally:
                if own.connected:
                    self._connects()
        if (
            isinstance(coroutine.loop, _Loop)
            and coroutine.longest > BLOCKS
            and not coroutine.loop.connected
            and not self._connected
        ):
            self._part()  # it shares nothing, and would only make others wait
        value, error = coroutine.outcome
        if error is not None:
            raise error
        return value

    def _connects(self) -> None:
        """An agent that opens connections may share them, after all."""
        self._connected, self._apart = True, False

    def _part(self) -> None:
        """From now on each attempt has a loop of its own, those that wait for the shared one too."""
        with self._lock:
            self._apart = True
            for coroutine in self._waiting:
                coroutine.release()

    async def revive(self, loop: AbstractEventLoop | None) -> str | None:
        """Called where an attempt on ``loop`` passed its deadline: puts another loop in its place if it is blocked, and
        returns where it stands. None if it is not."""
        if not isinstance(loop, _Loop) or loop.thread is None or await loop.answers():
            return None
        where = loop.stands_in()
        _shared.retire(loop)
        if not loop.connected and not self._connected:
            self._part()
            return where
        fresh = _shared.get()
        with self._lock:
            for coroutine in self._waiting:
                fresh.call_soon_threadsafe(coroutine.begin, fresh)
        return where

    @property
    def busy(self) -> bool:
        """Whether attempts, or what they left behind, still run on a loop."""
        return any(not task.done() for task in list(self.tasks))

    def close(self) -> None:
        """Cancels what attempts left behind on the shared loop."""
        for task in list(self.tasks):
            loop = task.get_loop()
            if not task.done() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)


class _Shared:
    """The process' loop for agents: one, as what its modules share is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def get(self) -> _Loop:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
                self._loop.begin()
            return self._loop

    def retire(self, loop: _Loop) -> None:
        with self._lock:
            if self._loop is loop:
                self._loop = None


_shared = _Shared()
