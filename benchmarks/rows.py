"""An attempt of 300 rows, as a game of many players leaves it: what limits on rows keep and drop, and what a step takes
against the rows that it trains, in time and memory.

    python benchmarks/rows.py [--model DIR] [--rows 300] [--keep 300 128 64 32 16] [--rounds 5] [--threads N]

Each row is a conversation of its own: a system prompt that all share, a prompt, and a sample with a reward; every tenth
has a prompt four times as long and is longer than `max_row_length`. The attempt is its task's only one, so that all
its calls are compared (`scheme = "call"`). Logprobs are made up, which changes no time. Each number of rows is a
process of its own, so that its peak is its own, and the first step of each (in which memory grows) is shown apart.
Without ``--model`` it is the tests' model of 80 thousand parameters: what is measured is what a row costs besides the
model.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
import time
from array import array
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from _report import Report, options_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SHARED, PROMPT, SAMPLE = 60, 60, 40
"""Tokens of the system prompt, of a row's own prompt, and of its sample."""


def attempt(rows: int, vocabulary: int) -> Any:
    """The group of the one attempt."""
    from agentlightning.nouns import (
        Attempt,
        Call,
        CallStatus,
        FinishReason,
        Message,
        Mode,
        Node,
        Reward,
        Rollout,
        SampleRecord,
        SamplingParams,
        Status,
    )
    from agentlightning.records.traces import AttemptTrace, Group, Trace

    rng = random.Random(0)

    def ids(count: int) -> array[int]:
        return array("i", [rng.randrange(3, vocabulary) for _ in range(count)])

    nodes, calls, rewards = [Node(0, None, False, ids(SHARED), 0)], list[Call](), list[Reward]()
    for index in range(rows):
        prompt = Node(len(nodes), 0, False, ids(PROMPT * (4 if index % 10 == 9 else 1)), index)
        sample = Node(prompt.id + 1, prompt.id, True, ids(SAMPLE), index, array("f", [-5.0] * SAMPLE), version=0)
        nodes += [prompt, sample]
        said = SampleRecord(sample.id, FinishReason.STOP, Message("assistant"))
        calls.append(
            Call(
                f"c{index}", "a", index, "chat", "m", "main", CallStatus.COMPLETE, "new", prompt.id, (said,), {},
                SamplingParams(),
            )
        )  # fmt: skip
        rewards.append(Reward("r", "a", rng.random(), call_id=f"c{index}"))
    held = Attempt("a", "r", 1, "runner", Status.SUCCEEDED, 0.0, 0.0)
    rollout = Rollout("r", "run", {}, Mode.TRAIN, 0, 0, 0, 1, Status.SUCCEEDED, "a", 1.0)
    return Group(0, (Trace(rollout, (AttemptTrace(held, tuple(calls), tuple(nodes), tuple(rewards)),)),))


def load(path: str | None, threads: int | None) -> Any:
    import torch

    if threads:
        torch.set_num_threads(threads)
    if path is None:
        from tests.tiny import tiny_model

        return tiny_model()
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def work(pipe: Connection, path: str | None, threads: int | None, rows: int, keep: int, rounds: int) -> None:
    """Steps over the attempt with ``keep`` of its rows: for each its numbers, then what became of the rows."""
    from agentlightning import GRPO
    from agentlightning.credit import train_batch
    from agentlightning.learning.learner import Learner
    from agentlightning.settings.fields import LearnerConfig

    model = load(path, threads)
    group = attempt(rows, model.config.vocab_size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest = SHARED + PROMPT + SAMPLE
    algorithm = GRPO(group_size=1, credit={"scheme": "call", "max_rows": keep, "max_row_length": longest})
    learner = Learner(model, LearnerConfig(lr=1e-6), algorithm.objective(), seed=0, total_steps=100)
    credited = algorithm.credit_of([group])
    for _ in range(rounds + 1):
        started = time.perf_counter()
        credited = algorithm.credit_of([group])
        batch = train_batch([group], credited.attempts)
        credit_s = time.perf_counter() - started
        cpu = time.process_time()
        stats = learner.step(batch)
        cpu = time.process_time() - cpu
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        pipe.send(
            {
                "credit_s": credit_s,
                "step_s": stats.seconds,
                "step_cpu_s": cpu,
                "forward_tokens": stats.forward_tokens,
                "trained_tokens": stats.trained_tokens,
                "grown_mb": grown / 1024,
            }
        )
    pipe.send({**credited.rows, **{f"masked {reason}": count for reason, count in credited.masked.items()}})


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="Hugging Face folder")
    parser.add_argument("--rows", type=int, default=300, help="rows of the attempt")
    parser.add_argument("--keep", type=int, nargs="+", default=[300, 128, 64, 32, 16], help="max_rows, each in turn")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each after its first")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    options = parser.parse_args()
    name = "the tests' (80 thousand parameters)" if options.model is None else Path(options.model).name
    report = Report("rows", model=name, rows=options.rows, rounds=options.rounds, threads=options.threads)
    context = multiprocessing.get_context("spawn")
    kept: dict[str, Any] = {}
    for keep in options.keep:
        mine, theirs = context.Pipe()
        given = (theirs, options.model, options.threads, options.rows, keep, options.rounds)
        process = context.Process(target=work, args=given, daemon=True)
        process.start()
        for number in range(options.rounds + 1):
            report.add(f"max_rows {keep}{'' if number else ', first step'}", **mine.recv())
        kept[f"max_rows {keep}"] = mine.recv()
        process.join()
    spread = report.summary()
    steps = {keep: spread[f"max_rows {keep}"]["step_cpu_s"]["median"] for keep in options.keep}
    trained = {keep: kept[f"max_rows {keep}"]["kept"] for keep in options.keep}
    most, least = max(options.keep), min(options.keep)
    report.finish(
        **kept,
        cpu_ms_per_further_row=1000 * (steps[most] - steps[least]) / max(1, trained[most] - trained[least]),
        mb_at_most_rows=spread[f"max_rows {most}"]["grown_mb"]["max"],
        mb_at_least_rows=spread[f"max_rows {least}"]["grown_mb"]["max"],
    )


if __name__ == "__main__":
    main()
