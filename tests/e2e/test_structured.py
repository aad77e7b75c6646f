"""A whole run whose agent asks for JSON: sampled under a grammar, replayed from the record, learned from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from agentlightning import GRPO, Trainer
from agentlightning.records.ledger import Ledger
from agentlightning.store import open_store
from tests.tiny import save_tiny

SCHEMA = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["digit"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
_CLIENT = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)


def agent(task: dict[str, int], llm: Any) -> float:
    """The larger the digit the better."""
    client = _CLIENT.with_options(base_url=llm.endpoint)
    messages: Any = [{"role": "user", "content": str(task["n"])}]
    reply = client.chat.completions.create(model=llm.model, messages=messages, response_format=FORM, max_tokens=40)  # pyright: ignore
    return json.loads(reply.choices[0].message.content or "")["digit"] / 9


@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_a_run_learns_from_samples_that_follow_a_grammar(tmp_path: Path, top_p: float) -> None:
    trainer = Trainer(
        model=save_tiny(tmp_path / "model"),
        output_dir=tmp_path / "run",
        steps=6,
        progress=False,
        algorithm=GRPO(group_size=16, tasks_per_step=2),
        learner={"lr": 1e-2},
        sampling={"max_tokens": 40, "top_p": top_p},
        n_runners=16,
        threads=1,
    )
    result = trainer.fit(agent, [{"n": 1}, {"n": 2}])
    rewards = [line["reward"] for line in result.history]
    assert sum(rewards[-2:]) / 2 > rewards[0] + 0.15, rewards
    assert max(line["parity_max"] for line in result.history) < 1e-4

    async def steps() -> list[Any]:
        store = open_store(f"sqlite:///{next((tmp_path / 'run').rglob('*.db'))}")
        try:
            return await store.steps(result.run_id)
        finally:
            await store.close()

    for step in asyncio.run(steps()):
        ledger = Ledger.from_json(step.ledger).check()
        assert ledger.rollouts == {"succeeded": 32}
        assert ledger.masked["forced"] > 32 * 8, "the braces, the key and the end of the turn"
        assert ledger.trained > 0
