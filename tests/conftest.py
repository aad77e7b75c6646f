"""What every test starts from. Fixtures of a room lie in that room's own conftest."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.imports import needs_torch

# Before torch is imported anywhere: the test processes share the cores, and idle threads must not spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Started in the background of a shell a process ignores Ctrl-C, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests share two cores with each other, and what a property test proves is no matter of time.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

HAS_TORCH = find_spec("torch") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    # Of a folder the conftest counts: pytest loads it before it looks at the files.
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    tested = file.name.startswith("test_") or (file.name == "conftest.py" and file.parent != Path(__file__).parent)
    return True if not HAS_TORCH and tested and file.is_file() and needs_torch(file) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if HAS_TORCH:
        return
    tests = Path(__file__).parent
    left_out = [str(path.relative_to(tests)) for path in sorted(tests.rglob("test_*.py")) if needs_torch(path)]
    terminalreporter.write_line(
        f"torch is not installed: {len(left_out)} test files that need it were left out: {', '.join(left_out)}"
    )


@pytest.fixture(autouse=True)
def _no_endpoint_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on, or reaches, an endpoint that the developer's own environment names."""
    for name in (
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "OPENAI_API_KEY",
        "ANTHROPIC_BASE_URL",
        "AGENTLIGHTNING_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("AGL_")]:
        monkeypatch.delenv(name)
