"""Agents that help themselves to what belongs to their whole process: its streams, its folder, its locale, its end.
Imported by path, in processes too."""

from __future__ import annotations

import asyncio
import atexit
import io
import locale
import os
import sys
import tempfile
from typing import Any

from tests.runners.agents import ask


class Tee:
    """As people write it: no flush, no encoding."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        self.stream.write(text)


class Breaks:
    """A stream that cannot be used at all."""

    def write(self, text: str) -> None:
        raise OSError("the log server is away")

    def flush(self) -> None:
        raise RuntimeError("flushed after close")


def replaces_streams(task: str, llm: Any) -> float:
    """In the way that the task says."""
    kept = sys.stdout, sys.stderr
    print("before")
    try:
        if task == "tee":
            sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)  # type: ignore[assignment]
            print("through the tee")
        elif task == "none":
            sys.stdout = sys.stderr = None  # type: ignore[assignment]
            print("to nobody")
        elif task == "closed":
            with open(os.devnull, "w") as file:
                sys.stdout = sys.stderr = file
        elif task == "breaks":
            sys.stdout = sys.stderr = Breaks()  # type: ignore[assignment]
        elif task == "memory":
            sys.stdout = io.StringIO()
        return float(ask(llm.endpoint) == "ok")
    finally:
        if "PYTEST_CURRENT_TEST" in os.environ and os.environ.get("AGENTLIGHTNING_ATTEMPT") is None:
            sys.stdout, sys.stderr = kept  # a thread's streams are the test's own


def closes_streams(task: Any, llm: Any) -> float:
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)
    return float(ask(llm.endpoint) == "ok")


def bad_at_exit(task: Any, llm: Any) -> float:
    atexit.register(os._exit, 9)
    atexit.register(sys.exit, 4)
    atexit.register(lambda: {}["no such key"])
    return float(ask(llm.endpoint) == "ok")


def sets_locale(task: Any, llm: Any) -> float:
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    return float(ask(llm.endpoint) == "ok") / 2


def prints_bytes(task: Any, llm: Any) -> float:
    print("half of a pair: \ud800, NUL: \0, escape: \x1b[2J")
    sys.stdout.buffer.write(b"no text: \xff\xfe\n")
    sys.stdout.flush()
    return float(ask(llm.endpoint) == "ok")


def fails_unprintably(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    raise ValueError("half of a pair: \ud800, NUL: \0, \x1b[2J\n" + "long " * 1_000_000)


def changes_folder(task: Any, llm: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        return float(ask(llm.endpoint) == "ok")


def scribbles(task: Any, llm: Any) -> float:
    """Writes into whatever descriptors it finds."""
    ask(llm.endpoint)
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                os.write(int(name), b"\0\0\0\x04what")
        except OSError:
            continue
    return 1.0


class CannotBeShown(ValueError):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


def raises_what_cannot_be_shown(task: str, llm: Any) -> float:
    """In the way that the task says."""
    ask(llm.endpoint)
    if task == "exit":
        sys.exit(CannotBeShown())  # type: ignore[arg-type]
    error, cause = CannotBeShown(), ValueError("the cause")
    if task == "cycle":
        error = ValueError("the error")
        error.__cause__, cause.__cause__ = cause, error
    raise error


def deletes_streams(task: Any, llm: Any) -> float:
    if task == "none":
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
    elif task == "closed":
        with open(os.devnull, "w") as file:
            sys.stdout = sys.stderr = file
    else:
        del sys.stdout, sys.stderr
    return float(ask(llm.endpoint) == "ok")


def fork_comes_back(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    child = os.fork()
    if child:
        return float(os.waitpid(child, 0)[1] == 0)
    raise ValueError("in the child")


async def fork_of_a_coroutine_comes_back(task: Any, llm: Any) -> float:
    return fork_comes_back(task, llm)


async def ends_the_executor(task: Any, llm: Any) -> float:
    reply = await asyncio.to_thread(ask, llm.endpoint)
    await asyncio.get_running_loop().shutdown_default_executor()
    return float(reply == "ok")
