"""Spans that an agent tells of its attempt: what the body of ``POST /a/KEY/spans`` has to be, and how many are taken.

Only durations travel: a span says how long before it was sent it began and ended, and its times are this machine's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from agentlightning.gateway.request_bodies import readable
from agentlightning.gateway.wires.base import CallError
from agentlightning.nouns import Json, SpanRecord, SpanStatus
from agentlightning.text import plural

MOST_SPANS = 10_000
"""Spans of one attempt that are taken."""

MOST_BYTES = 64 * 2**20
"""Bytes of the bodies, all of an attempt's together, that are taken."""

LONGEST_ID = 64
LONGEST_NAME = 200

_FIELDS = ("span_id", "parent_id", "name", "attributes", "status", "started_ago", "ended_ago")


@dataclass(slots=True)
class TakenSpans:
    """How much one attempt has told so far."""

    count: int = 0
    size: int = 0
    _within: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """By a span's id, when what is told to lie within it began first and ended last."""

    def take(self, spans: Sequence[Json], size: int, now: float) -> list[SpanRecord]:
        """The records of what a body of ``size`` bytes says, at the Unix time ``now``. Raises CallError for what is no
        span, and where it would be too much; then none of them is taken."""
        if self.count + len(spans) > MOST_SPANS:
            raise CallError(
                422,
                f"this attempt has told {plural(self.count, 'span')}, and {MOST_SPANS:,} is the most: these "
                f"{len(spans):,} are not taken",
                code="too_many_spans",
            )
        if self.size + size > MOST_BYTES:
            raise CallError(
                413, f"the spans of an attempt are at most {MOST_BYTES >> 20} MB: these are not taken",
                code="too_many_spans",
            )  # fmt: skip
        records = [self._around(_record(span, place, now)) for place, span in enumerate(spans)]
        self.count, self.size = self.count + len(spans), self.size + size
        return records

    def _around(self, span: SpanRecord) -> SpanRecord:
        """The span, at least as long as what lies within it, which was told before it: each way here takes its own
        time, and by that a span that began at once with its parent would seem to have begun before it."""
        began, ended = self._within.get(span.span_id, (span.started_at, span.ended_at))
        span = replace(span, started_at=min(span.started_at, began), ended_at=max(span.ended_at, ended))
        if span.parent_id is not None:
            first, last = self._within.get(span.parent_id, (span.started_at, span.ended_at))
            self._within[span.parent_id] = min(first, span.started_at), max(last, span.ended_at)
        return span


def _record(span: Json, place: int, now: float) -> SpanRecord:
    if not isinstance(span, dict):
        raise _bad(place, f"is {type(span).__name__}, not an object")
    told = cast("dict[str, Json]", span)
    if unknown := sorted(told.keys() - set(_FIELDS)):
        raise _bad(place, f"has an unknown field {readable(unknown[0])[:80]!r}: a span has {', '.join(_FIELDS)}")
    attributes = told.get("attributes", {})
    if not isinstance(attributes, dict):
        raise _bad(place, f"attributes must be an object, not {attributes!r:.80}")
    status = told.get("status", "unset")
    if status not in tuple(SpanStatus):
        raise _bad(place, f"status must be one of {', '.join(SpanStatus)}, not {status!r:.80}")
    began, ended = _ago(told, "started_ago", place), _ago(told, "ended_ago", place)
    parent = told.get("parent_id")
    return SpanRecord(
        _text(told, "span_id", place, LONGEST_ID),
        None if parent is None else _text(told, "parent_id", place, LONGEST_ID),
        _text(told, "name", place, LONGEST_NAME),
        cast("Mapping[str, Any]", attributes),
        SpanStatus(cast(str, status)),
        now - max(began, ended),
        now - ended,
    )


def _text(told: Mapping[str, Json], name: str, place: int, longest: int) -> str:
    text = told.get(name)
    if not isinstance(text, str) or not text or len(text) > longest:
        raise _bad(place, f"{name} must be a text of 1 to {longest} characters, not {text!r:.80}")
    return readable(text)


def _ago(told: Mapping[str, Json], name: str, place: int) -> float:
    seconds = told.get(name, 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise _bad(place, f"{name} must be seconds, at least 0, not {seconds!r:.80}")
    return float(seconds)


def _bad(place: int, what: str) -> CallError:
    return CallError(422, f"span {place} {what}", param=f"[{place}]")
