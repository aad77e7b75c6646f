"""Programs' own algorithms: subclasses of `Algorithm` and functions under `@algo`, which enqueue rollouts in a store, wait
for them and read what came of them, in whole runs over the real record and an endpoint."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import OpenAI

import agentlightning as agl
from agentlightning import (
    LLM,
    Algorithm,
    Baseline,
    FastAlgorithm,
    InMemoryLightningStore,
    PromptTemplate,
    Trainer,
    algo,
)
from agentlightning.errors import ConfigError, RunFailed
from tests.upstream import KEY, OtherEndpoint

TASKS = [{"word": "stop"}, {"word": "go"}]


@pytest.fixture
def other() -> Iterator[OtherEndpoint]:
    """Shouts where it is told to shout."""

    async def answer(_: web.Request, given: Any) -> web.StreamResponse:
        order, word = given["messages"][-1]["content"].split()
        endpoint.say = word.upper() if order == "Shout" else word
        return web.Response(body=endpoint.whole(given), content_type="application/json")

    endpoint = OtherEndpoint(handle=answer)
    yield endpoint
    endpoint.close()


def shouts(task: dict[str, str], llm: LLM, prompt_template: PromptTemplate) -> float:
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        text = prompt_template.format(word=task["word"])
        reply = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}])
    return float(reply.choices[0].message.content == task["word"].upper())


def tenth(task: int) -> float:
    return task / 10


def trainer_of(other: OtherEndpoint, out: Path, algorithm: Any, **more: Any) -> Trainer:
    resources = {
        "main_llm": LLM(endpoint=other.url, model="m", api_key=KEY),
        "prompt_template": PromptTemplate("Say {word}"),
    }
    return Trainer(algorithm=algorithm, initial_resources=resources, output_dir=out, progress=False, **more)


async def try_prompts(store: Any, train_dataset: Any) -> dict[str, float]:
    """What programs do: a version of the resources for each candidate, rollouts of it, their spans, their rewards."""
    scores: dict[str, float] = {}
    for order in ("Say", "Shout"):
        update = await store.add_resources({"prompt_template": PromptTemplate(f"{order} {{word}}", engine="f-string")})
        queued = [
            await store.enqueue_rollout(input=task, mode="train", resources_id=update.resources_id)
            for task in train_dataset
        ]
        done = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in queued], timeout=600)
        assert [each.status for each in done] == ["succeeded"] * len(queued)
        rewards = [agl.find_final_reward(await store.query_spans(each.rollout_id, "latest")) for each in done]
        scores[order] = sum(reward or 0.0 for reward in rewards) / len(rewards)
    return scores


class Prompts(Algorithm[dict[str, str]]):
    def __init__(self) -> None:  # without super().__init__()
        self.scores: dict[str, float] = {}

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        given = self.get_initial_resources()
        assert given is not None and given["prompt_template"] == PromptTemplate("Say {word}")
        assert isinstance(self.get_trainer(), Trainer) and val_dataset == [{"word": "wait"}]
        self.scores = await try_prompts(self.get_store(), train_dataset)


def test_an_algorithm_of_a_programs_own_optimises_a_prompt_over_the_store(other: OtherEndpoint, tmp_path: Path) -> None:
    own = Prompts()
    trainer = trainer_of(other, tmp_path, own)
    result = trainer.fit(shouts, TASKS, [{"word": "wait"}])
    assert own.scores == {"Say": 0.0, "Shout": 1.0}
    (line,) = result.history
    assert line["reward"] == 0.5 and result.ledger.check().rollouts == {"succeeded": 4}
    assert result.ledger.external["main_llm"]["calls"] == 4 and result.ledger.calls == {}
    assert len(asyncio.run(trainer.store.query_rollouts())) == 4, "the store can be asked when the run is over"


@pytest.mark.parametrize("awaited", [True, False])
def test_a_function_under_algo_is_handed_what_it_takes(other: OtherEndpoint, tmp_path: Path, awaited: bool) -> None:
    seen: dict[str, Any] = {}

    async def work(**given: Any) -> None:
        seen.update(given, scores=await try_prompts(given["store"], given["train_dataset"]))

    if awaited:

        @algo
        async def mine(*, store: Any, train_dataset: Any, val_dataset: Any = None, initial_resources: Any) -> None:
            await work(store=store, train_dataset=train_dataset, initial_resources=initial_resources)

    else:

        @algo
        def mine(*, store: Any, train_dataset: Any, adapter: Any, initial_resources: Any) -> None:
            asyncio.run(work(store=store, train_dataset=train_dataset, initial_resources=initial_resources))

    store = InMemoryLightningStore()
    result = trainer_of(other, tmp_path, mine, store=store).fit(shouts, TASKS)
    assert seen["scores"] == {"Say": 0.0, "Shout": 1.0} and result.history[0]["reward"] == 0.5
    assert seen["store"] is store and sorted(seen["initial_resources"]) == ["main_llm", "prompt_template"]
    assert len(asyncio.run(store.query_rollouts(status=["succeeded"]))) == 4


def test_what_an_algorithm_queued_and_did_not_wait_for_is_run_before_fit_returns(
    other: OtherEndpoint, tmp_path: Path
) -> None:
    @algo
    async def hurried(*, store: Any, train_dataset: Any) -> None:
        for task in train_dataset:
            await store.enqueue_rollout(input=task, mode="train")
            await store.enqueue_rollout(input=task, mode="val")
            await store.enqueue_rollout(input=task)

    trainer = trainer_of(other, tmp_path, hurried)
    result = trainer.fit(shouts, TASKS)
    assert result.ledger.rollouts == {"succeeded": 6}
    rollouts = asyncio.run(trainer.store.query_rollouts())
    assert sorted(str(each.mode) for each in rollouts) == ["dev", "dev", "train", "train", "val", "val"]


def test_an_algorithm_needs_no_endpoint_where_its_agent_needs_none(tmp_path: Path) -> None:
    class Toy(FastAlgorithm[int]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            for task in train_dataset:
                await self.get_store().enqueue_rollout(task, mode="train")

    result = Trainer(algorithm=Toy(), output_dir=tmp_path, progress=False, strategy="sm").fit(tenth, [1, 2, 3])
    assert result.history[0]["reward"] == pytest.approx(0.2)


def test_the_baseline_runs_every_task_and_the_validation_tasks(other: OtherEndpoint, tmp_path: Path) -> None:
    trainer = trainer_of(other, tmp_path, Baseline(n_epochs=2))
    result = trainer.fit(shouts, TASKS, val_dataset=[{"word": "wait"}])
    assert result.ledger.rollouts == {"succeeded": 5} and len(other.asked) == 5
    assert len(trainer.dev(shouts, train_dataset=TASKS, n=1).attempts) == 1


def test_what_an_algorithm_raises_ends_the_run_with_it(other: OtherEndpoint, tmp_path: Path) -> None:
    @algo
    async def fails(*, store: Any, train_dataset: Any) -> None:
        await store.enqueue_rollout(input=train_dataset[0], mode="train")
        raise ValueError("its own fault")

    with pytest.raises(ValueError, match="its own fault"):
        trainer_of(other, tmp_path, fails).fit(shouts, TASKS)


def test_waiting_in_a_run_that_was_stopped_is_an_error_and_not_for_ever(tmp_path: Path) -> None:
    over, heard = threading.Event(), queue.Queue[str]()

    @algo
    def waits(store: Any, train_dataset: Any) -> None:
        async def wait() -> None:
            queued = await store.enqueue_rollout(train_dataset[0], mode="train")
            await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])

        try:
            asyncio.run(wait())
        except RunFailed as error:
            heard.put(str(error))

    def hangs(task: int) -> float:
        over.wait(60)
        return 1.0

    result = Trainer(algorithm=waits, output_dir=tmp_path, progress=False, max_time=0.5).fit(hangs, [1])
    assert str(result.status) == "stopped" and result.history == []
    assert "the run has ended before" in heard.get(timeout=30)
    over.set()


def wants_proxy(store: Any, llm_proxy: Any) -> None: ...


def wants_nobody(nobody: Any) -> None: ...


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes 'llm_proxy', which nothing is known for: the record is"):
        algo(wants_proxy)
    with pytest.raises(
        ConfigError, match=r"takes 'nobody', which nothing is known for: known are store, train_dataset"
    ):
        algo(wants_nobody)
    with pytest.raises(ConfigError, match=r"get_store\(\) was called outside a run"):
        Prompts().get_store()
    with pytest.raises(ConfigError, match="algorithm Nothing defines no run"):
        Trainer(algorithm=type("Nothing", (Algorithm,), {})(), output_dir=tmp_path, progress=False).fit(tenth, [1])
    with pytest.raises(ConfigError, match=r"it is a class: pass an instance, algorithm=Prompts\(\)"):
        Trainer(algorithm=Prompts)


@pytest.mark.parametrize(
    "line",
    [
        "from agentlightning import Algorithm, algo, Baseline, FastAlgorithm",
        "from agentlightning.algorithm import Algorithm, algo, Baseline, FastAlgorithm, VERL",
        "from agentlightning.algorithm.base import Algorithm",
        "from agentlightning.algorithm.decorator import algo",
        "from agentlightning.algorithm.fast import Baseline, FastAlgorithm",
        "class Mine(__import__('agentlightning').Algorithm[dict]): pass",
    ],
)
def test_the_names_are_where_programs_look_for_them(line: str) -> None:
    scope: dict[str, Any] = {}
    exec(line, scope)
    assert all(scope[name] is getattr(agl, name) for name in ("Algorithm", "algo", "Baseline") if name in scope)
