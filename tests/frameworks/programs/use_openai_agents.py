"""openai-agents: one agent with two function tools, over Responses (its default) and Chat Completions."""

from __future__ import annotations

from agents import Agent, Runner, function_tool, set_default_openai_api
from case import SYSTEM, Case, calculator, note, run

TOOLS = [function_tool(calculator), function_tool(note)]


async def ask(case: Case) -> str:
    agent = Agent(name="assistant", instructions=SYSTEM, model=case.model, tools=list(TOOLS))
    if not case.stream:
        return (await Runner.run(agent, case.question)).final_output
    result = Runner.run_streamed(agent, case.question)
    async for _ in result.stream_events():
        pass
    return result.final_output


async def responses(case: Case) -> str:
    set_default_openai_api("responses")
    return await fresh(case)


async def chat(case: Case) -> str:
    set_default_openai_api("chat_completions")
    return await fresh(case)


async def fresh(case: Case) -> str:
    """The framework keeps one client for the process, with the URL that it was made for; each conversation here has a
    URL of its own."""
    from agents import set_default_openai_client
    from openai import AsyncOpenAI

    set_default_openai_client(AsyncOpenAI(), use_for_tracing=False)
    return await ask(case)


if __name__ == "__main__":
    run({"responses": responses, "chat": chat})
