"""What an example writes down of a real run: `train.py --record` hands the result to ``record``, which keeps it as the
example's ``result.json``, one entry for each seed, with the machine and the versions.

It also keeps a fingerprint of the example's files. `make test` compares it: once a file has changed the result is not
the example's any more, and has to be recorded again.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlightning import FitResult

ALWAYS = ("agentlightning", "torch", "transformers")
"""Packages whose versions are recorded besides those that ``requirements.txt`` names."""


def fingerprint(example: Path) -> str:
    """Of all files of an example but its result and what running it leaves behind, by name and content."""
    digest = blake2b(digest_size=16)
    for path in _files(example):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(example).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def record(example: Path, result: FitResult, *, seed: int) -> Path:
    """Writes a finished run into the example's ``result.json`` and returns its path. Runs of other seeds stay there if
    they were made with the same files."""
    path = example / "result.json"
    mark = fingerprint(example)
    kept: list[dict[str, Any]] = []
    if path.is_file():
        earlier = json.loads(path.read_text())
        kept = [run for run in earlier["runs"] if earlier["fingerprint"] == mark and run["seed"] != seed]
    runs = sorted([*kept, _run(example, result, seed)], key=lambda run: run["seed"])
    path.write_text(json.dumps({"fingerprint": mark, "runs": runs}, indent=1) + "\n")
    return path


def _run(example: Path, result: FitResult, seed: int) -> dict[str, Any]:
    ledger = result.ledger.check()
    return {
        "seed": seed,
        "arguments": _arguments(sys.argv[1:]),
        "before": _score(result.before),
        "after": _score(result.after),
        "curve": [round(line["reward"], 4) for line in result.history],
        "tokens": {"sampled": ledger.sampled, "trained": ledger.trained},
        "seconds": round(sum(result.seconds.values())),
        "day": time.strftime("%Y-%m-%d"),
        "machine": _machine(),
        "versions": _versions(example),
    }


def _arguments(words: list[str]) -> list[str]:
    """What the program was called with, without where it wrote to and where its model lies."""
    told: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if before == "--model":
            told.append(Path(word).name)
        elif word not in ("--record", "--output-dir") and before != "--output-dir":
            told.append(word)
    return told


def _score(evaluation: Any) -> dict[str, Any] | None:
    """A validation: its mean with the 95% interval, and how many rollouts it is over."""
    if evaluation is None:
        return None
    low, high = evaluation.low, evaluation.high
    interval = None if low is None or high is None else [round(low, 4), round(high, 4)]
    return {"mean": round(evaluation.mean, 4), "interval": interval, "rollouts": evaluation.rollouts}


def _machine() -> dict[str, Any]:
    import torch

    cpu = re.search(r"model name\s*: (.*)", _text("/proc/cpuinfo"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"system": platform.system(), "cpu": cpu[1] if cpu else platform.machine(), "cores": cores, "gpu": gpu}


def _versions(example: Path) -> dict[str, str]:
    named = re.findall(r"^([\w.-]+)", _text(example / "requirements.txt"), re.MULTILINE)
    found = {"python": platform.python_version()}
    for name in dict.fromkeys((*ALWAYS, *named)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # what another platform needs
            continue
    return found


def _text(path: str | Path) -> str:
    return Path(path).read_text(errors="replace") if Path(path).is_file() else ""


def _files(example: Path) -> Iterator[Path]:
    for path in sorted(example.rglob("*")):
        parts = path.relative_to(example).parts
        left_behind = any(part in ("runs", "__pycache__") or part.startswith(".") for part in parts)
        if path.is_file() and not left_behind and parts != ("result.json",):
            yield path
