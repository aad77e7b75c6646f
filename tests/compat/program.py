"""A program's own agents, tracer and hooks. Imported in processes too."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentlightning import AgentOpsTracer, LitAgent, rollout

_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(base_url: str, text: str) -> Any:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Content-Type": "application/json"})
    with _no_proxy.open(request, timeout=60) as reply:
        return json.loads(reply.read())


def score(task: Any, llm: Any) -> float:
    text = ask(llm.endpoint, task["letter"])["choices"][0]["message"]["content"] or ""
    return float(text.startswith(task["letter"])) + 0.01 * len(text)


def plain(task: Any, llm: Any) -> float:
    return score(task, llm)


@rollout
async def decorated(task: Any, llm: Any) -> float:
    return score(task, llm)


def note(file: Path, line: str) -> None:
    with file.open("a") as stream:
        stream.write(f"{line}\n")


class Knows(LitAgent[Any]):
    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self.file = file

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        note(self.file or self.tracer.file, f"agent {type(self.tracer).__name__}")
        return score(task, resources["main_llm"])


knows = Knows()


class Own(AgentOpsTracer):
    def __init__(self, file: Path) -> None:  # no super().__init__()
        self.file = file

    def init(self, *args: Any, **kwargs: Any) -> None:
        note(self.file, "init")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        note(self.file, "teardown")

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncGenerator[Any]:
        note(self.file, "enter")
        async with super().trace_context(name, **ids) as context:
            yield context
        note(self.file, "leave")


class Hook:
    def __init__(self, file: Path) -> None:
        self.file = file

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        note(self.file, "on_rollout_start")

    async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        note(self.file, "on_trace_start")

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        note(self.file, "on_trace_end")

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        note(self.file, "on_rollout_end")


class BadHook:
    async def on_trace_end(self, *, tracer: Any) -> None:
        raise KeyError("mine")


class Listener:
    """Keeps what a run says, and hears nothing else of it."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def __getattr__(self, name: str) -> Any:
        def hear(*args: Any, **more: Any) -> None:
            """Nothing that is kept."""

        return hear
