"""An agent that has its answer judged by somebody else's model: plain code with the official client, one endpoint for
both.

It is imported in processes of its own, so it imports nothing of the tests. What it can see of keys it writes down,
where its task says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from openai import OpenAI

AT_IMPORT = os.environ.get("JUDGE_KEY", "unset")
"""As a careless module reads it."""


def judged(task: dict[str, str], llm: Any, resources: Any) -> float:
    judge = resources["judge"]
    if "seen" in task:
        everything = {
            "environment": dict(os.environ),
            "inherited": Path("/proc/self/environ").read_bytes().decode("utf-8", "replace"),
            "at_import": AT_IMPORT,
            "judge": vars(judge),
            "resources": repr(resources),
            "task": task,
        }
        Path(task["seen"]).write_text(json.dumps(everything))
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        asked: list[Any] = [{"role": "user", "content": task["letter"]}]
        reply = client.chat.completions.create(model=llm.model, messages=asked, max_tokens=1)
        answer = reply.choices[0].message.content or ""
    with OpenAI(
        base_url=judge.endpoint, api_key=judge.api_key, max_retries=0, timeout=float(task.get("patience", 60))
    ) as client:
        asked = [{"role": "user", "content": f"Is {answer!r} good?"}]
        events = client.chat.completions.create(model=judge.model, messages=asked, stream=True)
        verdict = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    return float(verdict) if answer == task["letter"] else 0.25 * (answer in set("abcdefgh"))
