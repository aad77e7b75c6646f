"""litellm: a tool loop by hand, over Chat Completions and Messages."""

from __future__ import annotations

from typing import Any

import litellm
from case import DESCRIPTIONS, PARAMETERS, SYSTEM, Case, run, use

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": PARAMETERS[name]}}
    for name in PARAMETERS
]


async def ask(case: Case, model: str) -> str:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": case.question}]
    while True:
        if case.stream:
            chunks = [
                chunk
                async for chunk in await litellm.acompletion(model=model, messages=messages, tools=TOOLS, stream=True)
            ]
            reply: Any = litellm.stream_chunk_builder(chunks, messages=messages)
        else:
            reply = await litellm.acompletion(model=model, messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": use(call.function.name, call.function.arguments)}
            )


async def chat(case: Case) -> str:
    return await ask(case, f"openai/{case.model}")


async def messages(case: Case) -> str:
    return await ask(case, f"anthropic/{case.model}")


if __name__ == "__main__":
    run({"chat": chat, "messages": messages})
