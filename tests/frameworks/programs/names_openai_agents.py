"""openai-agents: agents over Responses and Chat Completions, whole and streamed, two of them at once; with its tracing
off, and, in the last, as it is where a program says nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI

CALLS = ["checker", "checker", "planner", "planner", "writer"]


async def agent(task: Any, llm: Any) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="k", max_retries=0) as client:
        planner = Agent(name="planner", instructions="Plan.", model=OpenAIResponsesModel("m", client))
        checker = Agent(name="checker", instructions="Check.", model=OpenAIChatCompletionsModel("m", client))
        writer = Agent(name="writer", instructions="Write.", model=OpenAIChatCompletionsModel("m", client))
        off = RunConfig(tracing_disabled=True)
        await asyncio.gather(Runner.run(planner, "q", run_config=off), Runner.run(checker, "q", run_config=off))
        for each in (planner, checker):
            result = Runner.run_streamed(each, "q", run_config=off)
            async for _ in result.stream_events():
                pass
        await Runner.run(writer, "q")
    return 1.0
