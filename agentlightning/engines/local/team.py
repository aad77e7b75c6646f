"""A team: a thread with those that OpenMP starts for it, which can be bound together to some of the cores.

Linux alone: elsewhere, or where the user said where OpenMP's threads belong, a team is bound to nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_TASKS = Path("/proc/self/task")
_SAID = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def name_thread(name: str) -> None:
    """Gives the calling thread the name by which the system knows it, which threads that it starts inherit. Raises
    OSError where there is no such thing."""
    (_TASKS / str(threading.get_native_id()) / "comm").write_text(name)


class Team:
    """The thread that makes this, and those that OpenMP starts for it from now on: they inherit the name that it is
    given here."""

    def __init__(self) -> None:
        self._name = f"compute-{threading.get_native_id()}"
        self.bound_to: frozenset[int] | None = None
        """The cores that it was bound to; None before that."""
        self._can = hasattr(os, "sched_setaffinity") and not any(name in os.environ for name in _SAID)
        if self._can:
            try:
                name_thread(self._name)
            except OSError as error:
                self._give_up(error)

    def bind(self, cores: frozenset[int]) -> None:
        """Binds all of the team to these cores; threads that it starts later are bound as it is."""
        if not self._can or cores == self.bound_to:
            return
        try:
            for task in self._members():
                with suppress(ProcessLookupError):  # it has ended since
                    os.sched_setaffinity(task, cores)
        except OSError as error:
            self._give_up(error)
        else:
            self.bound_to = cores

    def _members(self) -> Iterator[int]:
        for task in _TASKS.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (task / "comm").read_text().strip() == self._name:
                    yield int(task.name)

    def _give_up(self, error: OSError) -> None:
        self._can = False
        _log.warning("compute threads are not bound to cores: %s", error)
