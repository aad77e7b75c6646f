"""strands: an agent with two tools. It streams always."""

from __future__ import annotations

from typing import Any

from case import SYSTEM, Case, calculator, note, run
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

TOOLS: list[Any] = [tool(calculator), tool(note)]


async def ask(model: Any, case: Case) -> str:
    agent = Agent(model=model, tools=TOOLS, system_prompt=SYSTEM, callback_handler=None)
    result = await agent.invoke_async(case.question)
    return "".join(block.get("text", "") for block in result.message["content"])


async def chat(case: Case) -> str:
    return await ask(OpenAIModel(model_id=case.model), case)


async def responses(case: Case) -> str:
    return await ask(OpenAIResponsesModel(model_id=case.model), case)


if __name__ == "__main__":
    run({"chat": chat, "responses": responses})
