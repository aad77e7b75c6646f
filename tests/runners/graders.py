"""Graders as users write them, good and bad. Imported by path, in processes too, so it needs nothing of the tests."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import Any

SEEN: list[int] = []
LIMITS = {"most": 3}
ANSWERS: dict[str, str] = {}
CLIENT = asyncio.Semaphore(1)


def with_alarm(task: Any, output: Any, attempt: Any) -> float:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    signal.alarm(0)
    return 0.5


def with_math_verify(task: Any, output: Any, attempt: Any) -> float:
    from math_verify import parse, verify

    return float(verify(parse("$\\frac{1}{2}$"), parse("The answer is $0.5$")))


def counts(task: Any, output: Any, attempt: Any) -> float:
    """How often this process was asked."""
    SEEN.append(os.getpid())
    print("asked", len(SEEN), "for", attempt.id, "of", attempt.rollout_id, type(attempt.status).__name__)
    return float(len(SEEN))


async def is_async(task: Any, output: Any) -> float:
    """A lock belongs to the loop that it was first waited for on."""
    async with CLIENT:
        first = asyncio.create_task(CLIENT.acquire())
        await asyncio.sleep(0)
    await first
    CLIENT.release()
    return float(output == "x")


def ends(task: str, output: Any, attempt: Any) -> Any:
    """In the way that the task says."""
    print("grading", task, flush=True)
    if task == "os._exit":
        os._exit(7)
    if task == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "sys.exit":
        sys.exit(3)
    if task == "hangs":
        time.sleep(3600)
    if task == "nan":
        return float("nan")
    if task == "none":
        return None
    if task == "stdout":
        sys.stdout = None  # type: ignore[assignment]
    if task == "forks" and os.fork() == 0:
        return 0.0  # this copy must not answer
    return 0.25


def draws(task: Any, output: Any) -> float:
    return random.random()


def knows_key(task: Any, output: Any) -> float:
    return float(
        os.environ.get("OPENAI_API_KEY") == "sk-judge" and os.environ.get("JUDGE_KEY") == "kept-by-agentlightning"
    )


def reads_limits(task: Any, output: Any) -> float:
    return float(_most())


def _most() -> int:
    return LIMITS["most"]


class Judge:
    def __init__(self, bonus: float) -> None:
        self.bonus = bonus

    def __call__(self, task: Any, output: Any, attempt: Any) -> float:
        return self.bonus + os.getpid()

    def method(self, task: Any, output: Any) -> float:
        return self.bonus + os.getpid()


judge = Judge(0.5)


def pid(task: Any, output: Any) -> float:
    return float(os.getpid())


def slow(task: Any, output: Any) -> float:
    """Until all that are asked at once have come."""
    folder = task["folder"]
    open(os.path.join(folder, str(os.getpid())), "w").close()
    until = time.monotonic() + 60
    while len(os.listdir(folder)) < task["together"] and time.monotonic() < until:
        time.sleep(0.01)
    return float(len(os.listdir(folder)))
