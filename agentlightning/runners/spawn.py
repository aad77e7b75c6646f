"""Spawn: a fresh interpreter per attempt, for systems without what the zygote needs. Slower by the time that importing
the agent takes.

The process watches its standard input, and ends with all its group when its runner is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from agentlightning.nouns import Json
from agentlightning.runners.environment import absolute_path, inherited_environment
from agentlightning.runners.frames import HEADER, frame, write_all
from agentlightning.runners.process import Child, OnMessage, Pipe, Requests, ignore_message, result_reader

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from agentlightning.runners.spawn import main; "
    "main(*json.loads(sys.argv[1]))"
)


@dataclass(eq=False)
class _Spawned:
    process: subprocess.Popen[bytes]
    result: asyncio.Future[Json]
    exited: asyncio.Future[int | None]
    pipes: tuple[Pipe, ...]

    def kill(self, number: int) -> None:
        if not self.exited.done():
            _kill_group(self.process.pid, number)

    def drain(self) -> None:
        for pipe in self.pipes:
            pipe.drain()

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()


class Spawn:
    """Starts a Python process per order. ``keys`` are kept out of its environment."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self._keys = tuple(keys)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def launch(
        self,
        order: Mapping[str, Json],
        write: Callable[[bytes], None],
        on_message: OnMessage = ignore_message,
        requests: Requests | None = None,
    ) -> Child:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Json] = loop.create_future()
        exited: asyncio.Future[int | None] = loop.create_future()

        def ended(code: int) -> None:
            if not exited.done():
                exited.set_result(code)

        pipes = (Pipe(result_reader(result, on_message)), Pipe(write))
        given = [pipes[0].given_end, *([requests.given_end] if requests is not None else [])]
        process = subprocess.Popen(  # noqa: ASYNC220  # returns as soon as the process exists
            [sys.executable, "-c", _BOOT, json.dumps(given), json.dumps(absolute_path())],
            stdin=subprocess.PIPE,
            stdout=pipes[1].given_end,
            stderr=pipes[1].given_end,
            pass_fds=given,
            start_new_session=True,
            env=inherited_environment(self._keys),
        )
        for pipe in (*pipes, *([requests] if requests is not None else [])):
            pipe.close_given_end()
        threading.Thread(
            target=_attend, args=(process, frame(dict(order)), loop, ended), name=f"spawn-{order['id']}", daemon=True
        ).start()
        return _Spawned(process, result, exited, pipes)


def _attend(
    process: subprocess.Popen[bytes], order: bytes, loop: asyncio.AbstractEventLoop, ended: Callable[[int], None]
) -> None:
    """Gives a process its order and waits for its end. Its standard input stays open meanwhile: that is how it knows
    that we live."""
    assert process.stdin is not None
    try:
        write_all(process.stdin.fileno(), order)
    except BrokenPipeError:
        order = b""  # it ended before it had read all: its exit code says the rest
    code = process.wait()
    process.stdin.close()
    _kill_group(process.pid, signal.SIGKILL)
    try:
        loop.call_soon_threadsafe(ended, code)
    except RuntimeError:  # the loop was closed: nobody waits for this process any more
        return


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # all of it has ended


def main(result_fd: int, *requests_fd: int) -> None:
    """The process's side: reads its order, then works."""
    alive = os.dup(0)
    order = json.loads(_read(alive, int.from_bytes(_read(alive, HEADER), "big")))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(alive, False)
    for fd in (result_fd, *requests_fd):
        os.set_inheritable(fd, False)
    threading.Thread(target=_die_with, args=(alive,), name="agentlightning-alive", daemon=True).start()
    from agentlightning.runners.child import work

    work(order, result_fd, *requests_fd)
    os._exit(0)


def _die_with(fd: int) -> None:
    while os.read(fd, 1):
        continue
    os.killpg(0, signal.SIGKILL)


def _read(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = os.read(fd, min(count - len(data), 1 << 20))
        if not chunk:
            os._exit(70)  # the runner ended before it had given its order
        data += chunk
    return data
