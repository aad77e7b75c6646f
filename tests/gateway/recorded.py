"""Requests that agent frameworks really sent, and what the recorded endpoint answered: distilled ones
(tests/fixtures/wire, made by scripts/distil_wire.py), and the full recordings where they lie beside the repository."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DISTILLED = Path(__file__).resolve().parents[1] / "fixtures" / "wire"
RECORDED = Path(__file__).resolve().parents[3] / "shared" / "facts" / "wire"

Recording = dict[str, Any]
"""``framework``, ``mode``, ``scenario``, ``version``, ``requests`` ({method, path, query, body}) and ``replies``
({status, json})."""


@cache
def distilled() -> list[Recording]:
    return [recording for path in sorted(DISTILLED.glob("*.json")) for recording in json.loads(path.read_text())]


@cache
def recorded() -> list[Recording]:
    """Empty where they are not."""
    paths = sorted(RECORDED.glob("*.json")) if RECORDED.is_dir() else []
    return [json.loads(path.read_text()) for path in paths if path.name != "INDEX.json"]


def fullest() -> list[Recording]:
    """The full recordings, or else the distilled ones."""
    return recorded() or distilled()
