"""crewai: one agent with two tools."""

from __future__ import annotations

from case import SYSTEM, Case, run
from case import calculator as calculate
from case import note as take
from crewai import LLM, Agent
from crewai.tools import tool


@tool("calculator")
def calculator(expression: str) -> str:
    """Calculates an arithmetic expression."""
    return calculate(expression)


@tool("note")
def note(title: str, rows: list[list[int]]) -> str:
    """Takes a note."""
    return take(title, rows)


def chat(case: Case) -> str:
    llm = LLM(model=f"openai/{case.model}", stream=case.stream)
    agent = Agent(
        role="assistant", goal="Answer.", backstory=SYSTEM, tools=[calculator, note], llm=llm, max_iter=5, verbose=False
    )
    return agent.kickoff(case.question).raw


if __name__ == "__main__":
    run({"chat": chat})
