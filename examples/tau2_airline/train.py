"""Trains the assistant of tau2's airline desk.

python examples/tau2_airline/train.py --debug            # a few conversations, nothing trained
python examples/tau2_airline/train.py                    # the reduced form, which a small model on two cores can learn
python examples/tau2_airline/train.py --full --model Qwen/Qwen2.5-1.5B-Instruct \\
    --user-endpoint http://127.0.0.1:8000/v1 --user-model Qwen2.5-7B-Instruct
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent import AirlineAgent
from tasks import tasks

from agentlightning import GRPO, LLM, Trainer
from agentlightning.settings.starters import make


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the assistant of tau2's airline desk.")
    parser.add_argument("--model", help="a Hugging Face folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--full", action="store_true", help="tau2's own policy, tools and scoring: for a GPU")
    parser.add_argument("--user-endpoint", help="where a model plays the user; without it a script does")
    parser.add_argument("--user-model", default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: three conversations and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step and two held-out tasks")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    train_tasks, val_tasks = tasks()
    if options.small:
        options.steps, val_tasks = 1, val_tasks[:2]
    user = {"user_llm": LLM(endpoint=options.user_endpoint, model=options.user_model)} if options.user_endpoint else {}
    trainer = Trainer(
        algorithm=GRPO(group_size=8, tasks_per_step=2 if options.small else 6),
        model=options.model or str(make("smollm2", say)),
        initial_resources=user,
        runner={"isolation": "thread"},  # tau2 and LiteLLM take seconds to import: once for all conversations
        n_runners=8,
        output_dir=options.output_dir,
        name="tau2_airline",
        seed=options.seed,
        steps=options.steps,
        stop_at=0.95,
        learner={"lr": 2e-5},
        sampling={"temperature": 1.0},
    )
    agent = AirlineAgent(full=options.full)
    if options.debug:
        trainer.dev(agent, train_tasks)
        return
    result = trainer.fit(agent, train_tasks, val_dataset=val_tasks)
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        say(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}")


if __name__ == "__main__":
    main()
