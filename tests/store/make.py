"""Records for the store's tests."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

from agentlightning.nouns import (
    GIVEN,
    Attempt,
    AttemptResult,
    Call,
    CallStatus,
    FinishReason,
    KeptIds,
    Message,
    Mode,
    Node,
    Reward,
    Rollout,
    RunRecord,
    RunStatus,
    SampleRecord,
    SamplingParams,
    Status,
    ToolCall,
)
from agentlightning.store import Store, open_store


def run(id: str = "r") -> RunRecord:
    return RunRecord(id, "run", "/runs/r", RunStatus.RUNNING, {"seed": 1}, created_at=1.0)


def rollout(index: int, run_id: str = "r", mode: Mode = Mode.TRAIN, group: int = 0) -> Rollout:
    return Rollout(
        f"{run_id}-{mode}-{group}-{index}",
        run_id,
        {"question": f"{index} é"},
        mode,
        group,
        index,
        2**63 - 1 - index,
        1,
    )


def call(attempt_id: str, index: int = 0, id: str | None = None) -> Call:
    """Call number ``index``, whose nodes are ``turn(index)``."""
    message = Message("assistant", "hi\x00é", (ToolCall("t1", "add", '{"a": 1'),), reasoning="so")
    used = SamplingParams(0.7, 0.9, 5, 16, ("END",), (2, 3), seed=2**62)
    sample = SampleRecord(2 * index + 1, FinishReason.STOP, message)
    return Call(
        id or f"{attempt_id}/{index}",
        attempt_id,
        index,
        "chat",
        "gpt",
        "main",
        CallStatus.COMPLETE,
        "continued" if index else "root",
        2 * index,
        (sample,),
        {"temperature": 0.0},
        used,
        prompt_tokens=3,
        sampled_tokens=2,
        agent="solver",
        received_at=1.5,
        first_token_s=0.1,
        total_s=0.2,
    )


def turn(index: int = 0) -> list[Node]:
    """A given node below the last turn's sample, and a sampled one with its kept support."""
    kept = KeptIds(array("i", [4, 9, 5]), array("i", [0, 2, 3]))
    return [
        Node(2 * index, 2 * index - 1 if index else None, False, array("i", [1, 2, 2**31 - 1]), index),
        Node(
            2 * index + 1,
            2 * index,
            True,
            array("i", [4, 5]),
            index,
            array("f", [-1.1, -2.5]),
            array("f", [-0.1, 0.0]),
            kept,
            3,
        ),
    ]


def reward(attempt: Attempt, value: float = 1.0) -> Reward:
    return Reward(attempt.rollout_id, attempt.id, value, source="return", created_at=2.0)


def given(attempt: Attempt, index: int, value: float = 1.0) -> AttemptResult:
    """The end of an attempt of ``index`` calls, with one that was given: its nodes are ``given_turn(index)``."""
    sample = SampleRecord(2 * index + 1, FinishReason.STOP, Message("assistant"))
    call = Call(
        f"given-{attempt.id}-0", attempt.id, index, GIVEN, "", "main", CallStatus.COMPLETE, "given", 2 * index,
        (sample,), {"metadata": {"seat": 3}}, None, prompt_tokens=1,
    )  # fmt: skip
    own = Reward(attempt.rollout_id, attempt.id, value, source="return", call_id=call.id, created_at=2.0)
    return AttemptResult(
        Status.SUCCEEDED,
        value,
        rewards=(own, reward(attempt, value)),
        given_calls=(call,),
        given_nodes=tuple(given_turn(index)),
    )


def given_turn(index: int) -> list[Node]:
    return [
        Node(2 * index, None, False, array("i", [7]), index),
        Node(2 * index + 1, 2 * index, False, array("i", [8, 9]), index),
    ]


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'record.db'}"


Factory = Callable[[Path], Store]
"""Opens the store that belongs to a folder: a second time, a second one on the same record, as another process would."""

FACTORIES: dict[str, Factory] = {"sqlite": lambda folder: open_store(url(folder))}
"""The backends that the contract (test_records.py, test_leases.py) is held by."""


async def opened(folder: Path, rollouts: int = 0, factory: Factory = FACTORIES["sqlite"]) -> Store:
    """A store with run ``r`` and that many queued rollouts."""
    store = factory(folder)
    await store.create_run(run())
    await store.enqueue([rollout(i) for i in range(rollouts)])
    return store


async def leased(store: Store, limit: int = 1, seconds: float = 60) -> list[Attempt]:
    return [attempt for _, attempt in await store.lease("r", "me", limit=limit, seconds=seconds)]
