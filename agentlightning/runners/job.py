"""Assignment: one attempt as the code that calls the agent sees it, and what came of the call. Both travel as JSON to
and from processes.

This is shared by threads and processes, so that an agent behaves alike in both. It knows no store, no gateway and no
deadline.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from agentlightning.agent.calling import Agent, AttemptView, Handed, RolloutView
from agentlightning.agent.loading import describe, user_traceback, where
from agentlightning.agent.resources import LLM, MAIN, SHORTEST_KEY, ExternalLLM, NamedResources, ProxyLLM
from agentlightning.agent.rewards import check_reward, is_number, why_not
from agentlightning.errors import ConfigError, RewardError
from agentlightning.records.json_values import is_json
from agentlightning.runners.proxies import without_proxy
from agentlightning.types import Attempt, Failure, Json, Mode, Reason, Rollout

IN_AGENT = "AGENTLIGHTNING_IN_AGENT"
"""Set in every process that imports or runs user code for a run, so that a script without a __main__ guard does not
start a second one."""

LEFTOVERS = 1.0
"""Seconds that tasks and threads, which an agent left behind, get under ``dev`` after its result, so that the calls
they make are seen to be late."""

Mark = Callable[[str], None]
"""Is told the name of an agent that an attempt marks as trainable."""

LARGEST_OUTPUT = 64 * 2**20
"""Characters of JSON that an output may have to be recorded as it is."""

_NOT_TRAINED_YET = ("Triplet", "Span", "ReadableSpan")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt: the task, the endpoint that is good for it, the resources, and who it is."""

    task: Json
    mode: Mode
    rollout_id: str
    attempt_id: str
    number: int
    group: int
    index: int
    seed: int
    base_url: str
    root_url: str
    key: str
    model: str
    sampling: Mapping[str, Json] = field(default_factory=dict[str, Json])
    resources: NamedResources = field(default_factory=NamedResources)

    @classmethod
    def of(
        cls, rollout: Rollout, attempt: Attempt, endpoint: Any, sampling: Mapping[str, Json], resources: NamedResources
    ) -> Assignment:
        """From what the store and the gateway gave. ``endpoint`` is the gateway's AgentEndpoint. Of the resources it
        keeps what is recorded of them, so that no key and no endpoint of an external model comes near the agent."""
        return cls(
            task=rollout.task,
            mode=rollout.mode,
            rollout_id=rollout.id,
            attempt_id=attempt.id,
            number=attempt.number,
            group=rollout.group,
            index=rollout.index,
            seed=rollout.seed,
            base_url=endpoint.base_url,
            root_url=endpoint.root_url,
            key=endpoint.key,
            model=endpoint.model,
            sampling=sampling,
            resources=NamedResources.from_json(resources.to_json()),
        )

    def to_json(self) -> dict[str, Json]:
        record = {name: getattr(self, name) for name in self.__slots__}
        return {**record, "mode": str(self.mode), "resources": self.resources.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Assignment:
        record: dict[str, Any] = {name: value[name] for name in cls.__slots__}
        record.update(mode=Mode(value["mode"]), resources=NamedResources.from_json(value["resources"]))
        return cls(**record)

    def handed(self, declared: LLM | None = None, mark: Mark | None = None) -> Handed:
        """What the agent can be handed. ``declared`` is what ``@rollout(model=...)`` named; all models get the
        attempt's endpoint. ``mark`` is told the agents that it marks as trainable."""

        def proxy(model: str, parameters: Mapping[str, Json]) -> ProxyLLM:
            return ProxyLLM(
                endpoint=self.base_url,
                model=model,
                sampling_parameters=dict(parameters),
                api_key=self.key,
                name=model,
                rollout_id=self.rollout_id,
                attempt_id=self.attempt_id,
            )

        def own(given: LLM | None) -> ProxyLLM:
            return proxy(self.model, {**self.sampling, **(given.sampling_parameters if given is not None else {})})

        external = {name: llm for name, llm in self.resources.llms() if isinstance(llm, ExternalLLM)}
        trained = {name: own(llm) for name, llm in self.resources.llms() if name not in external}
        resources = NamedResources(
            copy.deepcopy({name: value for name, value in self.resources.items() if not isinstance(value, LLM)})
        )
        resources.update(trained)
        resources.update({name: proxy(name, llm.sampling_parameters) for name, llm in external.items()})
        llm = (
            own(declared) if declared is not None or not trained else trained.get(MAIN) or next(iter(trained.values()))
        )
        resources.setdefault(MAIN, llm)
        task = copy.deepcopy(self.task)  # an agent may change its task; a grader must not see that
        view = RolloutView(
            rollout_id=self.rollout_id,
            input=task,
            mode=self.mode,
            attempt=AttemptView(self.attempt_id, self.number),
            group=self.group,
            index=self.index,
            seed=self.seed,
        )
        if mark is not None:
            view.marks_go_to(mark)
        return Handed(task, llm, resources, view)

    def environment(self) -> dict[str, str]:
        """The variables an attempt's process gets, under every name that clients read a base URL and a key from."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.root_url,
            "ANTHROPIC_API_KEY": self.key,
            "GOOGLE_GEMINI_BASE_URL": self.root_url,
            "GEMINI_API_KEY": self.key,
            "AGENTLIGHTNING_ENDPOINT": self.root_url,
            "AGENTLIGHTNING_ATTEMPT": self.attempt_id,
        }


ENDPOINT_VARIABLES = frozenset(Assignment(None, Mode.DEV, "", "", 1, 0, 0, 0, "", "", "", "").environment())
"""The variables of ``Assignment.environment``, which nobody else may set."""


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


# --------------------------------------------------------------------------- what came of it


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent returned: a number, as ``reward``, or something else as ``output`` (None where it returned None).

    ``not_number`` says in words what a non-None output is, for the case that nothing else scores the attempt.
    """

    reward: float | None = None
    output: Json = None
    not_number: str = ""


Ran = Returned | Failure


def ran_to_json(ran: Ran) -> dict[str, Json]:
    return {"failure" if isinstance(ran, Failure) else "returned": {name: getattr(ran, name) for name in ran.__slots__}}


def ran_from_json(value: Mapping[str, Json]) -> Ran:
    if "failure" in value:
        record = value["failure"]
        return Failure(Reason(record["reason"]), record["message"], record["traceback"])
    return Returned(**value["returned"])


def execute(
    agent: Agent,
    job: Assignment,
    deliver: Callable[[Ran], None],
    mark: Mark,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Calls the agent, in this thread, and delivers what came of it once. Nothing the agent raises gets out of here.

    ``mark`` is told each agent that it marks as trainable, at once and once, never after the result. An awaitable that
    it returns is awaited by ``wait_for``, by default in an event loop of its own. The result is delivered before that
    loop is closed: what the agent left behind may take its time or hang, and is nobody's result.
    """
    runner: asyncio.Runner | None = None
    marks = _Marks(mark)
    try:
        value = agent.call(job.mode, job.handed(agent.model, marks.add))
        if inspect.isawaitable(value):
            if wait_for is None:
                runner = asyncio.Runner()
                wait_for = partial(_wait_on, runner)
            value = wait_for(value)
        ran = returned(value)
    except BaseException as error:  # noqa: BLE001  # also SystemExit and KeyboardInterrupt: an agent's exit is its failure, not the runner's
        ran = failure_of(error)
    marks.close()
    deliver(ran)
    if runner is not None:
        try:
            if job.mode is Mode.DEV:
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

    def __init__(self, mark: Mark) -> None:
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


def returned(value: object) -> Ran:
    """What a returned value means: a number is the reward, None is nothing, anything else is the output. A bad number
    is a failure."""
    if value is None:
        return Returned()
    if is_number(value):
        try:
            number = check_reward(value, "the returned reward")
        except RewardError as error:
            return Failure(Reason.BAD_REWARD, str(error))
        return Returned(reward=number)
    items = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else []
    for item in items:
        if type(item).__name__ in _NOT_TRAINED_YET:
            kind = type(item).__name__
            return Failure(
                Reason.BAD_REWARD,
                f"the agent returned a list of {kind}, which this version does not train: return the reward as a "
                "number",
            )
    if isinstance(value, list) and not items:
        return Returned(output=[])
    whole: object = cast(object, value)
    return Returned(output=as_json(whole), not_number=why_not(whole, "the returned value"))


def as_json(value: object) -> Json:
    """A value as it is recorded. Tuples, dataclasses and pydantic models become JSON, halves of surrogate pairs are
    escaped; what is no JSON at all, or more than the record takes (see `is_json`), becomes ``{"repr", "type",
    "note"}``."""
    try:
        plain = _plain(value)
        if is_json(plain):
            if (size := len(json.dumps(plain))) <= LARGEST_OUTPUT:
                return plain
            kind = type(value).__qualname__
            return {
                "repr": _text(repr(value)[:10_000]) + "...",
                "type": kind,
                "note": f"too large to be recorded: {size} characters of JSON",
            }
        text = _text(repr(value))
    except Exception as error:  # noqa: BLE001  # user classes may fail in any way when they are read
        return {
            "repr": f"({describe(error)})",
            "type": type(value).__qualname__,
            "note": "not JSON, and cannot be shown",
        }
    return {
        "repr": text if len(text) <= 10_000 else text[:10_000] + "...",
        "type": type(value).__qualname__,
        "note": "not JSON",
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {
            _text(key) if isinstance(key, str) else key: _plain(item)
            for key, item in cast("dict[object, object]", value).items()
        }
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return float(value)  # also numpy's, which is a subclass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({item.name: getattr(value, item.name) for item in dataclasses.fields(value)})
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else value


def _text(value: str) -> str:
    """Text that can be encoded, of the plain type."""
    return str.__str__(value) if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


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
