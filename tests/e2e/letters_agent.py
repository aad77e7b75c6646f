"""Agents for the learning task, as a user would write them: plain code with the official client. Failing ones for the
bad-input table.

This file is also run from outside the tests (``agl train tests/e2e/letters_agent.py:agent``), so it imports nothing of
theirs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from openai import OpenAI

from agentlightning import LitAgent, Triplet, emit_reward

_CLIENT = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)


def ask(llm: Any, text: str, **options: Any) -> str:
    client = _CLIENT.with_options(base_url=llm.endpoint)
    options.setdefault("max_tokens", 2)
    reply = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}], **options)
    return reply.choices[0].message.content or ""


def agent(task: dict[str, str], llm: Any) -> float:
    """Answers with a letter; right when it is the one in the task."""
    return float(ask(llm, task["letter"]).startswith(task["letter"]))


def graded(task: dict[str, str], llm: Any) -> float:
    """A quarter for any of the letters that are ever asked for, so that there is something to learn from at the
    start."""
    answer = ask(llm, task["letter"], max_tokens=1)
    return 1.0 if answer == task["letter"] else 0.25 * (answer in set("abcdefgh"))


async def async_agent(task: dict[str, str], llm: Any) -> float:
    """The same in a coroutine that blocks, as careless agents do."""
    return agent(task, llm)


def slow_agent(task: dict[str, str], llm: Any) -> float:
    """Long enough to be killed in the middle."""
    reward = agent(task, llm)
    time.sleep(0.05)
    return reward


def from_environment(task: dict[str, str]) -> float:
    """Knows nothing of any llm: the base URL comes from OPENAI_BASE_URL."""
    client = OpenAI(max_retries=0)
    reply = client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": task["letter"]}], max_tokens=2
    )
    return float((reply.choices[0].message.content or "").startswith(task["letter"]))


def two_turns(task: dict[str, str], llm: Any) -> float:
    client = _CLIENT.with_options(base_url=llm.endpoint)
    messages: list[Any] = [{"role": "user", "content": task["letter"]}]
    right = 0.0
    for _ in range(2):
        message = client.chat.completions.create(model=llm.model, messages=messages, max_tokens=2).choices[0].message
        right += 0.5 * (message.content or "").startswith(task["letter"])
        messages += [message, {"role": "user", "content": task["letter"]}]
    return right


def three_seats(task: dict[str, str], llm: Any) -> float:
    """Three conversations, each with a reward of its own; the whole is worth what the first one said."""
    client = _CLIENT.with_options(base_url=llm.endpoint)
    first = 0.0
    for seat in range(3):
        messages: list[Any] = [{"role": "user", "content": f"{seat} {task['letter']}"}]
        reply = client.chat.completions.create(model=llm.model, messages=messages, max_tokens=2)
        text = reply.choices[0].message.content or ""
        first = float(len(text)) if seat == 0 else first
        emit_reward(sum(map(ord, text)) / 100, call_id=reply.id)
    return first


def triplets(task: dict[str, str], llm: Any) -> list[Triplet]:
    """A recorded call, and two triplets of its own, each with a reward."""
    client = _CLIENT.with_options(base_url=llm.endpoint)
    messages: list[Any] = [{"role": "user", "content": task["letter"]}]
    reply = client.chat.completions.create(
        model=llm.model, messages=messages, max_tokens=2, extra_body={"return_token_ids": True}
    )
    text = reply.choices[0].message.content or ""
    own = [Triplet(prompt={"token_ids": [5, 6]}, response={"token_ids": [7, 8, n]}, reward=float(n)) for n in (9, 10)]
    recorded = Triplet(
        prompt={"token_ids": reply.prompt_token_ids},  # type: ignore[attr-defined]
        response={"token_ids": reply.choices[0].token_ids},  # type: ignore[attr-defined]
        reward=sum(map(ord, text)) / 10,
    )
    return [recorded, *own]


# --------------------------------------------------------------------------- agents that fail


def two_agents(task: dict[str, str], llm: Any) -> float:
    """A program of two agents: one answers, the other is only listened to."""
    reward = graded(task, llm)
    ask(llm, task["letter"], extra_headers={"X-Agent-Name": "listener"})
    return reward


def marks_listener(task: dict[str, str], llm: Any, rollout: Any) -> float:
    """The same program, which says itself, after the calls, who is to be trained."""
    reward = two_agents(task, llm)
    rollout.mark_agent_as_trainable("listener")
    return reward


def marks_nobody(task: dict[str, str], llm: Any, rollout: Any) -> float:
    rollout.mark_agent_as_trainable("lisener")
    return two_agents(task, llm)


class Listens(LitAgent):
    def __init__(self) -> None:
        super().__init__(trained_agents="listen.*")

    def rollout(self, task: dict[str, str], llm: Any) -> float:
        return two_agents(task, llm)


listens = Listens()


def raises(task: dict[str, str], llm: Any) -> float:
    ask(llm, task["letter"])
    raise ValueError("the database is on fire")


def raises_sometimes(task: dict[str, str], llm: Any) -> float:
    reward = agent(task, llm)
    if task["letter"] in "abcd":
        raise ValueError("not these letters")
    return reward


def exits(task: dict[str, str], llm: Any) -> float:
    ask(llm, task["letter"])
    sys.exit(3)


def hangs(task: dict[str, str], llm: Any) -> float:
    ask(llm, task["letter"])
    time.sleep(3600)
    return 1.0


def never_calls(task: dict[str, str], llm: Any) -> float:
    return 1.0


def returns_nothing(task: dict[str, str], llm: Any) -> None:
    ask(llm, task["letter"])


def returns_nan(task: dict[str, str], llm: Any) -> float:
    ask(llm, task["letter"])
    return float("nan")


def returns_infinity(task: dict[str, str], llm: Any) -> float:
    ask(llm, task["letter"])
    return float("inf")


def returns_text(task: dict[str, str], llm: Any) -> str:
    ask(llm, task["letter"])
    return "1.0"


def prints_much(task: dict[str, str], llm: Any) -> float:
    reward = agent(task, llm)
    for _ in range(1000):
        print("x" * 10_000)
    return reward


def leaves_threads(task: dict[str, str], llm: Any) -> float:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return agent(task, llm)


def hundred_calls(task: dict[str, str], llm: Any) -> float:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(llm, task["letter"]))) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(answers) / 100


def prompt_too_long(task: dict[str, str], llm: Any) -> float:
    return float(ask(llm, task["letter"] * 5000) == task["letter"])


def takes_nothing() -> float:
    return 1.0


def takes_unknown(task: dict[str, str], model_server: Any) -> float:
    return 1.0


not_callable = {"agent": 1}
PID = os.getpid()
