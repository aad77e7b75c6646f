"""The endpoint that the frameworks are run against: a real gateway over a real SQLite record, with a scripted engine,
in a process of its own.

It speaks JSON lines on its standard input and output, so that agents find nothing at its address but the gateway.
``{"open": NAME}`` answers with an attempt's URLs, ``{"close": NAME}`` with what was recorded of it. It ends when its
input does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentlightning.engines.base import SampleRequest
from agentlightning.gateway import Gateway, Served
from agentlightning.nouns import Call, Node, RunRecord, RunStatus
from agentlightning.settings.fields import GatewayConfig, SamplingConfig
from agentlightning.store import open_store
from tests.frameworks.cases import says
from tests.gateway.conftest import House, Paths, Visit
from tests.gateway.scripted import GlassTemplate, ScriptedEngine

CONTEXT = 4_000_000
"""A token is a byte here, and some agents begin with a long text of their own."""


class Obedient(ScriptedEngine):
    """Takes any grammar, since its script says what it says: some frameworks ask for a call in every turn."""

    async def check_grammar(self, grammar: str) -> None:
        del grammar


def told(call: Call, paths: Paths, template: GlassTemplate) -> dict[str, Any]:
    """A recorded call for the judge: its first sample is the only one."""
    sample = call.samples[0] if call.samples else None
    prompt = paths.ids(call.prompt_node)
    return {
        "wire": call.wire,
        "status": call.status.value,
        "branch": call.branch,
        "error": call.error,
        "prompt": prompt,
        "prompt_text": template.decode(prompt),
        "whole": paths.ids(sample.node) if sample else [],
        "given_ids": [call.id for call in sample.message.tool_calls] if sample else [],
    }


def leaves(nodes: list[Node]) -> int:
    return len({node.id for node in nodes} - {node.parent for node in nodes})


async def report(visit: Visit, template: GlassTemplate) -> dict[str, Any]:
    usage = await visit.end()
    nodes = await visit.nodes()
    calls = sorted(await visit.calls(), key=lambda call: call.index)
    return {
        "calls": [told(call, Paths(nodes), template) for call in calls],
        "leaves": leaves(nodes),
        "incomplete": usage.incomplete,
    }


async def serve(folder: Path, answer: Callable[[str, SampleRequest], str] = lambda prompt, _: says(prompt)) -> None:
    store = open_store(f"sqlite:///{folder / 'record.db'}")
    await store.create_run(RunRecord("run", "run", str(folder), RunStatus.RUNNING, {}, 0.0))
    template = GlassTemplate(shows_ids=True)
    engine = Obedient(template, answer=answer, context_length=CONTEXT)
    gateway = Gateway(store, {"main": Served("main", engine, template)}, GatewayConfig(orphan_grace=5, drain=1))
    await gateway.start()
    house = House(store, engine, template, gateway)
    visits: dict[str, Visit] = {}
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            if name := asked.get("open"):
                visits[name] = visit = await house.open(sampling=SamplingConfig(max_tokens=16_384))
                reply: dict[str, Any] = {
                    "base_url": visit.endpoint.base_url,
                    "root_url": visit.endpoint.root_url,
                    "key": visit.endpoint.key,
                }
            else:
                reply = await report(visits.pop(asked["close"]), template)
            print(json.dumps(reply), flush=True)
    finally:
        await house.close()
        await store.close()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="agl-frameworks-") as folder:
        asyncio.run(serve(Path(folder)))


if __name__ == "__main__":
    main()
