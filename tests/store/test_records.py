"""What goes in comes out, exactly; what cannot be kept is refused by name."""

from __future__ import annotations

import asyncio
import math
from array import array
from dataclasses import replace

import pytest

from agentlightning.errors import RewardRefused, StoreError
from agentlightning.nouns import (
    AttemptResult,
    CallStatus,
    CreditRow,
    Failure,
    Intent,
    Mode,
    Node,
    Reason,
    RunStatus,
    SpanRecord,
    SpanStatus,
    Status,
    StepRecord,
)
from agentlightning.store import Store

from . import make


async def test_a_run_is_kept_and_ended_and_resumed(store: Store) -> None:
    await store.create_run(make.run("later"))
    assert [run.id for run in await store.runs()] == ["later", "r"]
    with pytest.raises(StoreError, match="run r exists already"):
        await store.create_run(make.run())
    await store.end_run("r", RunStatus.FAILED, "no rollout succeeded")
    ended = await store.get_run("r")
    assert (
        ended is not None
        and ended.ended_at is not None
        and (ended.status, ended.error) == (RunStatus.FAILED, "no rollout succeeded")
    )
    await store.end_run("r", RunStatus.RUNNING)
    assert await store.get_run("r") == make.run()
    assert await store.get_run("nobody") is None
    with pytest.raises(StoreError, match="no run nobody"):
        await store.end_run("nobody", RunStatus.FINISHED)


async def test_resources_get_versions_from_one(store: Store) -> None:
    with pytest.raises(StoreError, match="run r has no resources"):
        await store.get_resources("r")
    assert [await store.put_resources("r", {"prompt": text}) for text in ("a", "b")] == [1, 2]
    assert await store.get_resources("r") == {"prompt": "b"}
    assert await store.get_resources("r", 1) == {"prompt": "a"}
    with pytest.raises(StoreError, match="version 3"):
        await store.get_resources("r", 3)
    with pytest.raises(StoreError, match="no run nobody"):
        await store.put_resources("nobody", {})


async def test_a_repeated_step_replaces_the_first(store: Store) -> None:
    steps = [
        StepRecord("r", step, {"main": step + 1, "judge": 7}, (2 * step, 2 * step + 1), {"loss": 0.5}, {}, "/c", 9.0)
        for step in (1, 0)
    ]
    for step in steps:
        await store.put_step(step)
    again = replace(steps[0], metrics={"loss": 0.25}, checkpoint=None)
    await store.put_step(again)
    assert await store.steps("r") == [steps[1], again]


def a_step(step: int, *groups: int) -> StepRecord:
    return StepRecord("r", step, {"main": step}, groups, {}, {})


async def test_every_group_ends_in_exactly_one_step(store: Store) -> None:
    await store.create_run(make.run("other"))
    await store.put_step(replace(a_step(1, 0, 1), run_id="other"))
    await store.put_step(a_step(1, 0, 1))
    await store.put_step(a_step(2, 3, 2))
    await store.put_step(a_step(3))
    with pytest.raises(StoreError, match="step 3 of run r cannot have group 1, which is in step 1"):
        await store.put_step(a_step(3, 1, 4))
    with pytest.raises(StoreError, match="refused a value: UNIQUE"):
        await store.put_step(a_step(3, 4, 4))
    assert [step.groups for step in await store.steps("r")] == [(0, 1), (2, 3), ()]
    await store.put_step(a_step(1, 0, 1, 2))  # made again after a resume, now of three groups
    assert [(step.step, step.groups) for step in await store.steps("r")] == [(1, (0, 1, 2)), (3, ())]
    await store.put_step(a_step(2, 3, 4))
    assert [step.groups for step in await store.steps("r")] == [(0, 1, 2), (3, 4), ()]
    assert [step.groups for step in await store.steps("other")] == [(0, 1)]


async def test_credit_is_written_with_its_step_and_with_it_alone(store: Store) -> None:
    one, two = await make.leased(store, 2)
    rows = [CreditRow("judge", one.id, b"\0j"), CreditRow("main", one.id, b""), CreditRow("main", two.id, b"\xff")]
    await store.put_step(a_step(1, 0), rows[::-1])
    assert await store.credit("r") == await store.credit("r", step=1) == rows
    await store.put_step(replace(a_step(1, 0), checkpoint="/c"))
    assert await store.credit("r", attempt_id=one.id) == rows[:2], "what is not given is kept"
    again = CreditRow("main", one.id, b"again")
    await store.put_step(a_step(2, 1), [again])
    assert await store.credit("r", attempt_id=one.id) == [*rows[:2], again]
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        await store.put_step(a_step(3, 2), [CreditRow("main", "nobody", b"")])
    assert [step.step for step in await store.steps("r")] == [1, 2]
    await store.put_step(a_step(1, 0, 1), rows[:1])
    assert await store.credit("r") == rows[:1], "the credit of a step that is made again is made again too"
    await store.put_step(a_step(1, 0, 1), [])
    assert await store.credit("r", step=1) == [] == await store.credit("nobody")


async def test_an_intent_says_what_a_step_is_about_to_learn_from(store: Store) -> None:
    two, one = (Intent("r", step, (2 * step, 2 * step + 1), {"main": step - 1}) for step in (2, 1))
    validation = Intent("r", 1, (0,), {"main": 1}, Mode.VAL)
    for intent in (two, validation, replace(one, groups=(9,)), one):
        await store.put_intent(intent)
    assert await store.intents("r") == [one, validation, two]
    assert await store.intents("r", after_step=1) == [two]
    assert await store.intents("r", mode=Mode.TRAIN) == [one, two]
    assert await store.intents("nobody") == []
    with pytest.raises(StoreError, match="no run nobody"):
        await store.put_intent(replace(one, run_id="nobody"))


async def test_a_call_gets_its_agents_name_once(store: Store) -> None:
    (attempt,) = await make.leased(store)
    call = make.call(attempt.id)
    await store.record(call, make.turn())
    await store.set_agent(call.id, "planner")
    await store.set_agent(call.id, "planner")
    assert await store.calls(attempt.id) == [replace(call, agent="planner")]
    with pytest.raises(StoreError, match="is agent 'planner''s already and cannot become 'critic''s"):
        await store.set_agent(call.id, "critic")
    with pytest.raises(StoreError, match="no call nobody"):
        await store.set_agent("nobody", "planner")
    await store.record(replace(call, status=CallStatus.ABANDONED), make.turn())
    assert await store.calls(attempt.id) == [replace(call, agent="planner", status=CallStatus.ABANDONED)]


async def test_what_was_given_is_recorded_with_the_end_of_its_attempt(store: Store) -> None:
    (attempt,) = await make.leased(store)
    await store.record(make.call(attempt.id), make.turn())
    ended = make.given(attempt, 1, 0.5)
    assert (await store.finish(attempt.id, ended)).reward == 0.5
    again = replace(ended, given_calls=(replace(ended.given_calls[0], id="again", index=2),), given_nodes=())
    await store.finish(attempt.id, again)  # a repeated report changes nothing
    assert await store.calls(attempt.id) == [make.call(attempt.id), *ended.given_calls]
    assert await store.nodes(attempt.id) == [*make.turn(), *ended.given_nodes]
    assert await store.rewards(attempt.rollout_id) == list(ended.rewards)


async def test_what_was_given_comes_after_a_call_that_was_recorded_meanwhile(store: Store) -> None:
    (attempt,) = await make.leased(store)
    late = replace(make.call(attempt.id, 0), status=CallStatus.LATE, prompt_node=None, samples=())
    await store.record(late, [])
    ended = make.given(attempt, 0)
    await store.finish(attempt.id, ended)
    moved = replace(ended.given_calls[0], index=1)
    assert await store.calls(attempt.id) == [late, moved]
    assert await store.nodes(attempt.id) == [replace(node, call_index=1) for node in ended.given_nodes]


async def test_an_attempt_ends_with_all_that_was_given_or_not_at_all(store: Store) -> None:
    attempt, other = await make.leased(store, 2)
    await store.record(make.call(attempt.id), make.turn())
    good = make.given(attempt, 1)
    call, nodes = good.given_calls[0], good.given_nodes
    for bad, says in (
        (replace(good, given_calls=make.given(other, 1).given_calls), "was reported as given with attempt"),
        (replace(good, given_calls=(replace(call, wire="chat"),)), "wire 'chat'"),
        (replace(good, given_calls=(call, call)), "cannot be recorded: UNIQUE"),
        (replace(good, given_nodes=nodes[1:]), "a node's parent"),
        (replace(good, given_nodes=(*nodes, nodes[0])), "a node of that id exists"),
        (replace(good, rewards=(replace(good.rewards[0], call_id="nobody"),)), "has no call nobody"),
    ):
        with pytest.raises(StoreError, match=says):
            await store.finish(attempt.id, bad)
        assert await store.calls(attempt.id) == [make.call(attempt.id)]
        assert await store.nodes(attempt.id) == make.turn() and await store.rewards(attempt.rollout_id) == []
        assert await store.renew(attempt.id, seconds=60)
    await store.finish(attempt.id, good)


async def test_a_reward_names_what_its_own_attempt_has(store: Store) -> None:
    attempt, other = await make.leased(store, 2)
    call = make.call(attempt.id)
    await store.record(call, make.turn())
    await store.record(replace(make.call(attempt.id, 1), agent="other", samples=()), make.turn(1))
    await store.record(replace(make.call(other.id), agent="stranger"), make.turn())
    await store.set_agent(f"{attempt.id}/1", "critic")
    reward = make.reward(attempt)
    good = [
        replace(reward, call_id=call.id, agent="solver", tool_call_id="t1"),
        replace(reward, tool_call_id="t1"),
        replace(reward, agent="critic"),
    ]
    for one in good:
        await store.add_reward(one)
    for target, says in (
        ({"call_id": f"{other.id}/0"}, f"has no call {other.id}/0"),
        ({"agent": "stranger"}, "has no call of agent 'stranger'"),
        ({"agent": "other"}, "has no call of agent 'other'"),
        ({"tool_call_id": "t2"}, "has no tool call 't2'"),
        ({"call_id": call.id, "agent": "critic"}, f"has no call {call.id} and call of agent 'critic'"),
        ({"call_id": f"{attempt.id}/1", "tool_call_id": "t1"}, "and tool call 't1'"),
    ):
        with pytest.raises(RewardRefused, match=says):
            await store.add_reward(replace(reward, **target))
        with pytest.raises(RewardRefused, match=says):
            await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0, rewards=(replace(reward, **target),)))
    assert await store.rewards(attempt.rollout_id) == good and await store.renew(attempt.id, seconds=60)


async def test_a_reward_after_the_end_is_late_and_changes_nothing(store: Store) -> None:
    (attempt,) = await make.leased(store)
    await store.add_reward(make.reward(attempt, 0.25))
    ended = await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0, rewards=(make.reward(attempt),)))
    await store.add_reward(make.reward(attempt, 9.0))
    rewards = await store.rewards(attempt.rollout_id)
    assert [(reward.value, reward.late) for reward in rewards] == [(0.25, False), (1.0, False), (9.0, True)]
    assert await store.get_rollout(attempt.rollout_id) == ended and ended.reward == 1.0


async def test_what_is_said_of_a_reward_is_kept_with_it(store: Store) -> None:
    (attempt,) = await make.leased(store)
    said = replace(make.reward(attempt), attributes={"step": 3, "why": ["é", None]})
    await store.add_reward(said)
    await store.add_reward(make.reward(attempt))
    assert await store.rewards(attempt.rollout_id) == [said, make.reward(attempt)]
    with pytest.raises(StoreError, match=r"the attributes of reward 'reward' of attempt .* cannot be stored as JSON"):
        await store.add_reward(replace(said, attributes={"when": object()}))


def span(span_id: str, began: float, parent: str | None = None) -> SpanRecord:
    attributes = {"text": "hé", "n": 2**53, "list": [1, None, {"a": 0.5}]}
    return SpanRecord(span_id, parent, f"name of {span_id}", attributes, SpanStatus.OK, began, began + 0.5)


async def test_spans_come_back_exactly_in_the_order_in_which_they_began(store: Store) -> None:
    attempt, other = await make.leased(store, 2)
    later, first, within = span("b", 7.25), span("a", 1.5), span("c", 1.5, "a")
    await store.add_spans(attempt.id, [later])
    await store.add_spans(attempt.id, [first, within])
    await store.add_spans(other.id, [span("a", 3.0)])
    await store.add_spans(other.id, [])
    assert await store.spans(attempt.id) == [first, within, later]
    longer = replace(span("d", 1.5), ended_at=9.0)
    await store.add_spans(attempt.id, [longer])
    assert await store.spans(attempt.id) == [longer, first, within, later]
    assert await store.spans(other.id) == [span("a", 3.0)] and await store.spans("nobody") == []


async def test_a_span_sent_twice_is_kept_once_as_it_was(store: Store) -> None:
    (attempt,) = await make.leased(store)
    await store.add_spans(attempt.id, [span("a", 1.0)])
    await store.add_spans(attempt.id, [replace(span("a", 9.0), name="other"), span("b", 2.0)])
    assert await store.spans(attempt.id) == [span("a", 1.0), span("b", 2.0)]


async def test_spans_need_an_attempt_and_are_stored_all_or_none(store: Store) -> None:
    (attempt,) = await make.leased(store)
    with pytest.raises(StoreError, match="there is no attempt nobody"):
        await store.add_spans("nobody", [span("a", 1.0)])
    with pytest.raises(StoreError, match="the attributes of span 'bad' of attempt .* cannot be stored as JSON"):
        await store.add_spans(
            attempt.id, [span("a", 1.0), replace(span("b", 1.0), name="bad", attributes={"x": object()})]
        )
    assert await store.spans(attempt.id) == []


async def test_a_place_in_the_run_is_one_rollouts(store: Store) -> None:
    with pytest.raises(StoreError, match="rollout twin cannot be enqueued: another has its place, train group 0, ind"):
        await store.enqueue([make.rollout(9), replace(make.rollout(1), id="twin")])
    assert len(await store.rollouts("r")) == 4, "all or none"
    await store.create_run(make.run("other"))
    await store.enqueue([make.rollout(1, "other"), make.rollout(1, mode=Mode.VAL), make.rollout(1, group=1)])


async def test_a_call_and_its_nodes_come_back_exactly(store: Store) -> None:
    attempt, other = await make.leased(store, 2)
    with pytest.raises(StoreError, match="parent"):
        await store.record(make.call(attempt.id, 1), make.turn(1))
    await store.record(make.call(attempt.id, 0), make.turn(0))
    await store.record(make.call(attempt.id, 1), make.turn(1))
    await store.record(make.call(other.id), make.turn())
    assert await store.calls(attempt.id) == [make.call(attempt.id, 0), make.call(attempt.id, 1)]
    nodes = await store.nodes(attempt.id)
    assert nodes == make.turn(0) + make.turn(1)
    assert all(node.token_ids.typecode == "i" and node.token_ids.itemsize == 4 for node in nodes)
    assert nodes[1].logprobs is not None and nodes[1].logprobs.typecode == "f"


async def test_a_call_recorded_again_is_replaced_with_its_nodes(store: Store) -> None:
    (attempt,) = await make.leased(store)
    refused = replace(make.call(attempt.id), status=CallStatus.INCOMPLETE, samples=(), prompt_node=None, used=None)
    await store.record(refused, [])
    assert await store.calls(attempt.id) == [refused]
    await store.record(make.call(attempt.id), make.turn())
    fewer = [replace(make.turn()[0], token_ids=array("i", [7]))]
    await store.record(make.call(attempt.id), fewer)
    assert await store.nodes(attempt.id) == fewer
    await store.record(make.call(attempt.id), make.turn())
    await store.record(make.call(attempt.id, 1), make.turn(1))
    with pytest.raises(StoreError, match="node below one of its own"):
        await store.record(make.call(attempt.id), [])
    with pytest.raises(StoreError, match="node of the same id"):
        await store.record(make.call(attempt.id, 1), [*make.turn(1), replace(make.turn()[0], call_index=1)])
    with pytest.raises(StoreError, match="cannot become another"):
        await store.record(make.call(attempt.id, 2, id=f"{attempt.id}/0"), [])
    assert await store.calls(attempt.id) == [make.call(attempt.id, 0), make.call(attempt.id, 1)]
    assert await store.nodes(attempt.id) == make.turn(0) + make.turn(1)


async def test_a_call_is_recorded_whole_or_not_at_all(store: Store) -> None:
    (attempt,) = await make.leased(store)
    given = make.turn()[0]
    for call, nodes, message in (
        (make.call("nobody"), [], "no attempt nobody"),
        (make.call(attempt.id), [*make.turn(), given], "node of that id"),
        (make.call(attempt.id), [replace(given, logprobs=array("f", [0, 0, 0]))], "malformed"),
        (make.call(attempt.id), [replace(given, token_ids=array("q", [2**31]))], "32-bit"),
        (replace(make.call(attempt.id), asked={"x": object()}), [], "cannot be stored as JSON"),
        (replace(make.call(attempt.id), model="\ud800"), [], "cannot be stored"),
        (replace(make.call(attempt.id), prompt_tokens=2**70), [], "cannot be stored"),
    ):
        with pytest.raises(StoreError, match=message):
            await store.record(call, nodes)
    assert (await store.calls(attempt.id), await store.nodes(attempt.id)) == ([], [])
    await store.record(make.call(attempt.id), make.turn())
    with pytest.raises(StoreError, match="already has another call 0"):
        await store.record(make.call(attempt.id, id="twin"), [])


async def test_a_sampled_node_without_logprobs_is_refused(store: Store) -> None:
    (attempt,) = await make.leased(store)
    for node in (
        Node(0, None, True, array("i", [1]), 0),
        Node(0, None, True, array("i", [1]), 0, logprobs=array("f", [0, 0]), version=1),
    ):
        with pytest.raises(StoreError, match="malformed"):
            await store.record(make.call(attempt.id), [node])


async def test_what_is_changed_after_the_call_is_stored_as_it_was(store: Store) -> None:
    (attempt,) = await make.leased(store)
    nodes = make.turn()
    writing = asyncio.create_task(store.record(make.call(attempt.id), nodes))
    await asyncio.sleep(0)
    nodes[0].token_ids[0] = 99
    await writing
    assert (await store.nodes(attempt.id))[0].token_ids[0] == 1


async def test_call_status_changes_by_name(store: Store) -> None:
    (attempt,) = await make.leased(store)
    await store.record(make.call(attempt.id), make.turn())
    await store.set_call_status(make.call(attempt.id).id, CallStatus.ABANDONED)
    assert (await store.calls(attempt.id))[0].status is CallStatus.ABANDONED
    with pytest.raises(StoreError, match="no call nobody"):
        await store.set_call_status("nobody", "complete")
    with pytest.raises(StoreError, match="'lost' is no status"):
        await store.set_call_status(make.call(attempt.id).id, "lost")


async def test_rewards_are_kept_in_the_order_they_were_accepted(store: Store) -> None:
    (attempt,) = await make.leased(store)
    rewards = [make.reward(attempt, value) for value in (0.5, -1, 0.1)]
    for reward in rewards:
        await store.add_reward(reward)
    await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 2.0, rewards=(make.reward(attempt, 2.0),)))
    assert await store.rewards(attempt.rollout_id) == [*rewards, make.reward(attempt, 2.0)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1.0x", None, 1e308, -1.1e9])
async def test_a_reward_that_is_no_finite_number_or_too_large_is_refused(store: Store, value: float) -> None:
    (attempt,) = await make.leased(store)
    with pytest.raises(StoreError, match="number|largest reward"):
        await store.add_reward(make.reward(attempt, value))
    with pytest.raises(StoreError, match="number|largest reward"):
        await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0, rewards=(make.reward(attempt, value),)))
    if value is not None:
        with pytest.raises(StoreError, match="number|largest reward"):
            await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, value))
    assert await store.rewards(attempt.rollout_id) == []
    assert await store.renew(attempt.id, seconds=1)


async def test_a_reward_needs_its_own_attempt(store: Store) -> None:
    attempt, other = await make.leased(store, 2)
    with pytest.raises(StoreError, match="no attempt nobody"):
        await store.add_reward(replace(make.reward(attempt), attempt_id="nobody"))
    with pytest.raises(StoreError, match="not one of rollout"):
        await store.add_reward(replace(make.reward(attempt), attempt_id=other.id))
    with pytest.raises(StoreError, match="was reported with attempt"):
        await store.finish(attempt.id, AttemptResult(Status.SUCCEEDED, 1.0, rewards=(make.reward(other),)))
    assert await store.renew(attempt.id, seconds=1)


async def test_enqueue_keeps_what_exists_and_the_order_given(store: Store) -> None:
    attempt, _ = await make.leased(store, 2)
    again = await store.enqueue([make.rollout(9), make.rollout(0), make.rollout(1), make.rollout(9)])
    assert [rollout.index for rollout in again] == [9, 0, 1, 9]
    assert [rollout.status for rollout in again] == [Status.QUEUED, Status.RUNNING, Status.RUNNING, Status.QUEUED]
    assert again[1].attempt_id == attempt.id and again[0].created_at > 0
    assert await store.enqueue([]) == []
    with pytest.raises(StoreError, match="no run nobody"):
        await store.enqueue([make.rollout(0, "nobody")])
    with pytest.raises(StoreError, match="its status is running"):
        await store.enqueue([replace(make.rollout(20), status=Status.RUNNING)])
    with pytest.raises(StoreError, match="task of rollout"):
        await store.enqueue([replace(make.rollout(21), task={1, 2})])


async def test_rollouts_are_found_by_mode_groups_and_status(store: Store) -> None:
    await store.enqueue([make.rollout(0, mode=Mode.VAL, group=1)])
    await make.leased(store)
    assert [r.index for r in await store.rollouts("r")] == [0, 1, 2, 3, 0]
    assert [r.mode for r in await store.rollouts("r", groups=[1, 5])] == [Mode.VAL]
    assert len(await store.rollouts("r", groups=range(1))) == 4
    assert await store.rollouts("r", mode=Mode.VAL, groups=range(1)) == [] == await store.rollouts("r", groups=[])
    assert [r.index for r in await store.rollouts("r", mode=Mode.TRAIN, status=Status.QUEUED)] == [1, 2, 3]
    assert await store.rollouts("nobody") == []
    assert (await store.get_rollout(make.rollout(3).id)) == (await store.rollouts("r"))[3]
    assert await store.get_rollout("nobody") is None


async def test_a_result_keeps_its_failure_and_its_reward(store: Store) -> None:
    (attempt,) = await make.leased(store)
    failure = Failure(Reason.AGENT_ERROR, "raised \udcff", "Traceback \udcff")
    rollout = await store.finish(
        attempt.id, AttemptResult(Status.FAILED, -1.0, failure, {"text": "x"}, (make.reward(attempt, -1.0),))
    )
    kept = Failure(Reason.AGENT_ERROR, "raised \\udcff", "Traceback \\udcff")
    assert (rollout.status, rollout.reward, rollout.failure, rollout.attempt_id) == (
        Status.FAILED,
        -1.0,
        kept,
        attempt.id,
    )
    assert isinstance(rollout.reward, float)
    ended = await store.get_attempt(attempt.id)
    assert ended is not None and (ended.status, ended.failure, ended.output) == (Status.FAILED, kept, {"text": "x"})
    assert await store.attempts(attempt.rollout_id) == [ended]
    assert await store.get_attempt("nobody") is None


async def test_the_agents_that_a_report_names_are_set_with_the_end_of_the_attempt(store: Store) -> None:
    first, other = await make.leased(store, 2)
    calls = [make.call(first.id, index) for index in range(3)]
    for index, call in enumerate(calls):
        await store.record(replace(call, agent="learned", samples=()), make.turn(index))
    await store.record(replace(make.call(other.id), agent="stranger"), make.turn())
    await store.set_agent(calls[1].id, "critic")
    said = {calls[0].id: "planner", calls[1].id: "planner", f"{other.id}/0": "planner", "nobody": "planner"}
    await store.finish(first.id, AttemptResult(Status.SUCCEEDED, 1.0, agents=said))
    assert [call.agent for call in await store.calls(first.id)] == ["planner", "critic", "learned"]
    assert [call.agent for call in await store.calls(other.id)] == ["stranger"]
    again = AttemptResult(Status.SUCCEEDED, 1.0, agents={calls[2].id: "planner"})
    await store.finish(first.id, again)  # a repeated report changes nothing
    assert (await store.calls(first.id))[2].agent == "learned"


@pytest.mark.parametrize("how", ["retry", "score"])
async def test_the_agents_that_are_named_before_the_end_are_set_too(store: Store, how: str) -> None:
    (attempt,) = await make.leased(store)
    call = make.call(attempt.id)
    await store.record(replace(call, agent="learned"), make.turn())
    if how == "retry":
        await store.retry(attempt.id, Failure(Reason.AGENT_ERROR, "x"), agents={call.id: "planner"})
    else:
        await store.score(attempt.id, seconds=9, agents={call.id: "planner"})
    assert [call.agent for call in await store.calls(attempt.id)] == ["planner"]
