"""Policies: trainable models as a run sees them, behind the port of algorithms/ports.py. What samples and what learns
is named in here alone.

A layout says where the two are; ``LAYOUTS`` has them all. This module loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentlightning.errors import ConfigError
from agentlightning.spellings.nearest import nearest

if TYPE_CHECKING:
    from agentlightning.policies.base import OpenedPolicy

LAYOUTS = {"shared": "agentlightning.policies.shared:SharedPolicy"}
"""By the setting ``layout``, the class that opens it: module and name."""


def check_layout(layout: str) -> None:
    """Raises ConfigError for a layout that there is not."""
    if layout not in LAYOUTS:
        meant = nearest(layout, {each: each for each in LAYOUTS})
        hint = f"did you mean {meant[0]}?" if meant else f"there is {', '.join(LAYOUTS)}"
        raise ConfigError(f"layout={layout!r} is not known: {hint}")


def layout_class(layout: str) -> type[OpenedPolicy]:
    """Loads torch. Raises ConfigError for a layout that there is not."""
    check_layout(layout)
    module, _, name = LAYOUTS[layout].partition(":")
    return getattr(import_module(module), name)
