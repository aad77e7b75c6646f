from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentlightning.store import Store

from .make import opened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store with run ``r`` and four queued rollouts."""
    store = await opened(tmp_path, rollouts=4)
    yield store
    await store.close()
