"""The child: what happens in a process that an agent runs in, from its first line to the delivery of its result.

It imports the user's module freshly, after the attempt's environment is set. ``probe`` does the same in a throwaway
process, to find out whether the agent can be imported and called, and what it takes along.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from agentlightning.agent.calling import make_agent
from agentlightning.agent.loading import AgentSource, import_source, user_traceback
from agentlightning.errors import ConfigError
from agentlightning.nouns import Failure, Json, Mode, Reason
from agentlightning.runners.assignment import Assignment
from agentlightning.runners.companions import Companions, Company
from agentlightning.runners.environment import settle_environment
from agentlightning.runners.execution import (
    LEFTOVERS,
    AgentResult,
    execute,
    failure_of,
    result_to_json,
    seed_everything,
)
from agentlightning.runners.frames import frame, write_all
from agentlightning.runners.inspection import EnvironmentReads, find_clients, heavy_modules, user_modules
from agentlightning.runners.proxies import proxies_in
from agentlightning.runners.said import mark_message, name_message
from agentlightning.runners.source_code import caches, fixed_settings
from agentlightning.tracing.instruments import instrument
from agentlightning.tracing.names import CallNames, listen_everywhere


def work(order: Mapping[str, Json], result_fd: int, *requests_fd: int) -> None:
    """Carries out an order, ``probe``, ``run``, ``grade`` or ``compact``, writes its result as one frame to
    ``result_fd``, and returns when user code has had its say at exit.

    Before the result come frames of what it says of its agents (said.py), so that it is known also where the process is
    killed. A grader, or what shortens histories, is asked through ``requests_fd`` until that is closed, and has no
    other result than its answers.
    """
    streams = _own_streams()
    sys.argv = order.get("argv") or [order["source"]["file"] or order["source"]["module"]]
    source = AgentSource(**order["source"])
    settle_environment(order["env"])
    own, writing = os.getpid(), threading.Lock()

    def write(message: Json) -> None:
        with writing:  # threads of the agent's say something too, and a frame is written whole
            write_all(result_fd, frame(message))

    def send(message: Json) -> None:
        if os.getpid() != own:  # user code forked, and this copy came back out of the agent: it must not answer for it
            os._exit(0)
        _flush(*streams)  # those that a user put in their place may do anything, so they come after the result
        write(message)

    if order["op"] == "probe":
        send(probe(source))
        return
    if order["op"] == "grade":
        from agentlightning.runners.grading import serve

        serve(source, order["state"], requests_fd[0], lambda answer: send({"message": answer}))
        return
    if order["op"] == "compact":
        from agentlightning.runners.compaction import serve as serve_compaction

        serve_compaction(source, order["state"], requests_fd[0], lambda answer: send({"message": answer}))
        return
    assignment = Assignment.from_json(order["assignment"])
    run(
        source,
        order,
        assignment,
        lambda result: send(result_to_json(result)),
        _Frames(lambda message: write({"message": message})),
    )
    if assignment.mode is Mode.DEV:
        _let_threads_end(LEFTOVERS)
    try:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]  # os._exit follows, so that leftover threads hold nothing up
    except BaseException:  # noqa: BLE001  # the result stands; what a user's exit function raised has been printed
        _flush(*streams)
    _flush(sys.stdout, sys.stderr, *streams)


class _Frames:
    """What the agent says of its agents, and notes, each as a message of its own."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        self._send = send

    def mark(self, name: str, /) -> None:
        self._send(mark_message(name))

    def name(self, reply_id: str, name: str, how: str, /) -> None:
        self._send(name_message(reply_id, name, how))

    def note(self, text: str, /) -> None:
        self._send({"note": text[:2000]})


def _flush(*streams: Any) -> None:
    """Flushes streams of any kind: closed, None, or an object that somebody put in a stream's place."""
    for stream in streams:
        with suppress(Exception):  # whatever such an object does, what can still be written is
            stream.flush()


def _let_threads_end(seconds: float) -> None:
    """Gives threads that the agent left behind some time: the calls that they make come too late, and so are seen. Else
    they end with the process."""
    until = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def run(
    source: AgentSource,
    order: Mapping[str, Json],
    assignment: Assignment,
    deliver: Callable[[AgentResult], None],
    frames: _Frames,
) -> None:
    """Imports the agent and what goes along with it, and calls it. What they draw follows from the rollout's seed."""
    names = CallNames(frames.name)
    listen_everywhere(names)
    instrument()
    seed_everything(assignment.seed)
    try:
        agent = make_agent(import_source(source), order["name"])
        companions = Companions.from_json(order["companions"]) if order.get("companions") else None
        company = Company(companions, frames.note, order.get("worker", 0), apart=True)
        company.begin()
        seed_everything(assignment.seed)  # again, for the libraries that are there only now
    except ConfigError as error:
        cause = error.__cause__
        deliver(Failure(Reason.AGENT_ERROR, str(error), "" if cause is None else user_traceback(cause)))
        return
    except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt raised by an import
        deliver(failure_of(error))
        return

    def end(result: AgentResult) -> None:
        names.close()
        deliver(result)

    execute(agent, assignment, end, frames.mark, company=company)
    company.end()


def probe(source: AgentSource) -> dict[str, Json]:
    """Imports the agent and says what was found: ``error`` and ``traceback``, or its modes, parameters, clients,
    environment reads and modules."""
    instrument()  # what an attempt loads for it is loaded ahead then
    before = set(sys.modules)
    with EnvironmentReads(source) as reads:
        try:
            obj: Any = import_source(source)
            agent = make_agent(obj, source.attribute)
            seed_everything(0)  # loads what an attempt's seeding would load
        except ConfigError as error:
            cause = error.__cause__
            return {"error": str(error), "traceback": "" if cause is None else user_traceback(cause)}
    modules = user_modules(source)
    heavy, tainted = heavy_modules(before, source, reads.libraries)
    return {
        "modes": [str(mode) for mode in agent.methods],
        "parameters": sorted(agent.parameters),
        "needs_template": agent.needs_template,
        "trained_agents": agent.trained_agents,
        "clients": [client.to_json() for client in find_clients(modules)],
        "settings": [setting.to_json() for setting in fixed_settings(modules)],
        "caches": [cache.to_json() for cache in caches(modules)],
        "proxies": proxies_in(os.environ),
        "modules": heavy,
        "tainted": tainted,
    }


def _own_streams() -> tuple[io.TextIOWrapper, ...]:
    """Line-buffered streams on this process's own descriptors, and a traceback in the log if it crashes."""
    streams: list[io.TextIOWrapper] = []
    for fd, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(fd, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), "utf-8", "replace", line_buffering=True, write_through=fd == 2
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        streams.append(stream)
    sys.stdin = sys.__stdin__ = open(os.devnull)  # noqa: SIM115  # lives as long as the process
    faulthandler.enable(file=sys.stderr, all_threads=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    return tuple(streams)
