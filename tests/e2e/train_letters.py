"""A training program to be started, killed and resumed by tests: ``train_letters.py OUTPUT MODEL STEPS [--resume]
[--agent [FILE:]NAME] [--credit JSON] [--set key=value ...]``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from agentlightning import GRPO, Trainer

TASKS = [{"letter": letter} for letter in "abcdefgh"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--agent", default="agent")
    parser.add_argument("--val", action="store_true")
    parser.add_argument("--credit", type=json.loads, default={})
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    settings: dict[str, Any] = {}
    for item in args.set:
        key, _, value = item.partition("=")
        settings[key] = json.loads(value)
    trainer = Trainer(
        algorithm=GRPO(group_size=4, tasks_per_step=8, credit=args.credit),
        model=args.model,
        output_dir=args.output,
        steps=args.steps,
        learner={"lr": 5e-3},
        sampling={"max_tokens": 2},
        evaluation={"max_tokens": 2},
        progress=False,
        **{
            "n_runners": 8,
            "checkpoint": {"save_every": 3},
            "threads": 1,
            "runner": {"isolation": "thread"},
            **settings,
        },
    )
    file, _, name = args.agent.rpartition(":")
    agent = f"{Path(__file__).with_name(file or 'letters_agent.py')}:{name}"
    result = trainer.fit(agent, TASKS, val_dataset=TASKS if args.val else None, resume=args.resume)
    print(
        json.dumps({"status": str(result.status), "checkpoint": str(result.checkpoint), "steps": len(result.history)})
    )


if __name__ == "__main__":
    main()
