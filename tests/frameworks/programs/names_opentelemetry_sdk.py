"""A program that sets up OpenTelemetry's SDK itself, after it has made its tracer: its own spans still reach its own
exporter, and name its calls."""

from __future__ import annotations

from typing import Any

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CALLS = ["before", "planner"]

tracer = trace.get_tracer("a program")
exporter = InMemorySpanExporter()


async def agent(task: Any, llm: Any) -> float:
    async def ask(name: str) -> None:
        with tracer.start_as_current_span(f"invoke_agent {name}", attributes={"gen_ai.agent.name": name}):
            async with httpx.AsyncClient(trust_env=False) as client:
                body = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
                (await client.post(f"{llm.endpoint}/chat/completions", json=body)).raise_for_status()

    await ask("before")
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    await ask("planner")
    assert "invoke_agent planner" in [span.name for span in exporter.get_finished_spans()]
    return 1.0
