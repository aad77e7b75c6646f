"""Execution: calls the agent on an assignment, and says what came of the call.

Threads and processes share this, so that an agent behaves alike in both. It knows no store, no gateway and no deadline.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from agentlightning.agent.calling import Agent, Handed
from agentlightning.agent.emitters import find_final_reward
from agentlightning.agent.loading import describe, user_traceback, where
from agentlightning.agent.rewards import check_reward, is_number, why_not
from agentlightning.errors import AgentLightningError, ConfigError, RewardError
from agentlightning.nouns import Failure, GivenTriplet, Json, Mode, Reason
from agentlightning.runners.assignment import ENDPOINT_VARIABLES, Assignment, MarkTrainable
from agentlightning.runners.companions import Company
from agentlightning.runners.given import is_triplet, read_triplets, triplet_from_json, triplet_to_json
from agentlightning.runners.output import as_json

LEFTOVERS = 1.0
"""Seconds that tasks and threads, which an agent left behind, get under ``dev`` after its result, so that the calls
they make are seen to be late."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent returned: a number, as ``reward``, or something else as ``output`` (None where it returned None).

    ``not_number`` says in words what a non-None output is, for the case that nothing else scores the attempt.
    ``triplets`` are those that it returned; ``output`` then says of each how many tokens it has, its reward and its
    metadata.
    """

    reward: float | None = None
    output: Json = None
    not_number: str = ""
    triplets: tuple[GivenTriplet, ...] = ()


AgentResult = Returned | Failure
"""What came of calling the agent. What it means for the attempt, report.py decides."""


def result_to_json(result: AgentResult) -> dict[str, Json]:
    values = {name: getattr(result, name) for name in result.__slots__}
    if isinstance(result, Failure):
        return {"failure": values}
    return {"returned": {**values, "triplets": [triplet_to_json(triplet) for triplet in result.triplets]}}


def result_from_json(value: Mapping[str, Json]) -> AgentResult:
    if "failure" in value:
        record = value["failure"]
        return Failure(Reason(record["reason"]), record["message"], record["traceback"])
    values: dict[str, Any] = dict(value["returned"])
    triplets: list[Json] = values.pop("triplets")
    return Returned(**values, triplets=tuple(map(triplet_from_json, triplets)))


def execute(
    agent: Agent,
    assignment: Assignment,
    deliver: Callable[[AgentResult], None],
    mark: MarkTrainable,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
    company: Company | None = None,
) -> None:
    """Calls the agent, in this thread, and delivers what came of it once. Nothing the agent raises gets out of here.

    ``mark`` is told each agent that it marks as trainable, at once and once, never after the result. An awaitable that
    it returns is awaited by ``wait_for``, by default in an event loop of its own. The result is delivered before that
    loop is closed: what the agent left behind may take its time or hang, and is nobody's result. ``company`` goes along
    with it.
    """
    runner: asyncio.Runner | None = None
    marks = _Marks(mark)

    def call(handed: Handed) -> Any:
        nonlocal runner, wait_for
        value = agent.call(assignment.mode, handed)
        if not inspect.isawaitable(value):
            return value
        if wait_for is None:
            runner = asyncio.Runner()
            wait_for = partial(_wait_on, runner)
        return wait_for(value)

    try:
        handed = assignment.handed(agent.model, marks.add, agent.tokenizer)
        result = returned((company or Company()).attend(agent, handed.rollout, partial(call, handed)))
    except BaseException as error:  # noqa: BLE001  # also SystemExit and KeyboardInterrupt: an agent's exit is its failure, not the runner's
        result = failure_of(error)
    marks.close()
    deliver(result)
    if runner is not None:
        try:
            if assignment.mode is Mode.DEV:
                runner.run(_let_tasks_end())
            runner.close()
        except BaseException:  # noqa: BLE001  # the result stands; what the agent's leftovers raise belongs in its log
            with suppress(Exception):  # where the agent left a stream
                traceback.print_exc()


def _wait_on(runner: asyncio.Runner, value: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await value

    return runner.run(wait())


async def _let_tasks_end() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=LEFTOVERS)


class _Marks:
    """The agents that an attempt has marked, from any of its threads, until it ends."""

    def __init__(self, mark: MarkTrainable) -> None:
        self._mark = mark
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._open = True

    def add(self, name: str) -> None:
        if os.getpid() != self._process:
            raise ConfigError(
                f"mark_agent_as_trainable({name!r}) was called in a process that the agent forked: call it in the "
                "agent's own"
            )
        with self._lock:
            if not self._open:
                raise ConfigError(
                    f"mark_agent_as_trainable({name!r}) came after its attempt had ended: call it before the agent "
                    "returns"
                )
            if name not in self._known:
                self._known.add(name)
                self._mark(name)

    def close(self) -> None:
        with self._lock:
            self._open = False


def returned(value: object) -> AgentResult:
    """What a returned value means: a number is the reward, None is nothing, a list of triplets is what is trained with
    a reward for each, a list of spans is worth the reward that they tell, anything else is the output. A bad number is
    a failure, and so is a bad triplet."""
    if value is None:
        return Returned()
    if is_number(value):
        try:
            number = check_reward(value, "the returned reward")
        except RewardError as error:
            return Failure(Reason.BAD_REWARD, str(error))
        return Returned(reward=number)
    items = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else []
    if any(map(is_triplet, items)):
        triplets = read_triplets(items)
        if isinstance(triplets, Failure):
            return triplets
        return Returned(output=[_shown(triplet) for triplet in triplets], triplets=triplets)
    if items and all(map(_is_span, items)):
        told = find_final_reward(items)
        counted: Json = {"spans": len(items)}
        if told is None:
            return Returned(
                output=counted, not_number=f"none of the {len(items)} spans that it returned tells a reward"
            )
        reward = returned(told)
        return replace(reward, output=counted) if isinstance(reward, Returned) else reward
    if isinstance(value, list) and not items:
        return Returned(output=[])
    whole: object = cast(object, value)
    return Returned(output=as_json(whole), not_number=why_not(whole, "the returned value"))


def _is_span(item: object) -> bool:
    """Ours or OpenTelemetry's. Told by the name of its class, so that neither is imported here."""
    return any(kind.__name__ in ("Span", "ReadableSpan", "SpanRecord") for kind in type(item).__mro__)


def _shown(triplet: GivenTriplet) -> dict[str, Json]:
    """A triplet as the output has it: its tokens are recorded elsewhere."""
    return {
        "prompt_tokens": len(triplet.prompt_ids),
        "response_tokens": len(triplet.response_ids),
        "reward": triplet.reward,
        "metadata": dict(triplet.metadata),
    }


async def or_failure(running: Awaitable[T]) -> T | Failure:
    """What came of an attempt, or its failure where it could not even be run: one attempt's fault is never the run's.

    What the run itself cannot do without (the record, the endpoint, the process that starts agents) says so by an error
    of its own, which ends the run.
    """
    try:
        return await running
    except AgentLightningError:
        raise
    except Exception as error:  # noqa: BLE001  # recorded with its type on the rollout
        return Failure(Reason.LOST, f"the runner could not run it: {describe(error)}", user_traceback(error))


def failure_of(error: BaseException) -> Failure:
    """What an exception that came out of the agent means. Never raises: a user's exception may fail in all that is read
    of it."""
    try:
        return _failure_of(error)
    except BaseException as second:  # noqa: BLE001
        return Failure(Reason.AGENT_ERROR, f"the agent raised an exception that cannot be shown: {describe(second)}")


def _failure_of(error: BaseException) -> Failure:
    text = user_traceback(error)
    if isinstance(error, RewardError):
        return Failure(Reason.BAD_REWARD, str(error), text)
    place = where(error)
    message = describe(error)
    if isinstance(error, SystemExit):
        message = f"the agent called sys.exit({error.code!r})"
    elif isinstance(error, asyncio.CancelledError):
        message = "the agent cancelled itself (CancelledError)"
    elif needs_main_thread(error) and ENDPOINT_VARIABLES.isdisjoint(os.environ):
        message += ": an agent that uses signals needs the main thread of a process of its own, isolation='process'"
    return Failure(Reason.AGENT_ERROR, f"{message} ({place})" if place else message, text)


def needs_main_thread(error: BaseException) -> bool:
    """Whether code failed because it uses signals, which Python allows in the main thread alone. Libraries put words of
    their own around it."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is each for each in seen):  # users' exceptions may be each other's cause
        if isinstance(cause, ValueError) and "signal only works in main thread" in describe(cause):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def seed_everything(seed: int) -> None:
    """Seeds what an agent may draw from: ``random``, and numpy and torch where its process has already imported
    them."""
    import random

    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
