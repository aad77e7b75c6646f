"""langchain: `create_agent` over Chat Completions, Responses and Messages."""

from __future__ import annotations

from typing import Any

from case import SYSTEM, Case, calculator, note, run
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI


async def ask(case: Case, model: Any) -> str:
    agent = create_agent(model, tools=[calculator, note], system_prompt=SYSTEM)
    asked: Any = {"messages": [{"role": "user", "content": case.question}]}
    if not case.stream:
        return (await agent.ainvoke(asked))["messages"][-1].text
    state: Any = None
    async for mode, part in agent.astream(asked, stream_mode=["messages", "values"]):
        if mode == "values":
            state = part
    return state["messages"][-1].text


async def chat(case: Case) -> str:
    return await ask(case, ChatOpenAI(model=case.model))


async def responses(case: Case) -> str:
    return await ask(case, ChatOpenAI(model=case.model, use_responses_api=True))


async def messages(case: Case) -> str:
    return await ask(case, ChatAnthropic(model_name=case.model, max_tokens_to_sample=4096, timeout=None, stop=None))


if __name__ == "__main__":
    run({"chat": chat, "responses": responses, "messages": messages})
