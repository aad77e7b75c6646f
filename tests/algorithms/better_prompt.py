"""A prompt optimiser over external models alone, run as a program: ``python -m tests.algorithms.better_prompt URL OUT``.

Prints, as JSON, what it found and whether torch was ever imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
from statistics import fmean
from typing import Any, ClassVar

from openai import OpenAI

from agentlightning import LLM, PromptTemplate, Trainer
from agentlightning.algorithms import Algorithm
from agentlightning.algorithms.ports import Run
from agentlightning.records.ledger import Ledger
from agentlightning.records.traces import Group
from agentlightning.settings.fields import RunConfig
from agentlightning.store import open_store
from tests.upstream import KEY

CANDIDATES = ("Say {word}.", "Shout {word}!", "Whisper {word}.")


class BetterPrompt(Algorithm):
    """Rolls every candidate out on the same tasks and keeps the one with the best mean reward."""

    name: ClassVar[str] = "better_prompt"

    def check(self, config: RunConfig) -> None:
        """Any settings will do."""

    async def fit(self, run: Run) -> None:
        tasks, scores, asked = run.tasks.take(2), dict[int, float](), list[Group]()
        for text in CANDIDATES:
            version = await run.resources.publish({"prompt_template": PromptTemplate(text)})
            groups = await run.rollouts.sample(tasks, 2, resources=version)
            scores[version] = mean_reward(groups)
            asked += groups
        best = max(scores, key=scores.__getitem__)
        await run.resources.promote(best)
        after = await run.rollouts.sample(tasks, 1)
        reward = mean_reward(after)
        await run.journal.commit(
            1, {"step": 1, "reward": reward, "best": best, "scores": list(scores.values())}, Ledger(), [*asked, *after]
        )


def mean_reward(groups: list[Group]) -> float:
    """Of those that were scored: a failure is none."""
    return fmean(trace.rollout.reward for group in groups for trace in group.traces if trace.rollout.reward is not None)


def shouts(task: dict[str, str], llm: Any, prompt_template: PromptTemplate) -> float:
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    text = prompt_template.format(word=task["word"])
    reply = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}])
    return float(reply.choices[0].message.content == task["word"].upper())


def main(url: str, out: str) -> None:
    resources = {
        "writer": LLM(endpoint=url, model="true-name", api_key=KEY),
        "prompt_template": PromptTemplate("Sing {word}."),
    }
    trainer = Trainer(algorithm=BetterPrompt(), output_dir=out, resources=resources, progress=False, n_runners=2)
    result = trainer.fit(shouts, [{"word": "stop"}, {"word": "go"}])
    (line,) = result.history

    async def template() -> Any:
        store = open_store(f"sqlite:///{out}/record.db", create=False)
        try:
            return (await store.get_resources(result.run_id, line["best"]))["prompt_template"]["template"]
        finally:
            await store.close()

    print(json.dumps({**line, "template": asyncio.run(template()), "torch": "torch" in sys.modules}))


if __name__ == "__main__":
    main(*sys.argv[1:])
