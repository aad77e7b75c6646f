"""Memory settings: freed memory stays in the process, and the peak is that of the time asked for."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from agentlightning.learning.memory import PeakMemory

CHILD = """
import resource, sys, threading
import torch
from agentlightning.learning.memory import keep_freed_memory
if sys.argv[1] == "tuned":
    assert keep_freed_memory()
def work():
    for _ in range(15):  # the heap grows to what these sizes need
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
def step():
    tensors = [torch.ones(n * 2**18) for n in (1, 8, 40)]  # megabytes
    tensors.append(tensors[2] + tensors[2])
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the settings are those of Linux")
def test_freed_memory_is_used_again_without_asking_the_kernel_for_it_on_any_thread() -> None:
    def faults(mode: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, mode],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        return int(done.stdout)

    assert faults("tuned") * 5 < faults("plain")


def test_the_peak_is_that_of_the_time_since_it_was_asked_for() -> None:
    def use(megabytes: int) -> None:
        with mmap.mmap(-1, megabytes * 2**20) as held:
            held.write(b"x" * len(held))

    use(300)
    peak = PeakMemory()
    low = peak.read()
    use(200)
    assert low + 150 * 2**20 <= peak.read() <= low + 250 * 2**20 + 200 * 2**20
