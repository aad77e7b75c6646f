"""Telling: how code inside an agent says something to the attempt that it runs in, with the standard library alone, so
that it works in plain and async agents, in threads and in child processes. What was told is durable on return."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from contextvars import ContextVar
from typing import cast

from agentlightning.errors import AgentLightningError
from agentlightning.nouns import Json

ENDPOINT_VARIABLE = "AGENTLIGHTNING_ENDPOINT"
"""The environment variable that holds an attempt's root URL in ``process`` isolation."""

TIMEOUT = 30.0
"""Seconds that what is told may take to be durable."""

current_endpoint: ContextVar[str | None] = ContextVar("agentlightning_endpoint", default=None)
"""The root URL of the attempt that this context belongs to, in ``thread`` isolation."""

# An agent's proxy settings are for the outside world; an attempt's endpoint is never behind one.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def endpoint() -> str | None:
    """The root URL of the attempt that this code runs in; None outside any."""
    root = current_endpoint.get() or os.environ.get(ENDPOINT_VARIABLE)
    return root.rstrip("/") if root else None


def tell(root: str, path: str, body: Json, what: str, refused: type[AgentLightningError]) -> None:
    """Posts to the attempt and returns when it is durable; ``what`` names it in errors. Blocks meanwhile, also in a
    coroutine: a few milliseconds.

    Raises ``refused`` for what the attempt does not take, and after it has ended; AgentLightningError when the endpoint
    does not answer within 30 seconds.
    """
    request = urllib.request.Request(
        f"{root}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    _answer(request, what, "accepted", refused)


def ask(root: str, path: str, what: str) -> Json:
    """What the attempt answers there; ``what`` names it in errors. Blocks meanwhile. Raises AgentLightningError where
    it does not answer within 30 seconds, and after it has ended."""
    return json.loads(_answer(urllib.request.Request(f"{root}/{path}"), what, "read", AgentLightningError))


def _answer(request: urllib.request.Request, what: str, done: str, refused: type[AgentLightningError]) -> bytes:
    try:
        with _opener.open(request, timeout=TIMEOUT) as reply:
            return reply.read()
    except urllib.error.HTTPError as error:
        said = _message(error)
        if error.code == 410:
            raise refused(f"{what} came after its attempt had ended, and was refused: {said}") from error
        if error.code in (400, 413, 422):
            raise refused(f"{what} was refused: {said}") from error
        raise AgentLightningError(f"{what} was not {done}: HTTP {error.code}: {said}") from error
    except (OSError, ValueError) as error:
        raise AgentLightningError(f"{what} was not {done}: {getattr(error, 'reason', None) or error}") from error


def _message(error: urllib.error.HTTPError) -> str:
    """What the endpoint said, whichever of the usual shapes it said it in."""
    text = error.read().decode("utf-8", "replace")
    try:
        said: Json = json.loads(text)
    except ValueError:
        return text.strip()[:300] or error.reason
    for key in ("error", "message", "detail"):
        if isinstance(said, dict):
            said = cast("dict[str, Json]", said).get(key, said)
    return str(cast(object, said))[:300]
