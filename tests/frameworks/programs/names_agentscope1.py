"""agentscope 1: agents that ask one after the other and at once, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel

CALLS = ["Player1", "Player2", "moderator"]


async def agent(task: Any, llm: Any) -> float:
    def make(name: str, stream: bool) -> ReActAgent:
        model = OpenAIChatModel(model_name="m", api_key="k", stream=stream, client_kwargs={"base_url": llm.endpoint})
        made = ReActAgent(
            name=name, sys_prompt="Play.", model=model, formatter=OpenAIChatFormatter(), memory=InMemoryMemory()
        )
        made.set_console_output_enabled(False)
        return made

    asked = Msg("user", "q", "user")
    await make("moderator", False)(asked)
    await asyncio.gather(make("Player1", True)(asked), make("Player2", False)(asked))
    return 1.0
