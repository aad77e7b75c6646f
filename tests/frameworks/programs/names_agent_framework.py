"""agent-framework: a workflow's executors, one of them with an agent of another name, and an agent on its own, over
Responses and Chat Completions."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent, AgentExecutor, WorkflowBuilder
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from openai import AsyncOpenAI

CALLS = ["checker", "solo", "solo", "writer"]


async def agent(task: Any, llm: Any) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="k", max_retries=0) as client:
        responses = OpenAIChatClient(model="m", async_client=client)
        chat = OpenAIChatCompletionClient(model="m", async_client=client)
        writer = AgentExecutor(Agent(client=responses, instructions="Write.", name="somebody"), id="writer")
        checker = AgentExecutor(Agent(client=chat, instructions="Check."), id="checker")
        workflow = WorkflowBuilder(start_executor=writer).add_edge(writer, checker).build()
        await workflow.run("q")
        solo = Agent(client=chat, instructions="Alone.", name="solo")
        await solo.run("q")
        stream = solo.run("q", stream=True)
        async for _ in stream:
            pass
    return 1.0
