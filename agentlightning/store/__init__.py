"""The record of what happened, behind one async interface. Importing this loads no database library; ``open_store``
does.

What opens a store passes it on: nothing here is global. No room but this one may write SQL.
"""

from __future__ import annotations

import re
from typing import Literal

from agentlightning.errors import ConfigError
from agentlightning.store.base import Store

__all__ = ["Store", "open_store"]


def open_store(url: str, durability: Literal["process", "power"] = "process", *, create: bool = True) -> Store:
    """Opens the store at ``url`` (``sqlite:///relative/path`` or ``sqlite:////absolute/path``), and with ``create``
    makes a missing one.

    ``durability``: what an acknowledged write survives, ``kill -9`` of any process or also a power cut. A database
    written by an older version is migrated. Blocks for some milliseconds. Raises ConfigError for a URL that cannot be
    served and StoreError, one line, for a database that cannot be opened, is something else, or was written by a newer
    version.
    """
    prefix = "sqlite:///"
    if not url.startswith(prefix):
        scheme = url.partition(":")[0] or url
        raise ConfigError(f"store url {url!r}: {scheme!r} is not a store this version has; supported is sqlite:///PATH")
    path = url.removeprefix(prefix)
    if path in ("", ":memory:"):
        raise ConfigError(
            f"store url {url!r}: a database in memory would lose what it acknowledged; name a file: sqlite:///PATH"
        )
    if re.search(r"\?\w+=[^/]*$", path):  # a folder may be called anything, "why?" too
        raise ConfigError(f"store url {url!r}: options after '?' are not supported; use sqlite:///PATH")
    if durability not in ("process", "power"):
        raise ConfigError(
            f"durability {durability!r}: use 'process' (survives kill -9) or 'power' (survives a power cut too)"
        )
    from agentlightning.store.sqlite.store import SqliteStore

    return SqliteStore(path, durability, create=create)
