"""anthropic: a tool loop by hand."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic
from case import DESCRIPTIONS, PARAMETERS, SYSTEM, Case, run, use

TOOLS: list[Any] = [
    {"name": name, "description": DESCRIPTIONS[name], "input_schema": PARAMETERS[name]} for name in PARAMETERS
]


async def messages(case: Case) -> str:
    async with AsyncAnthropic() as client:
        history: list[Any] = [{"role": "user", "content": case.question}]
        while True:
            asked: dict[str, Any] = {
                "model": case.model,
                "max_tokens": 4096,
                "system": SYSTEM,
                "tools": TOOLS,
                "messages": history,
            }
            if case.stream:
                async with client.messages.stream(**asked) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(**asked)
            history.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": use(call.name, call.input)} for call in calls
            ]
            history.append({"role": "user", "content": results})


if __name__ == "__main__":
    run({"messages": messages})
