"""External models in the dev report: which there are, how often each was called, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentlightning.text import plural, printable

if TYPE_CHECKING:
    from agentlightning.records.attempts import AttemptReport


@dataclass(frozen=True, slots=True)
class ExternalLine:
    """An external model by its name in the resources; ``model`` is its true name. Tokens are what its endpoint
    reports."""

    name: str
    model: str
    calls: int
    failed: int
    rollouts: int
    prompt_tokens: int
    reply_tokens: int


def list_external(reports: Sequence[AttemptReport], models: Mapping[str, str]) -> list[ExternalLine]:
    """Those of the resources, called or not. ``models`` are their true names by their names in the resources."""
    lines: list[ExternalLine] = []
    for name, model in models.items():
        used = [(report.rollout.id, report.usage.external[name]) for report in reports if name in report.usage.external]
        lines.append(
            ExternalLine(
                name,
                model,
                sum(use.calls for _, use in used),
                sum(use.failed for _, use in used),
                len({rollout for rollout, _ in used}),
                sum(use.prompt_tokens for _, use in used),
                sum(use.reply_tokens for _, use in used),
            )
        )
    return lines


def external_lines(external: Sequence[ExternalLine]) -> Iterable[tuple[str, str]]:
    """Lines with their style."""
    if not external:
        return
    yield "", ""
    yield "bold", f"{plural(len(external), 'external model')}, recorded as given and never trained:"
    for line in external:
        failed = f", {line.failed} failed" if line.failed else ""
        tokens = (
            f", {line.prompt_tokens:,} -> {line.reply_tokens:,} tokens as its endpoint counts them"
            if line.calls
            else ""
        )
        called = f"{plural(line.calls, 'call')} in {plural(line.rollouts, 'rollout')}" if line.calls else "not called"
        yield "", printable(f"  {line.name} ({line.model}): {called}{failed}{tokens}")
