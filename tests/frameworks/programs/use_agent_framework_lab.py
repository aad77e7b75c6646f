"""Agent Framework with the tracer of its lab package, over this package: one agent with two function tools, traced as
programs of the lab trace theirs. ``OpenAIChatClient`` speaks Chat Completions in 2025 and Responses in 2026."""

from __future__ import annotations

import os
from typing import Any

import agent_framework
from agent_framework.openai import OpenAIChatClient
from agent_framework_lab_lightning import LLM, AgentFrameworkTracer, init
from case import SYSTEM, Case, calculator, note, run

from agentlightning.agent.telling import ENDPOINT_VARIABLE

RESPONSE_ID = "gen_ai.response.id"
OLD = not hasattr(agent_framework, "Agent")


def agent_of(llm: LLM, key: str) -> Any:
    known: dict[str, Any] = {"api_key": key, "base_url": llm.endpoint}
    if OLD:
        client: Any = OpenAIChatClient(model_id=llm.model, **known)
        return agent_framework.ChatAgent(client, SYSTEM, name="assistant", tools=[calculator, note])
    client = OpenAIChatClient(model=llm.model, **known)
    return agent_framework.Agent(client, SYSTEM, name="assistant", tools=[calculator, note])


async def ask(case: Case) -> str:
    os.environ[ENDPOINT_VARIABLE] = case.root_url  # as a run sets it
    tracer = AgentFrameworkTracer()
    tracer.init()
    tracer.init_worker(0)
    try:
        async with tracer.trace_context(name=case.name):
            told = await agent_of(LLM(endpoint=case.base_url, model=case.model), case.key).run(case.question)
            spans = [span for span in tracer.get_last_trace() if RESPONSE_ID in span.attributes]
    finally:
        tracer.teardown_worker(0)
        tracer.teardown()
    calls = sum(str(getattr(message.role, "value", message.role)) == "assistant" for message in told.messages)
    if len(spans) != calls:
        raise AssertionError(f"{calls} calls were made, and the tracer has {len(spans)}")
    return told.messages[-1].text


if __name__ == "__main__":
    init()
    run({"lab": ask})
