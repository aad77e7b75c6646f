"""Frames between the runner and its processes: four bytes of length, then JSON; file descriptors ride on the first
bytes. Standard library only."""

from __future__ import annotations

import json
import os
import socket
from array import array
from typing import Any

from agentlightning.nouns import Json

HEADER = 4


def frame(message: Json) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(HEADER, "big") + body


def receive(control: socket.socket) -> tuple[Json, list[int]] | None:
    """The next message of a blocking socket with the descriptors that came with it, or None at its end."""
    data, ancillary, _, _ = control.recvmsg(HEADER, socket.CMSG_SPACE(8 * 4))
    fds: array[int] = array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    header = data + _read(control, HEADER - len(data)) if data else b""
    if len(header) < HEADER:
        return None
    length = int.from_bytes(header, "big")
    body = _read(control, length)
    return (json.loads(body), list(fds)) if len(body) == length else None


def _read(control: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = control.recv(min(count - len(data), 1 << 20))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def read_frame(fd: int) -> Json:
    """The next message of a blocking descriptor, or None at its end."""
    header = _read_fd(fd, HEADER)
    body = _read_fd(fd, int.from_bytes(header, "big")) if len(header) == HEADER else b""
    return json.loads(body) if body else None


def _read_fd(fd: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = os.read(fd, min(count - len(data), 1 << 20))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are whole now."""
        self._data += data
        messages: list[Any] = []
        while len(self._data) >= HEADER:
            end = HEADER + int.from_bytes(self._data[:HEADER], "big")
            if len(self._data) < end:
                break
            messages.append(json.loads(bytes(self._data[HEADER:end])))
            del self._data[:end]
        return messages


def write_all(fd: int, data: bytes) -> None:
    """Writes to a blocking descriptor until all is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
