"""autogen: a team of two agents, and an agent on its own; nothing of OpenTelemetry is set up."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

CALLS = ["checker", "solo", "writer"]
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
)


async def agent(task: Any, llm: Any) -> float:
    client = OpenAIChatCompletionClient(model="m", base_url=llm.endpoint, api_key="k", model_info=INFO)
    writer = AssistantAgent("writer", model_client=client, system_message="Write.")
    checker = AssistantAgent("checker", model_client=client, system_message="Check.", model_client_stream=True)
    await RoundRobinGroupChat([writer, checker], termination_condition=MaxMessageTermination(3)).run(task="q")
    await AssistantAgent("solo", model_client=client).run(task="q")
    await client.close()
    return 1.0
