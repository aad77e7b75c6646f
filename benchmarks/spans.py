"""What spans cost a call: an agent's process asks the endpoint one call after the other, over OpenAI's client.

    python benchmarks/spans.py [--calls 20] [--turns 40]

Sides take turns, each in a process of its own, against one gateway with its record: nothing listens; an attempt's
process, which listens; the same with each call in a span of its agent's; the same with each call in an ``operation``,
which is told to the endpoint and stored. The engine answers at once, so that what is left of a call is the client and
the gateway. The client's processor time tells what a busy machine hides. Beside it, what it takes to record the end of
an attempt whose calls are named then, and of one whose are not.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from _report import Report, options_of

sys.path.insert(0, str(Path(__file__).parent.parent))

PLAIN, LISTENS, SPAN, OPERATION = "nothing listens", "listens", "in an agent's span", "in an operation"
SIDES = (PLAIN, LISTENS, SPAN, OPERATION)
ENDED_WITH = 300
"""Calls of an attempt whose end is recorded."""


class Asks:
    """One side, in a process of its own."""

    here: Asks

    def __init__(self, side: str, root_url: str) -> None:
        from agentlightning import operation
        from agentlightning.agent.rewards import current_endpoint
        from agentlightning.tracing.instruments import instrument
        from agentlightning.tracing.names import CallNames, listen_everywhere

        self.told = 0
        if side != PLAIN:
            listen_everywhere(CallNames(self._tell))
            instrument()
        import openai
        from opentelemetry import trace

        current_endpoint.set(root_url)
        tracer = trace.get_tracer("an agent")
        around: dict[str, Any] = {
            SPAN: lambda: tracer.start_as_current_span("call", attributes={"gen_ai.agent.name": "planner"}),
            OPERATION: lambda: operation(name="call"),
        }
        self._within = around.get(side, nullcontext)
        self._client = openai.OpenAI(base_url=f"{root_url}/v1", api_key="k", max_retries=0)

    def _tell(self, reply_id: str, name: str, how: str) -> None:
        self.told += 1

    def ask(self, calls: int) -> tuple[float, float]:
        """Seconds, and seconds of this process's processor time."""
        messages: Any = [{"role": "user", "content": "q"}]
        began, used = time.perf_counter(), time.process_time()
        for _ in range(calls):
            with self._within():
                self._client.chat.completions.create(model="main", messages=messages)
        return time.perf_counter() - began, time.process_time() - used


def begin(side: str, root_url: str) -> None:
    Asks.here = Asks(side, root_url)


def ask(calls: int) -> tuple[float, float]:
    return Asks.here.ask(calls)


def told() -> int:
    return Asks.here.told


async def opened(world: Any) -> tuple[Any, Any]:
    """An attempt that runs."""
    await world.enqueue([{}])
    ((rollout, attempt),) = await world.store.lease("run", "me", limit=1, seconds=3600)
    return rollout, attempt


async def seconds_to_end(world: Any, named: bool) -> float:
    """To record the end of an attempt."""
    from agentlightning.nouns import AttemptResult, Status
    from tests.store import make

    _, attempt = await opened(world)
    calls = [replace(make.call(attempt.id, index), samples=()) for index in range(ENDED_WITH)]
    await asyncio.gather(*(world.store.record(call, make.turn(call.index)) for call in calls))
    agents = {call.id: "planner" for call in calls} if named else {}
    began = time.perf_counter()
    await world.store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0, agents=agents))
    return time.perf_counter() - began


async def measure(calls: int, turns: int) -> None:
    from agentlightning.settings.fields import SamplingConfig
    from tests.runners.conftest import made

    report = Report("spans", calls=calls, turns=turns, ended_with=ENDED_WITH)
    spawn, loop = multiprocessing.get_context("spawn"), asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="agl-spans-") as folder, ExitStack() as stack:
        async with made(Path(folder)) as world:
            pools: dict[str, ProcessPoolExecutor] = {}
            for side in SIDES:
                endpoint = await world.gateway.open(*await opened(world), sampling=SamplingConfig())
                arguments = (side, endpoint.root_url)
                pools[side] = stack.enter_context(
                    ProcessPoolExecutor(1, mp_context=spawn, initializer=begin, initargs=arguments)
                )
                await loop.run_in_executor(pools[side], ask, calls)  # the first calls pay for connections and imports
            for turn in range(turns):
                for side in SIDES[turn % len(SIDES) :] + SIDES[: turn % len(SIDES)]:
                    seconds, used = await loop.run_in_executor(pools[side], ask, calls)
                    report.add(side, calls_per_second=calls / seconds, client_us_per_call=1e6 * used / calls)
                for named in (False, True) if turn % 2 else (True, False):
                    label = f"end of an attempt, {'named' if named else 'not named'}"
                    report.add(label, ms=1e3 * await seconds_to_end(world, named))
            names = {side: await loop.run_in_executor(pool, told) for side, pool in pools.items()}
            assert names == {side: calls * (turns + 1) if side == SPAN else 0 for side in SIDES}, names

    def median(label: str, key: str) -> float:
        return statistics.median(run[key] for run in report.runs if run["label"] == label)

    conclusions: dict[str, float] = {}
    for side in SIDES[1:]:
        pace = median(side, "calls_per_second") / median(PLAIN, "calls_per_second")
        added = median(side, "client_us_per_call") - median(PLAIN, "client_us_per_call")
        conclusions |= {f"pace {side}": pace, f"client's us added to a call {side}": added}
    ends = [median(f"end of an attempt, {how}", "ms") for how in ("named", "not named")]
    report.finish(
        **conclusions, **{"us added to a call by its name at the end": 1e3 * (ends[0] - ends[1]) / ENDED_WITH}
    )


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--calls", type=int, default=20, help="of one turn of a side")
    parser.add_argument("--turns", type=int, default=40, help="of each side")
    options = parser.parse_args()
    asyncio.run(measure(options.calls, options.turns))


if __name__ == "__main__":
    main()
