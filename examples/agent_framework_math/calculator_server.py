"""A calculator as an MCP server over stdio: `python calculator_server.py`. It knows nothing of agents or training."""

from __future__ import annotations

import ast
import operator
import re

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
MOST = 10**12


def calculate(expression: str) -> str:
    """The value of an expression of whole numbers with + - * and parentheses."""
    # The text comes from a model: it is read, never run, and small.
    try:
        if not re.fullmatch(r"[0-9*+() -]{1,60}", expression):
            raise ValueError("other characters")
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError):
        return "error: whole numbers, + - * and parentheses only"


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as number):
            value = number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_value(operand)
        case _:
            raise ValueError("no arithmetic")
    if abs(value) > MOST:
        raise ValueError("too large")
    return value


if __name__ == "__main__":
    from mcp.server import MCPServer

    server = MCPServer("calculator")
    server.tool()(calculate)
    server.run("stdio")
