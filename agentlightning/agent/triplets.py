"""Triplet: a prompt, a response and a reward that an agent built itself, as it may return them. pydantic, since
programs use it as such a model; loaded where the name is first used. What a triplet means is not decided here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = ["Triplet"]


class Triplet(BaseModel):
    """One call as its agent tells it. ``prompt`` and ``response`` may be anything; tokens are
    ``{"token_ids": [...]}``. ``reward`` is this call's own; None where it has none."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
