"""agentscope 2: agents that ask one after the other and at once, over Chat Completions and Responses, whole and
streamed."""

from __future__ import annotations

import asyncio
from typing import Any

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel, OpenAIResponseModel
from agentscope.tool import Toolkit

CALLS = ["Player1", "Player2", "moderator"]


async def agent(task: Any, llm: Any) -> float:
    credential = OpenAICredential(api_key="k", base_url=llm.endpoint)

    async def ask(name: str, kind: Any, stream: bool) -> None:
        made = Agent(name=name, system_prompt="Play.", model=kind(credential, "m", stream=stream), toolkit=Toolkit())
        await made.reply(UserMsg(name="user", content="q"))

    await ask("moderator", OpenAIChatModel, False)
    await asyncio.gather(ask("Player1", OpenAIChatModel, True), ask("Player2", OpenAIResponseModel, False))
    return 1.0
