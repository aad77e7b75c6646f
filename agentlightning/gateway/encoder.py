"""Encoder: tokenises beside the event loop what the calls that are open at once have to tokenise.

A tokenizer works outside the interpreter's lock, so what it does for many calls takes another core's time while the
loop goes on. Knows nothing of calls, trees and sessions.
"""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agentlightning.templates.base import Template

AT_ONCE = 16_384
"""Characters that the event loop tokenises itself: some milliseconds."""


@dataclass(slots=True)
class _Text:
    template: Template
    text: str
    start: bool
    ids: asyncio.Future[array[int]]


class Encoder:
    """One per event loop. A short text that is alone is tokenised at once; those that come while others are being
    tokenised wait and then go together."""

    def __init__(self) -> None:
        self._waiting: list[_Text] = []
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "agl-encoder")

    async def encode(self, template: Template, text: str, *, start: bool) -> array[int]:
        """As ``template.encode``."""
        loop = asyncio.get_running_loop()
        asked = _Text(template, text, start, loop.create_future())
        self._waiting.append(asked)
        if not self._busy and len(self._waiting) == 1:
            loop.call_soon(self._next)
        return await asked.ids

    def close(self) -> None:
        """Lets the thread end. What waits for it is not answered any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        texts, self._waiting = self._waiting, []
        if len(texts) == 1 and len(texts[0].text) <= AT_ONCE:  # handing it over would take longer
            _answer(texts, _encode(texts))
        elif texts:
            self._busy = True
            asyncio.get_running_loop().run_in_executor(self._thread, _encode, texts).add_done_callback(
                lambda done: self._done(texts, done)
            )

    def _done(self, texts: list[_Text], done: asyncio.Future[list[array[int] | Exception]]) -> None:
        self._busy = False
        if not done.cancelled():
            _answer(texts, done.result())
        self._next()


def _encode(texts: list[_Text]) -> list[array[int] | Exception]:
    """The ids of each text, or why there are none."""
    found: list[array[int] | Exception] = []
    at = 0
    while at < len(texts):
        template = texts[at].template
        until = at + 1
        while until < len(texts) and texts[until].template is template:
            until += 1
        try:
            found += template.encode_all([(each.text, each.start) for each in texts[at:until]])
        except Exception as error:  # noqa: BLE001 - each of those who wait gets it
            found += [error] * (until - at)
        at = until
    return found


def _answer(texts: list[_Text], found: list[array[int] | Exception]) -> None:
    for asked, ids in zip(texts, found, strict=True):
        if asked.ids.done():  # its call was withdrawn
            continue
        if isinstance(ids, Exception):
            asked.ids.set_exception(ids)
        else:
            asked.ids.set_result(ids)
