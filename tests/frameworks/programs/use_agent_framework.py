"""agent-framework: one agent with two function tools, over Responses (its default) and Chat Completions."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from case import SYSTEM, Case, calculator, note, run


async def ask(case: Case, client: Any) -> str:
    agent = Agent(client=client, instructions=SYSTEM, tools=[calculator, note])
    if not case.stream:
        return (await agent.run(case.question)).messages[-1].text
    stream = agent.run(case.question, stream=True)
    async for _ in stream:
        pass
    return (await stream.get_final_response()).messages[-1].text


async def responses(case: Case) -> str:
    return await ask(case, OpenAIChatClient(model=case.model))


async def chat(case: Case) -> str:
    return await ask(case, OpenAIChatCompletionClient(model=case.model))


if __name__ == "__main__":
    run({"responses": responses, "chat": chat})
