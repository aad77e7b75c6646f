"""agent-framework of 2025: its spans are written once its observability is on, as its lab package's `init` has it."""

from __future__ import annotations

from typing import Any

from agent_framework import AgentExecutor, ChatAgent, WorkflowBuilder
from agent_framework.observability import OBSERVABILITY_SETTINGS
from agent_framework.openai import OpenAIChatClient

CALLS = ["checker", "solo", "writer"]


async def agent(task: Any, llm: Any) -> float:
    OBSERVABILITY_SETTINGS.enable_otel = True
    client = OpenAIChatClient(model_id="m", base_url=llm.endpoint, api_key="k")
    writer = AgentExecutor(ChatAgent(client, instructions="Write.", name="somebody"), id="writer")
    checker = AgentExecutor(ChatAgent(client, instructions="Check."), id="checker")
    workflow = WorkflowBuilder().set_start_executor(writer).add_edge(writer, checker).build()
    await workflow.run("q")
    await ChatAgent(client, instructions="Alone.", name="solo").run("q")
    await client.client.close()
    return 1.0
