"""What an agent told of its attempt, as ``agl show RUN ROLLOUT`` lists it: a line for each span, in the order in which
they began, those within an operation below it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding

from agentlightning.nouns import Attempt, SpanRecord, SpanStatus
from agentlightning.text import clip, duration, one_line, plural
from agentlightning.views.screen import Text

MOST = 50
"""Spans of an attempt that are listed where not all are asked for."""

WORDS = 160
"""Columns of what a span says, at most."""

_SAYS = ("message.body", "object.literal", "object.json", "operation.output")
"""The attributes that say what a span is about, in our own emitters' words."""


def told_lines(attempt: Attempt, spans: Sequence[SpanRecord], *, full: bool = False) -> Iterator[RenderableType]:
    """``full``: all of them, with their texts whole."""
    depth: dict[str, int] = {}
    for span in spans if full else spans[:MOST]:
        depth[span.span_id] = level = depth.get(span.parent_id or "", -1) + 1
        yield Padding(_line(attempt, span, full=full), (0, 0, 0, 2 + 2 * level), expand=False)
    if not full and len(spans) > MOST:
        yield Text(f"  and {plural(len(spans) - MOST, 'span')} more (--full)", style="dim")


def _line(attempt: Attempt, span: SpanRecord, *, full: bool) -> Text:
    took = span.ended_at - span.started_at
    line = Text()
    line.append(f"told {duration(max(0.0, span.started_at - attempt.started_at))} in", style="dim").append("  ")
    line.append(one_line(_name(span)), style="bold red" if span.status is SpanStatus.ERROR else "bold")
    if took > 0:
        line.append(f" {duration(took)}", style="dim")
    text = one_line(_said(span))
    return line.append(f"  {text if full else clip(text, WORDS)}") if text else line


def _name(span: SpanRecord) -> str:
    own = str(span.attributes.get("agentlightning.operation.name") or "")
    kind = span.name.removeprefix("agentlightning.")
    return f"{kind} {own}" if own else kind


def _said(span: SpanRecord) -> str:
    kept = span.attributes
    if "exception.type" in kept:
        return f"{kept['exception.type']}: {kept.get('exception.message', '')}"
    for key in _SAYS:
        if (whole := f"agentlightning.{key}") in kept:
            return str(kept[whole])
    return ", ".join(f"{key}={value}" for key, value in kept.items())
