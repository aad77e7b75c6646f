"""Small traces to credit, written out by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from agentlightning.nouns import (
    Attempt,
    Call,
    CallStatus,
    Failure,
    FinishReason,
    KeptIds,
    Message,
    Mode,
    Node,
    Reason,
    Reward,
    Rollout,
    SampleRecord,
    SamplingParams,
    Status,
)
from agentlightning.records.traces import AttemptTrace, Group, Trace


def given_node(id: int, parent: int | None, tokens: int, call: int = 0) -> Node:
    return Node(id, parent, False, array("i", range(tokens)), call)


def sampled_node(id: int, parent: int, tokens: int, call: int = 0, kept: KeptIds | None = None) -> Node:
    return Node(id, parent, True, array("i", range(tokens)), call, array("f", [-1.0] * tokens), None, kept, 3)


def call(
    index: int,
    prompt: int,
    *leaves: int,
    status: CallStatus = CallStatus.COMPLETE,
    temperature: float = 1.0,
    policy: str = "main",
) -> Call:
    samples = tuple(SampleRecord(leaf, FinishReason.STOP, Message("assistant", "x")) for leaf in leaves)
    used = SamplingParams(temperature=temperature)
    return Call(f"c{index}", "a", index, "chat", "m", policy, status, "root", prompt, samples, {}, used)


TWO_TURNS = [given_node(0, None, 5), sampled_node(1, 0, 4), given_node(2, 1, 3, 1), sampled_node(3, 2, 2, 1)]
TWO_CALLS = [call(0, 0, 1), call(1, 2, 3)]


def attempt(
    nodes: Sequence[Node] = TWO_TURNS,
    calls: Sequence[Call] = TWO_CALLS,
    rewards: Sequence[Reward] = (),
    *,
    id: str = "a",
    marked: Sequence[str] = (),
) -> AttemptTrace:
    held = Attempt(id, "r", 1, "runner", Status.SUCCEEDED, 0.0, 0.0, marked=tuple(marked))
    return AttemptTrace(held, tuple(calls), tuple(nodes), tuple(rewards))


def cut_into(cuts: Sequence[int], *, id: str = "a") -> AttemptTrace:
    """An attempt whose sampled tokens are cut into that many calls."""
    nodes: list[Node] = [given_node(0, None, 3)]
    calls: list[Call] = []
    for i, tokens in enumerate(cuts):
        nodes += [given_node(2 * i + 1, nodes[-1].id, 1, i), sampled_node(2 * i + 2, 2 * i + 1, tokens, i)]
        calls.append(call(i, 2 * i + 1, 2 * i + 2))
    return attempt(nodes, calls, id=id)


def trace(
    id: str, reward: float | None, *attempts: AttemptTrace, failure: Reason | None = None, status: Status | None = None
) -> Trace:
    """A finished rollout; one that failed where it has no reward."""
    failed = Failure(failure, "x") if failure is not None else None
    status = status or (Status.FAILED if failure is not None else Status.SUCCEEDED)
    rollout = Rollout(id, "run", {}, Mode.TRAIN, 0, 0, 0, 1, status, "a", reward, failed)
    return Trace(rollout, attempts or (attempt(id=f"{id}-1"),))


def group(*traces: Trace, number: int = 0) -> Group:
    return Group(number, traces)
