"""What an agent told of its attempt is listed with its time, its place and what it says, and never sent to the terminal
as control characters."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, Group

from agentlightning.nouns import Attempt, SpanRecord, SpanStatus, Status
from agentlightning.views.told import MOST, told_lines

ATTEMPT = Attempt("a", "r", 1, "x", Status.SUCCEEDED, 0.0, 100.0, 110.0)


def span(
    name: str, kept: dict[str, Any], parent: str | None = None, at: float = 101.0, took: float = 0.0
) -> SpanRecord:
    status = SpanStatus.ERROR if "exception.type" in kept else SpanStatus.OK
    return SpanRecord(name, parent, f"agentlightning.{name}", kept, status, at, at + took)


def shown(*spans: SpanRecord, full: bool = False) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=200).print(Group(*told_lines(ATTEMPT, spans, full=full)))
    return screen.getvalue().rstrip("\n").split("\n")


def test_each_span_is_a_line_below_the_operation_that_it_happened_in() -> None:
    search = {"agentlightning.operation.name": "search", "agentlightning.operation.output": "3"}
    lines = shown(
        span("operation", search, took=2.5),
        span("message", {"agentlightning.message.body": "hello\n\x1b[31mred"}, "operation", at=102.0),
        span("object", {"agentlightning.object.type": "dict", "agentlightning.object.json": '{"a": 1}'}, at=103.0),
        span("annotation", {"seat": 3, "vote": "wolf"}, at=104.0),
        span("exception", {"exception.type": "ValueError", "exception.message": "no"}, at=105.0),
    )
    assert [line.rstrip() for line in lines] == [
        "  told 1.0 s in  operation search 2.5 s  3",
        "    told 2.0 s in  message  hello↵\\x1b[31mred",
        '  told 3.0 s in  object  {"a": 1}',
        "  told 4.0 s in  annotation  seat=3, vote=wolf",
        "  told 5.0 s in  exception  ValueError: no",
    ]


def test_many_spans_are_cut_with_their_number_unless_all_are_asked_for() -> None:
    spans = [span(f"note{i}", {"text": "x"}) for i in range(MOST + 2)]
    assert shown(*spans)[-1] == "  and 2 spans more (--full)" and len(shown(*spans)) == MOST + 1
    assert len(shown(*spans, full=True)) == MOST + 2
    assert shown() == [""]
