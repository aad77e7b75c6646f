"""The forms in which programs write their agents and the values that these are handed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest

from agentlightning import (
    LLM,
    Attempt,
    Dataset,
    LitAgent,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Rollout,
    RolloutConfig,
)
from agentlightning.agent.calling import Handed, as_agent
from agentlightning.agent.tasks import check_tasks
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode

T = TypeVar("T")
LLM_HANDED = LLM(endpoint="http://x/v1", model="m")


def call(agent: Any, mode: Mode = Mode.TRAIN) -> Any:
    rollout = Rollout(rollout_id="r1", input="task", mode=str(mode), attempt=Attempt(attempt_id="r1.1"))
    handed = Handed("task", LLM_HANDED, NamedResources(main_llm=LLM_HANDED), rollout)
    value = as_agent(agent).load().call(mode, handed)
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


# --------------------------------------------------------------------------- classes


class Plain(LitAgent):  # type: ignore[type-arg]
    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return task, resources["main_llm"].model, rollout.rollout_id


class OfTasks(LitAgent[dict[str, Any]]):
    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return task, resources["main_llm"].model, rollout.id


class WithoutSuper(LitAgent[Any]):
    def __init__(self) -> None:
        self.own = 1

    async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> Any:
        return task, resources["main_llm"].model, rollout.rollout_id


class OwnGeneric(LitAgent[T], Generic[T]):
    async def rollout_async(self, task: T, resources: Any, rollout: Any) -> Any:
        return task, resources["main_llm"].model, rollout.rollout_id


class Older(LitAgent[Any]):
    def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> Any:
        return task, resources["main_llm"].model, rollout_id


class OlderAsync(LitAgent[Any]):
    async def training_rollout_async(self, task: Any, rollout_id: str, resources: Any) -> Any:
        return task, resources["main_llm"].model, rollout_id


class OlderOne(LitAgent[Any]):
    def rollout(self, task: Any, rollout_id: str, resources: Any) -> Any:
        return task, resources["main_llm"].model, rollout_id


class Trained(LitAgent[Any]):
    def __init__(self) -> None:
        super().__init__(trained_agents="write")

    def rollout(self, task: Any, resources: Any, rollout: Any) -> Any:
        return task, resources["main_llm"].model, rollout.rollout_id


@pytest.mark.parametrize("kind", [Plain, OfTasks, WithoutSuper, OwnGeneric, Older, OlderAsync, OlderOne, Trained])
def test_a_class_in_each_of_its_forms_is_called(kind: Any) -> None:
    assert call(kind()) == ("task", "m", "r1")


def test_what_is_around_an_agent_is_there_while_it_is_called_and_says_so_where_it_is_not() -> None:
    agent = WithoutSuper()
    for name in ("trainer", "runner", "tracer"):
        with pytest.raises(AttributeError, match=rf"WithoutSuper\.{name} is not there: \w+"):
            getattr(agent, name)
        assert not hasattr(agent, name)
    agent.tracer = tracer = object()
    agent.set_trainer("t")
    agent.set_runner("r")
    assert (agent.get_tracer(), agent.get_trainer(), agent.get_runner()) == (tracer, "t", "r")
    with pytest.raises(AttributeError, match="'WithoutSuper' object has no attribute 'nothing'"):
        _ = agent.nothing


# --------------------------------------------------------------------------- hooks


class Hooks(LitAgent[Any]):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_rollout_start(self, task: Any, runner: Any, tracer: Any) -> None:
        self.heard.append(("start", task.input, task.rollout_id, runner, tracer))

    def rollout(self, task: Any) -> Any:
        self.heard.append("rollout")
        if task != "task":
            raise ValueError(task)
        return 1.0

    def on_rollout_end(self, task: Any, rollout: Any, runner: Any, tracer: Any) -> None:
        self.heard.append(("end", rollout.status, rollout.end_time is not None, runner, tracer))


class HooksOfAnAsyncAgent(Hooks):
    async def rollout_async(self, task: Any) -> Any:
        await asyncio.sleep(0)
        return Hooks.rollout(self, task)


class AsyncHooks(Hooks):
    async def on_rollout_start(self, task: Any, **more: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.heard.append(("start", task.input, task.rollout_id, more["runner"], more["tracer"]))

    async def on_rollout_end(self, rollout: Any, tracer: Any = None) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.heard.append(("end", rollout.status, rollout.end_time is not None, self.runner, tracer))


class AsyncEnd(Hooks):
    async def on_rollout_end(self, rollout: Any) -> None:  # type: ignore[override]
        self.heard.append(("end", rollout.status, rollout.end_time is not None, self.runner, self.tracer))


@pytest.mark.parametrize("kind", [Hooks, HooksOfAnAsyncAgent, AsyncHooks, AsyncEnd])
def test_an_agents_own_hooks_are_called_around_it_with_what_they_declare(kind: Any) -> None:
    agent = kind()
    agent.runner, agent.tracer = "runner", "tracer"
    assert call(agent) == 1.0
    assert agent.heard == [
        ("start", "task", "r1", "runner", "tracer"),
        "rollout",
        ("end", "succeeded", True, "runner", "tracer"),
    ]


@pytest.mark.parametrize("kind", [Hooks, HooksOfAnAsyncAgent, AsyncHooks, AsyncEnd])
def test_the_hook_at_the_end_is_called_where_the_agent_fails_and_the_failure_stands(kind: Any) -> None:
    agent = kind()
    agent.runner, agent.tracer = "runner", "tracer"
    rollout = Rollout(rollout_id="r1", input="bad", mode="train", attempt=Attempt(attempt_id="r1.1"))
    value = None
    with pytest.raises(ValueError, match="bad"):
        value = as_agent(agent).load().call(Mode.TRAIN, Handed("bad", LLM_HANDED, NamedResources(), rollout))
        asyncio.run(value)
    assert agent.heard[-1][:2] == ("end", "failed")


def test_a_plain_agent_with_async_hooks_runs_in_its_own_thread_and_not_in_the_loop_that_others_share() -> None:
    seen: list[bool] = []

    class Blocking(AsyncHooks):
        def rollout(self, task: Any) -> Any:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            seen.append(True)
            return 1.0

    rollout = Rollout(rollout_id="r1", input="task", mode="train", attempt=Attempt(attempt_id="r1.1"))
    agent = Blocking()
    agent.runner = agent.tracer = None
    handed = Handed("task", LLM_HANDED, NamedResources(), rollout)
    assert as_agent(agent).load().call(Mode.TRAIN, handed) == 1.0 and seen == [True]
    assert [each[0] for each in agent.heard] == ["start", "end"]


# --------------------------------------------------------------------------- what users build

ROLLOUTS: list[Callable[[], Rollout]] = [
    lambda: Rollout(rollout_id="r", input={"q": 1}, start_time=1.0),
    lambda: Rollout(
        rollout_id="r", input={"q": 1}, start_time=1.0, end_time=None, mode=None, resources_id=None,
        status="queuing", config=RolloutConfig(), metadata=None,
    ),
    lambda: Rollout(rollout_id="r", input={"q": 1}, start_time=1.0, mode="train", metadata={"k": 1}),
    lambda: Rollout(rollout_id="r", input={"q": 1}, start_time=1.0, mode="test", status="running"),
    lambda: Rollout(rollout_id="r", input={"q": 1}, start_time=1.0, config=RolloutConfig(timeout_seconds=3.0)),
    lambda: Rollout(
        rollout_id="r", input={"q": 1}, start_time=1.0,
        attempt=Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=1.0, status="running"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("build", ROLLOUTS, ids=range(len(ROLLOUTS)))
def test_a_rollout_is_built_as_programs_build_it(build: Callable[[], Rollout]) -> None:
    rollout = build()
    assert (rollout.rollout_id, rollout.id, rollout.task, rollout.start_time) == ("r", "r", {"q": 1}, 1.0)
    assert rollout.model_copy(update={"mode": "val"}).mode == "val"
    assert Rollout(rollout_id="s").mode is None and rollout.config == rollout.config
    assert rollout.model_dump()["input"] == {"q": 1}


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: Rollout(rollout_id="r", mode="training"),
            r"Rollout\(mode=...\): 'training' is none of train, val, te",
        ),
        (lambda: Rollout(rollout_id="r", status="done"), r"Rollout\(status=...\): 'done' is none of queuing"),
        (lambda: Attempt(attempt_id="a", status="done"), r"Attempt\(status=...\): 'done' is none of"),
        (lambda: RolloutConfig(timeout_seconds=0), r"RolloutConfig\(timeout_seconds=0\): expected seconds above 0"),
        (lambda: RolloutConfig(max_attempts=0), r"RolloutConfig\(max_attempts=0\): expected a whole number"),
        (lambda: RolloutConfig(retry_condition=["never"]), "'never' is none of preparing"),
        (lambda: LLM(resource_type="gpu"), r"LLM\(resource_type='gpu'\)"),
    ],
)
def test_what_cannot_be_built_is_one_clear_line(build: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build()


LLMS: list[Callable[[], LLM]] = [
    lambda: LLM(endpoint="http://x/v1", model="m"),
    lambda: LLM(endpoint="http://x/v1", model="m", sampling_parameters={}),
    lambda: LLM(resource_type="llm", endpoint="http://x/v1", model="m", sampling_parameters={}),
    lambda: LLM(endpoint="http://x/v1", name="m"),
    lambda: LLM.model_validate({"endpoint": "http://x/v1", "model": "m"}),
    lambda: LLM(endpoint="http://x/v1", model="other").model_copy(update={"model": "m"}),
    lambda: ProxyLLM(endpoint="http://x/v1", model="m", rollout_id="r", attempt_id="a"),
]


@pytest.mark.parametrize("build", LLMS, ids=range(len(LLMS)))
def test_an_llm_is_built_and_asked_as_programs_do_it(build: Callable[[], LLM]) -> None:
    llm = build()
    assert (llm.endpoint, llm.model, llm.sampling_parameters) == ("http://x/v1", "m", {})
    assert llm.get_base_url("r", "a") == llm.get_base_url() == "http://x/v1"
    assert llm.model_dump()["model"] == "m"


def test_a_resource_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    resources = NamedResources({"main_llm": LLM_HANDED, "judge": 1})
    assert resources["judge"] == resources.get("judge") == 1 and resources.get("main_lm") is None
    with pytest.raises(ConfigError, match=r"^there is no resource 'main_lm': there are 'main_llm', 'judge'; pass it"):
        _ = resources["main_lm"]
    with pytest.raises(KeyError):
        _ = resources["main_lm"]


@pytest.mark.parametrize("template", [PromptTemplate("{a}"), PromptTemplate(template="{{ a }}", engine="jinja")])
def test_a_value_without_a_place_in_the_template_is_one_line_once(
    template: PromptTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentlightning"):
        assert template.format(a=1, b=2) == template.format(a=1, b=2) == "1"
    assert [record.getMessage() for record in caplog.records] == ["the prompt template has no place for b: it takes a"]


class Rows(Dataset[dict[str, int]]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int, /) -> dict[str, int]:
        return {"n": index}


class Bare:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"n": index}


@pytest.mark.parametrize("rows", [Rows(), Bare(), [{"n": 0}, {"n": 1}], ({"n": 0}, {"n": 1})])
def test_anything_with_a_length_and_items_by_position_is_a_data_set(rows: Any) -> None:
    assert check_tasks(rows) == [{"n": 0}, {"n": 1}]
