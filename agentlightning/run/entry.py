"""Entry: how plain code enters a run, and how the run is ended from outside, in any thread and with or without an event
loop around it.

The first SIGINT or SIGTERM asks the work to save and end, the next one cancels it. What is forked meanwhile inherits
nothing of that, and afterwards the handlers are what they were. Knows nothing of what a run does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import faulthandler
import logging
import os
import selectors
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any, TypeVar

from agentlightning.logs import NAME

T = TypeVar("T")
Work = Callable[["Interrupts"], Coroutine[Any, Any, T]]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL = 0.2
"""Seconds between looks at what a thread waits for."""


def run_sync(work: Work[T]) -> T:
    """Runs a coroutine from plain code and returns its result, also where an event loop is already running (a
    notebook): then in a thread of its own.

    Raises KeyboardInterrupt where signals cancelled it.
    """
    interrupts = Interrupts()
    with interrupts.heard():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return interrupts.run(work)
        return _in_thread(interrupts, work)


async def run_here(work: Work[T]) -> T:
    """The same in the event loop that is running. Whoever cancels this waits until the work has closed what it owns."""
    interrupts = Interrupts()
    with interrupts.heard():
        return await interrupts.attend(work)


def _in_thread(interrupts: Interrupts, work: Work[T]) -> T:
    """Runs the work in a thread and waits for it, so that nothing of it goes on once the caller does, however the
    caller is interrupted."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        try:
            outcome.set_result(interrupts.run(work))
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            outcome.set_exception(error)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(call,), name="agentlightning-run", daemon=True
    )
    try:
        thread.start()
        # Not without end: a signal that another thread received wakes nobody here, and its handler runs here.
        while not concurrent.futures.wait([outcome], timeout=POLL).done:
            continue
        return outcome.result()
    except BaseException:
        # Raised by a handler of the caller's own: its alarm, say
        if thread.ident and not outcome.done() and interrupts.cancel():
            concurrent.futures.wait([outcome])
        raise


class Interrupts:
    """What signals do to one piece of work. They may come in any thread, and before it has begun."""

    def __init__(self) -> None:
        self.count = 0
        """Signals so far."""
        self.over = threading.Event()
        self._ask: Callable[[str], None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False

    # ------------------------------------------------------------------ the work's side

    @asynccontextmanager
    async def asking(self, ask: Callable[[str], None]) -> AsyncGenerator[None]:
        """While entered, the first signal calls ``ask`` with its name, in the work's loop, instead of cancelling the
        work."""
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None

    def interrupted(self) -> asyncio.CancelledError:
        """For work that was asked to end and has no result to hand back: raise it."""
        self._cancelled = True
        return asyncio.CancelledError()

    # ------------------------------------------------------------------ whoever waits for it

    def run(self, work: Work[T]) -> T:
        """Runs the work in an event loop of this thread's own."""
        try:
            return asyncio.run(self._begin(work))
        except asyncio.CancelledError:
            if self._cancelled:
                raise KeyboardInterrupt from None
            raise

    async def attend(self, work: Work[T]) -> T:
        """Runs the work in a task of the running loop."""
        try:
            return await self._begin(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._cancelled and not (task and task.cancelling()):
                raise KeyboardInterrupt from None
            raise

    async def _begin(self, work: Work[T]) -> T:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(work(self))
        self._loop = loop
        if self.count or self._cancelled:
            self._cancel()
        return await self._task

    def cancel(self) -> bool:
        """Cancels the work, from any thread. False where it had been cancelled before."""
        before, self._cancelled = self._cancelled, True
        self._call(self._cancel)
        return not before

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _call(self, act: Callable[..., None], *arguments: str) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the work has ended
                self._loop.call_soon_threadsafe(act, *arguments)

    # ------------------------------------------------------------------ signals

    def signalled(self, name: str) -> None:
        """A signal came. Safe in a signal handler and in any thread."""
        self.count += 1
        self._call(self._act, name)

    def _act(self, name: str) -> None:
        ask, self._ask = self._ask, None
        if ask is not None:
            ask(name)
        else:
            self._cancel()

    @contextmanager
    def heard(self) -> Generator[None]:
        """While entered, this process's signals come here: through handlers where this is the main thread, else without
        disturbing the main thread's own."""
        here = threading.current_thread()
        _active.append(self)
        if here is not threading.main_thread() and not here.daemon:
            _wait_at_exit(self)
        try:
            with _handled() if here is threading.main_thread() else _ears.listening():
                yield
        finally:
            _active.remove(self)
            self.over.set()


_active: list[Interrupts] = []
"""The work that is going on in this process, whichever threads it was entered from. A signal is told to all of it."""


def _tell(number: int) -> None:
    for interrupts in list(_active):
        interrupts.signalled(signal.Signals(number).name)


_waited: list[Interrupts] = []
"""Work in threads that are not the main one, which a program does not leave behind when its main thread ends."""


def _wait_at_exit(interrupts: Interrupts) -> None:
    """Has the interpreter wait for this work before it shuts executors down: a run that is interrupted by Ctrl-C still
    needs them to save."""
    if not _waited:
        # Registers its own shutdown; what is registered later is called first
        import_module("concurrent.futures.thread")
        threading._register_atexit(_wait_for_all)  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue,reportUnknownMemberType]
    _waited[:] = [interrupts, *(each for each in _waited if not each.over.is_set())]


def _wait_for_all() -> None:
    interrupted = 0
    for interrupts in list(_waited):
        while not interrupts.over.is_set():
            try:
                interrupts.over.wait()
            except KeyboardInterrupt:
                interrupted += 1  # the work has heard it too, and ends
                if interrupted > 1:
                    raise


@contextmanager
def _handled() -> Generator[None]:
    """Handlers that tell of a signal. After the second one, and on leaving, they are what they were; a signal that was
    ignored stays so."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    told = 0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal told
        told += 1
        if told > 1:
            restore()
        _tell(number)

    def restore() -> None:
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)

    _ears.covered += 1
    # Not loop.add_signal_handler: it leaves a descriptor behind through which a forked child's signals would reach this
    # process.
    for number, handler in previous.items():
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
        _ears.covered -= 1


class _Ears:
    """Hears signals outside the main thread, where Python lets nobody handle them: faulthandler writes a line on each,
    and then does what was to be done."""

    def __init__(self) -> None:
        self.covered = 0
        """Work entered from the main thread, whose handlers tell of every signal."""
        self._writing: list[int] = []
        self._thread: threading.Thread | None = None
        self._users = 0
        self._lock = threading.Lock()

    @contextmanager
    def listening(self) -> Generator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._open()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._close()

    def _open(self) -> None:
        selector = selectors.DefaultSelector()
        for number in SIGNALS:
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            self._writing.append(writing)
            selector.register(reading, selectors.EVENT_READ, number)
            faulthandler.register(number, file=writing, all_threads=False, chain=True)
        self._thread = threading.Thread(
            target=self._listen, args=(selector,), name="agentlightning-signals", daemon=True
        )
        self._thread.start()

    def _listen(self, selector: selectors.BaseSelector) -> None:
        """One dump of a stack for each signal, until a zero byte: a child may hold the other end open for ever."""
        over = False
        while not over:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                over = over or b"\0" in data
                if b"most recent call first" in data and not self.covered:
                    _tell(key.data)
        for key in selector.get_map().values():
            os.close(key.fd)
        selector.close()

    def _close(self) -> None:
        for number in SIGNALS:
            faulthandler.unregister(number)
        os.write(self._writing[0], b"\0")
        if self._thread is not None:
            self._thread.join()
        for writing in self._writing:
            os.close(writing)
        self._writing.clear()


_ears = _Ears()


def _forget_in_child() -> None:
    """A process that user code forks is its own: signals to it end it, and are not told here."""
    if not _active:
        return
    _active.clear()
    _waited.clear()
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        faulthandler.unregister(number)
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is _stay:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def outliving_terminal() -> Generator[None]:
    """While entered, a terminal that is closed under the process (SIGHUP) ends what is shown and not the work. Whoever
    handles the signal goes on doing so."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    if ours:
        # A handler and not SIG_IGN, which programs that agents start would inherit.
        signal.signal(signal.SIGHUP, _stay)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGHUP) is _stay:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _stay(number: int, _: FrameType | None) -> None:
    logging.getLogger(NAME).info("%s: the terminal is gone, the run goes on", signal.Signals(number).name)
