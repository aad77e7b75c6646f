"""Trains AutoGen's assistant to use its calculator.

python examples/autogen_math/train.py
python examples/autogen_math/train.py --debug      # a few rollouts, nothing trained, and all that was recorded
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent import mathematician
from tasks import problems

from agentlightning import GRPO, Trainer
from agentlightning.settings.starters import make


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains an AutoGen assistant with a calculator.")
    parser.add_argument("--model", help="a Hugging Face model folder (default: SmolLM2-135M-Instruct, converted once)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10, help="at most this many")
    parser.add_argument("--val", type=int, default=40, help="held-out problems")
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: three rollouts and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step and two held-out problems")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    if options.small:
        options.steps, options.val = 1, 2
    model = options.model or str(make("smollm2", say))
    trainer = Trainer(
        algorithm=GRPO(group_size=2 if options.small else 8, tasks_per_step=2 if options.small else 4),
        # JSON alone, without tags around it, is what so small a model writes most surely.
        config={"model": {"path": model, "tool_format": "llama3_json"}},
        n_runners=16,
        output_dir=options.output_dir,
        name="autogen_math",
        seed=options.seed,
        steps=options.steps,
        stop_at=0.95,
        learner={"lr": 2e-5},
        sampling={"temperature": 1.0, "max_tokens": 40},
        evaluation={"max_tokens": 40},
    )
    train_tasks, val_tasks = problems(val=options.val, seed=options.seed)
    if options.debug:
        trainer.dev(mathematician, train_tasks)
        return
    result = trainer.fit(mathematician, train_tasks, val_dataset=val_tasks)
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        say(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}")


if __name__ == "__main__":
    main()
