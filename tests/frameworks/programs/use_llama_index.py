"""llama-index: a `FunctionAgent` with two tools, over Chat Completions and Responses."""

from __future__ import annotations

from typing import Any

from case import SYSTEM, Case, calculator, note, run
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI, OpenAIResponses


async def ask(case: Case, llm: Any) -> str:
    agent = FunctionAgent(tools=[calculator, note], llm=llm, system_prompt=SYSTEM, streaming=case.stream)
    return (await agent.run(user_msg=case.question)).response.content or ""


async def chat(case: Case) -> str:
    return await ask(case, OpenAI(model=case.model))


async def responses(case: Case) -> str:
    return await ask(case, OpenAIResponses(model=case.model))


if __name__ == "__main__":
    run({"chat": chat, "responses": responses})
