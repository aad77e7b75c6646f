"""What programs import to build and to be handed: one class each, whichever path it is imported by."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

import agentlightning
from agentlightning import Triplet

NAMES = [
    "LLM",
    "Attempt",
    "Dataset",
    "NamedResources",
    "PromptTemplate",
    "ProxyLLM",
    "Rollout",
    "RolloutConfig",
    "Span",
    "Triplet",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", ["types", "types.core", "types.legacy", "types.resources", "types.tracer"])
def test_a_name_is_the_same_class_at_the_root_and_at_types(name: str, path: str) -> None:
    space: dict[str, object] = {}
    exec(f"from agentlightning.{path} import {name}", space)
    assert space[name] is getattr(agentlightning, name)


@pytest.mark.parametrize(
    ("triplet", "reward"),
    [
        (Triplet(prompt={"token_ids": [1, 2]}, response={"token_ids": [3]}, reward=0.5), 0.5),
        (Triplet(prompt={"token_ids": [1]}, response={"token_ids": [2]}, reward=1), 1.0),
        (Triplet(prompt="text", response=None), None),
        (Triplet(prompt=[], response=[], reward=None, metadata={"agent": "seer"}), None),
    ],
)
def test_a_triplet_is_built_as_programs_build_it(triplet: Triplet, reward: float | None) -> None:
    assert triplet.reward == reward and isinstance(triplet, BaseModel)
    assert Triplet.model_validate(triplet.model_dump()) == triplet


def test_triplets_share_no_metadata_and_refuse_a_reward_that_is_no_number() -> None:
    first, second = Triplet(prompt=1, response=2), Triplet(prompt=1, response=2)
    first.metadata["seat"] = 3
    assert second.metadata == {}
    with pytest.raises(ValidationError, match="reward"):
        Triplet(prompt=1, response=2, reward="much")  # type: ignore[arg-type]


def test_importing_the_package_loads_no_pydantic() -> None:
    program = (
        "import sys, agentlightning as a; a.LLM, a.LitAgent, a.rollout\n"
        "before = 'pydantic' in sys.modules; a.Triplet\n"
        "print(before, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["False", "True"]
