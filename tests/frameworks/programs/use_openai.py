"""openai: a tool loop by hand, over Chat Completions and Responses."""

from __future__ import annotations

from typing import Any

from case import DESCRIPTIONS, PARAMETERS, SYSTEM, Case, run, use
from openai import AsyncOpenAI

CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": PARAMETERS[name]}}
    for name in PARAMETERS
]
TOOLS: list[Any] = [
    {"type": "function", "name": name, "description": DESCRIPTIONS[name], "parameters": PARAMETERS[name]}
    for name in PARAMETERS
]


async def chat(case: Case) -> str:
    async with AsyncOpenAI() as client:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": case.question}]
        while True:
            if case.stream:
                async with client.chat.completions.stream(
                    model=case.model, messages=messages, tools=CHAT_TOOLS
                ) as stream:
                    message = (await stream.get_final_completion()).choices[0].message
            else:
                message = (
                    (await client.chat.completions.create(model=case.model, messages=messages, tools=CHAT_TOOLS))
                    .choices[0]
                    .message
                )
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                result = use(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def respond(client: AsyncOpenAI, case: Case, **more: Any) -> Any:
    asked = {"model": case.model, "instructions": SYSTEM, "tools": TOOLS, **more}
    if not case.stream:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        return await stream.get_final_response()


def results(response: Any) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": use(call.name, call.arguments)}
        for call in calls
    ]


async def responses(case: Case) -> str:
    async with AsyncOpenAI() as client:
        history: list[Any] = [{"role": "user", "content": case.question}]
        while True:
            response = await respond(client, case, input=history, store=False)
            history += [*response.output, *(outputs := results(response))]
            if not outputs:
                return response.output_text


async def previous(case: Case) -> str:
    async with AsyncOpenAI() as client:
        response = await respond(client, case, input=case.question)
        while outputs := results(response):
            response = await respond(client, case, input=outputs, previous_response_id=response.id)
        return response.output_text


if __name__ == "__main__":
    run({"chat": chat, "responses": responses, "responses-previous": previous})
