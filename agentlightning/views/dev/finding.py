"""A finding of the dev report: one thing that is in the agent's way, or worth knowing, with its cause and what to do.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from agentlightning.text import plural, printable

Level = Literal["blocks", "warns", "notes"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that keeps the agent from being trained (``blocks``), makes training worse (``warns``), or is worth
    knowing (``notes``)."""

    level: Level
    title: str
    cause: str
    remedy: str
    rollouts: tuple[str, ...] = ()
    detail: str = ""


_STYLES: Mapping[Level, str] = {"blocks": "bold red", "warns": "bold yellow", "notes": "bold"}


def finding_lines(number: int, finding: Finding, total: int) -> Iterable[tuple[str, str]]:
    """Lines with their style. ``total`` is how many rollouts ran."""
    where = f" ({len(finding.rollouts)} of {plural(total, 'rollout')})" if finding.rollouts else ""
    yield "", ""
    label = {"blocks": "", "warns": "Warning: ", "notes": "Note: "}[finding.level]
    yield _STYLES[finding.level], f"{number}. {label}{printable(finding.title)}{where}"
    yield "", f"   Cause: {printable(finding.cause)}"
    yield "", f"   Do:    {finding.remedy}"
    for line in finding.detail.splitlines():
        yield "dim", f"   | {printable(line)}"
