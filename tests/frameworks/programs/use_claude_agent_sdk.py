"""claude-agent-sdk: the agent's own command-line program, with two tools of this process. It streams always."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from case import PARAMETERS, SYSTEM, Case, run, use
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool


async def answered(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": use(name, arguments)}]}


@tool("calculator", "Calculates an arithmetic expression.", PARAMETERS["calculator"])
async def calculator(arguments: dict[str, Any]) -> dict[str, Any]:
    return await answered("calculator", arguments)


@tool("note", "Takes a note.", PARAMETERS["note"])
async def note(arguments: dict[str, Any]) -> dict[str, Any]:
    return await answered("note", arguments)


async def messages(case: Case) -> str:
    server = create_sdk_mcp_server("t", tools=[calculator, note])
    with tempfile.TemporaryDirectory() as folder:
        options = ClaudeAgentOptions(
            system_prompt=SYSTEM,
            model=case.model,
            mcp_servers={"t": server},
            allowed_tools=["mcp__t__calculator", "mcp__t__note"],
            tools=[],
            max_turns=5,
            cwd=folder,
            setting_sources=[],
            env={"ANTHROPIC_BASE_URL": os.environ["ANTHROPIC_BASE_URL"], "CLAUDE_CONFIG_DIR": folder},
        )
        text = ""
        async for message in query(prompt=case.question, options=options):
            if isinstance(message, ResultMessage):
                text = message.result or ""
        return text


if __name__ == "__main__":
    run({"messages": messages})
