"""What the local engine's speed is claimed with: decode tokens/s beside ``model.generate`` in the same process, alternating; time to first token
while others decode; prefix reuse of second turns.

    python benchmarks/engine.py --model DIR [--dtype float32] [--rounds 5] [--counts 1 8 32] [--out FILE]

Both sides sample at temperature 1, no end token, from the same prompts of differing lengths. ``decode`` counts the tokens between the moment when
every request has its first and the moment when one has its last; ``whole`` counts all tokens over the whole time, prompts included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import time
from array import array
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from agentlightning.config import EngineConfig, ModelConfig
from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.engines.local import LocalEngine
from agentlightning.models import LoadedModel, load_model
from agentlightning.types import SamplingParams

Prompts = list[list[int]]


def prompts_of(count: int, vocabulary: int, seed: int, shortest: int = 40, longest: int = 160) -> Prompts:
    rng = random.Random(seed)
    return [[rng.randrange(10, vocabulary) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]


class Clock(StoppingCriteria):
    """Notes when each step of ``generate`` has ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if input_ids.is_cuda:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def run_generate(loaded: LoadedModel, prompts: Prompts, tokens: int) -> dict[str, float]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=loaded.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=loaded.device)
    settings = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=tokens, eos_token_id=None, pad_token_id=0
    )
    clock = Clock()
    begin = time.perf_counter()
    with torch.no_grad():
        loaded.model.generate(ids, attention_mask=mask, generation_config=settings, stopping_criteria=StoppingCriteriaList([clock]))  # pyright: ignore
    whole = time.perf_counter() - begin
    decode = len(prompts) * (tokens - 1) / (clock.times[-1] - clock.times[0])
    return {"decode": decode, "whole": len(prompts) * tokens / whole}


async def run_engine(engine: LocalEngine, prompts: Prompts, tokens: int) -> dict[str, float]:
    times: list[list[float]] = [[] for _ in prompts]

    async def one(i: int) -> None:
        request = SampleRequest(str(i), array("i", prompts[i]), SamplingParams(max_tokens=tokens, seed=i))
        await engine.sample(request, lambda _: times[i].append(time.perf_counter()))

    begin = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(len(prompts))))
    whole = time.perf_counter() - begin
    start, end = max(t[0] for t in times), min(t[-1] for t in times)
    between = sum(start < x <= end for t in times for x in t)
    return {"decode": between / (end - start), "whole": len(prompts) * tokens / whole}


async def speed(loaded: LoadedModel, engine: LocalEngine, counts: list[int], tokens: int, rounds: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    vocabulary = loaded.model.config.vocab_size
    for count in counts:
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "generate": []}
        for round_ in range(-1, rounds):
            prompts = prompts_of(count, vocabulary, seed=1000 * count + round_)
            measured = tokens if round_ >= 0 else 4  # the first only warms up
            pair = {"ours": await run_engine(engine, prompts, measured)}
            pair["generate"] = await engine.run_exclusive(lambda p=prompts, n=measured: run_generate(loaded, p, n))
            if round_ < 0:
                continue
            for name, figures in pair.items():
                runs[name].append(figures)
                print(
                    f"  {count:3d} requests, run {round_ + 1} {name:9s} decode {figures['decode']:8.1f} tok/s   whole {figures['whole']:8.1f} tok/s"
                )
        summary: dict[str, Any] = {"runs": runs}
        for kind in ("decode", "whole"):
            ours, theirs = ([r[kind] for r in runs[name]] for name in ("ours", "generate"))
            summary[kind] = {"ours": spread(ours), "generate": spread(theirs), "ratio": statistics.median(ours) / statistics.median(theirs)}
            print(f"{count:3d} requests {kind:6s}: ours {show(ours)}   generate {show(theirs)}   ratio {summary[kind]['ratio']:.2f}")
        results[str(count)] = summary
    return results


async def first_token(loaded: LoadedModel, engine: LocalEngine, others: int, rounds: int) -> dict[str, Any]:
    """Seconds to the first token of a request of 100 prompt tokens that arrives while ``others`` decode, beside the same alone."""
    vocabulary = loaded.model.config.vocab_size
    loop = asyncio.get_running_loop()
    crowded: list[float] = []
    alone: list[float] = []
    for round_ in range(rounds):
        background: list[asyncio.Task[Sample]] = []
        started: list[asyncio.Event] = []
        for i, prompt in enumerate(prompts_of(others, vocabulary, seed=77 + round_, longest=80)):
            event = asyncio.Event()
            started.append(event)
            request = SampleRequest(f"b{i}", array("i", prompt), SamplingParams(max_tokens=400, seed=i))
            background.append(loop.create_task(engine.sample(request, lambda _, e=event: e.set())))
        await asyncio.gather(*(e.wait() for e in started))
        for times in (crowded, alone):
            prompt = prompts_of(1, vocabulary, seed=900 + 2 * round_ + (times is alone), shortest=100, longest=100)[0]
            sample = await engine.sample(SampleRequest("probe", array("i", prompt), SamplingParams(max_tokens=1, seed=1)))
            times.append(sample.first_token_s)
            if times is crowded:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                await engine.run_exclusive(lambda: None)
        print(f"  first token, run {round_ + 1}: {crowded[-1] * 1e3:.0f} ms beside {others} others, {alone[-1] * 1e3:.0f} ms alone")
    return {"others": others, "crowded_s": spread(crowded), "alone_s": spread(alone)}


async def reuse(loaded: LoadedModel, engine: LocalEngine, conversations: int) -> dict[str, float]:
    """Second turns: the share of the prompt's tokens that a first turn had computed, or could have, which were not computed again."""
    vocabulary = loaded.model.config.vocab_size
    rng = random.Random(5)
    reused, reusable, total = 0, 0, 0

    async def one(i: int, prompt: list[int]) -> None:
        nonlocal reused, reusable, total
        first = await engine.sample(SampleRequest(f"{i}.1", array("i", prompt), SamplingParams(max_tokens=16, seed=i)))
        before = prompt + [x for s in first.segments for x in s.token_ids]
        second = before + [rng.randrange(10, vocabulary) for _ in range(16)]
        sample = await engine.sample(SampleRequest(f"{i}.2", array("i", second), SamplingParams(max_tokens=4, seed=i)))
        reused += sample.reused_tokens
        reusable += len(before)
        total += len(second)

    await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts_of(conversations, vocabulary, seed=5, shortest=80, longest=120))))
    print(f"second turns: {reused} of {reusable} reusable prompt tokens reused ({reused / reusable:.1%}); prompts had {total}")
    return {"reused": reused, "reusable": reusable, "prompt_tokens": total, "share": reused / reusable}


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def show(values: list[float]) -> str:
    return f"{min(values):.1f} / {statistics.median(values):.1f} / {max(values):.1f}"


def machine(loaded: LoadedModel) -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        name = next(
            (x.split(":", 1)[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), name
        )
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else None,
        "dtype": str(loaded.dtype),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


async def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    loaded = load_model(ModelConfig(path=args.model, dtype=args.dtype, device=args.device))
    engine = LocalEngine(loaded.model, loaded.tokenizer, EngineConfig(slots=max([32, *args.counts])))
    await engine.start()
    results: dict[str, Any] = {"machine": machine(loaded), "model": Path(args.model).name, "new_tokens": args.tokens}
    print(json.dumps(results))
    results["speed"] = await speed(loaded, engine, args.counts, args.tokens, args.rounds)
    results["first_token"] = await first_token(loaded, engine, 31, args.rounds)
    results["prefix_reuse"] = await reuse(loaded, engine, 8)
    await engine.close()
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face folder or hub id")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", help="write the results here as JSON")
    options = parser.parse_args()
    measured = asyncio.run(main(options))
    if options.out:
        Path(options.out).write_text(json.dumps(measured, indent=1) + "\n")
