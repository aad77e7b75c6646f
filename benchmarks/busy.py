"""What a busy machine costs: the engine and the learner on a quiet machine, beside two and beside six busy processes,
as it was and as it is.

    python benchmarks/busy.py [--model DIR] [--pairs 7] [--seconds 4] [--beside 0 2 6] [--quick]

``before`` is what torch does by itself: as many threads as cores, which spin for long where they wait. ``now`` is what
a run does: spinning is bounded before torch is loaded and hardly any while others want the cores, and the threads, and
the cores that they are bound to, follow what is free. Each side is a process of its own, and they take turns, one at a
time; each works untimed until the other's turn is out of its sight. The busy processes are ended before the next
condition. ``--quick`` takes two pairs of short turns.

Tokens a second: of 8 requests that decode together, and of those that a training step forwards. Aims: on a quiet
machine ``now`` has 0.97 of ``before``; beside two busy processes 0.5, beside six 0.15 of its own quiet pace.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from _report import Report, model_folder, options_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

REQUESTS = 8
SETTLE = 3.0
"""Seconds that a side works before it is timed: as long as it takes to see that the other one has stopped."""
AIMS = {"now_of_before_quiet": 0.97, "beside_2_of_quiet": 0.5, "beside_6_of_quiet": 0.15}


def serve(pipe: Connection, work: str, mode: str, path: str) -> None:
    """A side of one comparison: tokens a second for each (seconds to settle, seconds to time) that comes."""
    from agentlightning.engines.local.thread_count import bound_spinning

    if mode == "now":
        bound_spinning()
    from agentlightning.engines.local.threads import Threads
    from agentlightning.engines.models import load_model
    from agentlightning.settings.fields import ModelConfig

    class ByItself(Threads):
        """As torch comes: all cores, at any load."""

        def adapt(self) -> None:
            pass

    threads = Threads() if mode == "now" else ByItself()
    if work == "learner" and mode == "now":
        threads.enlist()  # it trains on this thread; an engine has its own
    loaded = load_model(ModelConfig(path=path, dtype="float32", device="cpu"), threads)
    measure = (engine if work == "engine" else learner)(loaded, threads)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        pipe.send((measure(*order), threads.count))


def engine(loaded: Any, threads: Any) -> Callable[[float, float], float]:
    from agentlightning.engines.base import SampleRequest
    from agentlightning.engines.local.engine import LocalEngine
    from agentlightning.nouns import SamplingParams
    from agentlightning.settings.fields import EngineConfig

    sampler = LocalEngine(loaded.model, loaded.tokenizer, EngineConfig(), threads=threads)
    asyncio.run(sampler.start())
    rng = random.Random(0)
    prompts = [
        array("i", [rng.randrange(10, loaded.model.config.vocab_size) for _ in range(32)]) for _ in range(REQUESTS)
    ]

    async def decode(settle: float, seconds: float) -> float:
        times: list[list[float]] = [[] for _ in prompts]
        begun, over = asyncio.Event(), asyncio.Event()
        first = 0.0

        def drawn(i: int) -> None:
            nonlocal first
            now = time.perf_counter()
            times[i].append(now)
            if not begun.is_set() and all(times):
                first = now + settle
                begun.set()
            if begun.is_set() and i == 0 and len([t for t in times[0] if t >= first]) > 1 and now - first >= seconds:
                over.set()

        tasks = [
            asyncio.create_task(
                sampler.sample(
                    SampleRequest(str(i), prompt, SamplingParams(max_tokens=1900, seed=i)), lambda _, i=i: drawn(i)
                )
            )
            for i, prompt in enumerate(prompts)
        ]
        await over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await sampler.run_exclusive(lambda: None)
        steps = [t for t in times[0] if t >= first]
        return REQUESTS * (len(steps) - 1) / (steps[-1] - steps[0])

    return lambda settle, seconds: asyncio.run(decode(settle, seconds))


def learner(loaded: Any, threads: Any) -> Callable[[float, float], float]:
    from learner import rollouts, with_logprobs

    from agentlightning.learning.learner import Learner
    from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
    from agentlightning.records.batch import Batch
    from agentlightning.settings.fields import LearnerConfig

    rng, vocabulary = random.Random(0), loaded.model.config.vocab_size
    prompt = [rng.randrange(3, vocabulary) for _ in range(32)]
    batch = with_logprobs(loaded.model, Batch((rollouts(rng, [prompt] * 4, vocabulary, 8, 4),)))
    loaded.model.requires_grad_(True)
    trained = Learner(
        loaded.model, LearnerConfig(lr=1e-6), PolicyGradientLoss(), seed=0, total_steps=10_000, threads=threads
    )
    trained.step(batch)  # memory grows in the first

    def steps(settle: float, seconds: float) -> float:
        began = time.perf_counter()
        while time.perf_counter() - began < settle:
            trained.step(batch)
        began, tokens = time.perf_counter(), 0
        while not tokens or time.perf_counter() - began < seconds:
            tokens += trained.step(batch).forward_tokens
        return tokens / (time.perf_counter() - began)

    return steps


BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
"""Ends also where this program was killed."""


class Busy:
    """Processes that do nothing but compute, for as long as the block runs."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(self._count)]

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def compare(report: Report, work: str, path: str, pairs: int, seconds: float, besides: list[int]) -> dict[str, float]:
    """Both sides of the engine or the learner in all conditions. Returns how ``now`` did against the aims."""
    context = multiprocessing.get_context("spawn")
    sides: dict[str, tuple[Connection, Any]] = {}
    for mode in ("before", "now"):
        mine, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, work, mode, path), daemon=True)
        process.start()
        mine.recv()
        sides[mode] = (mine, process)
    paces: dict[tuple[str, int], list[float]] = {}
    for beside in besides:
        with Busy(beside):
            for number in range(pairs):
                for mode in ("before", "now") if number % 2 else ("now", "before"):
                    sides[mode][0].send((SETTLE, seconds))
                    pace, threads = sides[mode][0].recv()
                    paces.setdefault((mode, beside), []).append(pace)
                    report.add(
                        f"{work}, {f'beside {beside}' if beside else 'quiet'}, {mode}",
                        tokens_per_s=pace,
                        threads=threads,
                    )
    for pipe, process in sides.values():
        pipe.send(None)
        process.join(20)
        process.kill()
    quiet = statistics.median(paces["now", 0])
    reached = {
        "now_of_before_quiet": statistics.median(
            [n / b for n, b in zip(paces["now", 0], paces["before", 0], strict=True)]
        )
    }
    for beside in besides[1:]:
        reached[f"beside_{beside}_of_quiet"] = statistics.median(paces["now", beside]) / quiet
        reached[f"before_beside_{beside}_of_quiet"] = statistics.median(paces["before", beside]) / statistics.median(
            paces["before", 0]
        )
    return reached


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="Hugging Face folder; default: SmolLM2-135M-Instruct")
    parser.add_argument("--pairs", type=int, default=7, help="turns of each side in each condition")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn that are timed, at least")
    parser.add_argument(
        "--beside",
        type=int,
        nargs="+",
        default=[0, 2, 6],
        help="how many busy processes, 0 first; the aims are for two cores",
    )
    parser.add_argument("--quick", action="store_true", help="two pairs, turns of a second")
    options = parser.parse_args()
    pairs, seconds = (2, 1.0) if options.quick else (options.pairs, options.seconds)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        os.environ.pop(name, None)
    path = model_folder(options.model)
    report = Report("busy", model=Path(path).name, pairs=pairs, seconds=seconds, requests=REQUESTS, dtype="float32")
    conclusions: dict[str, Any] = {}
    for work in ("engine", "learner"):
        for name, value in compare(report, work, path, pairs, seconds, options.beside).items():
            conclusions[f"{work}_{name}"] = value
            if name in AIMS:
                conclusions[f"{work}_{name}_reached"] = value >= AIMS[name]
    report.finish(**conclusions)


if __name__ == "__main__":
    main()
