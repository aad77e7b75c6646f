"""Agents behind decorators: what the function inside takes is what it is handed, with functools.wraps or without, or
the agent is refused with that name."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from agentlightning import rollout
from agentlightning.agent.calling import Handed, make_agent
from agentlightning.agent.resources import LLM, NamedResources
from agentlightning.agent.rollouts import Attempt, Rollout
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode

LLM_HANDED = LLM(endpoint="http://127.0.0.1:1/v1", model="m")
HANDED = Handed(
    "the task",
    LLM_HANDED,
    NamedResources(),
    Rollout(rollout_id="r", input="the task", mode=Mode.TRAIN, attempt=Attempt(attempt_id="r.1")),
)


def with_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def bare_async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return wrapper


def retry(times: int, errors: tuple[type[Exception], ...] = (OSError,)) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for _ in range(times):
                try:
                    return function(*args, **kwargs)
                except errors:
                    continue
            return None

        return wrapper

    return decorate


class Timed:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.times: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def agent(task: Any, llm: LLM) -> Any:
    return task, llm.model


async def agent_async(task: Any, llm: LLM) -> Any:
    return task, llm.model


def agent_by_place(task: Any, llm: LLM, /, *, rollout: Rollout) -> Any:
    return task, llm.model if rollout.id == "r" else None


WRAPPERS = [
    with_wraps,
    bare,
    bare_async,
    retry(2),
    Timed,
    lambda function: bare(retry(2)(Timed(function))),
    lambda function: bare(rollout(function)),
]


@pytest.mark.parametrize("function", [agent, agent_async, agent_by_place])
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=["wraps", "bare", "async", "retry", "class", "three", "rollout"])
def test_a_wrapper_is_handed_what_the_function_in_it_takes(wrapper: Any, function: Any):
    made = make_agent(wrapper(function), "agent")
    value = made.call(Mode.TRAIN, HANDED)
    if inspect.isawaitable(value):

        async def wait() -> Any:
            return await value

        value = asyncio.run(wait())
    assert value == ("the task", "m")


def needs_places(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def holds_two(function: Callable[..., Any]) -> Callable[..., Any]:
    def fallback(task: Any) -> None: ...

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) or fallback(*args)

    return wrapper


def knows_nothing(*args: Any, **kwargs: Any) -> Any:
    return agent(*args, **kwargs)


@pytest.mark.parametrize("wrapped", [needs_places(agent), holds_two(agent), knows_nothing])
def test_a_wrapper_that_does_not_say_what_it_takes_is_refused_with_what_would(wrapped: Any):
    with pytest.raises(
        ConfigError, match=r"takes \(\*args.*put @functools.wraps\(function\) on the wrapper, or name its parameters"
    ):
        make_agent(wrapped, "agent")


def test_a_wrapper_whose_function_takes_the_task_alone_needs_no_keywords():
    assert make_agent(needs_places(lambda task: task), "agent").call(Mode.TRAIN, HANDED) == "the task"


def test_what_is_wrong_with_the_function_inside_is_said_of_it():
    def wrong(task: Any, model_server: Any) -> None: ...

    with pytest.raises(ConfigError, match="parameter 'model_server' that nothing is known for"):
        make_agent(bare(wrong), "agent")
