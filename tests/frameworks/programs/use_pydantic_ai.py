"""pydantic-ai: one agent with two plain tools, over the four APIs that it speaks."""

from __future__ import annotations

from typing import Any

from case import SYSTEM, Case, calculator, note, run
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


async def ask(case: Case, model: Any) -> str:
    agent = Agent(model, instructions=SYSTEM, tools=[calculator, note])
    if not case.stream:
        return (await agent.run(case.question)).output
    async with agent.iter(case.question) as going:
        async for node in going:
            if Agent.is_model_request_node(node):
                async with node.stream(going.ctx) as stream:
                    async for _ in stream:
                        pass
    return going.result.output if going.result else ""


async def responses(case: Case) -> str:
    return await ask(case, OpenAIResponsesModel(case.model))


async def chat(case: Case) -> str:
    return await ask(case, OpenAIChatModel(case.model))


async def messages(case: Case) -> str:
    return await ask(case, AnthropicModel(case.model))


async def gemini(case: Case) -> str:
    return await ask(case, GoogleModel(case.model))


if __name__ == "__main__":
    run({"responses": responses, "chat": chat, "messages": messages, "gemini": gemini})
