"""What the local engine's speed is claimed with: decode tokens/s beside ``model.generate`` in the same process,
alternating; time to first token while others decode; prefix reuse of second turns.

    python benchmarks/engine.py [--model DIR] [--dtypes float32 bfloat16] [--device auto] [--rounds 5] [--counts 1 8 32]
    [--tokens 64] [--threads N]

Both sides sample at temperature 1, no end token, from the same prompts of differing lengths. ``decode`` counts the
tokens between the moment when every request has its first and the moment when one has its last; ``whole`` counts all
tokens over the whole time, prompts included.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from array import array
from pathlib import Path
from typing import Any, Literal

import torch
from _report import Report, model_folder, options_of
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.engines.models import LoadedModel, load_model
from agentlightning.nouns import SamplingParams
from agentlightning.settings.fields import EngineConfig, ModelConfig

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
        loaded.model.generate(
            ids, attention_mask=mask, generation_config=settings, stopping_criteria=StoppingCriteriaList([clock])
        )  # pyright: ignore
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


async def speed(
    report: Report, name: str, loaded: LoadedModel, engine: LocalEngine, counts: list[int], tokens: int, rounds: int
) -> None:
    vocabulary = loaded.model.config.vocab_size
    for count in counts:
        for round_ in range(-1, rounds):
            prompts = prompts_of(count, vocabulary, seed=1000 * count + round_)
            measured = tokens if round_ >= 0 else 4  # the first only warms up
            ours = await run_engine(engine, prompts, measured)
            theirs = await engine.run_exclusive(lambda p=prompts, n=measured: run_generate(loaded, p, n))
            if round_ >= 0:
                report.add(f"{name}, {count} requests, ours", **ours)
                report.add(f"{name}, {count} requests, generate", **theirs)


async def first_token(
    report: Report, name: str, loaded: LoadedModel, engine: LocalEngine, others: int, rounds: int
) -> None:
    """Seconds to the first token of a request of 100 prompt tokens that arrives while ``others`` decode, beside the
    same alone."""
    vocabulary = loaded.model.config.vocab_size
    loop = asyncio.get_running_loop()

    async def probe(seed: int) -> float:
        prompt = prompts_of(1, vocabulary, seed=seed, shortest=100, longest=100)[0]
        return (
            await engine.sample(SampleRequest("probe", array("i", prompt), SamplingParams(max_tokens=1, seed=1)))
        ).first_token_s

    for round_ in range(rounds):
        background: list[asyncio.Task[Sample]] = []
        started: list[asyncio.Event] = []
        for i, prompt in enumerate(prompts_of(others, vocabulary, seed=77 + round_, longest=80)):
            event = asyncio.Event()
            started.append(event)
            request = SampleRequest(f"b{i}", array("i", prompt), SamplingParams(max_tokens=400, seed=i))
            background.append(loop.create_task(engine.sample(request, lambda _, e=event: e.set())))
        await asyncio.gather(*(e.wait() for e in started))
        beside = await probe(900 + 2 * round_)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await engine.run_exclusive(lambda: None)
        report.add(f"{name}, first token", beside_others_s=beside, alone_s=await probe(901 + 2 * round_), others=others)


async def reuse(report: Report, name: str, loaded: LoadedModel, engine: LocalEngine, conversations: int) -> None:
    """Second turns: the share of the prompt's tokens that a first turn had computed, or could have, which were not
    computed again."""
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

    await asyncio.gather(
        *(one(i, p) for i, p in enumerate(prompts_of(conversations, vocabulary, seed=5, shortest=80, longest=120)))
    )
    report.add(
        f"{name}, second turns", reused_share=reused / reusable, reused=reused, reusable=reusable, prompt_tokens=total
    )


async def measure(report: Report, args: argparse.Namespace, model: str, dtype: Literal["float32", "bfloat16"]) -> None:
    loaded = load_model(ModelConfig(path=model, dtype=dtype, device=args.device))
    engine = LocalEngine(loaded.model, loaded.tokenizer, EngineConfig(slots=max([32, *args.counts])))
    await engine.start()
    await speed(report, dtype, loaded, engine, args.counts, args.tokens, args.rounds)
    await first_token(report, dtype, loaded, engine, 31, args.rounds)
    await reuse(report, dtype, loaded, engine, 8)
    await engine.close()


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="Hugging Face folder; default: SmolLM2-135M-Instruct")
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"], help="of the weights"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per request")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = model_folder(args.model)
    cuda = args.device != "cpu" and torch.cuda.is_available()
    report = Report(
        "engine-cuda" if cuda else "engine",
        model=Path(model).name,
        new_tokens=args.tokens,
        threads=torch.get_num_threads(),
    )
    for dtype in args.dtypes:
        asyncio.run(measure(report, args, model, dtype))
    summary = report.summary()
    ratios = {
        f"{dtype}_{kind}_{count}": summary[f"{dtype}, {count} requests, ours"][kind]["median"]
        / summary[f"{dtype}, {count} requests, generate"][kind]["median"]
        for dtype in args.dtypes
        for kind in ("decode", "whole")
        for count in args.counts
    }
    report.finish(**ratios)


if __name__ == "__main__":
    main()
