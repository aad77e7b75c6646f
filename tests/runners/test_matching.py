"""Ruling 17: which recorded calls triplets are, in which order, and what is recorded of the others."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentlightning.nouns import (
    GIVEN,
    Attempt,
    Call,
    CallStatus,
    FinishReason,
    GivenTriplet,
    Message,
    Node,
    SampleRecord,
    SamplingParams,
    Status,
)
from agentlightning.records.traces import AttemptTrace
from agentlightning.runners.matching import Matched, largest_unrecorded, match_triplets, unknown_token

ATTEMPT = Attempt("r.1", "r", 1, "runner", Status.RUNNING, 0.0, 0.0)


def ids(values: Sequence[int]) -> array[int]:
    return array("i", values)


def call(index: int, prompt: int, *samples: int) -> Call:
    return Call(
        f"c{index}", ATTEMPT.id, index, "chat", "m", "main", CallStatus.COMPLETE, "root", prompt,
        tuple(SampleRecord(node, FinishReason.STOP, Message("assistant")) for node in samples), {}, SamplingParams(),
    )  # fmt: skip


def sampled(id: int, parent: int, values: Sequence[int], index: int) -> Node:
    return Node(id, parent, True, ids(values), index, array("f", [-0.5] * len(values)), version=1)


CONVERSATION = AttemptTrace(
    ATTEMPT,
    (call(0, 0, 2), call(1, 3, 4), call(2, 0, 5), replace(call(3, 0), prompt_node=None, status=CallStatus.REFUSED)),
    (
        Node(0, None, False, ids([1, 2]), 0),
        sampled(1, 0, [3], 0),  # two nodes for one sample, as where the weights changed meanwhile
        sampled(2, 1, [4], 0),
        Node(3, 2, False, ids([5]), 1),
        sampled(4, 3, [6], 1),
        sampled(5, 0, [3, 4], 2),
    ),
)
"""Two turns, and the first one's prompt asked again with the same reply."""


def triplet(prompt: Sequence[int], response: Sequence[int], reward: float | None = 1.0) -> GivenTriplet:
    return GivenTriplet(ids(prompt), ids(response), reward)


def matched(*triplets: GivenTriplet, trace: AttemptTrace = CONVERSATION) -> Matched:
    return match_triplets(triplets, trace, "main", 9.0)


def test_each_call_is_matched_once_and_in_order() -> None:
    first, second = triplet([1, 2], [3, 4], 0.25), triplet([1, 2], [3, 4], 0.5)
    turn = triplet([1, 2, 3, 4, 5], [6], None)
    found = matched(turn, first, second)
    assert found.call_ids == ("c1", "c0", "c2")
    assert found.calls == () == found.nodes, "what is on the record is not recorded again"
    rewards = found.rewards(ATTEMPT, 7.0)
    assert [(each.call_id, each.value, each.source, each.created_at) for each in rewards] == [
        ("c0", 0.25, "return", 7.0),
        ("c2", 0.5, "return", 7.0),
    ], "one without a reward gives its call none"


def test_more_triplets_than_calls_with_their_tokens_are_off_the_record() -> None:
    """A call's reward is one number, so that each call is one triplet's."""
    found = matched(*(triplet([1, 2], [3, 4], reward) for reward in (0.25, 0.5, 0.75)))
    assert found.call_ids == ("c0", "c2", "given-r.1-0")
    assert [(each.call_id, each.value) for each in found.rewards(ATTEMPT, 0.0)] == [
        ("c0", 0.25), ("c2", 0.5), ("given-r.1-0", 0.75)
    ]  # fmt: skip
    best_of = replace(CONVERSATION, calls=(call(0, 0, 2, 5),))
    two_samples = matched(triplet([1, 2], [3, 4]), triplet([1, 2], [3, 4]), trace=best_of)
    assert two_samples.call_ids == ("c0", "given-r.1-0")


def test_what_is_off_the_record_becomes_a_given_call() -> None:
    off = GivenTriplet(ids([7, 8]), ids([9]), 0.5, {"agent_name": "seer", "night": 1})
    found = matched(off)
    assert found.nodes == (Node(6, None, False, ids([7, 8]), 4), Node(7, 6, False, ids([9]), 4))
    (made,) = found.calls
    assert made == Call(
        "given-r.1-0", "r.1", 4, GIVEN, "", "main", CallStatus.COMPLETE, GIVEN, 6,
        (SampleRecord(7, FinishReason.STOP, Message("assistant")),),
        {"metadata": {"agent_name": "seer", "night": 1}}, None, prompt_tokens=2, agent="seer", received_at=9.0,
    )  # fmt: skip
    assert [each.call_id for each in found.rewards(ATTEMPT, 0.0)] == [made.id]


def test_a_given_prompt_hangs_below_the_longest_path_that_it_begins_with() -> None:
    found = matched(
        triplet([1, 2], [9]),  # a recorded prompt with another reply
        triplet([1, 2, 3, 4, 5, 6, 7], [8]),  # goes on after the recorded conversation
        triplet([1, 2, 9, 5], [6]),  # goes on after the first one's reply
        triplet([1], [2]),  # a part of a node is no node
        triplet([1, 2], [9]),  # the same tokens once more: off the record nobody says that they are one call
    )
    assert [(node.parent, list(node.token_ids)) for node in found.nodes] == [
        (0, [9]), (4, [7]), (7, [8]), (6, [5]), (9, [6]), (None, [1]), (11, [2]), (0, [9])
    ]  # fmt: skip
    assert [each.prompt_node for each in found.calls] == [0, 7, 9, 11, 0]
    assert [each.reused_tokens for each in found.calls] == [2, 6, 3, 0, 2]


def test_tokens_outside_the_vocabulary_are_found_and_named() -> None:
    assert largest_unrecorded(matched(triplet([5], [6])), CONVERSATION) is None, "no larger than what was recorded"
    off = [triplet([5], [6]), triplet([5, 70], [6])]
    assert largest_unrecorded(matched(*off), CONVERSATION) == 70
    assert unknown_token(off, 70).message == (
        "triplet 2 of 2 that the agent returned has token id 70, which is not in the model's vocabulary"
    )


_ids = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@given(st.lists(st.tuples(_ids, _ids), max_size=12))
def test_every_given_path_is_the_tokens_that_were_returned(pairs: list[tuple[list[int], list[int]]]) -> None:
    """Whatever is shared: a call's path is its prompt, then its reply, in a node of its own."""
    triplets = [triplet(prompt, reply) for prompt, reply in pairs]
    found = match_triplets(triplets, CONVERSATION, "main", 0.0)
    nodes = {node.id: node for node in (*CONVERSATION.nodes, *found.nodes)}
    assert len(nodes) == len(CONVERSATION.nodes) + len(found.nodes)
    by_id = {each.id: each for each in found.calls}
    leaves = [each.samples[0].node for each in found.calls]
    assert len(set(leaves)) == len(leaves)
    for one, call_id in zip(triplets, found.call_ids, strict=True):
        if call_id not in by_id:
            continue
        made = by_id[call_id]
        assert path(nodes, made.prompt_node) == list(one.prompt_ids)
        assert path(nodes, made.samples[0].node) == list(one.prompt_ids) + list(one.response_ids)
        assert nodes[made.samples[0].node].parent == made.prompt_node


def path(nodes: dict[int, Node], at: int | None) -> list[int]:
    return [] if at is None else [*path(nodes, nodes[at].parent), *nodes[at].token_ids]
