"""Trains the mathematician on this machine.

python examples/agent_framework_math/train.py              # ends at the first step whose mean reward is 0.95
python examples/agent_framework_math/train.py --debug      # a few rollouts, nothing trained, and all that was recorded
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from agent import mathematician
from agent_framework.lab.lightning import AgentFrameworkTracer
from problems import load

from agentlightning import VERL, Trainer
from agentlightning.settings.starters import make


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def config(model: str, *, small: bool, steps: int) -> dict[str, Any]:
    """In verl's names."""
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {"train_batch_size": 2 if small else 4, "max_prompt_length": 4096, "max_response_length": 40},
        "actor_rollout_ref": {
            "model": {"path": model, "use_remove_padding": True, "enable_gradient_checkpointing": True},
            "rollout": {
                "name": "vllm",
                "n": 2 if small else 8,
                "temperature": 0.7,
                "tensor_model_parallel_size": 1,
                "gpu_memory_utilization": 0.7,
                "log_prob_micro_batch_size_per_gpu": 2,
                "multi_turn": {"format": "llama3_json"},
            },
            "actor": {
                "ppo_mini_batch_size": 2 if small else 4,
                "ppo_micro_batch_size_per_gpu": 2,
                "optim": {"lr": 2e-5},
                "use_kl_loss": False,
                "entropy_coeff": 0,
                "clip_ratio_low": 0.2,
                "clip_ratio_high": 0.3,
                "fsdp_config": {"param_offload": True, "optimizer_offload": True},
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": 2, "fsdp_config": {"param_offload": True}},
        },
        "trainer": {
            "n_gpus_per_node": 1,
            "nnodes": 1,
            "val_before_train": True,
            "test_freq": steps,
            "total_training_steps": steps,
            "logger": ["console"],
            "project_name": "examples",
            "experiment_name": "agent_framework_math",
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a mathematician of Agent Framework.")
    parser.add_argument("--model", help="a Hugging Face model folder (default: SmolLM2-135M-Instruct, converted once)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10, help="at most this many")
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: three rollouts and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step and two held-out problems")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    if options.small:
        options.steps = 1
    model = options.model or str(make("smollm2", say))
    trainer = Trainer(
        algorithm=VERL(config(model, small=options.small, steps=options.steps)),
        tracer=AgentFrameworkTracer(),
        n_workers=16,
        seed=options.seed,
        stop_at=0.95,
        output_dir=options.output_dir,
    )
    train, test = load("train"), load("test")
    if options.debug:
        trainer.dev(mathematician, train)
        return
    result = trainer.fit(mathematician, train, val_dataset=test[:2] if options.small else test)
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        say(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}")


if __name__ == "__main__":
    main()
