"""ag2 from 1.0 on: an agent with two tools, over Chat Completions and Responses."""

from __future__ import annotations

from typing import Any

from ag2 import Agent
from ag2.config import OpenAIConfig, OpenAIResponsesConfig
from case import SYSTEM, Case, calculator, note, run


async def ask(case: Case, config: Any) -> str:
    agent = Agent("assistant", SYSTEM, config=config, tools=[calculator, note])
    reply = await agent.ask(case.question)
    return reply.body or ""


async def chat(case: Case) -> str:
    return await ask(case, OpenAIConfig(model=case.model, streaming=case.stream))


async def responses(case: Case) -> str:
    return await ask(case, OpenAIResponsesConfig(model=case.model, streaming=case.stream))


if __name__ == "__main__":
    run({"chat": chat, "responses": responses})
