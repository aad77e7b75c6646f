"""Sums, differences and products in words. Training and held-out problems never overlap; the same seed gives the same
ones."""

from __future__ import annotations

import random
import re
from typing import Any

WORDS = {"plus": "+", "minus": "-", "times": "*"}
SHOWN = {(14, "times", 15), (28, "plus", 95), (70, "minus", 86)}
"""The problems that the agent's examples give away."""


def problems(train: int = 400, val: int = 40, seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out problems, e.g. ``{"question": "How much is 12 times 34?", "answer": "408"}``.

    The held-out problems depend on ``val`` alone, so that runs with different seeds are scored on the same ones.
    """
    every = [(a, word, b) for word in WORDS for a in range(10, 100) for b in range(10, 100)]
    every = [each for each in every if each not in SHOWN]
    held_out = random.Random(0).sample(every, val)
    rest = sorted(set(every) - set(held_out))
    return [_problem(*each) for each in random.Random(seed).sample(rest, train)], [_problem(*each) for each in held_out]


def _problem(a: int, word: str, b: int) -> dict[str, Any]:
    answer = {"plus": a + b, "minus": a - b, "times": a * b}[word]
    return {"question": f"How much is {a} {word} {b}?", "answer": str(answer)}


def score(reply: str, answer: str) -> float:
    """Whether a reply that calls nothing ends in the right number; thousands separators do not matter."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3}\b)", "", reply))
    return float("{" not in reply and bool(numbers) and float(numbers[-1]) == float(answer))
