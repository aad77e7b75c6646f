"""Paths that several APIs share, or none owns: each official client is answered in the shape of its own API."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import errors

from tests.gateway.conftest import House, Visit


def google(visit: Visit, version: str = "v1beta") -> Any:
    return genai.Client(api_key="k", http_options={"base_url": visit.endpoint.root_url, "api_version": version}).aio


def claude(visit: Visit) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=visit.endpoint.root_url, api_key="k", max_retries=0)


async def test_models_are_told_in_the_shape_of_the_client_that_asks(house: House) -> None:
    visit = await house.open()
    for version in ("v1", "v1beta"):
        [listed] = [each async for each in await google(visit, version).models.list()]
    got = await google(visit).models.get(model="org/any")
    assert (listed.name, listed.display_name, got.name) == ("models/main", "main", "models/org/any")
    assert "generateContent" in listed.supported_actions
    assert (await google(visit).models.generate_content(model=listed.name, contents="q")).model_version == "main"
    for api in (claude(visit).models, claude(visit).beta.models):
        [one] = [each async for each in api.list(limit=1)]
        got = await api.retrieve("org/any")
        assert (one.id, one.type, one.display_name, got.id, got.type) == ("main", "model", "main", "org/any", "model")
        assert type(one).model_validate(one.model_dump(), strict=True)
    assert [(each.id, each.object) for each in (await visit.client.models.list()).data] == [("main", "model")]
    assert (await visit.client.models.retrieve("org/any")).id == "org/any"


async def test_paths_of_no_api_are_refused_in_the_shape_of_the_client_that_asks(house: House) -> None:
    visit = await house.open()
    gemini, other = google(visit), claude(visit)
    asked: dict[str, Awaitable[Any]] = {
        "cachedContents": gemini.caches.create(model="m", config={"contents": "x"}),
        "files": gemini.files.list(),
        "batches": gemini.batches.list(),
        "tunedModels": gemini.models.list(config={"query_base": False}),
        "uploaded": gemini.caches.get(name="x"),
    }
    for name, call in asked.items():
        with pytest.raises(errors.ClientError) as refused:
            await call
        assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND") and refused.value.message, name
    with pytest.raises(Exception, match="Interactions API is not served") as caught:
        await gemini.interactions.create(model="m", input="x")
    assert caught.value.body["error"]["status"] == "NOT_FOUND"
    with pytest.raises(anthropic.NotFoundError) as told:
        await other.beta.files.list()
    assert told.value.body["type"] == "error" and told.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(openai.NotFoundError) as missing:
        await visit.client.files.list()
    assert missing.value.code == "not_served"
    assert "cachedContents" in (await visit.end()).unserved
