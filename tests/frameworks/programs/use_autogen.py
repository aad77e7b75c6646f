"""autogen: `AssistantAgent` that may use its tools several times."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from case import SYSTEM, Case, calculator, note, run

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
)


async def chat(case: Case) -> str:
    client = OpenAIChatCompletionClient(model=case.model, model_info=INFO)
    agent = AssistantAgent(
        "assistant",
        model_client=client,
        tools=[calculator, note],
        system_message=SYSTEM,
        max_tool_iterations=5,
        model_client_stream=case.stream,
    )
    result: TaskResult | None = None
    if case.stream:
        async for event in agent.run_stream(task=case.question):
            if isinstance(event, TaskResult):
                result = event
    else:
        result = await agent.run(task=case.question)
    await client.close()
    return result.messages[-1].to_text() if result else ""


if __name__ == "__main__":
    run({"chat": chat})
