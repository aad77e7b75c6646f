"""Grading: asks a user's grader what an output is worth. It runs as any `UserFunction` does; in a process that grades,
``serve`` is what runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from agentlightning.agent.loading import AgentSource, describe, user_traceback
from agentlightning.agent.rewards import check_reward
from agentlightning.errors import ConfigError, RewardError
from agentlightning.nouns import Attempt, Failure, Json, Reason, Rollout, Status
from agentlightning.runners.execution import needs_main_thread, seed_everything
from agentlightning.runners.frames import read_frame
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.process import Launcher
from agentlightning.runners.user_function import UserFunction, awaited, imported, own_streams

Grader = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader said: None leaves it to what the agent emitted."""

    value: float | Failure | None


# --------------------------------------------------------------------------- the grader itself


def grade(grader: Grader, arguments: tuple[Any, ...], run: Callable[[Any], Any], no_process: str = "") -> Grade:
    """Calls a grader. Nothing it raises gets out of here. ``run`` runs the coroutine that an async one returns;
    ``no_process`` is why it is called in a thread."""
    try:
        value = grader(*arguments)
        if inspect.isawaitable(value):
            value = run(awaited(value))
        return Grade(None if value is None else check_reward(value, "the grader's reward"))
    except RewardError as error:
        return Grade(Failure(Reason.BAD_REWARD, str(error)))
    except BaseException as error:  # noqa: BLE001  # also SystemExit: whatever a grader raises fails the attempt, not the run
        message = f"the grader raised {describe(error)}"
        if no_process and needs_main_thread(error):
            message += f": one that uses signals needs a process of its own, and {no_process}"
        return Grade(Failure(Reason.AGENT_ERROR, message, user_traceback(error)))


def count_arguments(grader: Grader) -> int:
    """How many of (task, output, attempt) it takes: 3 or 2. Raises ConfigError."""
    if not callable(grader):
        raise ConfigError(f"grader={grader!r} cannot be called: pass a function of (task, output, attempt)")
    try:
        signature = inspect.signature(grader)
    except (TypeError, ValueError):
        return 3
    for count in (3, 2):
        with suppress(TypeError):
            signature.bind(*range(count))
            return count
    raise ConfigError(
        f"grader {getattr(grader, '__name__', grader)!r} takes {signature}: it is called with (task, output, attempt) "
        "or (task, output)"
    )


# --------------------------------------------------------------------------- the process' side


def serve(source: AgentSource, state: Mapping[str, str], requests_fd: int, answer: Callable[[Json], None]) -> None:
    """Imports the grader, says whether it can be used here, and answers until there are no more requests."""
    grader = imported(source, state, answer)
    if grader is None:
        return
    with asyncio.Runner() as runner:
        while (request := read_frame(requests_fd)) is not None:
            own_streams()
            seed_everything(request["seed"])
            arguments = (request["task"], request["output"], _attempt(request["attempt"]))[: request["count"]]
            value = grade(grader, arguments, runner.run).value
            answer({"failure": asdict(value)} if isinstance(value, Failure) else {"value": value})


def grading_seed(rollout: Rollout, attempt: Attempt) -> int:
    """What a grader draws from: another seed than its agent's."""
    return (rollout.seed + attempt.number) ^ 0x9E3779B9


def _attempt(record: Mapping[str, Json]) -> Attempt:
    values: dict[str, Any] = {**record, "status": Status(record["status"]), "marked": tuple(record["marked"])}
    return Attempt(**values)


# --------------------------------------------------------------------------- the desk's side


class Graders:
    """Grades outputs with ``grader``, as many at once as are asked for, up to ``limit``. ``wanted`` is the setting
    ``runner.grader``; a process that grades is not given ``keys``.

    Raises ConfigError, here or in ``start``, for what cannot work.
    """

    def __init__(
        self, grader: Grader, wanted: Literal["auto", "process", "thread"], limit: int, keys: Collection[str]
    ) -> None:
        self._grader = grader
        self._count = count_arguments(grader)
        self.function = UserFunction(
            grader, "grade", "grader", limit, keys, why_thread="runner.grader is 'thread'" if wanted == "thread" else ""
        )
        self._insist = wanted == "process"

    async def start(self, launcher: Launcher | None, new: Callable[[], Launcher]) -> None:
        """Begins to import the grader, in a process of ``launcher`` (None: of one that ``new`` makes), while the run
        goes on."""
        if self._insist and self.function.why_thread:
            raise ConfigError(f"runner.grader='process' cannot hold: {self.function.why_thread}")
        self.function.start(launcher, new)
        if self._insist and not await self.function.has_processes():
            raise ConfigError(f"runner.grader='process' cannot hold: {self.function.why_thread}")

    async def close(self) -> None:
        """Ends its processes. None is asked any more."""
        await self.function.close()

    @property
    def busy(self) -> int:
        """How many outputs are being graded in processes."""
        return self.function.busy

    async def grade(
        self, rollout: Rollout, output: Json, attempt: Attempt, log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> float | Failure | None:
        """What an output is worth. None when stopped, or when the grader says nothing."""
        if not await self.function.has_processes():
            return await self._in_thread((rollout.task, output, attempt), log, deadline=deadline, stop=stop)
        request = {
            "task": rollout.task,
            "output": output,
            "attempt": asdict(attempt),
            "count": self._count,
            "seed": grading_seed(rollout, attempt),
        }
        answer = await self.function.ask(request, log, deadline=deadline, stop=stop)
        if answer is None or isinstance(answer, Failure):
            return answer
        if "failure" in answer:
            failure = answer["failure"]
            return Failure(Reason(failure["reason"]), failure["message"], failure["traceback"])
        return answer["value"]

    async def _in_thread(
        self, arguments: tuple[Any, ...], log: OutputLog, *, deadline: float, stop: asyncio.Event
    ) -> float | Failure | None:
        def call(deliver: Callable[[Grade], None]) -> None:
            deliver(grade(self._grader, arguments[: self._count], asyncio.run, self.function.why_thread))

        said = await self.function.in_thread(call, log, deadline=deadline, stop=stop)
        return said.value if isinstance(said, Grade) else said
