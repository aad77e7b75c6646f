"""OutputLog: what an attempt printed, the end of it in memory and the beginning in a file."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

TAIL_BYTES = 64 * 1024
LOG_BYTES = 16 * 1024 * 1024


class Log(Protocol):
    """Where what an attempt prints goes, from any thread."""

    def write(self, data: bytes, /) -> None: ...


class OutputLog:
    """What an attempt printed: the last 64 KB in memory, and with a ``path`` the first 16 MB in a file. Written from
    any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self._total = 0
        self._lock = threading.Lock()
        self._file = None
        self._closed = False

    def write(self, data: bytes) -> None:
        """Takes bytes; after ``close`` they are dropped."""
        with self._lock:
            if self._closed or not data:
                return
            if self._path is not None and self._total < LOG_BYTES:
                try:
                    self._write_file(self._path, data)
                except OSError as error:  # a full disk costs the log its file, not the attempt its life
                    data += f"\n[the log file {self._path} could not be written: {error.strerror}]\n".encode()
                    self._path = None
            self._total += len(data)
            self._chunks.append(data[-TAIL_BYTES:])
            self._kept += len(self._chunks[-1])
            while self._kept - len(self._chunks[0]) >= TAIL_BYTES:
                self._kept -= len(self._chunks.popleft())

    def _write_file(self, path: Path, data: bytes) -> None:
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        room = LOG_BYTES - self._total
        self._file.write(data[:room])
        if len(data) >= room:
            self._file.write(b"\n[the log ends here: an attempt's file holds at most 16 MB]\n")

    def text(self) -> str:
        """The last 64 KB as text."""
        with self._lock:
            return b"".join(self._chunks)[-TAIL_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                with suppress(OSError):  # a disk that fails only now: the attempt has its result all the same
                    self._file.close()
