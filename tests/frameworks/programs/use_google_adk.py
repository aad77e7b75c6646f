"""google-adk: `LlmAgent` with two function tools, over Gemini's own API (its default) and, through LiteLlm, Chat
Completions."""

from __future__ import annotations

from typing import Any

from case import SYSTEM, Case, calculator, note, run
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


async def ask(case: Case, model: Any) -> str:
    agent = LlmAgent(name="assistant", model=model, instruction=SYSTEM, tools=[calculator, note])
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    text = ""
    async for event in runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.Content(role="user", parts=[types.Part(text=case.question)]),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE if case.stream else StreamingMode.NONE),
    ):
        if event.error_code:
            raise RuntimeError(f"{event.error_code}: {event.error_message}")
        if event.is_final_response() and event.content and event.content.parts:
            text = "".join(part.text or "" for part in event.content.parts if not part.thought)
    return text


async def gemini(case: Case) -> str:
    return await ask(case, "gemini-2.5-flash")  # the name decides which API it speaks


async def chat(case: Case) -> str:
    return await ask(case, LiteLlm(f"openai/{case.model}"))


if __name__ == "__main__":
    run({"gemini": gemini, "chat": chat})
