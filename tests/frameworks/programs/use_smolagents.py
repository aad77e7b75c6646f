"""smolagents: `ToolCallingAgent` with two tools."""

from __future__ import annotations

from case import Case, calculator, note, run
from smolagents import OpenAIModel, ToolCallingAgent, tool


def chat(case: Case) -> str:
    agent = ToolCallingAgent(
        tools=[tool(calculator), tool(note)], model=OpenAIModel(case.model), stream_outputs=case.stream, max_steps=5
    )
    return str(agent.run(case.question))


if __name__ == "__main__":
    run({"chat": chat})
