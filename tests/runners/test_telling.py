"""What agents tell while a run calls them is in the record, whole and in order, in threads and in processes."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.nouns import SpanStatus
from tests.runners import tells


@pytest.mark.parametrize("agent", [tells.plain, tells.waiting])
async def test_what_an_agent_tells_is_recorded_with_its_attempt(world: Any, isolation: str, agent: Any) -> None:
    (rollout,) = await world.run(agent, isolation=isolation)
    assert (rollout.failure, rollout.reward) == (None, 0.5)
    assert rollout.attempt_id is not None
    spans = {span.name: span for span in await world.store.spans(rollout.attempt_id)}
    operations = [
        span for span in await world.store.spans(rollout.attempt_id) if span.name == "agentlightning.operation"
    ]
    outer, inner = operations
    assert outer.attributes == {"number": 1, "agentlightning.operation.name": "round"} and outer.parent_id is None
    assert inner.parent_id == outer.span_id and inner.attributes["agentlightning.operation.output"] == '["CATS"]'
    assert outer.started_at <= inner.started_at <= inner.ended_at <= outer.ended_at
    message, found, noted, failed = (
        spans[f"agentlightning.{name}"] for name in ("message", "object", "annotation", "exception")
    )
    assert message.parent_id == inner.span_id and found.parent_id == outer.span_id
    assert noted.attributes == {"seat.number": 3} and noted.parent_id is None
    assert failed.status is SpanStatus.ERROR and failed.attributes["exception.type"] == "ZeroDivisionError"
    (attempt,) = await world.store.attempts(rollout.id)
    ended = attempt.ended_at
    assert ended is not None and attempt.started_at <= outer.started_at and failed.ended_at <= ended
    rewards = await world.store.rewards(rollout.id)
    assert [(r.name, r.value, r.reason, r.attributes) for r in rewards] == [
        ("style", 0.25, None, {"step": 2}),
        ("reward", 1.0, "right", {"step": 2}),
        ("reward", 0.5, None, None),
    ]
