"""An AutoGen assistant with a calculator that is an MCP server, `python -m mcp_server_calculator`. Nothing in this file
knows that it is trained: ``llm`` says where the model is and what it is called."""

from __future__ import annotations

import json
import sys
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    UserMessage,
)
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from tasks import score

SYSTEM = "Calculate with the calculator, then say the number."
SERVER = StdioServerParams(command=sys.executable, args=["-m", "mcp_server_calculator"], read_timeout_seconds=60)
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
)


def example(name: str, question: str, expression: str, result: str) -> list[LLMMessage]:
    """How it goes, for a model that is too small to be told."""
    call = FunctionCall(id=name, name="calculate", arguments=json.dumps({"expression": expression}))
    told = FunctionExecutionResult(call_id=name, name="calculate", content=result, is_error=False)
    return [
        UserMessage(content=question, source="user"),
        AssistantMessage(content=[call], source="mathematician"),
        FunctionExecutionResultMessage(content=[told]),
        AssistantMessage(content=result, source="mathematician"),
    ]


EXAMPLES = [
    *example("call_1", "How much is 14 times 15?", "14 * 15", "210"),
    *example("call_2", "How much is 28 plus 95?", "28 + 95", "123"),
    *example("call_3", "How much is 70 minus 86?", "70 - 86", "-16"),
]


async def mathematician(task: dict[str, Any], llm: Any) -> float:
    """1.0 where the last word on ``task["question"]`` is ``task["answer"]``, else 0.0."""
    client = OpenAIChatCompletionClient(model=llm.model, base_url=llm.endpoint, api_key="none", model_info=INFO)
    try:
        async with McpWorkbench(SERVER) as calculator:
            assistant = AssistantAgent(
                "mathematician",
                model_client=client,
                workbench=calculator,
                system_message=SYSTEM,
                model_context=UnboundedChatCompletionContext(initial_messages=EXAMPLES),
                max_tool_iterations=2,
            )
            told = await assistant.run(task=task["question"])
    finally:
        await client.close()
    return score(told.messages[-1].to_text(), task["answer"])
