"""Agents that return triplets they built themselves: of their own calls, with the token ids of the replies, and of none.

Run from outside the tests too (train_letters.py), so it imports nothing of theirs.
"""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from agentlightning import Triplet

_CLIENT = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)


def ask(llm: Any, history: list[Any]) -> tuple[list[int], list[int], str]:
    """The token ids of the prompt and of the reply, and its text."""
    reply = _CLIENT.with_options(base_url=llm.endpoint).chat.completions.create(
        model=llm.model, messages=history, max_tokens=2, extra_body={"return_token_ids": True}
    )
    sampled: Any = reply.choices[0]
    given: Any = reply
    return given.prompt_token_ids, sampled.token_ids, sampled.message.content or ""


def triplet(prompt: list[int], response: list[int], reward: float | None, agent: str = "player") -> Triplet:
    return Triplet(
        prompt={"token_ids": prompt}, response={"token_ids": response}, reward=reward, metadata={"agent_name": agent}
    )


def worth(answer: str, letter: str) -> float:
    return 1.0 if answer[:1] == letter else 0.25 * (answer[:1] in set("abcdefgh"))


def turns(task: dict[str, Any], llm: Any) -> list[Triplet]:
    """Two turns, each with a reward of its own, and a move that nobody sampled."""
    history: list[Any] = [{"role": "user", "content": task["letter"]}]
    made: list[Triplet] = []
    for _ in range(2):
        prompt, response, answer = ask(llm, history)
        made.append(triplet(prompt, response, worth(answer, task["letter"])))
        history += [{"role": "assistant", "content": answer}, {"role": "user", "content": task["letter"]}]
    return [*made, triplet(made[0].prompt["token_ids"], [5, 6, 7], -1.0, "book")]


def own_calls(task: dict[str, Any], llm: Any) -> list[Triplet]:
    """One call, given back as it came."""
    prompt, response, answer = ask(llm, [{"role": "user", "content": task["letter"]}])
    return [triplet(prompt, response, worth(answer, task["letter"]))]


def hundreds(task: dict[str, Any], llm: Any) -> list[Triplet]:
    """Two hundred calls of one task and a hundred moves off the record, each with its own reward."""
    made: list[Triplet] = []
    for turn in range(200):
        prompt, response, _ = ask(llm, [{"role": "user", "content": "abcdefgh"[turn % 8]}])
        made.append(triplet(prompt, response, float(turn % 3)))
    off = [
        triplet(each.prompt["token_ids"], [5, 6, 7 + i % 8], float(i % 2), "book") for i, each in enumerate(made[:100])
    ]
    return made + off


def retokenised(task: dict[str, Any], llm: Any) -> list[Triplet]:
    """As one does who tokenises the reply's text again, with another tokenizer."""
    prompt, response, _ = ask(llm, [{"role": "user", "content": task["letter"]}])
    return [triplet(prompt, [*response, response[0]], 0.5)]


def nothing(task: dict[str, Any], llm: Any) -> list[Triplet]:
    ask(llm, [{"role": "user", "content": task["letter"]}])
    return []
