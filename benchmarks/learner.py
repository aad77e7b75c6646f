"""What the learner's layouts cost and save: forward tokens, step time, memory, gradients, and when flat is the cheaper
one.

    python benchmarks/learner.py [--model DIR] [--rounds 5] [--threads N] [--quick]

The batch is what a GRPO step on a tool-using agent gives: 6 tasks x 8 rollouts of two turns, a prompt of 170 tokens
that a group shares, about 40 and 20 sampled tokens with 20 given ones between them. Logprobs are the model's own. Each
way of training is a process of its own, so that its peak is its own; they step in turn, one at a time, and the first
step of each (in which memory grows) is shown apart. ``--quick`` takes two groups.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from _report import Report, model_folder, options_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

WAYS: dict[str, dict[str, Any]] = {
    "tree": {"layout": "tree"},
    "flat": {"layout": "flat"},
    "tree, untuned memory": {"layout": "tree", "memory_tuning": False},
    "tree, gradient checkpointing": {"layout": "tree", "gradient_checkpointing": True},
}


def rollouts(
    rng: random.Random, prompts: Sequence[list[int]], vocabulary: int, first: int = 40, second: int = 20, unit: int = 0
) -> Any:
    """A group with one rollout per prompt."""
    from agentlightning.records.batch import TrainNode, TrainTree

    def ids(about: int) -> array[int]:
        return array("i", [rng.randrange(3, vocabulary) for _ in range(rng.randint(about * 3 // 4, about * 5 // 4))])

    def sampled(tokens: array[int], parent: int, weight: float, unit: int) -> TrainNode:
        return TrainNode(
            parent,
            tokens,
            True,
            {"advantage": array("f", [weight]) * len(tokens)},
            array("f", [0.0]) * len(tokens),
            unit=unit,
        )

    trees: list[TrainTree] = []
    for i, prompt in enumerate(prompts):
        weight = rng.choice((-1.0, 1.0))
        nodes = [
            TrainNode(-1, array("i", prompt), False),
            sampled(ids(first), 0, weight, unit + i),
            TrainNode(1, ids(20), False),
        ]
        trees.append(TrainTree((*nodes, sampled(ids(second), 2, weight, unit + i)), f"{unit + i:04d}"))
    return tuple(trees)


def grpo_batch(groups: int, vocabulary: int, *, prompt: int = 170, first: int = 40, second: int = 20) -> Any:
    from agentlightning.records.batch import Batch

    rng = random.Random(0)
    made = []
    for g in range(groups):
        shared = [rng.randrange(3, vocabulary) for _ in range(prompt)]
        made.append(rollouts(rng, [shared] * 8, vocabulary, first, second, unit=8 * g))
    return Batch(tuple(made))


def with_logprobs(model: Any, batch: Any) -> Any:
    """The batch as this model would have sampled it, from a plain forward of each rollout."""
    import torch

    def recorded(tree: Any) -> Any:
        ids = [token for node in tree.nodes for token in node.token_ids]
        with torch.no_grad():
            logprobs_TV = model(torch.tensor([ids], device=model.device)).logits[0].float().log_softmax(-1)
        at, nodes = 0, []
        for node in tree.nodes:
            places = range(at, at + len(node.token_ids))
            found = array("f", [float(logprobs_TV[t - 1, ids[t]]) for t in places]) if node.sampled else None
            nodes.append(replace(node, logprobs=found))
            at += len(node.token_ids)
        return replace(tree, nodes=tuple(nodes))

    return type(batch)(tuple(tuple(recorded(tree) for tree in group) for group in batch.groups))


def load(path: str, threads: int | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(threads)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def learner(model: Any, **config: Any) -> Any:
    from agentlightning.learning.learner import Learner
    from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
    from agentlightning.settings.fields import LearnerConfig

    model.requires_grad_(True)
    return Learner(model, LearnerConfig(lr=1e-6, **config), PolicyGradientLoss(), seed=0, total_steps=100)


def difference(a: Any, b: Any) -> float:
    """Relative L2 of two gradients."""
    square = sum(float((a.by_name[n].double() - g.double()).square().sum()) for n, g in b.by_name.items())
    return (square / sum(float(g.double().square().sum()) for g in b.by_name.values())) ** 0.5


# --------------------------------------------------------------------------- processes


def work(pipe: Connection, path: str, threads: int | None, config: dict[str, Any]) -> None:
    """One way of training: a step for each batch that comes."""
    trained = learner(load(path, threads), **config)
    pipe.send("ready")
    while (batch := pipe.recv()) is not None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        stats = trained.step(batch)
        after = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(
            (
                stats,
                after.ru_utime - before.ru_utime,
                after.ru_stime - before.ru_stime,
                after.ru_minflt - before.ru_minflt,
            )
        )


def steps(report: Report, path: str, batch: Any, rounds: int, threads: int | None) -> dict[str, Any]:
    """Each way beside the tree, two processes at a time. Returns the first counted stats of each way."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    for way in [way for way in WAYS if way != "tree"]:
        workers = {}
        for name in ("tree", way):
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, path, threads, WAYS[name]), daemon=True)
            process.start()
            mine.recv()
            workers[name] = (mine, process)
        for number in range(rounds + 1):
            for name in ("tree", way) if number % 2 else (way, "tree"):
                pipe = workers[name][0]
                pipe.send(batch)
                stats, user_s, system_s, faults = pipe.recv()
                label = name if number else f"{name}, first step"
                numbers = {
                    "cpu_s": user_s + system_s,
                    "system_s": system_s,
                    "page_faults": faults,
                    "peak_gb": stats.peak_memory / 1e9,
                }
                report.add(label, seconds=stats.seconds, **numbers, tokens_per_s=stats.forward_tokens / stats.seconds)
                found.setdefault(name, stats)
        for pipe, process in workers.values():
            pipe.send(None)
            process.join()
    return found


# --------------------------------------------------------------------------- what needs no time


def prepare(pipe: Connection, path: str, threads: int | None, groups: int) -> None:
    """In a process of its own, whose memory is given back: what needs a model but no clock."""
    model = load(path, threads)
    batch = with_logprobs(model, grpo_batch(groups, model.config.vocab_size))
    pipe.send((batch, gradients(model, batch), choices(model)))


def gradients(model: Any, batch: Any) -> list[tuple[str, dict[str, Any]]]:
    from tests.learning.trees import exact
    from tests.learning.trees import grpo_batch as small_batch
    from tests.learning.trees import with_logprobs as noisy
    from tests.tiny import tiny_model

    def compare(make: Any, of: Any) -> float:
        return difference(*(learner(make(), layout=layout).gradient(of) for layout in ("tree", "flat")))

    label = "gradient, tree against flat, relative L2"
    small = noisy(tiny_model(), small_batch(groups=4, size=8), noise=0.3)
    return [
        (f"{label}, tiny float32", {"difference": compare(tiny_model, small)}),
        (f"{label}, tiny float64", {"difference": compare(lambda: exact(tiny_model()), small)}),
        (f"{label}, float32", {"difference": compare(lambda: model, batch)}),
    ]


def shapes(vocabulary: int) -> Iterator[tuple[str, list[Any]]]:
    """Groups of several kinds, 8 of each."""
    rng = random.Random(1)

    def ids(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    def system(shared: int, own: int) -> list[list[int]]:
        prompt = ids(shared)
        return [prompt + ids(own) for _ in range(8)]

    for name, prompts, first in (
        ("a prompt of 170 tokens, samples of 60", lambda: system(170, 0), 40),
        ("a prompt of 2,000, samples of 60", lambda: system(2000, 0), 40),
        ("a prompt of 170, samples of 500", lambda: system(170, 0), 480),
        ("only 20 tokens of the prompt, samples of 500", lambda: system(20, 150), 480),
        ("nothing", lambda: system(0, 170), 40),
        ("nothing, samples of 500", lambda: system(0, 170), 480),
    ):
        yield name, [rollouts(rng, prompts(), vocabulary, first) for _ in range(8)]


def choices(model: Any) -> list[tuple[str, dict[str, Any]]]:
    """What `auto` takes, group by group, and what attention by blocks changes in that."""
    from agentlightning.learning.forward import cost_of
    from agentlightning.learning.packing import pack
    from agentlightning.records.batch import Batch

    cost, found = cost_of(model), []
    for name, groups in shapes(model.config.vocab_size):
        share: dict[str, float] = {}
        for label, counted in (("flat_share", cost), ("flat_share_without_blocks", replace(cost, block=None))):
            packed = pack(Batch(tuple(groups)), layout="auto", max_row_tokens=8192, cost=counted)
            share[label] = sum(group.layout == "flat" for group in packed.groups) / len(packed.groups)
        tree = pack(Batch(tuple(groups)), layout="tree", max_row_tokens=8192, cost=cost)
        forwarded = sum(block.tokens for group in tree.groups for block in group.blocks)
        share["tokens_of_flat"] = forwarded / sum(group.flat_tokens for group in tree.groups)
        found.append((f"auto, shared: {name}", share))
    return found


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="Hugging Face folder; default: SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each way after its first")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--quick", action="store_true", help="two groups, one round")
    options = parser.parse_args()
    path = model_folder(options.model)
    groups, rounds = (2, 1) if options.quick else (6, options.rounds)
    report = Report(
        "learner",
        model=Path(path).name,
        groups=groups,
        rollouts=8,
        rounds=rounds,
        threads=options.threads,
        dtype="float32",
    )
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=prepare, args=(theirs, path, options.threads, groups), daemon=True)
    process.start()
    batch, *rest = mine.recv()
    process.join()
    for label, values in (entry for entries in rest for entry in entries):
        report.add(label, **values)
    found = steps(report, path, batch, rounds, options.threads)
    spread = report.summary()
    tree, flat = found["tree"], found["flat"]
    report.finish(
        trained_tokens=tree.trained_tokens,
        forward_tokens_tree=tree.forward_tokens,
        forward_tokens_flat=flat.forward_tokens,
        tokens_saved=1 - tree.forward_tokens / flat.forward_tokens,
        speedup_of_tree=spread["flat"]["seconds"]["median"] / spread["tree"]["seconds"]["median"],
        parity_max=max(tree.parity.max, flat.parity.max),
    )


if __name__ == "__main__":
    main()
