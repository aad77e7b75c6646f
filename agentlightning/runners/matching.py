"""Matching: which recorded calls the triplets are that an agent returned, and what is recorded of the others.

A triplet is a recorded call where prompt and reply have the same token ids: then its reward is that call's, and the
call stays what it is, so that what is trained is what was sampled. Any other is off the record: it becomes a call of
wire ``given`` whose nodes are given ones (ruling 17). Pure: records in, records out.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from agentlightning.nouns import (
    GIVEN,
    Attempt,
    Call,
    CallStatus,
    Failure,
    FinishReason,
    GivenTriplet,
    Message,
    Node,
    Reason,
    Reward,
    SampleRecord,
)
from agentlightning.records.traces import AttemptTrace

_PRIME = 2**61 - 1
_BASE = 1_000_003_000_019


@dataclass(frozen=True, slots=True)
class Matched:
    """What the triplets of an attempt come to. ``call_ids`` has the call of each, recorded or given, in their order;
    ``calls`` and ``nodes`` are to be recorded."""

    triplets: tuple[GivenTriplet, ...] = ()
    call_ids: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    nodes: tuple[Node, ...] = ()

    def rewards(self, attempt: Attempt, now: float) -> tuple[Reward, ...]:
        """That of each triplet which has one, for its call."""
        return tuple(
            Reward(attempt.rollout_id, attempt.id, each.reward, source="return", call_id=call_id, created_at=now)
            for each, call_id in zip(self.triplets, self.call_ids, strict=True)
            if each.reward is not None
        )


def match_triplets(triplets: Sequence[GivenTriplet], trace: AttemptTrace, policy: str, now: float) -> Matched:
    """Gives each triplet its call: the first of the recorded ones with the same tokens that no triplet before it has,
    else a new one to ``policy``."""
    recorded = _recorded(trace)
    taken: set[str] = set()
    given: _Given | None = None
    call_ids: list[str] = []
    for triplet in triplets:
        equal = recorded.get(_key(triplet.prompt_ids, triplet.response_ids), deque())
        while equal and equal[0] in taken:  # by another of its samples, too
            equal.popleft()
        if equal:
            taken.add(equal[0])
            call_ids.append(equal.popleft())
        else:
            given = given or _Given(trace, policy, now)
            call_ids.append(given.add(triplet))
    added = ((), ()) if given is None else (tuple(given.calls), tuple(given.nodes))
    return Matched(tuple(triplets), tuple(call_ids), *added)


def largest_unrecorded(matched: Matched, trace: AttemptTrace) -> int | None:
    """The largest token id of what is off the record, where none that was recorded is as large: if any of them is
    outside the model's vocabulary, this one is."""
    largest = max((max(node.token_ids) for node in matched.nodes), default=-1)
    recorded = max((max(node.token_ids) for node in trace.nodes if node.token_ids), default=-1)
    return largest if largest > recorded else None


def unknown_token(triplets: Sequence[GivenTriplet], token: int, whose: str = "the agent returned") -> Failure:
    """The failure where a token is outside the model's vocabulary. ``whose`` says in it where they come from."""
    places = enumerate(triplets, 1)
    place = next(place for place, each in places if token in each.prompt_ids or token in each.response_ids)
    return Failure(
        Reason.AGENT_ERROR,
        f"triplet {place} of {len(triplets)} that {whose} has token id {token}, which is not in the model's vocabulary",
    )


class _Given:
    """The calls that are made of triplets, with their nodes, below what the attempt has recorded.

    A prompt hangs below the longest recorded or given path that it begins with, so that a conversation of many turns,
    whose prompts begin with each other, is stored and trained as the tree that it is. A path's hash grows with it token
    by token; where two are equal the tokens are compared.
    """

    def __init__(self, trace: AttemptTrace, policy: str, now: float) -> None:
        self.calls: list[Call] = []
        self.nodes: list[Node] = []
        self._attempt = trace.attempt
        self._policy = policy
        self._now = now
        self._index = max((call.index for call in trace.calls), default=-1) + 1
        self._next = max((node.id for node in trace.nodes), default=-1) + 1
        self._all: dict[int, Node] = {}
        self._ends: dict[int, tuple[int, int]] = {}
        """By node, the hash and the length of its path."""
        self._found: dict[tuple[int, int], int] = {}
        """The node of each hash and length, the first one where several have the same tokens."""
        for node in trace.nodes:
            self._put(node)

    def add(self, triplet: GivenTriplet) -> str:
        """Makes a call of it and returns its id."""
        index = self._index + len(self.calls)
        parent, shared = self._longest(triplet.prompt_ids)
        prompt = parent
        if prompt is None or shared < len(triplet.prompt_ids):
            prompt = self._new(parent, triplet.prompt_ids[shared:], index)
        reply = self._new(prompt, triplet.response_ids, index)
        call = Call(
            id=f"given-{self._attempt.id}-{len(self.calls)}",
            attempt_id=self._attempt.id,
            index=index,
            wire=GIVEN,
            model="",
            policy=self._policy,
            status=CallStatus.COMPLETE,
            branch=GIVEN,
            prompt_node=prompt,
            samples=(SampleRecord(reply, FinishReason.STOP, Message("assistant")),),
            asked={"metadata": triplet.metadata} if triplet.metadata else {},
            used=None,
            prompt_tokens=len(triplet.prompt_ids),
            reused_tokens=shared,
            agent=triplet.agent,
            received_at=self._now,
        )
        self.calls.append(call)
        return call.id

    def _longest(self, ids: array[int]) -> tuple[int | None, int]:
        """The node whose path is the longest that the ids begin with, and its length."""
        likely: list[tuple[int, int]] = []
        hashed = 0
        for length, token in enumerate(ids, 1):
            hashed = (hashed * _BASE + token + 1) % _PRIME
            if (node := self._found.get((hashed, length))) is not None:
                likely.append((node, length))
        for node, length in reversed(likely):
            if _path(self._all, node, None) == ids[:length]:
                return node, length
        return None, 0

    def _new(self, parent: int | None, ids: array[int], call_index: int) -> int:
        node = Node(self._next, parent, False, ids, call_index)
        self._next += 1
        self.nodes.append(node)
        self._put(node)
        return node.id

    def _put(self, node: Node) -> None:
        hashed, length = (0, 0) if node.parent is None else self._ends[node.parent]
        for token in node.token_ids:
            hashed = (hashed * _BASE + token + 1) % _PRIME
        self._all[node.id] = node
        self._ends[node.id] = hashed, length + len(node.token_ids)
        self._found.setdefault(self._ends[node.id], node.id)


def _recorded(trace: AttemptTrace) -> dict[bytes, deque[str]]:
    """The ids of the calls that sampled something, by prompt and reply, in their order. One with several samples is
    there under each, and once under equal ones."""
    nodes = {node.id: node for node in trace.nodes}
    found: dict[bytes, deque[str]] = {}
    for call in sorted(trace.calls, key=lambda call: call.index):
        if call.prompt_node is None or not call.samples:
            continue
        prompt = _path(nodes, call.prompt_node, None)
        keys = dict.fromkeys(_key(prompt, _path(nodes, sample.node, call.prompt_node)) for sample in call.samples)
        for key in keys:
            found.setdefault(key, deque()).append(call.id)
    return found


def _path(nodes: Mapping[int, Node], last: int, before: int | None) -> array[int]:
    """The tokens of the path that ends with a node, from the root or from below ``before`` on."""
    parts: list[array[int]] = []
    at: int | None = last
    while at is not None and at != before:
        parts.append(nodes[at].token_ids)
        at = nodes[at].parent
    path = array("i")
    for part in reversed(parts):
        path.extend(part)
    return path


def _key(prompt: array[int], response: array[int]) -> bytes:
    digest = blake2b(len(prompt).to_bytes(8, "big"), digest_size=20)
    digest.update(prompt)
    digest.update(response)
    return digest.digest()
