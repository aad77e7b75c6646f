"""Stop: whether a run is to end early, and why."""

from __future__ import annotations

import time

from agentlightning.algorithms.ports import StopRequested


class Stop:
    """Asked for by a signal or a person, or brought about by ``limit`` seconds. The time begins when this is made."""

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._began = time.monotonic()
        self._why: str | None = None

    def request(self, why: str) -> None:
        """Asks the run to save and end. Safe to call from a signal handler."""
        self._why = why

    @property
    def why(self) -> str | None:
        """Why the run is to end early, or None."""
        if self._why is None and self._limit is not None and time.monotonic() - self._began > self._limit:
            self._why = f"max_time of {self._limit:g} s is over"
        return self._why

    def check(self) -> None:
        """Raises StopRequested where it is to end."""
        if (why := self.why) is not None:
            raise StopRequested(why)
