"""Trains nine players of werewolf that are one model, with a reward for each step, beside another model's seats.

python examples/werewolf/train.py                      # against a scripted player
python examples/werewolf/train.py --days 1             # the reduced form that SmolLM2-135M on two cores can train on
python examples/werewolf/train.py --other http://127.0.0.1:8001/v1 --other-model NAME
python examples/werewolf/train.py --debug              # a few games, nothing trained, and what was recorded
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agent import werewolf
from other import content_of, scripted

from agentlightning import LLM, VERL, Trainer
from agentlightning.settings.starters import make

CONTEXT = 384
"""Tokens of a prompt and its reply: a player's history outgrows them on the first or second day, and is shortened."""


def config(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """In verl's names: a batch of a few games, each played once; all calls of a game are compared with each other."""
    return {
        "algorithm": {"adv_estimator": "grpo"},
        "data": {
            "train_batch_size": options.games, "max_prompt_length": CONTEXT - 16, "max_response_length": 16,
            "seed": options.seed,
        },
        "actor_rollout_ref": {
            "model": {"path": model},
            "rollout": {"name": "vllm", "n": 1, "max_model_len": CONTEXT},
            "actor": {"ppo_mini_batch_size": 32, "optim": {"lr": 5e-5}, "use_kl_loss": False, "entropy_coeff": 0},
        },
        "trainer": {
            "total_training_steps": options.steps, "test_freq": options.steps, "save_freq": -1,
            "project_name": "werewolf", "default_local_dir": options.output_dir, "logger": ["console"],
        },
    }  # fmt: skip


def shorten(messages: list[Any], limit: int, count: Callable[[list[Any]], int]) -> list[Any]:
    """Who a player is, and as much of the end of its history as half the room holds, its question at least."""
    first, rest = messages[:1], messages[1:]
    while len(rest) > 1 and count([*first, *rest]) > limit // 2:
        rest = rest[2:]
    lines = content_of(rest[-1]).splitlines()
    while len(rest) == 1 and len(lines) > 1 and count([*first, *rest]) > limit // 2:
        lines = lines[1:]
        rest = [{**rest[0], "content": "\n".join(lines)}]
    return [*first, *rest]


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains werewolf's players.")
    parser.add_argument("--model", help="a Hugging Face model folder (default: SmolLM2-135M-Instruct, converted once)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--games", type=int, default=2, help="in a step")
    parser.add_argument("--days", type=int, default=3, help="after which nobody has won")
    parser.add_argument("--val", type=int, default=4, help="games before and after, of other seeds")
    parser.add_argument("--other", help="the base URL of the other seats' model (default: a scripted player)")
    parser.add_argument("--other-model", default="other")
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: two games and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step of one game, and one before and after")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    if options.small:
        options.steps, options.games, options.val, options.days = 1, 1, 1, 1
    model = options.model or str(make("smollm2", lambda text: print(text, file=sys.stderr, flush=True)))
    train = [
        {"seed": 1000 * options.seed + game, "days": options.days} for game in range(options.steps * options.games)
    ]
    val = [{"seed": 1000 * options.seed + 500 + game, "days": options.days} for game in range(options.val)]
    with nullcontext(options.other) if options.other else scripted() as other:
        trainer = Trainer(
            algorithm=VERL(config(model, options)),
            resources={"other": LLM(endpoint=other, model=options.other_model, api_key="none")},
            compact=shorten,
            runner={"deadline": 1800},
        )
        if options.debug:
            trainer.dev(werewolf, train, 2)
            return
        result = trainer.fit(werewolf, train, val_dataset=val)
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        print(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}", file=sys.stderr)


if __name__ == "__main__":
    main()
