"""MetricsWriter: what a run leaves for other programs. ``metrics.jsonl`` with one JSON line per step, and TensorBoard
event files.

The store is the record; this is a copy for people and their tools, so it is not part of what makes a step durable.
Imports no TensorFlow and no torch: TensorBoard's own record format is written directly.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

from agentlightning.agent.loading import describe
from agentlightning.nouns import Json

_logger = logging.getLogger("agentlightning")

LEFT_OUT = ("advantages",)
"""Kept in the store's step alone: one number per rollout id is no metric."""
_SESSION_START = 1
"""SessionLog.START of TensorBoard's event.proto."""


class MetricsWriter:
    """Writes into a run's folder, which exists. What it writes is optional: of a file that cannot be written, or of
    TensorBoard beside a library that it does not work with, ``say`` is told in one line, and it is written no more.

    On a resume the lines of steps that are made again are replaced, and a line that a killed process left half-written
    is dropped. ``notes`` holds one line for people about what is off.
    """

    def __init__(
        self, folder: Path, *, tensorboard: bool = True, say: Callable[[str], object] = _logger.warning
    ) -> None:
        self.path = folder / "metrics.jsonl"
        self.notes: tuple[str, ...] = ()
        self._say = say
        self._file = -1
        self._lines: list[_Line] = []
        if tensorboard and find_spec("tensorboard") is None:
            self.notes = (
                "no TensorBoard files: `pip install tensorboard` turns them on; metrics.jsonl holds the same numbers",
            )
            tensorboard = False
        self._events = _EventFile(folder / "tensorboard") if tensorboard else None
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._lines = _read_lines(self.path.read_bytes())
        except OSError as error:
            self._no_more_lines(error)

    def write(self, metrics: Mapping[str, Json], ledger: Mapping[str, Json] | None = None) -> None:
        """One step's line, in place of what stood there for this or a later step. Numbers that are not finite become
        null."""
        line = {key: value for key, value in metrics.items() if key not in LEFT_OUT}
        if ledger is not None:
            line["ledger"] = ledger
        self._put(int(metrics["step"]), line)
        self._scalars(line)

    def validated(self, evaluation: Mapping[str, Json]) -> None:
        """Adds a validation to the line of its step, as ``validation``; step 0 has a line of its own."""
        step = int(evaluation["step"])
        shown = {key: value for key, value in evaluation.items() if key != "rollout_ids"}
        old = next((line.values for line in self._lines if line.step == step), {"step": step})
        self._put(step, {**old, "validation": shown})
        self._scalars({"step": step, "validation": shown})

    def history(self) -> list[Mapping[str, Json]]:
        """The lines as they stand, those of earlier processes included."""
        return [line.values for line in self._lines]

    def close(self) -> None:
        """May be called more than once."""
        self._close_lines()
        self._close_events()

    def _close_lines(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):  # the line before was the last that could be written
                os.close(file)

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(Exception, SystemExit):  # as above, in TensorBoard's words
                events.close()

    def _no_more_lines(self, error: OSError) -> None:
        self._close_lines()
        self._say(
            f"{self.path} is not written any more: {error.strerror or error}; the run goes on, and its record has the "
            "same numbers"
        )

    def _put(self, step: int, values: Mapping[str, Json]) -> None:
        self._lines = [line for line in self._lines if line.step < step]
        offset = self._lines[-1].end if self._lines else 0
        values = cast("dict[str, Json]", finite(values))
        data = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        try:
            if self._file >= 0 and os.pwrite(self._file, data, offset) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._file >= 0:
                os.ftruncate(self._file, offset + len(data))
        except OSError as error:
            self._no_more_lines(error)
        self._lines.append(_Line(step, offset + len(data), values))

    def _scalars(self, values: Mapping[str, Json]) -> None:
        if self._events is None:
            return
        try:
            self._events.write(int(values["step"]), {tag: value for tag, value in _scalars(values) if tag != "step"})
        except (Exception, SystemExit) as error:  # noqa: BLE001  # of a full disk, or of TensorBoard beside an older protobuf: whatever it raises
            self._close_events()
            self._say(
                f"TensorBoard's files are not written any more: {describe(error)}; the run goes on, metrics.jsonl has "
                "the same numbers"
            )


class _Line(NamedTuple):
    step: int
    end: int
    values: Mapping[str, Json]


def _read_lines(data: bytes) -> list[_Line]:
    """The whole lines of a file, up to the first that is none: what follows is overwritten."""
    lines: list[_Line] = []
    end = 0
    for raw in data.splitlines(keepends=True):
        end += len(raw)
        try:
            values = json.loads(raw)
            lines.append(_Line(int(values["step"]), end, values))
        except (ValueError, TypeError, KeyError):
            break
        if not raw.endswith(b"\n"):
            return lines[:-1]
    return lines


def finite(value: Json) -> Json:
    """The same JSON value with null for numbers that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in cast("Mapping[Any, Json]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("Iterable[Json]", value)]
    return value


def _scalars(values: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every finite number below ``values``, under its keys joined with ``/``. Lists are no scalars."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(cast("Mapping[str, Json]", value), f"{prefix}{key}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield prefix + key, float(value)


class _EventFile:
    """One TensorBoard event file per process, opened at the first step it gets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records: Any = None
        self._written: tuple[int, set[str]] = (-1, set())

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """A step that this file already holds gets only the tags that are new."""
        if self._records is None:
            self._open(step)
        held = self._written[1] if self._written[0] == step else set[str]()
        values = [{"tag": tag, "simple_value": value} for tag, value in scalars.items() if tag not in held]
        self._event(step=step, summary={"value": values})
        self._written = (step, held | set(scalars))

    def _open(self, step: int) -> None:
        RecordWriter: Any = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self.folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((self.folder / name).open("wb"))
        self._event(file_version="brain.Event:2")
        # tells TensorBoard to forget what an earlier process wrote for the steps that are made again
        self._event(step=step, session_log={"status": _SESSION_START})

    def _event(self, **fields: Any) -> None:
        Event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None
