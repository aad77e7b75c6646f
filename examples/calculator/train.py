"""The demo: trains the calculator agent with GRPO on this machine and shows what came of it.

python examples/calculator/train.py                      # what `make demo` runs
python examples/calculator/train.py --seed 1 --steps 4
python examples/calculator/train.py --debug              # a few rollouts, nothing trained, and all that was recorded
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from agent import calculator
from tasks import problems

from agentlightning import GRPO, FitResult, Trainer
from agentlightning.settings.starters import make
from agentlightning.store import open_store
from agentlightning.text import printable
from agentlightning.views.trace import load_decoder


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_trainer(model: str, *, seed: int = 0, steps: int = 10, output_dir: str = "runs") -> Trainer:
    """Of up to ``steps`` x 6 problems, 8 rollouts each, until a step's mean reward is 0.95."""
    return Trainer(
        algorithm=GRPO(group_size=8, tasks_per_step=6),
        model=model,
        n_runners=48,
        output_dir=output_dir,
        name="calculator",
        seed=seed,
        steps=steps,
        stop_at=0.95,
        learner={"lr": 2e-5},
        sampling={"temperature": 1.0, "max_tokens": 32},
        evaluation={"max_tokens": 32},
    )


async def conversations(result: FitResult, model: str) -> list[str]:
    """One problem's conversation before and after, as the model saw and wrote it: one that was wrong and became right,
    if there is any."""
    before, after = result.before, result.after
    if before is None or after is None:
        return []
    store, decode = open_store(f"sqlite:///{result.folder.parent / 'record.db'}", create=False), load_decoder(model)
    try:
        pairs = [
            (await store.get_rollout(b), await store.get_rollout(a))
            for b, a in zip(before.rollout_ids, after.rollout_ids, strict=True)
        ]
        scored = [(b, a) for b, a in pairs if b and a and b.reward is not None and a.reward is not None]
        chosen = max(scored, key=lambda pair: (pair[1].reward or 0) - (pair[0].reward or 0), default=())
        texts: list[str] = []
        for rollout in chosen:
            nodes = await store.nodes(rollout.attempt_id or "")
            text = decode([token for node in nodes for token in node.token_ids]) if decode else ""
            # From the problem on: what comes before it is the same prompt every time.
            turns = (
                text[text.rindex(rollout.task["question"]) :]
                .replace("<|im_end|>", "")
                .replace("<|im_start|>", "")
                .strip()
            )
            texts.append(f"(reward {rollout.reward:g})\nuser\n{printable(turns)}")
        return texts
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the calculator agent.")
    parser.add_argument("--model", help="a Hugging Face model folder (default: SmolLM2-135M-Instruct, converted once)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10, help="at most this many")
    parser.add_argument("--val", type=int, default=200, help="held-out problems")
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: three rollouts and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step and two held-out problems")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    if options.small:
        options.steps, options.val = 1, 2
    model = options.model or str(make("smollm2", say))
    trainer = make_trainer(model, seed=options.seed, steps=options.steps, output_dir=options.output_dir)
    train_tasks, val_tasks = problems(val=options.val, seed=options.seed)
    if options.debug:
        trainer.dev(calculator, train_tasks)
        return
    result = trainer.fit(calculator, train_tasks, val_dataset=val_tasks)
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        say(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}")
    for title, text in zip(("before", "after"), asyncio.run(conversations(result, model)), strict=False):
        indented = "\n".join(f"    {line}" for line in text.splitlines() if line)
        print(f"\na conversation {title} {indented.lstrip()}")
    print(
        f"\nevery rollout, token and reward: agl show {result.run_id}; to talk to the trained model: agl chat --model "
        f"{result.checkpoint}"
    )


if __name__ == "__main__":
    main()
