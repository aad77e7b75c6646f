"""A calculator agent, as anyone would write it: the official client, a base URL, a prompt and a loop.

Nothing in this file knows that the model behind the base URL is being trained.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from typing import Any

from openai import OpenAI

SYSTEM = "You have a calculator. To use it, write <calc>expression</calc>. You then get the result and tell it to the user."
EXAMPLE = [
    {"role": "user", "content": "What is 31 + 46?"},
    {"role": "assistant", "content": "<calc>31 + 46</calc>"},
    {"role": "user", "content": "Result: 77"},
    {"role": "assistant", "content": "The answer is 77."},
]
MAX_CALLS = 3
MAX_TOKENS = 32

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg, ast.UAdd: operator.pos}


def calculate(expression: str) -> str:
    """The value of an expression of integers, + - * x and parentheses, or a message that says what is wrong with it."""
    try:
        if len(expression) > 60:
            return "Error: too long"
        return str(_value(ast.parse(expression.replace("x", "*").strip(), mode="eval").body))
    except (SyntaxError, ValueError) as error:
        return f"Error: {error.args[0] if error.args else 'not an expression'}"


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            number = value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            number = OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            number = OPERATORS[type(op)](_value(operand))
        case _:
            raise ValueError("only + - x of whole numbers")
    if abs(number) > 10**12:
        raise ValueError("too large")
    return number


def calculator(task: dict[str, Any], llm: Any = None) -> float:
    """Answers ``task["question"]`` and returns 1.0 when the last number it says is ``task["answer"]``, else 0.0.

    ``llm`` says where the model is (``endpoint``, ``model``); without it the environment does, as for any program that uses this client.
    """
    base_url = llm.endpoint if llm else os.environ["OPENAI_BASE_URL"]
    model = llm.model if llm else os.environ.get("OPENAI_MODEL", "default")
    client = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, *EXAMPLE, {"role": "user", "content": task["question"]}]
    for _ in range(MAX_CALLS):
        reply = client.chat.completions.create(model=model, messages=messages, max_tokens=MAX_TOKENS).choices[0].message.content or ""
        messages.append({"role": "assistant", "content": reply})
        asked = re.search(r"<calc>(.*?)</calc>", reply)
        if asked is None:
            break
        messages.append({"role": "user", "content": f"Result: {calculate(asked[1])}"})
    return score(messages[-1]["content"], task["answer"])


def score(reply: str, answer: int) -> float:
    numbers = re.findall(r"-?\d+", reply)
    return 1.0 if numbers and int(numbers[-1]) == answer else 0.0
