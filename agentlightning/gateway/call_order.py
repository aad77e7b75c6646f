"""In which order calls that are open at once are sampled, where a run has to repeat itself to the bit.

Belongs to the gateway's event loop. Knows nothing of what a call asks for.
"""

from __future__ import annotations

import asyncio

Order = tuple[int, int, int, int, int]
"""A sample's place in a run: group, index of the rollout, attempt, call, sample."""


class CallOrder:
    """Lets one through at a time, and of those that wait the one whose place comes first."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: dict[asyncio.Future[None], Order] = {}

    async def enter(self, place: Order) -> None:
        if not self._busy:
            self._busy = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = place
        try:
            await future
        except asyncio.CancelledError:
            if self._waiting.pop(future, None) is None:  # it had been let through already
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            future = min(self._waiting, key=self._waiting.__getitem__)
            del self._waiting[future]
            if not future.done():
                future.set_result(None)
                return
        self._busy = False
