"""Adapting: a program's own adapter, which makes triplets of an attempt's spans, as the run calls it.

It runs in the program that trains, in a thread, on what the record has of an attempt whose agent has returned. What it
makes is taken as if the agent had returned it (given.py, matching.py). One that fails is its attempt's failure and
never the end of the run: without it nobody knows what the calls are worth.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from agentlightning.agent.loading import describe, user_traceback, where
from agentlightning.nouns import Failure, GivenTriplet, Reason
from agentlightning.records.traces import AttemptTrace
from agentlightning.runners.given import read_triplets
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.user_function import UserFunction, awaited
from agentlightning.tracing.spans import spans_of

_METHODS = ("adapt", "export", "__call__")
_OURS = __name__.partition(".")[0] + "."


def own_adapt(adapter: object) -> Callable[..., Any] | None:
    """What a program's own code makes triplets with: the ``adapt``, ``export`` or call of an adapter. None for one of
    this package's, whose triplets are those that are recorded anyway."""
    if adapter is None or isinstance(adapter, Mapping | type):
        return None
    for name in _METHODS:
        method = adapter if name == "__call__" and inspect.isroutine(adapter) else getattr(adapter, name, None)
        home = getattr(method, "__module__", None)
        if callable(method) and isinstance(home, str) and not home.startswith(_OURS):
            return method
    return None


class Adapting:
    """Calls an adapter that has ``own_adapt``, with ``seconds`` for each attempt."""

    def __init__(self, adapter: object, seconds: float) -> None:
        method = own_adapt(adapter)
        assert method is not None
        name = getattr(adapter, "__name__", type(adapter).__name__)
        self.what = f"the adapter {name}"
        self._adapt = method
        self._method = getattr(method, "__name__", "adapt")
        self._seconds = seconds
        self._function = UserFunction(method, "adapt", "adapter", 1, (), why_thread="it is handed what is recorded")

    async def triplets(
        self, trace: AttemptTrace, log: OutputLog, stop: asyncio.Event
    ) -> tuple[GivenTriplet, ...] | Failure | None:
        """What it makes of an attempt, or its failure. None when stopped."""

        def call(deliver: Callable[[tuple[GivenTriplet, ...] | Failure], None]) -> None:
            deliver(self._made(trace))

        return await self._function.in_thread(call, log, deadline=self._seconds, stop=stop)

    async def close(self) -> None:
        await self._function.close()

    def _made(self, trace: AttemptTrace) -> tuple[GivenTriplet, ...] | Failure:
        try:
            made: Any = self._adapt(spans_of(trace))
            if inspect.isawaitable(made):
                made = asyncio.run(awaited(made))
            if not isinstance(made, list | tuple):
                raise TypeError(f"it returned {type(made).__name__}, not a list of Triplet")
            items = list(cast("Sequence[object]", made))
        except BaseException as error:  # noqa: BLE001  # recorded with its type on the rollout
            place = where(error)
            return Failure(
                Reason.AGENT_ERROR,
                f"{self.what} failed in {self._method}: {describe(error)}{f' ({place})' if place else ''}",
                user_traceback(error),
            )
        if not items:
            return Failure(Reason.EMPTY, f"{self.what} made no triplet of {len(trace.calls)} calls")
        return read_triplets(items, f"{self.what} made")
