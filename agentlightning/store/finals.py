"""Who waits for which rollouts to become final, within this process. Knows nothing of the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager


class Finals:
    """Wakes the waiters of the rollouts that became final, on whatever event loop each waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[asyncio.Event, tuple[asyncio.AbstractEventLoop, frozenset[str]]] = {}

    @contextmanager
    def watch(self, rollout_ids: Iterable[str]) -> Generator[asyncio.Event]:
        """An event of the running loop that is set when one of the rollouts becomes final, or the store closes."""
        event = asyncio.Event()
        with self._lock:
            self._watches[event] = (asyncio.get_running_loop(), frozenset(rollout_ids))
        try:
            yield event
        finally:
            with self._lock:
                del self._watches[event]

    def publish(self, rollout_ids: Iterable[str] | None) -> None:
        """Says that these are final; None wakes everybody. May be called on any thread."""
        ids = None if rollout_ids is None else frozenset(rollout_ids)
        with self._lock:
            woken = [
                (event, loop)
                for event, (loop, watched) in self._watches.items()
                if ids is None or not watched.isdisjoint(ids)
            ]
        for event, loop in woken:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # the loop was closed with its waiter in it: nobody is left to wake
