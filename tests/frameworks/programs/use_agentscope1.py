"""agentscope 1: `ReActAgent` with two tools."""

from __future__ import annotations

import os

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse
from case import SYSTEM, Case, run
from case import calculator as calculate
from case import note as take


def calculator(expression: str) -> ToolResponse:
    """Calculates an arithmetic expression.

    Args:
        expression (str): The expression to calculate.
    """
    return ToolResponse(content=[TextBlock(type="text", text=calculate(expression))])


def note(title: str, rows: list[list[int]]) -> ToolResponse:
    """Takes a note.

    Args:
        title (str): The note's title.
        rows (list[list[int]]): Rows of whole numbers.
    """
    return ToolResponse(content=[TextBlock(type="text", text=take(title, rows))])


async def chat(case: Case) -> str:
    toolkit = Toolkit()
    toolkit.register_tool_function(calculator)
    toolkit.register_tool_function(note)
    model = OpenAIChatModel(model_name=case.model, api_key=os.environ["OPENAI_API_KEY"], stream=case.stream)
    agent = ReActAgent(
        name="assistant",
        sys_prompt=SYSTEM,
        model=model,
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
        max_iters=5,
    )
    agent.set_console_output_enabled(False)
    return (await agent(Msg("user", case.question, "user"))).get_text_content() or ""


if __name__ == "__main__":
    run({"chat": chat})
