"""Screen: how things are shown through rich. Texts are data there, never markup, and fit the stream's encoding; tables
fit the terminal's width.

A reader that leaves (a closed pipe, a terminal that is gone) ends what is shown and nothing else.
"""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich import text as rich_text
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

from agentlightning.text import encodable, one_line, printable, width

PIPE_WIDTH = 20_000
"""Columns of a pipe: a longer line is folded."""
GAP = 2
"""Columns between those of a table."""
LEFT = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a stream whose reader has left."""


class Text(rich_text.Text):
    """rich's Text with control characters escaped, and, where it is drawn, with escapes for what the terminal's
    encoding lacks."""

    def __init__(self, text: str = "", style: str = "", **options: Any) -> None:
        super().__init__(printable(text), style, **options)

    def append(self, text: rich_text.Text | str, style: Any = None) -> Text:
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self.drawn(options.encoding).__rich_measure__(console, options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Any]:
        return self.drawn(options.encoding).__rich_console__(console, options)

    def drawn(self, encoding: str) -> rich_text.Text:
        """As a stream of that encoding can show it."""
        plain = self.plain
        shown = encodable(plain, encoding)
        if shown == plain:
            return self.copy()
        starts = [0]
        for c in plain:
            starts.append(starts[-1] + len(encodable(c, encoding)))
        text = self.blank_copy(shown)
        text.spans = [
            rich_text.Span(starts[span.start], starts[min(span.end, len(plain))], span.style) for span in self.spans
        ]
        return text


# --------------------------------------------------------------------------- streams


class Stream(io.TextIOBase):
    """Another stream, behind which an encoding error is impossible and the first failed write ends the writing.
    ``failed`` is its error."""

    def __init__(self, real: TextIO) -> None:
        self.real = real
        self.failed: OSError | ValueError | None = None

    def write(self, text: str, /) -> int:
        self._try(lambda: self.real.write(encodable(text, self.encoding)))
        return len(text)

    def flush(self) -> None:
        self._try(self.real.flush)

    def _try(self, act: Any) -> None:
        if self.failed is None:
            try:
                act()
            except (OSError, ValueError) as error:  # a ValueError says that it was closed under us
                self.failed = error

    def isatty(self) -> bool:
        return self.failed is None and not self.real.closed and self.real.isatty()

    def fileno(self) -> int:
        return self.real.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # a plain attribute of the base
        return getattr(self.real, "encoding", None) or "utf-8"


class Nowhere(io.StringIO):
    """What stands for a stream that the process was started without."""

    def write(self, text: str, /) -> int:
        return len(text)


def open_console(stream: TextIO | None = None, **options: Any) -> Console:
    """A console on ``stream`` (stdout), in which no text is markup. In a notebook too it writes there, and shows no
    output of its own."""
    real = stream if stream is not None else sys.stdout if sys.stdout is not None else Nowhere()  # pyright: ignore[reportUnnecessaryComparison]
    file: Any = real if isinstance(real, Stream) else Stream(real)
    return Console(file=file, markup=False, emoji=False, highlight=False, force_jupyter=False, **options)


def show(renderable: RenderableType, stream: TextIO | None = None) -> OSError | ValueError | None:
    """Writes to ``stream`` (stdout), in colour where it is a terminal; a pipe gets lines as long as they are, not cut
    to a terminal's width.

    Returns the error of a stream that could not be written to; a reader who left is none.
    """
    renderable = Text(renderable) if isinstance(renderable, str) else renderable
    console = open_console(stream)
    file: Any = console.file
    if console.is_terminal:
        console.print(renderable, crop=False)
    else:
        wide = open_console(stream, width=PIPE_WIDTH, soft_wrap=True)
        with wide.capture() as captured:
            wide.print(renderable)
        file.write("".join(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1]))
    file.flush()
    failed: OSError | ValueError | None = file.failed
    return None if isinstance(failed, ValueError) or (failed is not None and failed.errno in LEFT) else failed


# --------------------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Listing.

    Numbers stand to the ``right`` and are never cut: what fits by no means is left to the terminal to break. Where the
    terminal is too narrow the columns with the highest ``leave`` are left out first (0: never), and those with a
    ``least`` are folded or, with ``cut``, cut down to so many columns.
    """

    name: str
    right: bool = False
    leave: int = 0
    least: int | None = None
    cut: bool = False


class Listing:
    """A plain table that fits the width it is drawn in."""

    def __init__(self, columns: Sequence[Column], rows: Iterable[Sequence[str | rich_text.Text]]) -> None:
        self.columns = columns
        self.rows = [[Text(one_line(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = [
            max(width(column.name), *(width(encodable(row[i].plain, options.encoding)) for row in self.rows), 0)
            for i, column in enumerate(self.columns)
        ]
        empty = [all(not row[i].plain for row in self.rows) for i in range(len(self.columns))]
        shown = fit(self.columns, natural, empty, options.max_width)
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
        for i, room in shown.items():
            column = self.columns[i]
            table.add_column(
                column.name, justify="right" if column.right else "left", width=room,
                no_wrap=column.cut or column.least is None,
                overflow="ellipsis" if column.cut else "fold",
            )  # fmt: skip
        for row in self.rows:
            table.add_row(
                *(
                    _broken(row[i], room, options.encoding) if not self.columns[i].cut else row[i]
                    for i, room in shown.items()
                )
            )
        least = sum(shown.values()) + GAP * (len(shown) - 1)
        yield from console.render(table, options.update(width=max(least, options.max_width)))


def fit(columns: Sequence[Column], natural: Sequence[int], empty: Sequence[bool], room: int) -> dict[int, int]:
    """Which columns are shown, with the width of each: whole where they fit, else without those that may be left out,
    else narrower."""
    least = [
        size if column.least is None else min(size, column.least) for column, size in zip(columns, natural, strict=True)
    ]
    shown = list(range(len(columns)))

    def missing(sizes: Sequence[int]) -> int:
        return sum(sizes[i] + GAP for i in shown) - GAP - room

    for i in sorted((i for i in shown if columns[i].leave), key=lambda i: (not empty[i], -columns[i].leave)):
        if missing(least) <= 0:
            break
        shown.remove(i)
    widths = {i: natural[i] for i in shown}
    while (over := sum(widths.values()) + GAP * (len(shown) - 1) - room) > 0:
        give = [i for i in shown if widths[i] > least[i]]
        if not give:
            break
        widest = max(give, key=lambda i: widths[i])
        below = max((widths[i] for i in give if widths[i] < widths[widest]), default=0)
        widths[widest] = max(widths[widest] - over, least[widest], min(below, widths[widest] - 1))
    return widths


def _broken(text: rich_text.Text, room: int, encoding: str) -> rich_text.Text:
    """A text without spaces, such as an id or a path, broken behind its signs where it is wider than its column."""
    shown = text.drawn(encoding) if isinstance(text, Text) else text
    if width(shown.plain) <= room or " " in shown.plain:
        return text
    cuts: list[int] = []
    at = 0
    while width(shown.plain[at:]) > room:
        line = shown.plain[at:]
        most = next(i for i in range(len(line), 0, -1) if width(line[:i]) <= room or i == 1)
        sign = max((i + 1 for i, c in enumerate(line[:most]) if c in "-_/.:,"), default=0)
        at += sign if sign > room // 2 else most
        cuts.append(at)
    return rich_text.Text("\n").join(shown.divide(cuts))


class Labelled:
    """Rows of a label and what it stands for. A text is wrapped beside its label; a path is one piece, so that it can
    be copied from the screen."""

    def __init__(self, rows: Iterable[tuple[str, str | rich_text.Text]], *, paths: Iterable[str] = ()) -> None:
        self.rows = [
            (label, Text(value) if isinstance(value, str) else value)
            for label, value in rows
            if value not in ("", None)
        ]
        self.paths = frozenset(paths)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = max((width(label) for label, _ in self.rows), default=0) + GAP
        room = max(options.max_width - wide, 10)
        for label, value in self.rows:
            text = value.drawn(options.encoding) if isinstance(value, Text) else value
            if label in self.paths:
                lines: Iterable[rich_text.Text] = [text]
                if width(text.plain) > room:
                    yield Text(label, style="dim")
                    yield _Whole(text)
                    continue
            else:
                lines = wrapped(console, text, room)
            for i, line in enumerate(lines):
                yield rich_text.Text.assemble(
                    (f"{'' if i else label:<{wide}}", "dim"), line, no_wrap=True, overflow="ignore"
                )


class Hanging:
    """A line that goes on below its own beginning where it is too long: below its words, behind a label such as
    ``Cause:`` or the bar of what was printed."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.drawn(options.encoding)
        found = _BEGINNING.match(text.plain)
        indent = len(found[0]) if found and len(found[0]) < options.max_width // 2 else 0
        begin, rest = text.divide([indent])
        lines = wrapped(console, rest, options.max_width - indent) if rest.plain else [rest]
        for i, line in enumerate(lines):
            yield rich_text.Text.assemble(" " * indent if i else begin, line, no_wrap=True, overflow="ignore")


_BEGINNING = re.compile(r"\s*(\| |\d+\. |[A-Z][a-z]+: +)?")
_TOGETHER = re.compile(r"\[[^\[\]]{,40}\]|(?<=\d) (?=[a-z])")
"""What is not broken: an interval, and a number with what it counts."""
_HELD = "\ue000"


def wrapped(console: Console, text: rich_text.Text, room: int) -> list[rich_text.Text]:
    """A text in lines of ``room`` columns, broken between words and never inside an interval or behind a number."""
    held = text.copy()
    held.plain = _TOGETHER.sub(lambda found: found[0].replace(" ", _HELD), text.plain)
    lines = list(held.wrap(console, room, overflow="fold"))
    for line in lines:
        line.plain = line.plain.replace(_HELD, " ").rstrip()
    return lines


class _Whole:
    """A line that the terminal itself breaks, so that what is copied from it has no break."""

    def __init__(self, text: rich_text.Text) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield from self.text.render(console)
        yield Segment.line()
