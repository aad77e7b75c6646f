"""Programs as people have written them for this package, word for word in what they ask of it: they run as they are."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import agentlightning
from agentlightning import GRPO, LLM, LitAgent, NamedResources, Trainer, tracer
from agentlightning.nouns import Call
from agentlightning.store import open_store
from tests.tiny import letter_tasks


class Player(LitAgent):
    """Two agents, of which one is trained; a second model's name for the one that evaluates."""

    def training_rollout(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        assert isinstance(resources, dict) and resources.get("nothing") is None
        rollout.mark_agent_as_trainable("assistant")
        right = 0.0
        for name, agent in (("main_llm", "assistant"), ("eval_llm", "critic")):
            llm: LLM = resources[name]
            base_url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            assert base_url == llm.endpoint and isinstance(llm.sampling_parameters, dict)
            client = OpenAI(base_url=base_url, api_key="none", max_retries=0, default_headers={"X-Agent-Name": agent})
            said = client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": task["letter"]}],
                max_tokens=2,
                **llm.sampling_parameters,
            )
            text = said.choices[0].message.content or ""
            right += 0.5 * text.startswith(task["letter"]) + 0.01 * len(text)  # a group is never all wrong alike
        return right


async def calls_of(folder: Path, run_id: str) -> list[Call]:
    store = open_store(f"sqlite:///{folder / 'record.db'}")
    try:
        attempts = [attempt for rollout in await store.rollouts(run_id) for attempt in await store.attempts(rollout.id)]
        return [call for attempt in attempts for call in await store.calls(attempt.id)]
    finally:
        await store.close()


def test_a_program_with_trained_agents_and_named_models_trains_and_draws_its_last_trace(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    resources = NamedResources(
        {
            "main_llm": LLM(name="openai/letters", sampling_parameters={"temperature": 0.9}),
            "eval_llm": LLM(model="letters"),
        }
    )
    trainer = Trainer(
        algorithm=GRPO(group_size=8, tasks_per_step=2),
        model=letters,
        resources=resources,
        steps=1,
        n_workers=8,
        progress=False,
        threads=1,
    )
    with caplog.at_level(logging.WARNING, logger="agentlightning"):
        result = trainer.fit(Player(trained_agents="assist.*"), letter_tasks(4), val_data=None)
    ledger = result.ledger.check()
    assert ledger.masked["other_agent"] > 0 and ledger.rollouts == {"succeeded": 16}
    calls = asyncio.run(calls_of(tmp_path / "runs", result.run_id))
    assert {call.policy for call in calls} == {"main"} and {call.agent for call in calls} == {"assistant", "critic"}
    assert not [said for said in caplog.messages if "no policy is called" in said]
    files = tracer.last_trace().visualize("tree_graph")
    assert files == (Path("tree_graph.svg"), Path("tree_graph.png"))
    assert (tmp_path / "tree_graph.png").read_bytes().startswith(b"\x89PNG") and "assistant" in (
        tmp_path / "tree_graph.svg"
    ).read_text()


@pytest.mark.parametrize("name", ["HttpTracer", "get_last_trace"])
def test_a_recorder_that_nobody_needs_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"agentlightning\.tracer \(.*\) has no {name}: the endpoint records every call"
    ):
        getattr(agentlightning.tracer, name)
    with pytest.raises(
        ImportError, match=rf"agentlightning\.tracer \(.*\) has no {name}: the endpoint records every call"
    ):
        exec(f"from agentlightning.tracer import {name}")
    assert not hasattr(tracer, "no_such_name")
