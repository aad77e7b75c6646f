"""Nine players at one table, each with a history of its own that it sends whole. Two of the seats, drawn by the task's
seed, are somebody else's model."""

from __future__ import annotations

import random
from typing import Any

from openai import OpenAI

PLAYERS, CALLS = 9, 300


def seats(seed: int) -> set[int]:
    """Those of the other model: a fifth of nine."""
    return set(random.Random(seed).sample(range(PLAYERS), 2))


def game(task: Any, llm: Any, resources: Any, rollout: Any) -> float:
    others = seats(task["seed"])
    clients = {
        each.model: OpenAI(base_url=each.endpoint, api_key=each.api_key, max_retries=0)
        for each in (llm, resources["other"])
    }
    histories: list[list[Any]] = [
        [{"role": "system", "content": f"You are player {i} of nine."}] for i in range(PLAYERS)
    ]
    for call in range(CALLS):
        player = call % PLAYERS
        model = resources["other"].model if player in others else llm.model
        history = histories[player]
        history.append({"role": "user", "content": f"Round {call // PLAYERS}: what do you say?"})
        reply = clients[model].chat.completions.create(model=model, messages=history, max_tokens=2)
        history.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
    return float(rollout.index)
