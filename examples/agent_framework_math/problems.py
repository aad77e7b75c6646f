"""The problems, a JSON line each, and how an answer is scored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypedDict

DATA = Path(__file__).with_name("data")


class Problem(TypedDict):
    id: str
    question: str
    result: str


def load(name: str) -> list[Problem]:
    """The problems of ``data/NAME.jsonl``: `train` and `test` have none in common."""
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def score(reply: str, result: str) -> float:
    """1.0 where what stands after ``###`` is the number, else 0.0."""
    said = re.search(r"###\s*(-?[\d,]+)\s*$", reply.strip())
    return float(said is not None and said[1].replace(",", "") == result)
