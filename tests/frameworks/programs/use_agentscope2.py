"""agentscope 2: an `Agent` with two tools, over Chat Completions and Responses."""

from __future__ import annotations

import os
from typing import Any

from agentscope.agent import Agent, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel, OpenAIResponseModel
from agentscope.tool import FunctionTool, Toolkit
from case import SYSTEM, Case, calculator, note, run


async def ask(case: Case, model: Any) -> str:
    toolkit = Toolkit(tools=[FunctionTool(calculator, is_read_only=True), FunctionTool(note, is_read_only=True)])
    agent = Agent(
        name="assistant", system_prompt=SYSTEM, model=model, toolkit=toolkit, react_config=ReActConfig(max_iters=5)
    )
    reply = await agent.reply(UserMsg(name="user", content=case.question))
    # A reply holds the text of all its turns.
    texts = [block.text for block in reply.content if block.type == "text"]
    return texts[-1] if texts else ""


async def chat(case: Case) -> str:
    return await ask(
        case, OpenAIChatModel(OpenAICredential(api_key=os.environ["OPENAI_API_KEY"]), case.model, stream=case.stream)
    )


async def responses(case: Case) -> str:
    return await ask(
        case,
        OpenAIResponseModel(OpenAICredential(api_key=os.environ["OPENAI_API_KEY"]), case.model, stream=case.stream),
    )


if __name__ == "__main__":
    run({"chat": chat, "responses": responses})
