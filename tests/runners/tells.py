"""Agents that tell what they do. Imported by agents' processes, so it loads nothing heavy."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

from agentlightning import (
    LLM,
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    operation,
    reward,
)


@operation(category="tool")
def search(words: str) -> list[str]:
    emit_message(f"searching {words}")
    return [words.upper()]


@reward
def judge(found: list[str]) -> float:
    return 0.5 * len(found)


def ask(llm: LLM) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "q"}]}'
    request = urllib.request.Request(
        f"{llm.endpoint}/chat/completions", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
        reply.read()


def plain(task: Any, llm: LLM) -> None:
    ask(llm)
    with operation(name="round", number=1):
        found = search("cats")
        emit_object({"found": found})
    emit_annotation({"seat": {"number": 3}})
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        emit_exception(error)
    emit_reward({"style": 0.25, "right": 1}, primary_key="right", attributes={"step": 2})
    judge(found)


async def waiting(task: Any, llm: LLM) -> None:
    await asyncio.to_thread(plain, task, llm)
