"""Agents that take a tokenizer, in a file that loads no torch by itself."""

from __future__ import annotations

import sys
from typing import Any

from openai import OpenAI

from agentlightning import LLM, LitAgent, NamedResources, rollout


def ask(llm: LLM, text: str) -> str:
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        reply = client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": text}], max_tokens=1
        )
    return reply.choices[0].message.content or ""


@rollout(model=LLM(name="any", sampling_parameters={"max_tokens": 1}), tokenizer=LLM(name="any", tokenizer_only=True))
def counts(task: dict[str, str], llm: LLM, tokenizer: Any) -> dict[str, Any]:
    ask(llm, task["letter"])
    ids = tokenizer.apply_chat_template([{"role": "user", "content": task["letter"]}], add_generation_prompt=True)
    return {
        "ids": ids, "text": tokenizer.decode(ids), "end": tokenizer.eos_token_id, "torch": "torch" in sys.modules,
        "transformers": "transformers" in sys.modules,
    }  # fmt: skip


class Named(LitAgent[Any]):
    async def training_rollout_async(self, task: Any, resources: NamedResources, tokenizer: Any = None) -> float:
        ask(resources["main_llm"], task["letter"])
        return 1.0 if tokenizer is None else float(len(tokenizer.encode(task["letter"])))


named = Named()
