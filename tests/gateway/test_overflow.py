"""A prompt that does not fit is each API's own context-length error: its status, its shape and the words that clients
look for, so that the exception is the one that their users catch."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google.genai import errors

from agentlightning.nouns import CallStatus
from tests.gateway.conftest import Build, Visit
from tests.gateway.test_gemini import asking, said
from tests.gateway.test_messages import Caller

LONG = "x" * 100
Q = [{"role": "user", "content": LONG}]


async def chat(visit: Visit, stream: bool) -> Any:
    await visit.ask(LONG, stream=stream)


async def completions(visit: Visit, stream: bool) -> Any:
    await visit.client.completions.create(model="m", prompt=LONG, stream=stream)


async def responses(visit: Visit, stream: bool) -> Any:
    await visit.client.responses.create(model="m", input=LONG, stream=stream)


async def messages(visit: Visit, stream: bool) -> Any:
    caller = Caller(visit)
    await (caller.streamed(Q) if stream else caller.ask(Q))


async def gemini(visit: Visit, stream: bool) -> Any:
    async with asking(visit) as client:
        await said(client, LONG, stream=stream)


SPOKEN: dict[str, tuple[Any, type[Exception], str]] = {
    # LiteLLM looks for "this model's maximum context length is", LangChain for the code, "prompt is too long" and
    # "exceeds the maximum number of tokens allowed".
    "chat": (chat, openai.BadRequestError, r"This model's maximum context length is 60 tokens.* resulted in 1\d\d "),
    "completions": (
        completions,
        openai.BadRequestError,
        r"This model's maximum context length is 60 tokens.*has 1\d\d",
    ),
    "responses": (
        responses,
        openai.BadRequestError,
        r"exceeds the context window.*this model's maximum context length is 60",
    ),
    "messages": (messages, anthropic.BadRequestError, r"prompt is too long: 1\d\d tokens > 60 maximum"),
    "gemini": (
        gemini,
        errors.ClientError,
        r"token count \(1\d\d\) exceeds the maximum number of tokens allowed \(60\)",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", list(SPOKEN))
async def test_a_prompt_that_does_not_fit_raises_what_users_of_the_client_catch(
    build: Build, wire: str, stream: bool
) -> None:
    ask, raised, words = SPOKEN[wire]
    visit = await (await build(context_length=60)).open()
    with pytest.raises(raised, match=words) as caught:
        await ask(visit, stream)
    told: Any = caught.value
    if wire in ("chat", "completions", "responses"):
        assert (told.status_code, told.code, told.type) == (400, "context_length_exceeded", "invalid_request_error")
        assert told.param == {"chat": "messages", "completions": "prompt", "responses": "input"}[wire]
    elif wire == "messages":
        assert (told.status_code, told.body["error"]["type"]) == (400, "invalid_request_error")
    else:
        assert (told.code, told.status) == (400, "INVALID_ARGUMENT")
    [call] = await visit.calls()
    assert call.status is CallStatus.REFUSED
    assert "tokens and the model's context holds 60" in (call.error or "")
    usage = await visit.end()
    assert (usage.context_length_errors, usage.refused) == (1, 1)
