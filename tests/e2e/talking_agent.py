"""An agent that talks until its history is longer than the model's context, and functions that shorten it."""

from __future__ import annotations

import os
import time
from typing import Any

from openai import OpenAI

MOST = 8
"""Turns of one conversation."""


def talker(task: Any, llm: Any) -> float:
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for turn in range(MOST):
        messages.append({"role": "user", "content": f"{turn} " + "abc " * 15})
        reply = client.chat.completions.create(model=llm.model, messages=messages, max_tokens=16)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
    return float(len(messages))


def shorten(messages: list[Any], limit: int, count: Any) -> list[Any]:
    """Drops the oldest turns until half of the limit is left."""
    print("shortening", os.getpid())
    first, rest = messages[:1], messages[1:]
    while len(rest) > 1 and count([*first, *rest]) > limit // 2:
        rest = rest[2:]
    return [*first, *rest]


async def shorten_later(messages: list[Any], limit: int, count: Any) -> list[Any]:
    return shorten(messages, limit, count)


def too_slow(messages: list[Any]) -> list[Any]:
    time.sleep(60)
    return messages


def dies(messages: list[Any]) -> list[Any]:
    os._exit(3)


def asks_wrongly(messages: list[Any], count: Any) -> list[Any]:
    return [{"role": "user", "content": str(count([{"role": "judge"}]))}]
