"""Side by side with TRL's GRPOTrainer on the demo's task: wall time from the first step until a step's mean training
reward reaches 0.9.

    python benchmarks/trl_compare.py [--seeds 0 1 2] [--bf16 | --fp32] [--steps 40] [--target 0.9] [--model DIR] [--trl
    JSON] [--trl-python PYTHON]

Both sides: SmolLM2-135M-Instruct, the same prompt, problems and scoring (examples/calculator), 6 problems x 8 rollouts
a step, full fine-tuning, AdamW at 2e-5, gradient norm clipped at 1, clip range 0.2/0.28, no KL term, temperature 1, 32
tokens a turn, at most 3 turns; the same cores and allocator settings, each in a process of its own, alternating.
Loading the model is not counted, and neither side validates.

TRL runs in an environment of its own (.venv-trl, made on demand). Its multi-turn hook is ``rollout_func``: turns are
sampled with the model's own ``generate``, left-padded, the whole batch at once, which on a CPU is faster than TRL's
other backend there (transformers' continuous batching); what the agent adds between turns is masked with ``env_mask``.
Its speed settings are the best found: see ``TRL``. By default it runs in float32 and in bfloat16 autocast, and its
faster median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import Report, model_folder, options_of

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "calculator"
VENV = ROOT / ".venv-trl"
TRL_VERSION = "1.16.0"
TASKS_PER_STEP, GROUP_SIZE, LR = 6, 8, 2e-5
TRL = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "gradient_checkpointing": False}
"""A micro-batch of one group pads least and stays out of fresh memory; checkpointing would forward twice."""
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "16000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}

# --------------------------------------------------------------------------- ours


def run_ours(options: argparse.Namespace) -> dict[str, Any]:
    import asyncio

    from agent import calculator
    from tasks import problems

    from agentlightning import GRPO, Trainer
    from agentlightning.nouns import StepRecord
    from agentlightning.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        result = Trainer(
            algorithm=GRPO(group_size=GROUP_SIZE, tasks_per_step=TASKS_PER_STEP),
            model=options.model,
            n_runners=TASKS_PER_STEP * GROUP_SIZE,
            output_dir=folder,
            seed=options.seed,
            steps=options.steps,
            stop_at=options.target,
            learner={"lr": LR},
            sampling={"temperature": 1.0, "max_tokens": 32},
            progress=False,
        ).fit(calculator, problems(seed=options.seed)[0])

        async def read() -> list[StepRecord]:
            store = open_store(f"sqlite:///{Path(folder) / 'record.db'}", create=False)
            try:
                return await store.steps(result.run_id)
            finally:
                await store.close()

        steps = asyncio.run(read())
    first = steps[0]
    began = first.ended_at - first.metrics["sampling_s"] - first.metrics["training_s"]
    return {"rewards": [step.metrics["reward"] for step in steps], "ended_s": [step.ended_at - began for step in steps]}


# --------------------------------------------------------------------------- TRL


def run_trl(options: argparse.Namespace) -> dict[str, Any]:
    import re

    import torch
    from agent import MAX_CALLS, MAX_TOKENS, PROMPT, calculate, score
    from datasets import Dataset
    from tasks import problems
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        PrinterCallback,
        TrainerCallback,
        set_seed,
    )
    from trl import GRPOConfig, GRPOTrainer

    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tasks = problems(seed=options.seed)[0]
    answers = {task["question"]: task["answer"] for task in tasks}
    end = tokenizer.eos_token_id
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=end,
        pad_token_id=end,
    )

    def sample(rows: list[list[int]]) -> list[list[int]]:
        """One turn for every row, in one batch; each sample ends with its end of turn, if it has one."""
        width = max(map(len, rows))
        ids = torch.tensor([[end] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        model.eval()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, generation_config=settings)[:, width:].tolist()
        model.train()
        return [row[: row.index(end) + 1] if end in row else row for row in out]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        del trainer
        prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
        completions: list[list[int]] = [[] for _ in prompts]
        masks: list[list[int]] = [[] for _ in prompts]
        replies = [""] * len(prompts)
        live = list(range(len(prompts)))
        for turn in range(MAX_CALLS):
            samples = sample([prompt_ids[i] + completions[i] for i in live])
            going_on: list[int] = []
            for i, ids in zip(live, samples, strict=True):
                completions[i] += ids
                masks[i] += [1] * len(ids)
                replies[i] = tokenizer.decode(ids, skip_special_tokens=True)
                asked = re.search(r"<calc>(.*?)</calc>", replies[i], re.DOTALL)
                if asked is not None and turn + 1 < MAX_CALLS:
                    closing = "" if ids[-1] == end else "<|im_end|>"
                    user = f"<|im_start|>user\nResult: {calculate(asked[1])}<|im_end|>\n<|im_start|>assistant\n"
                    glue = tokenizer(f"{closing}\n{user}")["input_ids"]
                    completions[i] += glue
                    masks[i] += [0] * len(glue)
                    going_on.append(i)
            live = going_on
            if not live:
                break
        scores = [score(reply, answers[prompt[-1]["content"]]) for reply, prompt in zip(replies, prompts, strict=True)]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "env_mask": masks,
            "logprobs": None,
            "scores": scores,
        }

    rewards: list[float] = []
    ended: list[float] = []

    class Watch(TrainerCallback):
        began = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.began = time.monotonic()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "reward" in logs:
                rewards.append(logs["reward"])
                ended.append(time.monotonic() - self.began)
                print(
                    f"step {len(rewards)} reward {rewards[-1]:.3f} after {ended[-1]:.1f} s", file=sys.stderr, flush=True
                )
                if rewards[-1] >= options.target:
                    control.should_training_stop = True

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, scores, **_: scores,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(
                [{"prompt": [*PROMPT, {"role": "user", "content": task["question"]}]} for task in tasks]
            ),
            rollout_func=rollout,
            callbacks=[Watch()],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=options.steps,
                num_generations=GROUP_SIZE,
                generation_batch_size=TASKS_PER_STEP * GROUP_SIZE,
                max_completion_length=MAX_CALLS * (MAX_TOKENS + 32),
                learning_rate=LR,
                lr_scheduler_type="constant",
                weight_decay=0.0,
                max_grad_norm=1.0,
                beta=0.0,
                epsilon=0.2,
                epsilon_high=0.28,
                temperature=1.0,
                bf16=options.bf16,
                use_cpu=True,
                seed=options.seed,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **(TRL | json.loads(options.trl)),
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return {"rewards": rewards, "ended_s": ended}


# --------------------------------------------------------------------------- both


def environment() -> Path:
    """The interpreter of TRL's own environment, made the first time, with the same torch and transformers."""
    python = VENV / "bin" / "python"
    if not (VENV / ".ready").exists():
        print(f"making {VENV.name} with TRL {TRL_VERSION} (a few minutes)", flush=True)
        from importlib.metadata import version

        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        packages = [
            f"trl=={TRL_VERSION}",
            *(f"{name}=={version(name).split('+')[0]}" for name in ("torch", "transformers", "openai")),
        ]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, *packages],
            check=True,
        )
        (VENV / ".ready").touch()
    return python


def run_side(python: str | Path, side: str, seed: int, options: argparse.Namespace, *flags: str) -> dict[str, Any]:
    """One training in a process of its own. Returns its rewards and times by step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            str(python), __file__, "--side", side, "--seed", str(seed), "--model", options.model, "--steps",
            str(options.steps),
            "--target", str(options.target), "--trl", options.trl, "--out", str(out), *flags,
        ]  # fmt: skip
        subprocess.run(command, env=os.environ | ENVIRONMENT, check=True)
        return json.loads(out.read_text())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run of both sides each")
    parser.add_argument("--steps", type=int, default=40, help="at most this many")
    parser.add_argument("--target", type=float, default=0.9, help="the mean reward of a step that ends a run")
    parser.add_argument("--model", default="", help="Hugging Face folder; default: SmolLM2-135M-Instruct")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--bf16", action="store_true", help="TRL with bfloat16 autocast alone")
    precision.add_argument("--fp32", action="store_true", help="TRL in float32 alone")
    parser.add_argument("--trl", default="{}", help="further GRPOConfig settings, as JSON")
    parser.add_argument("--trl-python", help="an interpreter that has TRL (default: .venv-trl)")
    parser.add_argument("--side", choices=["ours", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(EXAMPLE))
    if options.side:
        Path(options.out).write_text(json.dumps(run_ours(options) if options.side == "ours" else run_trl(options)))
        return

    options.model = model_folder(options.model)
    python = options.trl_python or environment()
    report = Report(
        "trl_compare",
        trl_version=TRL_VERSION,
        trl_settings=TRL | json.loads(options.trl),
        target=options.target,
        seeds=options.seeds,
    )
    sides = [("ours, float32", sys.executable, "ours", [])]
    sides += [] if options.bf16 else [("TRL, float32", python, "trl", [])]
    sides += [] if options.fp32 else [("TRL, bfloat16 autocast", python, "trl", ["--bf16"])]
    for seed in options.seeds:
        for label, interpreter, side, flags in sides:
            result = run_side(interpreter, side, seed, options, *flags)
            reached = result["rewards"][-1] >= options.target
            report.add(
                label,
                seconds_to_target=result["ended_s"][-1] if reached else f"not in {len(result['rewards'])} steps",
                steps=len(result["rewards"]),
                seconds_per_step=result["ended_s"][-1] / len(result["rewards"]),
                last_reward=result["rewards"][-1],
                seed=str(seed),
                rewards=[round(reward, 3) for reward in result["rewards"]],
            )
    medians = {
        label: figures["seconds_to_target"]["median"]
        for label, figures in report.summary().items()
        if "seconds_to_target" in figures
    }
    theirs = [seconds for label, seconds in medians.items() if label.startswith("TRL")]
    ours = medians.get("ours, float32")
    report.finish(
        share_of_trls_time=ours / min(theirs) if ours and theirs else "not measured: a side did not reach the target"
    )


if __name__ == "__main__":
    main()
