"""Decode steps as CUDA graphs: on a GPU a small model's step is mostly the time it takes to launch it, and a graph is
launched at once.

A graph fixes the number of rows and the length it reads, so both are rounded up; what the added rows compute is written
to a spare row and dropped. Where a model cannot be captured (its forward waits for the device, say), steps run as they
are. It may not decide what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from agentlightning.engines.local.cache import SlotCache

Forward = Callable[[slice, torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]

_VIEW_BLOCK = 256
_WORTH_IT = 4
"""Steps of one shape after which it is captured: capturing takes as long as several steps."""


@dataclass(slots=True)
class _Shape:
    """A captured step. ``input_3B`` holds ids, positions and target rows; ``logits_BV`` is overwritten by every
    replay."""

    steps: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    input_3B: torch.Tensor | None = None
    logits_BV: torch.Tensor | None = None


class DecodeGraphs:
    def __init__(self, forward: Forward, device: torch.device) -> None:
        self._forward = forward
        self._device = device
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._generation = -1
        self._pool = torch.cuda.graph_pool_handle()
        self.possible = True
        """False once a capture has failed."""

    def drop(self) -> None:
        """Forgets all graphs: the weights or the rows they read may lie elsewhere now."""
        self._shapes.clear()

    def decode(self, cache: SlotCache, ids: Sequence[int], positions: Sequence[int], view: int) -> torch.Tensor | None:
        """Logits [B, V], valid until the next call, or None where the step is to be run as it is."""
        if not self.possible:
            return None
        if self._generation != cache.generation:
            self._generation = cache.generation
            self.drop()
        rows = min(1 << (len(ids) - 1).bit_length(), cache.rows)
        view = min(-(-view // _VIEW_BLOCK) * _VIEW_BLOCK, cache.tokens)
        shape = self._shapes.setdefault((rows, view), _Shape())
        shape.steps += 1
        if shape.steps < _WORTH_IT:
            return None
        spare = rows - len(ids)
        targets = [*range(len(ids)), *[cache.rows] * spare]
        host_3B = torch.tensor([[*ids, *[0] * spare], [*positions, *[0] * spare], targets])
        if shape.graph is None:
            try:
                self._capture(shape, host_3B.to(self._device), rows, view)
            except RuntimeError:
                self.possible = False
                self.drop()
                torch.cuda.synchronize(self._device)
                return None
        assert shape.graph is not None and shape.input_3B is not None and shape.logits_BV is not None
        shape.input_3B.copy_(host_3B, non_blocking=True)
        shape.graph.replay()
        return shape.logits_BV[: len(ids)]

    def _capture(self, shape: _Shape, input_3B: torch.Tensor, rows: int, view: int) -> None:
        def step() -> torch.Tensor:
            ids_B, positions_B, targets_B = input_3B.unbind()
            return self._forward(slice(0, rows), targets_B[:, None], ids_B[:, None], positions_B[:, None], view)

        aside = torch.cuda.Stream(self._device)
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            step()
        torch.cuda.current_stream(self._device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits_BV = step()
        shape.graph, shape.input_3B, shape.logits_BV = graph, input_3B, logits_BV
