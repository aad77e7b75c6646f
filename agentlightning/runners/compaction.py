"""Compaction's own side: the user's function that shortens a history, run as any `UserFunction` is. In a process that
shortens, ``serve`` is what runs.

``compact(messages, tools, limit, count)`` is handed the arguments that it declares, by name: the history and the tools
as Chat Completions writes them, the tokens that the prompt should have at most, and a function from messages to the
tokens of their prompt, which asks the gateway. It returns messages.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from agentlightning.agent.loading import AgentSource, describe
from agentlightning.errors import CompactionError, ConfigError
from agentlightning.nouns import Failure, Json
from agentlightning.runners.execution import needs_main_thread, seed_everything
from agentlightning.runners.frames import read_frame
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Launcher
from agentlightning.runners.user_function import UserFunction, awaited, imported, own_streams

NAMES = ("messages", "tools", "limit", "count")
"""What the function may take."""

Count = Callable[[Json], int]


def check_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names, of NAMES, that the function takes; the first is always the messages. Raises ConfigError."""
    what = f"compact={getattr(function, '__name__', function)!r}"
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"{what} is no function: pass a function of ({', '.join(NAMES)}) that returns messages")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return NAMES[:1]
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return NAMES
    names = [each.name for each in parameters]
    unknown = [each.name for each in parameters[1:] if each.name not in NAMES and each.default is each.empty]
    if not names or unknown:
        raise ConfigError(
            f"{what} takes ({', '.join(names)}): it is handed messages first, and of {', '.join(NAMES[1:])} those that "
            "it takes by these names"
        )
    return (NAMES[0], *(name for name in names[1:] if name in NAMES))


def call(function: Callable[..., Any], asked: Mapping[str, Json], count: Count, run: Callable[[Any], Any]) -> Json:
    """What the function returns. ``run`` runs the coroutine that an async one returns. Whatever it raises becomes a
    CompactionError."""
    seed_everything(asked["seed"])
    first, *others = check_parameters(function)
    given: dict[str, Any] = {**{name: asked[name] for name in ("tools", "limit")}, "count": count}
    try:
        value = function(asked[first], **{name: given[name] for name in others})
        return run(awaited(value)) if inspect.isawaitable(value) else value
    except BaseException as error:  # also SystemExit: whatever it raises fails the call, not the run
        hint = ": one that uses signals needs a process of its own" if needs_main_thread(error) else ""
        raise CompactionError(f"raised {describe(error)}{hint}") from error


def serve(source: AgentSource, state: Mapping[str, str], requests_fd: int, answer: Callable[[Json], None]) -> None:
    """Imports the function, says whether it can be used here, and answers until there are no more requests."""
    function = imported(source, state, answer)
    if function is None:
        return

    def count(messages: Json) -> int:
        answer({"question": messages})
        said = read_frame(requests_fd)
        if said is None:
            raise SystemExit("the run has ended")
        if "cannot" in said:
            raise ValueError(said["cannot"])
        return said["told"]

    with asyncio.Runner() as runner:
        while (asked := read_frame(requests_fd)) is not None:
            own_streams()
            try:
                answer({"messages": call(function, asked, count, runner.run)})
            except CompactionError as error:
                answer({"failed": str(error)})
            except (TypeError, ValueError) as error:  # what it returned cannot be sent
                answer({"failed": f"returned what is no history: {error}"})


class Compactor:
    """The user's function as the gateway asks for it, from its own event loop. ``seconds`` is how long it may take;
    what it prints goes to ``log``."""

    def __init__(
        self, function: Callable[..., Any], limit: int, keys: Collection[str], seconds: float, log: Path | None = None
    ) -> None:
        check_parameters(function)
        self._function = function
        self._called = UserFunction(function, "compact", "compact function", limit, keys)
        self._seconds = seconds
        self._log = OutputLog(log)
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, new: Callable[[], Launcher]) -> None:
        """On the loop that it belongs to: begins to import the function, while the run goes on."""
        self._loop = asyncio.get_running_loop()
        self._called.start(None, new)

    async def close(self) -> None:
        self._stop.set()
        await self._called.close()
        self._log.close()

    async def __call__(self, asked: Mapping[str, Json], count: Callable[[Json], Awaitable[int]]) -> Json:
        """See `gateway.compaction.Compact`."""
        theirs = asyncio.get_running_loop()
        assert self._loop is not None

        async def on_theirs(messages: Json) -> int:
            async def counted() -> int:
                return await count(messages)

            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(counted(), theirs))

        work = self._ask(asked, on_theirs)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _ask(self, asked: Mapping[str, Json], count: Callable[[Json], Awaitable[int]]) -> Json:
        if not await self._called.has_processes():
            said = await self._in_thread(asked, count)
        else:
            said = await self._called.ask(
                dict(asked), self._log, deadline=self._seconds, stop=self._stop, respond=count
            )
        if isinstance(said, Failure):
            raise CompactionError(said.message.removeprefix("the compact function").strip())
        if said is None:
            raise CompactionError("was stopped: the run ends")
        if "failed" in said:
            raise CompactionError(said["failed"])
        return said["messages"]

    async def _in_thread(self, asked: Mapping[str, Json], count: Callable[[Json], Awaitable[int]]) -> Json:
        loop = asyncio.get_running_loop()

        def counted(messages: Json) -> int:
            async def wait() -> int:
                return await count(messages)

            return asyncio.run_coroutine_threadsafe(wait(), loop).result(self._seconds)

        def called(deliver: Callable[[Json], None]) -> None:
            try:
                deliver({"messages": call(self._function, asked, counted, asyncio.run)})
            except CompactionError as error:
                deliver({"failed": str(error)})

        return await self._called.in_thread(called, self._log, deadline=self._seconds, stop=self._stop)
