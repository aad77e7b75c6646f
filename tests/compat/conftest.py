"""What programs of other surfaces are run with: a served model in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_serving import Served, start
from tests.imports import ROOT
from tests.tiny import save_letters, save_tiny


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_letters(tmp_path_factory.mktemp("letters") / "model")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`agl serve` of the tiny model."""
    place = tmp_path_factory.mktemp("served")
    save_tiny(place / "tiny")
    one = start(place, "tiny", "--port", "0")
    yield one
    one.end()


@pytest.fixture
def surroundings(served: Served) -> Callable[..., dict[str, str]]:
    """The environment of a program that knows the served model as THEIRS, with its key in THEIR_KEY, and no other."""

    def make(**more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
        theirs = {"THEIRS": served.variables["OPENAI_BASE_URL"], "THEIR_KEY": served.variables["OPENAI_API_KEY"]}
        return {**kept, **theirs, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}

    return make
