"""google-genai: a chat whose tools are Python functions, which the client calls by itself."""

from __future__ import annotations

from case import SYSTEM, Case, calculator, note, run
from google import genai
from google.genai import types


async def gemini(case: Case) -> str:
    client = genai.Client()
    config = types.GenerateContentConfig(system_instruction=SYSTEM, tools=[calculator, note])
    chat = client.aio.chats.create(model=case.model, config=config)
    if not case.stream:
        return (await chat.send_message(case.question)).text or ""
    text = ""
    async for chunk in await chat.send_message_stream(case.question):
        parts = chunk.candidates[0].content.parts or [] if chunk.candidates and chunk.candidates[0].content else []
        # The client runs the tools between two replies: what follows a call or a result is a new one.
        if any(part.function_call or part.function_response for part in parts):
            text = ""
        else:
            text += "".join(part.text or "" for part in parts if not part.thought)
    return text


if __name__ == "__main__":
    run({"gemini": gemini})
