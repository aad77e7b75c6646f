"""What comes with an attempt's key after it has ended is refused in the shape of its API, counted, and recorded with
the attempt."""

from __future__ import annotations

import anthropic
import openai
import pytest

from agentlightning.gateway import ended_attempts
from agentlightning.nouns import CallStatus
from tests.gateway.conftest import House


async def test_a_late_call_is_answered_in_its_own_shape_and_recorded_with_its_attempt(house: House) -> None:
    visit = await house.open()
    await visit.ask("In time")
    usage = await visit.end()
    with pytest.raises(openai.APIStatusError, match="this attempt has ended, and this call came after it") as refused:
        await visit.ask("Too late")
    assert refused.value.status_code == 410 and refused.value.code == "attempt_ended"
    async with anthropic.AsyncAnthropic(base_url=visit.endpoint.root_url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.APIStatusError) as told:
            await client.messages.create(model="m", max_tokens=2, messages=[{"role": "user", "content": "Too late"}])
    assert told.value.body["type"] == "error" and "wait for everything" in told.value.body["error"]["message"]  # pyright: ignore
    assert (usage.late, usage.calls, house.gateway.ended.calls) == (2, 1, 2)
    calls = await visit.calls()
    assert [(call.index, call.status) for call in calls] == [
        (0, CallStatus.COMPLETE),
        (1, CallStatus.LATE),
        (2, CallStatus.LATE),
    ]
    assert [call.wire for call in calls[1:]] == ["chat", "messages"] and len(house.engine.requests) == 1


async def test_a_late_reward_is_no_late_call(house: House) -> None:
    visit = await house.open()
    usage = await visit.end()
    with pytest.raises(openai.APIStatusError, match="this reward came after it"):
        await visit.client.with_options(base_url=visit.endpoint.root_url).post(
            "/rewards", cast_to=object, body={"value": 1.0}
        )
    assert (usage.late, usage.late_rewards, house.gateway.ended.rewards) == (0, 1, 1)
    assert await visit.calls() == [] and await house.store.rewards(visit.rollout.id) == []


async def test_a_thread_that_never_stops_fills_no_record(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_attempts, "RECORDED", 3)
    visit = await house.open()
    usage = await visit.end()
    for _ in range(6):
        with pytest.raises(openai.APIStatusError):
            await visit.ask("Again")
    assert (usage.late, len(await visit.calls())) == (6, 3)
