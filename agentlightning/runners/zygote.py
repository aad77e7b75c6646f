"""The zygote: a small, single-threaded process that has the agent's libraries loaded and forks one process per attempt,
in milliseconds.

It never imports the user's own modules: each child does that itself, after its environment is set. It is started clean,
so that the process that holds torch is never forked. When its runner dies it kills what it started and ends. Linux
only; elsewhere `spawn` starts a process per attempt.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from types import FrameType
from typing import Any

from agentlightning.nouns import Json
from agentlightning.runners.environment import IN_AGENT
from agentlightning.runners.frames import frame, receive

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(fd: int) -> None:
    """Serves the control socket ``fd`` until its other end closes."""
    os.environ[IN_AGENT] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    zygote = _Zygote(socket.socket(fileno=fd))
    try:
        zygote.serve()
    finally:
        zygote.kill_all()
        os._exit(0)


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, str] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Processes that an agent's processes leave behind come to this one, which can then end them too.
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _only_wake)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake_read:
                    os.read(self._wake_read, 4096)
                    self._reap()
                    continue
                received = receive(self._control)
                if received is None:
                    return
                self._obey(*received)

    def _obey(self, order: Json, fds: list[int]) -> None:
        if order["op"] == "preload":
            self._reply(self._preload(order["modules"], set(order["tainted"])))
        elif order["op"] == "kill":
            for pid in [pid for pid, name in self._children.items() if name == order["id"]]:
                self._signal(pid, order["signal"])
        else:
            self._fork(order, *fds)

    def _reply(self, message: Json) -> None:
        self._control.sendall(frame(message))

    def _preload(self, modules: list[str], tainted: set[str]) -> Json:
        failed: list[str] = []
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001  # a library that cannot be loaded ahead is loaded, or fails, in the attempt
                failed.append(f"{name}: {type(error).__name__}: {error}")
        gc.collect()
        gc.freeze()  # children share these pages for as long as nothing touches them
        return {
            "op": "preloaded",
            "failed": failed,
            "tainted": sorted(tainted & {name.split(".")[0] for name in sys.modules}),
            "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
        }

    def _fork(self, order: Json, result_fd: int, output_fd: int, *requests_fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                self._become_child(output_fd)
                from agentlightning.runners.child import work

                work(order, result_fd, *requests_fd)
                code = 0
            except BaseException:  # noqa: BLE001  # nothing may return into the zygote's own loop
                traceback.print_exc()
            finally:
                os._exit(code)
        for fd in (result_fd, output_fd, *requests_fd):
            os.close(fd)
        self._children[pid] = order["id"]
        self._reply({"op": "started", "id": order["id"], "pid": pid})

    def _become_child(self, output_fd: int) -> None:
        zygote = os.getppid()
        signal.set_wakeup_fd(-1)
        os.setsid()
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != zygote:  # it died before it could be noticed
            os._exit(70)
        self._selector.close()
        self._control.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)

    # ------------------------------------------------------------------ ends

    def _reap(self) -> None:
        """Reports children that ended, and ends what they left behind: their process group, and processes that had left
        it."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            name = self._children.get(ended.si_pid)
            if name is not None:
                # Before it is reaped, while its number still means this group
                self._signal(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if name is not None:
                del self._children[ended.si_pid]
                self._reply({"op": "exited", "id": name, "code": os.waitstatus_to_exitcode(status)})
            self._end_orphans()

    def _end_orphans(self) -> None:
        live = set(self._children.values())
        for pid in _children_of_this_process():
            if pid in self._children:
                continue
            attempt = _environment(pid).get(b"AGENTLIGHTNING_ATTEMPT", b"").decode("utf-8", "replace")
            if attempt and attempt not in live:
                self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, number: int) -> None:
        """Signals a process, its group where it leads one, and the processes below it that left that group."""
        for one in (*_descendants(pid), pid):
            for send in (os.killpg, os.kill):
                try:
                    send(one, number)
                except (ProcessLookupError, PermissionError):
                    continue  # not a leader, already gone, or not ours any more (setuid)

    def kill_all(self) -> None:
        """Ends everything that this process started or was left with."""
        for pid in {*self._children, *_children_of_this_process()}:
            self._signal(pid, signal.SIGKILL)


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """A handler has to be set for the wakeup descriptor to be written to."""


def _children_of_this_process() -> list[int]:
    return _children(os.getpid())


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:  # it ended meanwhile, or this kernel does not tell
        return found
    return found


def _descendants(pid: int) -> list[int]:
    """Processes below ``pid``, deepest first."""
    below: list[int] = []
    for child in _children(pid):
        below += [*_descendants(child), child]
    return below


def _environment(pid: int) -> dict[bytes, bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs: list[Any] = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in pairs}
