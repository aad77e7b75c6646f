"""A calculator agent as anyone would write it: the official client, a base URL, a prompt and a loop.

Nothing in this file knows that the model behind the base URL is being trained.
"""

from __future__ import annotations

import ast
import functools
import operator
import os
import re
from typing import Any

from openai import OpenAI

PROMPT = [
    {
        "role": "system",
        "content": "You have a calculator: write <calc>expression</calc> and you get the result. Then answer.",
    },
    {"role": "user", "content": "What is 31 + 46?"},
    {"role": "assistant", "content": "<calc>31 + 46</calc>"},
    {"role": "user", "content": "Result: 77"},
    {"role": "assistant", "content": "77"},
]
"""The instructions, and one example of how it goes."""

MAX_CALLS = 3
MAX_TOKENS = 32
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculator(task: dict[str, Any], llm: Any = None) -> float:
    """Answers ``task["question"]``; 1.0 when the last number it says is ``task["answer"]``, else 0.0.

    ``llm`` says where the model is (``endpoint``, ``model``). Without it the environment does, as for any program that
    uses this client.
    """
    client = _client().with_options(
        base_url=llm.endpoint if llm else os.environ["OPENAI_BASE_URL"],
        api_key=os.environ.get("OPENAI_API_KEY") or "none",
    )
    model = llm.model if llm else os.environ.get("OPENAI_MODEL", "default")
    messages: list[Any] = [*PROMPT, {"role": "user", "content": task["question"]}]
    for _ in range(MAX_CALLS):
        completion = client.chat.completions.create(model=model, messages=messages, max_tokens=MAX_TOKENS)
        reply = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": reply})
        asked = re.search(r"<calc>(.*?)</calc>", reply, re.DOTALL)
        if asked is None:
            break
        messages.append({"role": "user", "content": f"Result: {calculate(asked[1])}"})
    return score(reply, task["answer"])


@functools.cache
def _client() -> OpenAI:
    """One client for the whole process: making one costs 50 ms, most of it for certificates."""
    return OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none")


def score(reply: str, answer: int) -> float:
    """Whether a reply that asks for no calculation ends in the right number."""
    numbers = re.findall(r"-?\d+", reply)
    return float("<calc>" not in reply and numbers[-1:] == [str(answer)])


def calculate(expression: str) -> str:
    """The value of an expression of whole numbers, + - x * and parentheses, or what is wrong with it. The text comes
    from a model: it is never run."""
    try:
        if not re.fullmatch(r"[0-9x*+() -]{1,60}", expression):
            raise ValueError("not arithmetic")
        return str(_value(ast.parse(expression.replace("x", "*").strip(), mode="eval").body))
    except (SyntaxError, ValueError):
        return "error, only + - x of whole numbers"


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            value = number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](_value(operand))
        case _:
            raise ValueError("not arithmetic")
    if abs(value) > 10**12:
        raise ValueError("too large")
    return value
