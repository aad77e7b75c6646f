"""Pace: how many tokens a second, from a count that only grows. Pure: the caller reads the clock."""

from __future__ import annotations

from collections import deque

SPAN = 5.0
"""Seconds that a pace is taken over: short enough to be now, long enough not to jump."""


class Pace:
    """Tokens a second over the last ``SPAN`` seconds in which it was told a count."""

    def __init__(self) -> None:
        self._told: deque[tuple[float, int]] = deque()

    def note(self, now: float, total: int) -> float:
        """Takes the count as it is ``now`` and returns the pace; 0 while there is nothing to compare with."""
        self._told.append((now, total))
        while len(self._told) > 2 and now - self._told[1][0] >= SPAN:
            self._told.popleft()
        since, before = self._told[0]
        return (total - before) / (now - since) if now > since else 0.0
