"""Check: whether an agent can be imported, called and isolated as asked, found out before anything else is started, and
what it takes along.

A path under ``process`` isolation is imported in a throwaway process, with an environment like an attempt's, so that
nothing of it stays here.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, Literal

from agentlightning.agent.calling import AgentSpec
from agentlightning.agent.loading import AgentSource
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json, Mode
from agentlightning.records.probe import PLACEHOLDER, AgentProbe, ClientFound, CodePlace, Isolation
from agentlightning.runners.assignment import ENDPOINT_VARIABLES, placeholder
from agentlightning.runners.environment import IN_AGENT, hide_inherited
from agentlightning.runners.inspection import find_clients
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Launcher, Zygote, end
from agentlightning.runners.proxies import bypass, proxies_in
from agentlightning.runners.source_code import caches, fixed_settings

PROBE_TIMEOUT = 120.0
"""Seconds that importing an agent may take."""


def choose_isolation(spec: AgentSpec, wanted: Literal["auto", "thread", "process"]) -> Isolation:
    """``auto``: process for a path, thread for an object. Raises ConfigError where a process could not import the agent
    again."""
    isolation = wanted if wanted != "auto" else "process" if spec.from_path else "thread"
    if isolation == "process" and spec.source is None:
        raise ConfigError(
            f"agent {spec.name!r} cannot run with isolation='process': it is no top-level name of a file that a "
            "process could import (a closure, a lambda, a notebook cell). Put it into FILE.py and pass "
            "'FILE.py:name', or use isolation='thread'"
        )
    return isolation


def refuse_inside_agent() -> None:
    """Raises ConfigError in a process that imports or runs an agent: its script would start a run inside the run."""
    if os.environ.get(IN_AGENT):
        raise ConfigError(
            "the agent's file starts a run when it is imported: put that under `if __name__ == '__main__':`"
        )


async def check_agent(
    spec: AgentSpec,
    isolation: Literal["auto", "thread", "process"] = "auto",
    *,
    extra_env: Mapping[str, str] | None = None,
    keys: Collection[str] = (),
) -> AgentProbe:
    """Imports the agent where it will run, without ``keys`` in its environment, and returns what was found. Raises
    ConfigError, with the user's traceback as a note, when it cannot be used."""
    refuse_inside_agent()
    env = dict(extra_env or {})
    chosen = choose_isolation(spec, isolation)
    taken = sorted(ENDPOINT_VARIABLES & set(env))
    if taken:
        raise ConfigError(f"extra_env sets {', '.join(taken)}, which the runner sets for each attempt: leave it out")
    if chosen == "process":
        assert spec.source is not None
        return await _probe(spec.name, spec.source, env, keys)
    if env:
        raise ConfigError(
            f"extra_env sets {', '.join(sorted(env))}, and isolation='thread' has no environment of its own: use "
            "isolation='process'"
        )
    with bypass.over("http://127.0.0.1"):  # for clients that are made when its module is imported
        agent = spec.load()
    homes = {getattr(method.function, "__module__", None) for method in agent.methods.values()}
    modules = [sys.modules[name] for name in homes if isinstance(name, str) and name in sys.modules]
    return AgentProbe(
        name=spec.name,
        isolation=chosen,
        modes=frozenset(agent.methods),
        parameters=agent.parameters,
        needs_template=agent.needs_template,
        clients=tuple(find_clients(modules)),
        settings=tuple(fixed_settings(modules)),
        caches=tuple(caches(modules)),
        proxies=tuple(proxies_in(os.environ)),
        trained_agents=agent.trained_agents,
    )


def new_launcher(probe: AgentProbe | None = None, keys: Collection[str] = ()) -> Launcher:
    """What starts processes on this system, without ``keys`` in their environment, and with none to be found in that of
    this one."""
    hide_inherited(keys)
    if sys.platform == "linux":
        return Zygote(probe.modules if probe else (), probe.tainted if probe else (), keys)
    from agentlightning.runners.spawn import Spawn

    return Spawn(keys)


async def _probe(name: str, source: AgentSource, env: Mapping[str, str], keys: Collection[str]) -> AgentProbe:
    launcher = new_launcher(keys=keys)
    log = OutputLog()
    surroundings = placeholder(PLACEHOLDER, "placeholder").environment()
    order = {"op": "probe", "id": "probe", "name": name, "source": asdict(source), "env": {**env, **surroundings}}
    try:
        await launcher.start()
        child = await launcher.launch(order, log.write)
        try:
            await asyncio.wait({child.result, child.exited}, timeout=PROBE_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            child.drain()
            if not child.result.done():
                raise _no_answer(source, child.exited.result() if child.exited.done() else None, log.text())
            found: dict[str, Any] = child.result.result()
        finally:
            if not child.exited.done():
                await end(child)
            child.close()
    finally:
        await launcher.close()
    if "error" in found:
        raise _with_note(ConfigError(found["error"]), found["traceback"])
    return AgentProbe(
        name=name,
        isolation="process",
        modes=frozenset(map(Mode, found["modes"])),
        parameters=frozenset(found["parameters"]),
        needs_template=found["needs_template"],
        clients=tuple(ClientFound(**client) for client in found["clients"]),
        settings=tuple(CodePlace(**setting) for setting in found["settings"]),
        caches=tuple(CodePlace(**cache) for cache in found["caches"]),
        proxies=tuple(found["proxies"]),
        modules=tuple(found["modules"]),
        tainted=tuple(found["tainted"]),
        trained_agents=found["trained_agents"],
    )


def _no_answer(source: AgentSource, code: int | None, printed: str) -> ConfigError:
    what = f"took longer than {PROBE_TIMEOUT:g} s" if code is None else f"ended its process with exit code {code}"
    return _with_note(ConfigError(f"{source.given!r} cannot be imported: its import {what}"), printed[-4000:])


def _with_note(error: ConfigError, text: Json) -> ConfigError:
    if text:
        error.add_note(text)
    return error
