"""`LitAgentRunner` and the stores as programs use them: an agent on single tasks against an endpoint, what is recorded of
it, and what is queued for it, in the real record over a real gateway."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import agentlightning as agl
from agentlightning import (
    LLM,
    AgentOpsTracer,
    InMemoryLightningStore,
    LitAgent,
    LitAgentRunner,
    NamedResources,
    OtelTracer,
    PromptTemplate,
    RolloutConfig,
    emit_reward,
    find_final_reward,
    rollout,
)
from agentlightning.errors import ConfigError
from tests.imports import ROOT
from tests.upstream import KEY, OtherEndpoint


@pytest.fixture
def other() -> Iterator[OtherEndpoint]:
    endpoint = OtherEndpoint(say="0.5")
    yield endpoint
    endpoint.close()


def llm_of(other: OtherEndpoint, model: str = "true-name") -> LLM:
    return LLM(endpoint=other.url, model=model, api_key=KEY)


def ask(llm: Any, text: str) -> str:
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        reply = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}])
    return reply.choices[0].message.content or ""


@rollout
def function(task: dict[str, str], llm: LLM) -> float:
    return float(ask(llm, task["question"]))


@rollout
async def coroutine(task: str, resources: NamedResources) -> None:
    text = await asyncio.to_thread(ask, resources["main_llm"], task)
    emit_reward(float(text) / 2)


class Own(LitAgent[str]):
    def rollout(self, task: str, resources: NamedResources, rollout: agl.Rollout) -> float:
        template: PromptTemplate = resources["prompt_template"]
        if task == "fails":
            raise RuntimeError("as it was told")
        return float(ask(resources["main_llm"], template.format(question=task))) + (rollout.mode == "train")


async def test_a_runner_steps_through_tasks_and_the_store_has_what_came_of_each(other: OtherEndpoint) -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[dict[str, str]](AgentOpsTracer())
    with runner.run_context(agent=function, store=store):
        done = await runner.step({"question": "hi"}, resources={"main_llm": llm_of(other)})
        again = await runner.step({"question": "ho"}, resources=NamedResources({"main_llm": llm_of(other, "second")}))
    assert (done.status, done.input, done.mode) == ("succeeded", {"question": "hi"}, "dev")
    assert done.attempt is not None and done.attempt.status == "succeeded" and done.attempt.sequence_id == 1
    assert [asked.json["model"] for asked in other.asked] == ["true-name", "second"]
    spans = await store.query_spans(done.rollout_id, "latest")
    assert find_final_reward(spans) == 0.5
    (call,) = [span for span in spans if span.attributes.get("gen_ai.request.model") == "main_llm"]
    assert (call.rollout_id, call.attempt_id) == (done.rollout_id, done.attempt.attempt_id)
    assert [each.rollout_id for each in await store.query_rollouts()] == [done.rollout_id, again.rollout_id]
    assert await store.query_rollouts(status=["failed"]) == []
    assert await store.get_rollout_by_id(again.rollout_id) == again and await store.get_rollout_by_id("none") is None
    assert [each.attempt_id for each in await store.query_attempts(done.rollout_id)] == [done.attempt.attempt_id]
    await store.close()


async def test_steps_may_be_taken_at_once_each_with_resources_of_its_own(other: OtherEndpoint) -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[str](OtelTracer())
    with runner.run_context(agent=coroutine, store=store):
        done = await asyncio.gather(
            *(runner.step(str(i), resources={"main_llm": llm_of(other, f"model-{i}")}, mode="val") for i in range(4))
        )
        assert runner.get_store() is store and runner.get_agent() is coroutine and runner.worker_id == 0
    assert [each.status for each in done] == ["succeeded"] * 4 and {each.mode for each in done} == {"val"}
    told = {asked.json["messages"][0]["content"]: asked.json["model"] for asked in other.asked}
    assert told == {str(i): f"model-{i}" for i in range(4)}, "nobody was given another step's endpoint"
    rewards = [find_final_reward(await store.query_spans(each.rollout_id)) for each in done]
    assert rewards == [0.25] * 4


async def test_a_step_that_fails_says_why_in_its_rollout_and_in_the_log(
    other: OtherEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[str](AgentOpsTracer())
    resources = {"main_llm": llm_of(other), "prompt_template": PromptTemplate("Say {question}")}
    with caplog.at_level("WARNING", "agentlightning"), runner.run_context(agent=Own(), store=store):
        done = await runner.step("fails", resources=resources)
    why = {"failure": {"reason": "agent_error", "message": "RuntimeError: as it was told (test_runner.py:68)"}}
    assert done.status == "failed" and done.attempt is not None
    assert done.metadata == why == done.attempt.metadata
    assert f"rollout {done.rollout_id} failed: agent_error: RuntimeError: as it was told" in caplog.text
    with runner.run_context(agent=Own(), store=store), pytest.raises(ConfigError, match=r"main_llm.*expected LLM\("):
        await runner.step("four", resources={"main_llm": "x"})


async def test_what_is_queued_in_a_store_is_run_with_the_resources_that_it_was_queued_with(
    other: OtherEndpoint,
) -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[str](AgentOpsTracer())
    first = await store.add_resources(
        {"main_llm": llm_of(other), "prompt_template": PromptTemplate("Say {question}", engine="f-string")}
    )
    queued = [await store.enqueue_rollout("one"), await store.enqueue_rollout(input="two", mode="train")]
    await store.add_resources({"main_llm": llm_of(other), "prompt_template": PromptTemplate("Sing {question}")})
    queued.append(await store.enqueue_rollout("three", mode="val"))
    queued.append(await store.enqueue_rollout("fails", resources_id=first.resources_id))
    assert {each.status for each in queued} == {"queuing"}
    assert await store.wait_for_rollouts(rollout_ids=[queued[0].rollout_id], timeout=0.05) == []
    with runner.run_context(agent=Own(), store=store):
        await runner.iter()
        done = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued])
        stepped = await runner.step("four")
    assert [each.status for each in done] == ["succeeded"] * 3 + ["failed"] and stepped.status == "succeeded"
    assert sorted(asked.json["messages"][0]["content"] for asked in other.asked) == [
        "Say one", "Say two", "Sing four", "Sing three",
    ]  # fmt: skip
    assert find_final_reward(await store.query_spans(queued[1].rollout_id)) == 1.5, "its mode reached the agent"
    latest = await store.get_latest_resources()
    assert latest is not None and latest.resources["prompt_template"].template == "Sing {question}"
    known = await store.get_resources_by_id(first.resources_id)
    assert known is not None and known.resources["prompt_template"].template == "Say {question}"
    assert [each.status for each in await store.query_rollouts(rollout_ids=[stepped.rollout_id])] == ["succeeded"]


async def test_a_second_context_goes_on_in_the_same_store(other: OtherEndpoint) -> None:
    store = InMemoryLightningStore()
    ids: list[str] = []
    for _ in range(2):
        runner = LitAgentRunner[Any](tracer=None)
        with runner.run_context(agent=function, store=store, worker_id=3):
            step = await runner.step({"question": "x"}, resources={"main_llm": llm_of(other)}, mode="train")
            ids.append(step.rollout_id)
    assert len(set(ids)) == 2 == len(await store.query_rollouts(status_in=["succeeded"], rollout_id_in=ids))


async def test_iter_ends_with_its_event_or_after_max_rollouts(other: OtherEndpoint) -> None:
    store = InMemoryLightningStore()
    await store.add_resources({"main_llm": llm_of(other)})
    stop = asyncio.Event()
    runner = LitAgentRunner[str](OtelTracer())
    with runner.run_context(agent=coroutine, store=store):
        working = asyncio.create_task(runner.iter(event=stop))
        queued = [await store.enqueue_rollout(text) for text in ("while it begins", "while it works")]
        done = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued])
        assert [each.status for each in done] == ["succeeded"] * 2
        assert not working.done()
        stop.set()
        await working
    runner = LitAgentRunner[str](OtelTracer(), max_rollouts=1)
    await store.enqueue_rollout("the last")
    with runner.run_context(agent=coroutine, store=store):
        await runner.iter()
    assert [each.status for each in await store.query_rollouts()] == ["succeeded"] * 3


PROGRAM = """
import asyncio, os, sys
from agentlightning import AgentOpsTracer, InMemoryLightningStore, LLM, LitAgentRunner, emit_reward, find_final_reward, rollout
from openai import OpenAI

@rollout
async def agent(task, llm):
    reply = OpenAI(base_url=llm.endpoint, api_key=llm.api_key).chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": task}])
    emit_reward(1.0 if reply.choices[0].message.content == "0.5" else 0.0)

async def main():
    tracer = AgentOpsTracer()
    runner = LitAgentRunner(tracer)
    store = InMemoryLightningStore()
    with runner.run_context(agent=agent, store=store):
        done = await runner.step("hi", resources={"main_llm": LLM(endpoint=sys.argv[1], model="m", api_key=sys.argv[2])})
        spans = await store.query_spans(done.rollout_id)
    print(find_final_reward(spans), len(spans), sorted({"torch", "transformers"} & set(sys.modules)))

asyncio.run(main())
"""


def test_a_program_of_a_runner_ends_by_itself_and_loads_no_torch(other: OtherEndpoint, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = [sys.executable, "program.py", other.url, KEY]
    done = subprocess.run(
        program, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1.0 2 []\n" and done.stderr == ""
    assert [file.name for file in tmp_path.iterdir()] == ["program.py"], "nothing is left where it ran"


def takes_nobody(task: Any, nobody: Any) -> float:
    return 1.0


async def test_what_a_runner_and_a_store_cannot_do_is_one_line(other: OtherEndpoint) -> None:
    store, runner = InMemoryLightningStore(), LitAgentRunner[Any](AgentOpsTracer())
    with pytest.raises(ConfigError, match="the runner has no agent and no store: with runner.run_context"):
        await runner.step("x")
    with pytest.raises(ConfigError, match=r"run_context\(store=dict\): expected InMemoryLightningStore"):
        runner.run_context(agent=function, store={}).__enter__()
    with (
        pytest.raises(ConfigError, match="has a parameter 'nobody'"),
        runner.run_context(agent=takes_nobody, store=store),
    ):
        await runner.step("x")
    with runner.run_context(agent=function, store=store):
        assert runner.get_agent() is function, "what was refused is not entered"
    with pytest.raises(ConfigError, match="mode='later': it is train, val, test or None"):
        await store.enqueue_rollout("x", mode="later")
    with pytest.raises(ConfigError, match="deadlines and attempts are settings of the run"):
        await store.enqueue_rollout("x", config=RolloutConfig(max_attempts=3))
    with pytest.raises(ConfigError, match="there are no resources 'rs-1'"):
        await store.enqueue_rollout("x", resources_id="rs-1")
    with pytest.raises(AttributeError, match="dequeue_rollout has no part behind it: attempts are leased"):
        await store.dequeue_rollout()
    with pytest.raises(ConfigError, match="names no model"):
        await store.add_resources({"main_llm": LLM(endpoint=other.url)})
    assert await store.query_rollouts() == [] and await store.query_spans("none") == []
    assert await InMemoryLightningStore().get_latest_resources() is None


@pytest.mark.parametrize(
    "line",
    [
        "from agentlightning.store import InMemoryLightningStore, LightningStore",
        "from agentlightning.store.memory import InMemoryLightningStore",
        "from agentlightning.runner import LitAgentRunner",
        "from agentlightning.runner.agent import LitAgentRunner",
        "from agentlightning import InMemoryLightningStore, LitAgentRunner, LightningStore",
        "class Mine(__import__('agentlightning').LitAgentRunner[dict]): pass",
        "import agentlightning as agl; agl.LitAgentRunner[int](agl.OtelTracer()); agl.InMemoryLightningStore()",
    ],
)
def test_the_names_are_where_programs_look_for_them(line: str) -> None:
    scope: dict[str, Any] = {}
    exec(line, scope)
    assert all(
        scope[name] is getattr(agl, name) for name in ("LitAgentRunner", "InMemoryLightningStore") if name in scope
    )


@pytest.mark.parametrize(
    "line",
    [
        "from agentlightning import LightningStoreClient",
        "from agentlightning import LightningStoreServer",
        "from agentlightning.store import LightningStoreClient",
        "from agentlightning.store.client_server import LightningStoreClient, LightningStoreServer",
        "from agentlightning import AgentLightningServer",
        "from agentlightning.server import AgentLightningServer",
        "from agentlightning.client import AgentLightningClient",
        "from agentlightning import APO",
    ],
)
def test_what_needs_a_server_elsewhere_is_refused_by_name(line: str) -> None:
    with pytest.raises(ImportError, match=r" has no \w+: \w[^\n]{20,}$"):
        exec(line)
