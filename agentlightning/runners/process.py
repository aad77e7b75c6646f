"""Processes: runs each attempt in a process of its own, with its own environment, that can be killed with all it
started.

This is the runner's side: it starts the zygote, orders a fork per attempt, reads what comes back, and kills at the
deadline. On anything but Linux, and where a library must not be loaded ahead, `spawn` starts a fresh interpreter per
attempt instead. The process that holds torch is never forked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from agentlightning.agent.loading import AgentSource
from agentlightning.errors import AgentLightningError
from agentlightning.nouns import Failure, Json, Reason
from agentlightning.runners.assignment import Assignment
from agentlightning.runners.companions import Companions, Say
from agentlightning.runners.environment import absolute_path, inherited_environment
from agentlightning.runners.execution import AgentResult, result_from_json
from agentlightning.runners.frames import Frames, frame
from agentlightning.runners.output_log import Log
from agentlightning.runners.said import Said
from agentlightning.text import one_line

_logger = logging.getLogger("agentlightning")

TERM_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
LINGER = 2.0
"""Seconds that a process may go on after its result was delivered."""
PRELOAD_TIMEOUT = 300.0
"""Seconds that loading the agent's libraries may take."""
MAX_RESTARTS = 3
"""Times that a dead zygote is started again without an attempt having ended in between."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from agentlightning.runners.zygote import main; "
    "main(int(sys.argv[1]))"
)


class Child(Protocol):
    """A started process: futures for its first result frame and for its exit code (None: its zygote died), and how to
    signal it."""

    result: asyncio.Future[Json]
    exited: asyncio.Future[int | None]

    def kill(self, number: int) -> None: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


OnMessage = Callable[[Any], None]
"""Is given what a process sends beside its result: what it says of its agents and notes, or a grader's answers."""


class Launcher(Protocol):
    """Starts processes: the zygote, or `spawn`. ``requests`` is a pipe to the process, for one that is asked more than
    once."""

    async def start(self) -> None: ...
    async def launch(
        self,
        order: Mapping[str, Json],
        write: Callable[[bytes], None],
        on_message: OnMessage = ...,
        requests: Requests | None = ...,
    ) -> Child: ...
    async def close(self) -> None: ...


class ProcessIsolation:
    """Runs attempts of one agent in processes, each with companions of its own, made again there. ``abandoned`` is
    always 0: nothing outlives its kill.

    Raises ConfigError for companions that cannot be made again.
    """

    abandoned = 0

    def __init__(
        self,
        source: AgentSource,
        name: str,
        env: Mapping[str, str],
        launcher: Launcher,
        companions: Companions | None = None,
        say: Say = _logger.warning,
    ) -> None:
        self._companions = companions and companions.to_json()
        self._say = say
        self._workers: set[int] = set()
        """The numbers of those that run."""
        self.launcher = launcher
        self._source = source
        self._name = name
        self._env = dict(env)
        self._lingering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.launcher.start()

    async def close(self) -> None:
        if self._companions is not None and self._companions["tracer"] is not None:
            await self.settle()  # a tracer may have to hand over what it has
        for task in self._lingering:
            task.cancel()
        await asyncio.gather(*self._lingering, return_exceptions=True)
        await self.launcher.close()

    async def settle(self) -> None:
        """Until the processes of ended attempts have ended too."""
        await asyncio.gather(*self._lingering, return_exceptions=True)

    async def run(self, assignment: Assignment, log: Log, said: Said, *, stop: asyncio.Event) -> AgentResult | None:
        """See `Isolation.run`. ``said`` is told on this loop."""
        worker = next(number for number in itertools.count() if number not in self._workers)
        self._workers.add(worker)
        try:
            return await self._run(assignment, log, said, worker, stop=stop)
        finally:
            self._workers.discard(worker)

    async def _run(
        self, assignment: Assignment, log: Log, said: Said, worker: int, *, stop: asyncio.Event
    ) -> AgentResult | None:
        deadline = assignment.seconds_left

        def hear(message: Any) -> None:
            match message:
                case {"note": str(text)}:
                    self._say(one_line(text[:2000]))
                case _:
                    said.hear(message)

        order = {
            "op": "run",
            "id": assignment.attempt_id,
            "name": self._name,
            "source": asdict(self._source),
            "env": {**self._env, **assignment.environment()},
            "assignment": assignment.to_json(),
            "companions": self._companions,
            "worker": worker,
        }
        child = await self.launcher.launch(order, log.write, hear)
        try:
            result = await _until(child, deadline, stop)
            if result is None and not child.exited.done():
                await end(child)
            child.drain()
        except BaseException:
            child.kill(signal.SIGKILL)
            child.close()
            raise
        task = asyncio.create_task(_linger(child))
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)
        if result is None and not stop.is_set():
            return Failure(Reason.TIMEOUT, f"the agent did not return within {deadline:g} s; its process was killed")
        return result


async def _until(child: Child, deadline: float, stop: asyncio.Event) -> AgentResult | None:
    """What came of the attempt, or None when it has to be killed."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({child.result, child.exited, stopped}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if stop.is_set():
        return None
    if child.exited.done():
        child.drain()
    if child.result.done():
        return result_from_json(child.result.result())
    return exit_failure(child.exited.result(), "agent") if child.exited.done() else None


def exit_failure(code: int | None, whose: str) -> Failure:
    """What it means that a process ended before the ``agent`` or the ``grader`` in it had returned."""
    if code is None:
        return Failure(Reason.LOST, "the process that starts agents died, and this attempt with it")
    if code >= 0:
        return Failure(Reason.AGENT_ERROR, f"the {whose}'s process exited with code {code} before the {whose} returned")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = (
        " (out of memory?)" if -code == signal.SIGKILL else "; its log shows where" if -code == signal.SIGSEGV else ""
    )
    return Failure(Reason.AGENT_ERROR, f"the {whose}'s process was killed by {name}{hint} before the {whose} returned")


async def end(child: Child) -> None:
    """Ends a process and what it started: SIGTERM, a second of grace, SIGKILL."""
    child.kill(signal.SIGTERM)
    await asyncio.wait({child.exited}, timeout=TERM_GRACE)
    if not child.exited.done():
        child.kill(signal.SIGKILL)
        await asyncio.wait({child.exited}, timeout=5.0)


async def _linger(child: Child) -> None:
    """Lets a process whose result is in end by itself, for a while."""
    try:
        await asyncio.wait({child.exited}, timeout=LINGER)
        if not child.exited.done():
            await end(child)
        child.drain()
    except asyncio.CancelledError:
        child.kill(signal.SIGKILL)
        raise
    finally:
        child.close()


# --------------------------------------------------------------------------- pipes


class PipeEnd:
    """One end of a pipe, on the running loop. The other, ``given_end``, is to be given away and closed here."""

    def __init__(self, kept: int, given: int) -> None:
        self.given_end = given
        self._fd = kept
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(kept, False)

    def close_given_end(self) -> None:
        if self.given_end >= 0:
            os.close(self.given_end)
            self.given_end = -1

    def close(self) -> None:
        self.close_given_end()
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            os.close(self._fd)


class Pipe(PipeEnd):
    """The reading end of a pipe."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        super().__init__(*os.pipe())
        self._feed = feed
        self._loop.add_reader(self._fd, self._read_some)

    def _read_some(self) -> bool:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._feed(data)
        return True

    def drain(self) -> None:
        """Takes what has been written by now, at most 16 MB: who still holds the other end may write for ever."""
        for _ in range(256):
            if not self._open or not self._read_some():
                return


class Requests(PipeEnd):
    """The writing end of a pipe, for messages to a process."""

    def __init__(self) -> None:
        theirs, ours = os.pipe()
        super().__init__(ours, theirs)
        self._left = bytearray()

    def send(self, message: Json) -> None:
        """Queues a message. One that its process no longer takes is dropped: its exit says so."""
        self._left += frame(message)
        self._write_some()

    def _write_some(self) -> None:
        while self._left and self._open:
            try:
                del self._left[: os.write(self._fd, self._left[: 1 << 16])]
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._write_some)
                return
            except BrokenPipeError:
                self._left.clear()
        if self._open:
            self._loop.remove_writer(self._fd)


# --------------------------------------------------------------------------- the zygote's client


def ignore_message(said: Any) -> None:
    """A `OnMessage` where nothing is said before the result."""
    del said


def result_reader(result: asyncio.Future[Json], on_message: OnMessage) -> Callable[[bytes], None]:
    """What to do with the bytes that a process writes of itself: messages, which ``on_message`` is given one after the
    other, and its ``result``."""
    frames = Frames()

    def feed(data: bytes) -> None:
        if result.done() and (result.cancelled() or result.exception() is not None):
            return
        try:
            for message in frames.feed(data):
                if "message" in message:
                    on_message(message["message"])
                elif not result.done():
                    result.set_result(message)
        except (ValueError, TypeError) as error:
            if not result.done():
                result.set_exception(
                    ValueError(f"its process wrote to the descriptor that its result goes through: {error}")
                )

    return feed


@dataclass(eq=False)
class _Forked:
    """A child of the zygote."""

    id: str
    zygote: Zygote
    result: asyncio.Future[Json]
    exited: asyncio.Future[int | None]
    pipes: list[Pipe] = field(default_factory=list[Pipe])
    pid: int | None = None

    def kill(self, number: int) -> None:
        if not self.exited.done():
            self.zygote.send({"op": "kill", "id": self.id, "signal": int(number)})

    def drain(self) -> None:
        for pipe in self.pipes:
            pipe.drain()

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()


class Zygote:
    """Starts and restarts the zygote process and talks to it. ``modules`` are loaded ahead, none of ``tainted`` may be
    among what they load. ``keys`` are kept out of its environment.

    Belongs to the loop that ``start`` runs on.
    """

    def __init__(self, modules: Sequence[str] = (), tainted: Sequence[str] = (), keys: Collection[str] = ()) -> None:
        self.modules = list(modules)
        self._keys = tuple(keys)
        self._tainted = list(tainted)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stderr: Any = None
        self._children: dict[str, _Forked] = {}
        self._preloaded: asyncio.Future[Json] | None = None
        self._callbacks: list[tuple[bytes, tuple[int, ...], Callable[[], None]]] = []
        self._restarts = 0
        self._starting = asyncio.Lock()

    # ------------------------------------------------------------------ start, restart, close

    async def start(self) -> None:
        """Starts the process and has it load its modules. Raises AgentLightningError when it dies meanwhile."""
        async with self._starting:
            if self._control is not None:
                return
            if self._restarts > MAX_RESTARTS:
                raise AgentLightningError(
                    f"the process that starts agents died {self._restarts} times in a row: {self._last_words()}"
                )
            await self._start()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        if self._stderr is not None:
            self._stderr.close()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(  # noqa: ASYNC220  # forks nothing heavy: posix_spawn or vfork
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(absolute_path())],
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=inherited_environment(self._keys),
        )
        theirs.close()
        self._control = ours
        frames = Frames()
        loop.add_reader(ours.fileno(), self._receive, ours, frames)
        if self.modules:
            self._preloaded = loop.create_future()
            self.send({"op": "preload", "modules": self.modules, "tainted": self._tainted})
            try:
                reply = await asyncio.wait_for(self._preloaded, PRELOAD_TIMEOUT)
            except TimeoutError as error:
                raise AgentLightningError(
                    f"loading the agent's libraries took longer than {PRELOAD_TIMEOUT:g} s: {self._last_words()}"
                ) from error
            self._check_preloaded(reply)
            if not self.modules:  # what was loaded must not stay loaded
                self._disconnect()
                await self._start()

    def _check_preloaded(self, reply: Json) -> None:
        """Gives up loading ahead where a forked child would not have what a fresh process has."""
        why = ""
        if reply["tainted"]:
            why = f"{', '.join(reply['tainted'])} read the endpoint's variables when imported"
        elif reply["threads"]:
            why = f"a library starts threads when imported ({', '.join(reply['threads'])}), which a fork loses"
        if why:
            _logger.warning("agents start slowly: every attempt imports its libraries anew, because %s", why)
            self.modules = []

    async def close(self) -> None:
        """Ends the process, which ends all it started."""
        process = self._process
        self._disconnect()
        if process is not None:
            await asyncio.to_thread(_wait_or_kill, process)
        if self._stderr is not None:
            self._stderr.close()

    def _disconnect(self) -> None:
        """Lets go of the process, which then kills its children and ends."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            asyncio.get_running_loop().remove_writer(self._control.fileno())
            self._control.close()
            self._control = None
        for _, _, sent in self._callbacks:
            sent()
        self._callbacks.clear()
        for child in list(self._children.values()):
            self._forget(child, None)

    def _died(self) -> None:
        pids = [child.pid for child in self._children.values() if child.pid is not None]
        self._disconnect()
        self._restarts += 1
        for pid in pids:  # they die with their parent; what they started does not
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._preloaded is not None and not self._preloaded.done():
            self._preloaded.set_exception(
                AgentLightningError(
                    f"the process that starts agents died while it loaded libraries: {self._last_words()}"
                )
            )

    def _last_words(self) -> str:
        code = self._process.poll() if self._process is not None else None
        said = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            said = " ".join(self._stderr.read()[-500:].decode("utf-8", "replace").split())
        return f"exit code {code}; {said or 'it said nothing'}"

    # ------------------------------------------------------------------ messages

    async def launch(
        self,
        order: Mapping[str, Json],
        write: Callable[[bytes], None],
        on_message: OnMessage = ignore_message,
        requests: Requests | None = None,
    ) -> Child:
        """Forks a process for ``order``. Its output goes to ``write``, its messages to ``on_message``."""
        await self.start()
        loop = asyncio.get_running_loop()
        child = _Forked(order["id"], self, loop.create_future(), loop.create_future())
        child.pipes = [Pipe(result_reader(child.result, on_message)), Pipe(write)]
        self._children[child.id] = child
        self.send(dict(order), *child.pipes, *([requests] if requests is not None else []))
        return child

    def send(self, message: Json, *pipes: PipeEnd) -> None:
        """Queues a message with the given ends of pipes, which are closed here once it is sent. Dropped when the
        process is gone."""

        def sent() -> None:
            for pipe in pipes:
                pipe.close_given_end()

        if self._control is None:
            sent()
            return
        self._callbacks.append((frame(message), tuple(pipe.given_end for pipe in pipes), sent))
        self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._callbacks and self._control is not None:
            data, fds, sent = self._callbacks[0]
            try:
                # Descriptors ride on a message's first bytes; once those are gone, so are they.
                count = socket.send_fds(self._control, [data], fds) if fds else self._control.send(data)
            except BlockingIOError:
                loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError:  # the reader sees its end too, and tells the children
                return
            if fds:
                sent()
            if count < len(data):
                self._callbacks[0] = (data[count:], (), _nothing)
            else:
                self._callbacks.pop(0)
        if self._control is not None:
            loop.remove_writer(self._control.fileno())

    def _receive(self, control: socket.socket, frames: Frames) -> None:
        try:
            data = control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self._control is control:
                self._died()
            return
        for message in frames.feed(data):
            self._obey(message)

    def _obey(self, message: Json) -> None:
        if message["op"] == "preloaded":
            if self._preloaded is not None and not self._preloaded.done():
                self._preloaded.set_result(message)
            return
        child = self._children.get(message["id"])
        if child is None:
            return
        if message["op"] == "started":
            child.pid = message["pid"]
        else:
            self._restarts = 0
            self._forget(child, message["code"])

    def _forget(self, child: _Forked, code: int | None) -> None:
        del self._children[child.id]
        if not child.exited.done():
            child.exited.set_result(code)


def _nothing() -> None: ...


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
