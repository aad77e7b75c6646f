"""Two-digit sums, differences and products. Training and held-out problems never overlap; the same seed gives the same
ones.

python examples/calculator/tasks.py FOLDER      # writes train.jsonl and val.jsonl, for `agl train`
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

EXAMPLE = (31, "+", 46)
"""The problem that the agent's prompt gives away."""


def problems(train: int = 600, val: int = 200, seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out problems, e.g. ``{"question": "What is 12 x 34?", "answer": 408}``. There are 24,299 in
    all.

    The held-out problems depend on ``val`` alone, so that runs with different seeds are scored on the same ones.
    """
    every = [(a, op, b) for op in "+-x" for a in range(10, 100) for b in range(10, 100) if (a, op, b) != EXAMPLE]
    held_out = random.Random(0).sample(every, val)
    rest = sorted(set(every) - set(held_out))
    return [_problem(*p) for p in random.Random(seed).sample(rest, train)], [_problem(*p) for p in held_out]


def _problem(a: int, op: str, b: int) -> dict[str, Any]:
    return {"question": f"What is {a} {op} {b}?", "answer": a + b if op == "+" else a - b if op == "-" else a * b}


def write(folder: Path, train: int = 600, val: int = 200, seed: int = 0) -> tuple[Path, Path]:
    """Writes ``train.jsonl`` and ``val.jsonl``, one problem a line, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.jsonl", folder / "val.jsonl"
    for path, tasks in zip(paths, problems(train, val, seed), strict=True):
        path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return paths


if __name__ == "__main__":
    print(*write(Path(sys.argv[1] if len(sys.argv) > 1 else ".")), sep="\n")
