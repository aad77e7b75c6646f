"""Agents, tracers and hooks as programs write them, each of which notes in a file what it is told. Imported by path, in
processes too."""

from __future__ import annotations

import contextvars
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from agentlightning import AgentOpsTracer, LitAgent, Tracer, rollout
from tests.runners.agents import ask

within: contextvars.ContextVar[str] = contextvars.ContextVar("within", default="outside")


class Notes:
    """Notes lines in a file, each in one write, so that threads and processes may share it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def note(self, line: str) -> None:
        with self.file.open("a") as stream:
            stream.write(f"{line}\n")


class Own(AgentOpsTracer, Notes):  # no super().__init__()
    def __init__(self, file: Path) -> None:
        self.file = file

    def init(self, *args: Any, **kwargs: Any) -> None:
        super().init(*args, **kwargs)
        self.note("init")

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        self.note(f"init_worker {worker_id} {store}")

    def teardown_worker(self, worker_id: int) -> None:
        self.note(f"teardown_worker {worker_id}")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self.note("teardown")

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncGenerator[Any]:
        async with super().trace_context(name, **ids) as context:
            token = within.set("inside")
            self.note(f"enter {name == ids['rollout_id']} {sorted(ids)}")
            try:
                yield context
            except ValueError as error:
                self.note(f"leave {error}")
                raise
            else:
                self.note("leave")
            finally:
                within.reset(token)


class Plain:
    """No subclass of ours, with the older context that is entered by ``with``, and no ids."""

    def __init__(self, file: Path) -> None:
        self.notes = Notes(file)

    @contextmanager
    def trace_context(self, name: str | None = None) -> Generator[None]:
        token = within.set("inside")
        self.notes.note("enter")
        yield
        self.notes.note("leave")
        within.reset(token)


class Broken(Tracer):
    """Fails in the method that it is told to, in the way that it is told to."""

    def __init__(self, where: str, error: BaseException | None = None) -> None:
        self.where = where
        self.error = error or ValueError("no\nserver")

    def _may_fail(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def init(self, *args: Any, **kwargs: Any) -> None:
        self._may_fail("init")

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        self._may_fail("init_worker")

    def teardown_worker(self, worker_id: int) -> None:
        self._may_fail("teardown_worker")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._may_fail("teardown")

    @asynccontextmanager
    async def trace_context(self, name: str | None = None, **ids: Any) -> AsyncGenerator[Any]:
        self._may_fail("trace_context")
        yield None
        self._may_fail("leaving")


class NoContext(Tracer):
    def trace_context(self, name: str | None = None, **ids: Any) -> Any:
        return "context"


class Slow(Tracer):
    def init(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(3600)


class HandsOver(Tracer, Notes):
    """Takes its time at the end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.7)
        self.note("handed over")


class Hook(Notes):
    """With the names that programs declare, plain and async."""

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
        self.note(f"rollout_start {rollout.mode} {within.get()}")
        assert runner.get_agent() is agent and rollout.input == {"q": 1}

    def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        self.note(f"trace_start {within.get()} {callable(tracer.get_langchain_handler)}")

    async def on_trace_end(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        self.note(f"trace_end {within.get()}")

    def on_rollout_end(self, **scene: Any) -> None:
        self.note(f"rollout_end {sorted(scene)}")


class BrokenHook:
    def __init__(self, where: str, error: BaseException) -> None:
        self.where = where
        self.error = error

    def on_rollout_start(self, rollout: Any) -> None:
        if self.where == "on_rollout_start":
            raise self.error

    async def on_trace_end(self, tracer: Any) -> None:
        if self.where == "on_trace_end":
            raise self.error


class Told(LitAgent[Any]):
    """Says of itself what it knows of who runs it."""

    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        ask(resources["main_llm"].endpoint)
        return {
            "tracer": type(self.tracer).__name__,
            "handler": self.get_tracer().get_langchain_handler(),
            "runner": [self.runner.worker_id, self.get_runner().tracer is self.tracer],
        }


told = Told()


class KnowsTrainer(LitAgent[Any]):
    def rollout(self, task: Any, llm: Any) -> Any:
        ask(llm.endpoint)
        assert self.trainer is self.get_trainer()
        try:
            fits = bool(self.trainer.fit)
        except AttributeError as error:
            fits = str(error)
        return {"match": self.trainer.adapter.agent_match, "same": self.trainer.tracer is self.tracer, "fits": fits}


knows_trainer = KnowsTrainer()


@rollout
def inside(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    return float(within.get() == "inside")


@rollout
async def inside_async(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    return float(within.get() == "inside")


def fails(task: Any, llm: Any) -> float:
    raise ValueError("the agent's own")


at_top = Own(Path("nowhere"))
