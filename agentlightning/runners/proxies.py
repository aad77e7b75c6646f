"""Proxies: keeps a company's proxy away from the run's own endpoint, for whatever client an agent uses.

Clients learn of a proxy from the environment, and of what is not to go through it from ``NO_PROXY``. Standard library
only: this runs where agents run.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.parse import urlsplit

VARIABLES = ("http_proxy", "all_proxy")
"""What leads a call to an endpoint without TLS to a proxy, in small or capital letters."""

EXCEPTIONS = ("no_proxy", "NO_PROXY")
"""What keeps it from that. Some clients read only the one, some only the other."""


def proxies_in(environment: Mapping[str, str]) -> list[str]:
    """Names of the proxy variables that are set and would hold for the endpoint."""
    return [name for name, value in environment.items() if value and name.lower() in VARIABLES]


def without_proxy(urls: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Both exceptions, extended by the hosts of ``urls`` and by this machine. Empty where that would change which
    proxies hold.

    It is extended also where no proxy is set: a ``.env`` file may set one later. Not on macOS, where clients that find
    an exception in the environment no longer look for the system's own proxies.
    """
    if sys.platform == "darwin" and not proxies_in(environment):
        return {}
    hosts = [form for url in urls for form in _forms(urlsplit(url).hostname or "")]
    extended: dict[str, str] = {}
    for name, other in zip(EXCEPTIONS, reversed(EXCEPTIONS), strict=True):
        given = environment.get(name) or environment.get(other) or ""
        if given.strip() == "*":  # with anything beside it, urllib would no longer take it for "all hosts"
            extended[name] = given
            continue
        parts = [part.strip() for part in given.split(",") if part.strip()]
        extended[name] = ",".join(dict.fromkeys((*parts, *hosts, "127.0.0.1", "localhost")))
    return extended


def _forms(host: str) -> tuple[str, ...]:
    """How a host is written in ``NO_PROXY``.

    An IPv6 address has two forms. httpx, httpx2, requests, aiohttp and curl know it without brackets; urllib and
    Node.js only with them, at which httpx (not httpx2) raises InvalidURL: where it is installed, the others have to do
    without.
    """
    if ":" not in host:
        return (host,) if host else ()
    return (host,) if find_spec("httpx") is not None else (host, f"[{host}]")


class Bypass:
    """Extends this process's own exceptions while runs are open whose agents live in it, and puts back what was there
    when the last one ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urls: list[str] = []
        self._before: dict[str, str | None] = {}
        self._set: dict[str, str] = {}

    def enter(self, url: str) -> None:
        with self._lock:
            if not self._urls:
                self._before = {name: os.environ.get(name) for name in EXCEPTIONS}
            self._urls.append(url)
            self._apply()

    def leave(self, url: str) -> None:
        with self._lock:
            self._urls.remove(url)
            if self._urls:
                self._apply()
                return
            for name, value in self._before.items():
                if os.environ.get(name) != self._set.get(name):
                    continue  # somebody else changed it meanwhile: theirs stays
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    @contextmanager
    def over(self, url: str) -> Generator[None]:
        self.enter(url)
        try:
            yield
        finally:
            self.leave(url)

    def _apply(self) -> None:
        given = {**os.environ, **{name: self._before[name] or "" for name in EXCEPTIONS}}
        self._set = without_proxy(self._urls, given)
        os.environ.update(self._set)


bypass = Bypass()
"""One for the process, as its environment is one."""
