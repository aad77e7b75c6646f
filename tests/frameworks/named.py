"""Runs a program's agent as a run does, in threads and in processes, and says under which agents' names its calls are
recorded: one JSON object, by isolation, `calls` and `log`.

python -m tests.frameworks.named tests/frameworks/programs/names_autogen.py

It stands where the program's framework is installed, with agentlightning and its core's requirements beside it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentlightning.nouns import Status
from tests.runners.conftest import made


async def names(path: str, isolation: str, folder: Path) -> dict[str, Any]:
    async with made(folder) as world:
        rollouts = await world.run(f"{path}:agent", [{}, {}], isolation=isolation, deadline=60.0, extra_env={})
        calls = {
            tuple(sorted(str(call.agent) for call in await world.store.calls(f"{rollout.id}.1")))
            for rollout in rollouts
        }
        failed = [report.result.failure.message for report in world.reports if report.result.failure is not None]
        logs = [report.stdout[-2000:] for report in world.reports if report.result.status is not Status.SUCCEEDED]
    return {"calls": [list(each) for each in calls], "failed": failed, "log": logs}


async def main(path: str) -> None:
    said: dict[str, Any] = {}
    for isolation in ("process", "thread"):  # threads last: the process from which others are forked stays as it was
        with tempfile.TemporaryDirectory(prefix="agl-names-") as folder:
            said[isolation] = await names(path, isolation, Path(folder))
    print("\nAGL-NAMES " + json.dumps(said), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main(str(Path(sys.argv[1]).resolve())))
