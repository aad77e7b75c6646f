from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentlightning.store import Store

from .make import FACTORIES, Factory, opened


@pytest.fixture(params=list(FACTORIES))
def factory(request: pytest.FixtureRequest) -> Factory:
    """Opens stores of one backend."""
    return FACTORIES[request.param]


@pytest.fixture
async def store(tmp_path: Path, factory: Factory) -> AsyncIterator[Store]:
    """A store with run ``r`` and four queued rollouts."""
    store = await opened(tmp_path, 4, factory)
    yield store
    await store.close()
