"""An endpoint that an agent's code talks to: what it was told is kept, and it answers what it is to answer."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentlightning.agent.telling import current_endpoint


@dataclass
class Told:
    """``taken`` are the path below the key and the body of each request."""

    url: str = ""
    taken: list[tuple[str, Any]] = field(default_factory=list)
    answer: tuple[int, bytes] = (200, b"{}")

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [span for path, body in self.taken if path == "spans" for span in body]

    @property
    def rewards(self) -> list[dict[str, Any]]:
        return [body for path, body in self.taken if path == "rewards"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """The attempt that the test's own context is in."""
    kept = Told()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept.taken.append((self.path.removeprefix("/a/key/"), body))
            self.send_response(kept.answer[0])
            self.end_headers()
            self.wfile.write(kept.answer[1])

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    kept.url = f"http://127.0.0.1:{server.server_port}/a/key"
    token = current_endpoint.set(kept.url)
    yield kept
    current_endpoint.reset(token)
    server.shutdown()
    thread.join()
    server.server_close()
