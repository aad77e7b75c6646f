"""The fifty tasks of tau2's airline domain, half to train on and half held out, each carried as a JSON string."""

from __future__ import annotations

from typing import Any

from tau2.domains.airline.environment import get_tasks

from agentlightning import split


def tasks(seed: int = 42) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out tasks, ``{"id": "7", "task": "{...}"}``. The same seed gives the same halves."""
    every = [{"id": task.id, "task": task.model_dump_json()} for task in get_tasks(None)]
    train, held_out = split(every, 0.5, seed=seed)
    return list(train), list(held_out)
