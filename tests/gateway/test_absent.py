"""What the endpoint is asked for and does not have is answered with the words of the table of what is not here."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from agentlightning.spellings.absent import why
from tests.gateway.conftest import House

TEXT = {"type": "text", "text": "what is this?"}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("image_url", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
        ("input_audio", {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        ("file_input", {"type": "file", "file": {"file_id": "f"}}),
    ],
)
async def test_a_request_with_more_than_text_is_refused_by_that_part(
    name: str, part: dict[str, Any], house: House
) -> None:
    visit = await house.open()
    with pytest.raises(openai.BadRequestError, match="this model reads text") as refused:
        await visit.ask([{"role": "user", "content": [TEXT, part]}])
    assert part["type"] in str(refused.value)
    assert (why(name) or "").startswith("this model reads text")


async def test_embeddings_are_refused_with_the_tables_sentence(house: House) -> None:
    visit = await house.open()
    with pytest.raises(openai.NotFoundError) as refused:
        await visit.client.embeddings.create(model="m", input="x")
    assert (why("embeddings") or "?") in str(refused.value)


async def test_moderations_batches_and_files_are_not_served(house: House) -> None:
    visit = await house.open()
    for ask, name in (
        (visit.client.moderations.create(input="x"), "moderations"),
        (visit.client.batches.list(), "batches"),
        (visit.client.files.list(), "files"),
    ):
        with pytest.raises(openai.NotFoundError):
            await ask
        assert why(name)
