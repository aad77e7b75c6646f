"""What the programs of this folder share: the two tools, one process per API, and how they tell what they saw. Standard
library only.

A program calls ``run`` with its agents by name. Each is a function, plain or async, of a `Case`, and returns the text
of the final answer.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LIMIT = 25.0
"""Seconds for one conversation; the first one pays for what is imported late."""

MARK = "AGL-CASE "
"""Begins the lines that are meant for the reader of the program's output."""

SYSTEM = "You are a careful assistant."

_seen: list[tuple[str, dict[str, Any]]] = []


@dataclass(frozen=True)
class Case:
    """One conversation to have. ``base_url`` ends in `/v1`, ``root_url`` does not; the environment holds both."""

    name: str
    stream: bool
    model: str
    question: str
    base_url: str
    root_url: str
    key: str


def calculator(expression: str) -> str:
    """Calculates an arithmetic expression.

    Args:
        expression: The expression to calculate.
    """
    _seen.append(("calculator", {"expression": expression}))
    return str(sum_of_products(expression))


def note(title: str, rows: list[list[int]]) -> str:
    """Takes a note.

    Args:
        title: The note's title.
        rows: Rows of whole numbers.
    """
    _seen.append(("note", {"title": title, "rows": [list(row) for row in rows]}))
    return f"noted — {title}"


TOOLS: Mapping[str, Callable[..., str]] = {"calculator": calculator, "note": note}

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "calculator": {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "The expression to calculate."}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    "note": {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "rows": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        },
        "required": ["title", "rows"],
        "additionalProperties": False,
    },
}
"""The tools' schemas, for clients that want them written."""

DESCRIPTIONS = {"calculator": "Calculates an arithmetic expression.", "note": "Takes a note."}


def sum_of_products(expression: str) -> int:
    total = 0
    for part in expression.split("+"):
        product = 1
        for factor in part.split("*"):
            product *= int(factor)
        total += product
    return total


def use(name: str, arguments: str | Mapping[str, Any]) -> str:
    """Runs a tool as an agent written by hand does. What cannot be run is told the model."""
    try:
        return TOOLS[name](**(json.loads(arguments) if isinstance(arguments, str) else arguments))
    except KeyError:
        return f"error: there is no tool {name}"
    except (ValueError, TypeError) as error:
        return f"error: bad arguments: {type(error).__name__}"


Agent = Callable[[Case], Any]


async def have(agent: Agent, case: Case) -> dict[str, Any]:
    _seen.clear()
    os.environ.update(
        OPENAI_BASE_URL=case.base_url,
        OPENAI_API_BASE=case.base_url,
        ANTHROPIC_BASE_URL=case.root_url,
        GOOGLE_GEMINI_BASE_URL=case.root_url,
        OPENAI_API_KEY=case.key,
        ANTHROPIC_API_KEY=case.key,
        GEMINI_API_KEY=case.key,
    )
    try:
        answer = await asyncio.wait_for(
            agent(case) if inspect.iscoroutinefunction(agent) else asyncio.to_thread(agent, case), LIMIT
        )
    except Exception as error:
        traceback.print_exc()
        cause = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        return {"error": f"{type(cause).__name__}: {str(cause)[:500]}", "seen": list(_seen)}
    return {"answer": answer, "seen": list(_seen)}


async def all_of(agents: Mapping[str, Agent]) -> None:
    agent = agents[os.environ["AGL_AGENT"]]
    for fields in json.loads(os.environ["AGL_CASES"]):
        case_id = fields.pop("id")
        case = Case(**fields)
        view = await have(agent, case)
        # Frameworks print too, and not always whole lines.
        print("\n" + MARK + json.dumps({"id": case_id, **view}), flush=True)


def run(agents: Mapping[str, Agent]) -> None:
    """Has the conversations that the environment lists, with the agent that it names, and ends the process whatever
    still runs in it."""
    asyncio.run(all_of(agents))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
