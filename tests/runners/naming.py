"""Agents whose frameworks tell in spans which of them makes a call: OpenTelemetry's API and model APIs' own clients, as
programs use them. Imported by agents' processes."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import anthropic
import openai
from opentelemetry import trace

tracer = trace.get_tracer("a framework")


def said(name: str) -> Any:
    return tracer.start_as_current_span(f"invoke_agent {name}", attributes={"gen_ai.agent.name": name})


def chat(llm: Any, *, base_url: str | None = None, **more: Any) -> None:
    with openai.OpenAI(base_url=base_url or llm.endpoint, api_key="k", max_retries=0) as client:
        create: Any = client.chat.completions.create
        reply = create(model="m", messages=[{"role": "user", "content": "q"}], **more)
        if more.get("stream"):
            list(reply)


def messages(llm: Any) -> None:
    root = llm.endpoint.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="k", max_retries=0) as client:
        client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "q"}])


def several(task: Any, llm: Any) -> float:
    """Whole and streamed replies, over two APIs; an agent within another; one whose URL names it."""
    with said("planner"):
        chat(llm)
        with said("critic"):
            chat(llm, stream=True)
        messages(llm)
    chat(llm)
    root = llm.endpoint.removesuffix("/v1")
    with said("planner"):
        chat(llm, base_url=f"{root}/agent/writer/v1")
    return 1.0


async def at_once(task: Any, llm: Any) -> float:
    """Two agents ask at the same time, in one event loop, and one in a thread."""

    async def ask(name: str) -> None:
        with said(name):
            async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="k", max_retries=0) as client:
                await asyncio.sleep(0)
                await client.responses.create(model="m", input=f"I am {name}")

    await asyncio.gather(*(ask(f"agent {task['number']}{letter}") for letter in "ab"))
    with said("threaded"):
        await asyncio.to_thread(chat, llm)
    return 1.0


def ends(task: Any, llm: Any) -> float:
    """Makes its call and then ends as the task says."""
    with said("planner"):
        chat(llm)
    if task["how"] == "hangs":
        time.sleep(60)
    if task["how"] == "dies":
        os._exit(3)
    raise ValueError("no plan")


def fails_inside(task: Any, llm: Any) -> float:
    """Its attributes are none that can be read."""

    class Odd(str):
        __slots__ = ()

        def __getitem__(self, key: Any) -> Any:
            raise RuntimeError("no slice of me")

    with tracer.start_as_current_span("x", attributes={"agent.name": Odd("planner")}):
        chat(llm)
    return 1.0
