"""The models that can be asked for, at the path that three APIs share: each client is told in the shape of its own API.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from agentlightning.nouns import Json

_BEGINNING = "1970-01-01T00:00:00Z"
_METHODS = ["generateContent", "countTokens"]


def model(api: str, name: str) -> bytes:
    """One model as the wire called ``api`` tells of it."""
    return orjson.dumps(_model(api, name))


def models(api: str, names: Sequence[str]) -> bytes:
    """All of them, on one page."""
    told = [_model(api, name) for name in names]
    if api == "gemini":
        return orjson.dumps({"models": told})
    if api == "messages":
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return orjson.dumps({"data": told, "has_more": False, **ends})
    return orjson.dumps({"object": "list", "data": told})


def _model(api: str, name: str) -> dict[str, Json]:
    if api == "gemini":
        return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": _METHODS}
    if api == "messages":
        return {"type": "model", "id": name, "display_name": name, "created_at": _BEGINNING, "lifecycle": "active"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentlightning"}
