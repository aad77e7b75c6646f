"""The endpoint that other people's suites are run against: a real gateway over a real record, whose scripted model does
what their questions ask for."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentlightning.engines.base import SampleRequest
from tests.frameworks.cases import call
from tests.frameworks.house import serve

ARGUMENTS: dict[str, Any] = {
    "magic_function": {"input": 3}, "magic_function_no_args": {}, "my_adder_tool": {"a": 3, "b": 4},
    "get_weather": {"location": "San Francisco, CA"},
    "greeting_generator": {"answer_style": "pirate"},
}  # fmt: skip
"""What the tools of LangChain's suite are called with where no grammar says it."""

_RULE = re.compile(r"^(call|args|output)(?:_(\d+))?: (.*)$", re.MULTILINE)
_TOOLS = re.compile(r"<\|im_start\|>tools\n(\[.*?\])<\|im_end\|>")
_LAST = re.compile(r"<\|im_start\|>(\w+)\n(?:(?!<\|im_start\|>).)*<\|im_start\|>assistant\n\Z", re.DOTALL)


def says(prompt: str, request: SampleRequest) -> str:
    """JSON or a call after the request's grammar; else a call of the first tool, of a user's question; else a
    sentence."""
    rules = {(kind, number): text for kind, number, text in _RULE.findall(request.params.grammar or "")}
    if ("output", "") in rules and ("call", "0") not in rules:
        return json.dumps(
            value(json.loads(rules["output", ""].removeprefix("%json "))) or {"setup": "Why?", "punchline": "Because."}
        )
    names = [
        re.search(r'\\"name\\": \\"(.*?)\\"', text)
        for (kind, _), text in rules.items()
        if kind == "call" and "name" in text
    ]
    if names and names[0]:
        schema = json.loads(rules["args", "0"].removeprefix("%json "))
        named = re.search(r"named '(.+?)'", prompt)
        arguments = {"customer_name": named[1]} if named else ARGUMENTS.get(names[0][1]) or value(schema, schema)
        return call(names[0][1], json.dumps(arguments, ensure_ascii=False))
    tools, last = _TOOLS.search(prompt), _LAST.search(prompt)
    if tools and last and last[1] == "user":
        name = json.loads(tools[1])[0]
        return call(name, json.dumps(ARGUMENTS.get(name, {}), ensure_ascii=False))
    return "Hello. I am well, thank you; you are welcome to ask me anything."


def value(schema: Any, root: Any = None) -> Any:
    """A value after a schema, of the few keywords that these suites use."""
    root = schema if root is None else root
    if "$ref" in schema:
        found = root
        for part in schema["$ref"].split("/")[1:]:
            found = found[part]
        return value(found, root)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return value(schema[key][0], root)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: value(inner, root) for name, inner in schema.get("properties", {}).items()}
    return {"string": "cats", "integer": 3, "number": 3, "boolean": True, "array": [], "null": None}[kind]


def main() -> None:
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="agl-conformance-") as folder:
        asyncio.run(serve(Path(folder), says))


if __name__ == "__main__":
    main()
