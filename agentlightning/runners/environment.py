"""Environment: which variables an agent's process gets, and which keys are hidden from it.

Linux shows the environment that a process was started with in `/proc/PID/environ`, to every process of its user: an
agent that looks there would find what its own environment was kept free of. So the keys of external models are taken
out of that too.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from agentlightning.agent.resources import SHORTEST_KEY
from agentlightning.runners.assignment import ENDPOINT_VARIABLES
from agentlightning.runners.proxies import without_proxy

IN_AGENT = "AGENTLIGHTNING_IN_AGENT"
"""Set in every process that imports or runs user code for a run, so that a script without a __main__ guard does not
start a second one."""

KEPT_BACK = "kept-by-agentlightning"
"""What an agent's process finds in a variable that holds the key of an external model: that key is the gateway's."""


def inherited_environment(keys: Collection[str] = ()) -> dict[str, str]:
    """What an agent's process gets of this one's environment: not the endpoint's variables, which are the attempt's
    own, and no ``keys``."""
    secret = [key for key in keys if len(key) >= SHORTEST_KEY]
    values = {name: value for name, value in os.environ.items() if name not in ENDPOINT_VARIABLES}
    values.update({name: KEPT_BACK for name, value in values.items() if any(key in value for key in secret)})
    values.setdefault("PYTHONHASHSEED", "0")  # or an agent that iterates over a set would differ from run to run
    return values


def absolute_path() -> list[str]:
    """Where this process imports from, for one that may be started from another working folder."""
    try:
        return [os.path.abspath(entry) for entry in sys.path]
    except FileNotFoundError:  # the working folder is gone, and with it what could be imported from there
        return [entry for entry in sys.path if os.path.isabs(entry)]


def settle_environment(values: Mapping[str, str]) -> None:
    """Puts an attempt's variables into this process's environment, and keeps proxies away from the endpoint."""
    os.environ.update(values)
    os.environ[IN_AGENT] = "1"
    # Not the user's to think of: this library would send the agent's conversations to an outside address.
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    # The Claude agent SDK would also have the model name each session: a call that is nobody's work, and would be
    # trained.
    os.environ.setdefault("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
    # LangChain gives a stream up that says nothing for two minutes, heartbeats or not: how long to wait is the
    # attempt's deadline's business.
    os.environ.setdefault("LANGCHAIN_OPENAI_STREAM_CHUNK_TIMEOUT_S", "0")
    os.environ.update(without_proxy([values.get("AGENTLIGHTNING_ENDPOINT", "")], os.environ))


def hide_inherited(keys: Collection[str]) -> None:
    """Overwrites ``keys`` in the environment that this process was started with. Its variables keep their values, for
    itself and for what it starts."""
    secret = [key.encode() for key in keys if len(key) >= SHORTEST_KEY]
    if sys.platform != "linux" or not secret:
        return
    shown = Path("/proc/self/environ").read_bytes()
    start, end = _place()
    if (
        not start
        or end - start != len(shown)
        or not any(key in shown for key in secret)
        or ctypes.string_at(start, len(shown)) != shown
    ):
        return
    for name, value in os.environb.items():
        if any(key in value for key in secret):
            os.environb[name] = value  # in new memory: what is overwritten is what the process no longer uses
    for key in secret:
        at = shown.find(key)
        while at >= 0:
            ctypes.memset(start + at, ord("*"), len(key))
            at = shown.find(key, at + len(key))


def _place() -> tuple[int, int]:
    """Where in memory the environment lies that the process was started with, by proc_pid_stat(5); zeros where it is
    not told."""
    numbers = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return (int(numbers[47]), int(numbers[48])) if len(numbers) > 48 else (0, 0)
