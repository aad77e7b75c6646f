"""Trains the agent that answers questions over a corpus.

python examples/rag/train.py --debug                                  # a few rollouts, and all that was recorded
python examples/rag/train.py                                          # SmolLM2-135M as the reader, on two cores
python examples/rag/train.py --agent searcher --hops 2 --model MODEL  # a model that can call tools looks for itself
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import agent
from corpus import questions

from agentlightning import GRPO, Trainer
from agentlightning.settings.starters import make


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains an agent that answers questions over a corpus.")
    parser.add_argument("--model", help="a Hugging Face model folder (default: SmolLM2-135M-Instruct, converted once)")
    parser.add_argument("--agent", choices=("reader", "searcher"), default="reader", help="searcher has a search tool")
    parser.add_argument("--hops", type=int, choices=(1, 2), default=1, help="2 adds questions that need two searches")
    parser.add_argument("--max-tokens", type=int, default=24, help="of a reply")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8, help="at most this many")
    parser.add_argument("--tasks", type=int, default=4, help="questions a step, each 8 times")
    parser.add_argument("--val", type=int, default=32, help="held-out questions, at most")
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--debug", action="store_true", help="train nothing: three rollouts and what was recorded")
    parser.add_argument("--small", action="store_true", help="one step and two held-out questions")
    parser.add_argument("--record", action="store_true", help="write what came of it into result.json")
    options = parser.parse_args()
    if options.small:
        options.steps, options.val = 1, 2
    train, val = questions(val=options.val, seed=options.seed, hops=options.hops)
    rag = agent.make(options.agent, options.max_tokens)
    trainer = Trainer(
        algorithm=GRPO(group_size=8, tasks_per_step=options.tasks),
        model=options.model or str(make("smollm2", say)),
        n_runners=16,
        output_dir=options.output_dir,
        name="rag",
        seed=options.seed,
        steps=options.steps,
        stop_at=0.95,
        learner={"lr": 3e-5},
        sampling={"temperature": 0.7, "max_tokens": options.max_tokens},
        evaluation={"max_tokens": options.max_tokens},
    )
    if options.debug:
        trainer.dev(rag, train)
        return
    result = trainer.fit(rag, train, val_dataset=val)
    if options.record:
        sys.path.append(str(Path(__file__).parents[1]))
        from recorded import record

        say(f"recorded in {record(Path(__file__).parent, result, seed=options.seed)}")
    print(f"every rollout, token and reward: agl show {result.run_id}; the model: {result.checkpoint}")


if __name__ == "__main__":
    main()
