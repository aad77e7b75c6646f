"""What an agent tells of its attempt is durable when it is accepted, belongs to its own attempt alone, and is bounded."""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
import pytest

from agentlightning.gateway import told_spans
from agentlightning.nouns import SpanStatus
from agentlightning.store import open_store
from tests.gateway.conftest import House, Visit


def span(span_id: str = "s1", **more: Any) -> dict[str, Any]:
    return {"span_id": span_id, "name": "plan", **more}


async def tell(visit: Visit, body: Any, *, key: str | None = None) -> tuple[int, dict[str, Any]]:
    """Posts a body, which is JSON unless it is bytes."""
    root = visit.endpoint.root_url.replace(visit.endpoint.key, key) if key is not None else visit.endpoint.root_url
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{root}/spans", data=data, headers={"Content-Type": "application/json"}) as answer:
            return answer.status, await answer.json()


async def test_spans_are_durable_when_they_are_accepted_with_times_of_this_clock(house: House) -> None:
    visit, other = await house.open(), await house.open()
    before = time.time()
    first = span("s1", attributes={"tool": "é", "n": [1, {"a": None}]}, status="ok", started_ago=5.0, ended_ago=2.0)
    assert await tell(visit, [first, span("s2", parent_id="s1")]) == (200, {"ok": True, "spans": 2})
    after = time.time()
    again = open_store(f"sqlite:///{house.store.path}")  # pyright: ignore  # as another process would read it
    one, two = await again.spans(visit.attempt.id)
    await again.close()
    assert (one.span_id, one.parent_id, one.name, one.attributes, one.status) == (
        "s1", None, "plan", {"tool": "é", "n": [1, {"a": None}]}, SpanStatus.OK,
    )  # fmt: skip
    assert before - 5 <= one.started_at <= after - 5 and one.ended_at - one.started_at == pytest.approx(3.0)
    assert (two.parent_id, two.attributes, two.status) == ("s1", {}, SpanStatus.UNSET)
    assert before <= two.started_at == two.ended_at <= after
    assert await house.store.spans(other.attempt.id) == []
    assert await visit.calls() == []


async def test_a_span_sent_again_is_kept_once(house: House) -> None:
    visit = await house.open()
    for _ in range(2):
        assert (await tell(visit, [span()]))[0] == 200
    assert len(await house.store.spans(visit.attempt.id)) == 1


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (span(), 400, "the body must be a JSON list"),
        (b"[", 400, "not valid JSON"),
        ([3], 422, "span 0 is int, not an object"),
        ([span(), span("s2", nam="x")], 422, "span 1 has an unknown field 'nam': a span has span_id, parent_id, name"),
        ([{"name": "x"}], 422, "span 0 span_id must be a text of 1 to 64 characters, not None"),
        ([span(span_id="x" * 65)], 422, "span_id must be a text of 1 to 64 characters"),
        ([span(name="")], 422, "name must be a text of 1 to 200 characters, not ''"),
        ([span(name="x" * 201)], 422, "name must be a text of 1 to 200"),
        ([span(parent_id=3)], 422, "parent_id must be a text"),
        ([span(attributes=[])], 422, "attributes must be an object, not []"),
        ([span(status="fine")], 422, "status must be one of unset, ok, error, not 'fine'"),
        ([span(started_ago=-1)], 422, "started_ago must be seconds, at least 0, not -1"),
        ([span(ended_ago=True)], 422, "ended_ago must be seconds"),
        (b'[{"span_id": "a", "name": "b", "started_ago": 1e999}]', 400, "not valid JSON"),
        (b'[{"span_id": "a", "name": "b\\u0000"}]', 400, "NUL"),
        ([span(attributes={"deep": json.loads("[" * 200 + "]" * 200)})], 400, "nested more than 128 levels"),
    ],
)
async def test_what_is_no_span_is_refused_in_words_and_nothing_of_it_is_kept(
    house: House, body: Any, status: int, says: str
) -> None:
    visit = await house.open()
    answered, reply = await tell(visit, body)
    assert (answered, says in reply["error"]["message"]) == (status, True), reply
    assert await house.store.spans(visit.attempt.id) == []


async def test_a_key_is_good_for_its_own_attempts_spans_until_that_has_ended(house: House) -> None:
    visit = await house.open()
    assert (await tell(visit, [span()], key="x" * 43))[0] == 401
    async with aiohttp.ClientSession() as client:
        async with client.put(f"{visit.endpoint.root_url}/spans") as answer:
            assert answer.status == 405
        async with client.post(f"{visit.endpoint.base_url}/spans", json=[span()]) as answer:
            assert answer.status == 200, "with /v1 as without"
    usage = await visit.end()
    status, reply = await tell(visit, [span("late")])
    assert status == 410 and "this attempt has ended, and what it tells came after it" in reply["error"]["message"]
    assert [each.span_id for each in await house.store.spans(visit.attempt.id)] == ["s1"]
    assert (usage.late, usage.late_rewards) == (0, 0)


async def test_an_attempt_tells_so_many_spans_and_no_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_spans, "MOST_SPANS", 3)
    visit, other = await house.open(), await house.open()
    assert (await tell(visit, [span("a"), span("b")]))[0] == 200
    status, reply = await tell(visit, [span("c"), span("d")])
    assert status == 422 and "has told 2 spans, and 3 is the most: these 2 are not taken" in reply["error"]["message"]
    assert (await tell(visit, [span("c")]))[0] == 200 and (await tell(other, [span("a")]))[0] == 200
    monkeypatch.setattr(told_spans, "MOST_BYTES", 1 << 20)
    status, reply = await tell(other, [span("b", attributes={"text": "x" * (1 << 20)})])
    assert status == 413 and "at most 1 MB" in reply["error"]["message"]
    assert [len(await house.store.spans(each.attempt.id)) for each in (visit, other)] == [3, 1]


async def test_a_reward_keeps_what_is_said_besides(house: House) -> None:
    visit = await house.open()
    url = f"{visit.endpoint.root_url}/rewards"
    async with aiohttp.ClientSession() as client:
        async with client.post(url, json={"value": 1, "attributes": {"step": 2}}) as answer:
            assert answer.status == 200 and (await answer.json())["reward"]["attributes"] == {"step": 2}
        async with client.post(url, json={"value": 1, "attributes": [2]}) as answer:
            assert answer.status == 422 and "attributes must be an object" in await answer.text()
    (reward,) = await house.store.rewards(visit.rollout.id)
    assert reward.attributes == {"step": 2}


def test_a_span_never_seems_to_begin_before_the_one_that_it_lies_within() -> None:
    """The inner one ends, and is told, first; what tells of the outer one took longer on its way."""
    taken = told_spans.TakenSpans()
    (inner,) = taken.take([span("in", parent_id="out", started_ago=1.0, ended_ago=0.0)], 10, 100.0)
    (outer,) = taken.take([span("out", started_ago=1.0, ended_ago=0.5)], 10, 100.4)
    assert (inner.started_at, inner.ended_at) == (99.0, 100.0)
    assert (outer.started_at, outer.ended_at) == (99.0, 100.0)
    (apart,) = taken.take([span("apart", started_ago=1.0)], 10, 100.4)
    assert apart.started_at == 99.4


async def test_an_attempts_own_spans_are_read_by_its_key_and_no_others(house: House) -> None:
    visit, other = await house.open(), await house.open()
    await tell(visit, [span("s1", attributes={"n": 1})])
    await tell(other, [span("s2")])

    async def read(visit: Visit, method: str = "GET") -> tuple[int, dict[str, Any]]:
        async with (
            aiohttp.ClientSession() as client,
            client.request(method, f"{visit.endpoint.root_url}/spans") as answer,
        ):
            return answer.status, await answer.json()

    status, said = await read(visit)
    assert status == 200 and [(each["span_id"], each["attributes"]) for each in said["spans"]] == [("s1", {"n": 1})]
    assert {each["attempt_id"] for each in said["spans"]} == {visit.attempt.id}
    assert (await read(visit, "DELETE"))[0] == 405
    await house.gateway.end(visit.attempt.id)
    assert (await read(visit))[0] == 410
