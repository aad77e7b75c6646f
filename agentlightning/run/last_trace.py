"""The trace of this process' latest finished rollout: a place in the record that a Run notes down, and what is read
from there when somebody asks."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentlightning.errors import ConfigError, MissingExtra
from agentlightning.text import at_home
from agentlightning.types import Rollout

if TYPE_CHECKING:
    from agentlightning.records.traces import AttemptTrace
    from agentlightning.views.trace import Decoder, ShownRollout

logger = logging.getLogger("agentlightning")


@dataclass(frozen=True, slots=True)
class _Finished:
    store_url: str
    rollout: Rollout


_finished: list[_Finished] = []
"""The latest one, if any. It belongs to the process, as the question does: programs ask without naming a run."""


def note_finished(store_url: str, rollout: Rollout) -> None:
    """Remembers a rollout that ended. One that never ran has no trace; an older one, which a resumed run finds in its
    record, is not the latest."""
    if rollout.attempt_id is None or (_finished and (_finished[0].rollout.ended_at or 0.0) > (rollout.ended_at or 0.0)):
        return
    _finished[:] = [_Finished(store_url, rollout)]


@dataclass(frozen=True, slots=True)
class LastTrace:
    """One attempt as it is recorded. ``rollout_id`` and ``attempt`` (its number) are what ``agl trace`` takes."""

    view: ShownRollout
    trace: AttemptTrace
    decode: Decoder | None

    @property
    def rollout_id(self) -> str:
        return self.view.rollout.id

    @property
    def attempt(self) -> int:
        return self.trace.attempt.number

    def visualize(self, filename: str | Path = "tree_graph") -> tuple[Path, ...]:
        """Draws the tree, the picture of `agl trace --out`, and returns the files it wrote.

        ``tree_graph`` writes ``tree_graph.svg`` and ``tree_graph.png`` in the working directory; a name that ends with
        .svg or .png writes that one. Without matplotlib there is no PNG: a warning says so, and where it was asked for
        by its ending MissingExtra is raised. Raises ConfigError for a file that cannot be written.
        """
        from agentlightning.views.drawing import write_picture
        from agentlightning.views.tree import draw_tree

        path = at_home(filename)
        picture = draw_tree(self.view, self.trace, self.decode)
        if path.suffix.lower() in (".svg", ".png"):
            return (write_picture(picture, path),)
        svg, png = (path.with_name(path.name + suffix) for suffix in (".svg", ".png"))
        write_picture(picture, svg)
        try:
            return (svg, write_picture(picture, png))
        except MissingExtra as error:
            logger.warning("%s is written and %s is not: %s", svg, png.name, error)
            return (svg,)


def last_trace() -> LastTrace:
    """See agentlightning.tracing."""
    if not _finished:
        raise ConfigError(
            "there is no last trace: no rollout has ended in this process; call it after fit, dev or evaluate, or draw "
            "one of the record: agl trace RUN ROLLOUT"
        )
    # In a thread of its own: the caller may be in a running event loop, as in a notebook.
    with ThreadPoolExecutor(1, "agentlightning-trace") as pool:
        return pool.submit(asyncio.run, _read(_finished[0])).result()


async def _read(finished: _Finished) -> LastTrace:
    from agentlightning.store import open_store
    from agentlightning.views.runs import read_run
    from agentlightning.views.trace import attempt_of, load_decoder, read_rollout

    store = open_store(finished.store_url, create=False)
    try:
        record = await store.get_run(finished.rollout.run_id)
        rollout = await store.get_rollout(finished.rollout.id)
        if record is None or rollout is None:
            raise ConfigError(f"rollout {finished.rollout.id} is no longer in the record {finished.store_url}")
        run = await read_run(store, record)
        view = await read_rollout(store, run, rollout)
    finally:
        await store.close()
    return LastTrace(view, attempt_of(view), load_decoder(run.setting("config", "model", "path")))
