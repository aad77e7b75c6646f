"""autogen's core: an agent that handles messages, by the type it is registered under."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from autogen_core.models import ModelFamily, ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

CALLS = ["writer"]
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family=ModelFamily.UNKNOWN, structured_output=True
)


@dataclass
class Ask:
    text: str


class Writer(RoutedAgent):
    def __init__(self, client: Any) -> None:
        super().__init__("a writer")
        self._client = client

    @message_handler
    async def write(self, message: Ask, ctx: MessageContext) -> Ask:
        reply = await self._client.create([UserMessage(content=message.text, source="user")])
        return Ask(str(reply.content))


async def agent(task: Any, llm: Any) -> float:
    os.environ.pop("AUTOGEN_DISABLE_RUNTIME_TRACING", None)
    client = OpenAIChatCompletionClient(model="m", base_url=llm.endpoint, api_key="k", model_info=INFO)
    runtime = SingleThreadedAgentRuntime()
    await Writer.register(runtime, "writer", lambda: Writer(client))
    runtime.start()
    await runtime.send_message(Ask("q"), AgentId("writer", "default"))
    await runtime.stop_when_idle()
    await client.close()
    return 1.0
