"""Trains the agent that writes SQL.

python examples/text_to_sql/train.py --debug                        # a few rollouts, and all that was recorded
python examples/text_to_sql/train.py                                # SmolLM2-135M on questions of counts, on two cores
python examples/text_to_sql/train.py --levels count easy medium hard --model MODEL --max-tokens 256
python examples/text_to_sql/train.py --spider FOLDER --model MODEL    # Spider as it unpacks, or anything in its layout
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import questions
import spider
from agent import SqlAgent

from agentlightning import GRPO, Trainer
from agentlightning.settings.starters import make


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a text-to-SQL agent: write, check, rewrite.")
    parser.add_argument("--model", help="a Hugging Face model folder (default: SmolLM2-135M-Instruct, converted once)")
    parser.add_argument("--spider", type=Path, help="a folder in Spider's layout (default: generated questions)")
    parser.add_argument(
        "--levels", nargs="+", choices=questions.LEVELS, default=["count"], help="of generated questions"
    )
    parser.add_argument("--trained-agents", default="write", help="a name, or what names are searched for")
    parser.add_argument("--max-tokens", type=int, default=24, help="of a query")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6, help="at most this many")
    parser.add_argument("--tasks", type=int, default=3, help="questions a step, each 8 times")
    parser.add_argument("--val", type=int, default=24, help="held-out questions")
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: three rollouts and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step and two held-out questions")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    if options.small:
        options.steps, options.val = 1, 2
    folder = options.spider or questions.write(
        Path(options.output_dir) / "text_to_sql_data", seed=options.seed, levels=tuple(options.levels)
    )
    agent = SqlAgent(options.trained_agents, options.max_tokens)
    trainer = Trainer(
        algorithm=GRPO(group_size=8, tasks_per_step=options.tasks),
        model=options.model or str(make("smollm2", say)),
        n_runners=16,
        output_dir=options.output_dir,
        name="text_to_sql",
        seed=options.seed,
        steps=options.steps,
        stop_at=0.95,
        learner={"lr": 3e-5},
        sampling={"temperature": 0.7, "max_tokens": options.max_tokens},
        evaluation={"max_tokens": options.max_tokens},
    )
    train = spider.load(folder, spider.TRAIN)
    if options.debug:
        trainer.dev(agent, train)
        return
    result = trainer.fit(agent, train, val_dataset=spider.load(folder, spider.VAL)[: options.val])
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        say(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}")
    print(f"every rollout, token and reward: agl show {result.run_id}; the model: {result.checkpoint}")


if __name__ == "__main__":
    main()
