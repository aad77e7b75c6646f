"""Metrics: what a run shows and leaves behind. Its file of lines, TensorBoard events, the live view, the learning curve, intervals.

Everything here watches; nothing here changes what a run does. Loaded lazily: rich, matplotlib and tensorboard only where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentlightning.metrics.intervals import mean_interval, wilson_interval
from agentlightning.metrics.progress import Progress, SilentView

if TYPE_CHECKING:
    from agentlightning.metrics.choice import make_progress
    from agentlightning.metrics.curve import plot
    from agentlightning.metrics.guard import guarded
    from agentlightning.metrics.live import LiveView
    from agentlightning.metrics.plain import PlainView
    from agentlightning.metrics.writer import MetricsWriter

_WHERE = {
    "plot": "agentlightning.metrics.curve",
    "guarded": "agentlightning.metrics.guard",
    "LiveView": "agentlightning.metrics.live",
    "make_progress": "agentlightning.metrics.choice",
    "PlainView": "agentlightning.metrics.plain",
    "MetricsWriter": "agentlightning.metrics.writer",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


__all__ = [
    "LiveView", "MetricsWriter", "PlainView", "Progress", "SilentView", "guarded", "make_progress", "mean_interval", "plot", "wilson_interval",
]  # fmt: skip
