"""A real IPython kernel, as a notebook has it: runs cells, and tells what each of them showed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[1]
WAIT = 60.0
"""Seconds within which a kernel says something."""


@dataclass
class Cell:
    """What a cell showed. ``displays`` are its rich outputs as they were last, by display id; ``value`` what it
    evaluated to."""

    printed: str = ""
    displays: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    updates: int = 0
    value: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""
    traceback: str = ""
    interrupted: bool = False


class Kernel:
    """Starts in ``folder``; close it."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WAIT)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str, *, interrupt_at: Callable[[Cell], bool] | None = None) -> Cell:
        """Runs a cell to its end. The kernel is interrupted once, as the button does it, when ``interrupt_at`` is true
        of what was shown."""
        cell = Cell()
        request = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return cell
            _note(cell, message["msg_type"], content)
            if interrupt_at is not None and interrupt_at(cell):
                interrupt_at, cell.interrupted = None, True
                self.manager.interrupt_kernel()


def _note(cell: Cell, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        cell.printed += content["text"]
    elif kind in ("display_data", "update_display_data"):
        cell.displays[content.get("transient", {}).get("display_id", str(len(cell.displays)))] = content["data"]
        cell.updates += kind == "update_display_data"
    elif kind == "execute_result":
        cell.value = content["data"]
    elif kind == "error":
        cell.error = f"{content['ename']}: {content['evalue']}"
        cell.traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
