"""The trace of the rollout of a run that ended last, read from the record when somebody asks."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentlightning.errors import ConfigError, MissingExtra
from agentlightning.text import at_home

if TYPE_CHECKING:
    from agentlightning.records.traces import AttemptTrace
    from agentlightning.views.trace import Decoder, ShownRollout

logger = logging.getLogger("agentlightning")


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


def read_last_trace(store_url: str, run_id: str) -> LastTrace:
    """The rollout of a run that ended last; one that never ran, cancelled while it was queued, has no trace.

    Raises ConfigError where none has ended, StoreError where the record cannot be read.
    """
    # In a thread of its own: the caller may be in a running event loop, as in a notebook.
    with ThreadPoolExecutor(1, "agentlightning-trace") as pool:
        return pool.submit(asyncio.run, _read(store_url, run_id)).result()


def none_has_ended() -> ConfigError:
    """The error where there is nothing to show yet."""
    return ConfigError(
        "there is no last trace: no rollout of this Trainer has ended; ask after fit, dev or evaluate, or draw one of "
        "the record: agl trace RUN ROLLOUT"
    )


async def _read(store_url: str, run_id: str) -> LastTrace:
    from agentlightning.store import open_store
    from agentlightning.views.runs import read_run
    from agentlightning.views.trace import attempt_of, load_decoder, read_rollout

    store = open_store(store_url, create=False)
    try:
        record = await store.get_run(run_id)
        if record is None:
            raise ConfigError(f"run {run_id} is no longer in the record {store_url}")
        ended = [each for each in await store.rollouts(run_id) if each.attempt_id is not None and each.ended_at]
        if not ended:
            raise none_has_ended()
        run = await read_run(store, record)
        view = await read_rollout(store, run, max(ended, key=lambda each: each.ended_at or 0.0))
    finally:
        await store.close()
    return LastTrace(view, attempt_of(view), load_decoder(run.setting("config", "model", "path")))
