"""A folder with the letters model, once for all whole-program tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import save_letters


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_letters(tmp_path_factory.mktemp("letters") / "model")
