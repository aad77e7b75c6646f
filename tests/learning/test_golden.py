"""GRPO's steps on a fixed batch, to the bit: the values were stored before the loss became an objective.

Bits depend on the machine's vector instructions and on torch's version, so elsewhere the same values are compared
within rounding. Written by ``python -m tests.learning.test_golden``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.learning.learner import Learner
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.settings.fields import LearnerConfig
from tests.tiny import tiny_model

from .trees import grpo_batch, with_logprobs

STORED = Path(__file__).parents[1] / "fixtures" / "grpo_steps.json"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token_mean": ({}, {}),
    "sequence_mean": ({"aggregation": "sequence_mean"}, {"minibatches": 2, "epochs": 2}),
    "dr_grpo": (
        {"aggregation": "dr_grpo", "fixed_length": 16},
        {"epochs": 3, "old_logprobs": "recompute", "importance_cap": 1.02},
    ),
    "narrow_clip": ({"clip_low": 0.05, "clip_high": 0.07}, {"epochs": 4, "minibatches": 3, "layout": "flat"}),
}
MEASURED = ("loss", "grad_norm", "entropy", "ratio_mean", "clip_fraction")


def machine() -> dict[str, str]:
    return {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()}


def steps_of(case: str) -> dict[str, Any]:
    """Three steps on one thread: what was measured of each, floats as hex, and the weights they left."""
    loss, settings = CASES[case]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = tiny_model()
        learner = Learner(model, LearnerConfig(lr=1e-3, **settings), PolicyGradientLoss(**loss), seed=7, total_steps=3)
        batches = [
            with_logprobs(model, grpo_batch(groups=3, seed=n), noise=0.1, top_k=5 * (n % 2), seed=n) for n in range(3)
        ]
        steps = [learner.step(batch) for batch in batches]
    finally:
        torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode() + parameter.detach().numpy().tobytes())
    return {
        "steps": [
            {
                name: float({"loss": stats.loss, "grad_norm": stats.grad_norm, **stats.statistics}[name]).hex()
                for name in MEASURED
            }
            for stats in steps
        ],
        "weights": digest.hexdigest(),
        "norm": float(sum(p.detach().double().square().sum() for p in model.parameters())).hex(),
    }


@pytest.mark.parametrize("case", CASES)
def test_grpo_steps_equal_to_the_bit_what_they_were(case: str):
    stored = json.loads(STORED.read_text())
    expected, got = stored["cases"][case], steps_of(case)
    if stored["machine"] == machine():
        assert got == expected
        return
    numbers = [[float.fromhex(value) for step in one["steps"] for value in step.values()] for one in (got, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-5)


if __name__ == "__main__":
    STORED.write_text(
        json.dumps({"machine": machine(), "cases": {case: steps_of(case) for case in CASES}}, indent=1) + "\n"
    )
