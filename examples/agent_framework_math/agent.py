"""A mathematician of Microsoft Agent Framework with a calculator that is an MCP server. It takes the model it is given:
``llm.endpoint`` and ``llm.model`` are all it is told of who answers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent_framework import Agent, Content, MCPStdioTool, Message
from agent_framework.openai import OpenAIChatClient
from problems import Problem, score

from agentlightning import LLM, rollout

SERVER = Path(__file__).with_name("calculator_server.py")
INSTRUCTIONS = "Calculate with the calculator, then write the answer after ###."


def example(name: str, expression: str, result: str) -> list[Message]:
    """How it goes, for a model that is too small to be told."""
    call = Content.from_function_call(name, "calculate", arguments={"expression": expression})
    return [
        Message("user", [f"What is {expression}?"]),
        Message("assistant", [call]),
        Message("tool", [Content.from_function_result(name, result=result)]),
        Message("assistant", [f"### {result}"]),
    ]


EXAMPLES = [*example("call_1", "14 * 15", "210"), *example("call_2", "70 - 86", "-16")]


@rollout
async def mathematician(task: Problem, llm: LLM) -> float:
    """1.0 where the answer to ``task["question"]`` is ``task["result"]``, else 0.0."""
    client = OpenAIChatClient(
        model=llm.model, base_url=llm.endpoint, api_key=os.environ.get("OPENAI_API_KEY") or "none"
    )
    async with (
        MCPStdioTool(name="calculator", command=sys.executable, args=[str(SERVER)]) as calculator,
        Agent(client, INSTRUCTIONS, name="mathematician") as agent,
    ):
        told = await agent.run([*EXAMPLES, Message("user", [task["question"]])], tools=calculator)
    return score(told.text, task["result"])
