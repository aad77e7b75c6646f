"""Store: the record of runs, rollouts, attempts, calls, trace nodes, rewards, spans, resources and steps, behind one
async interface.

Whatever a method acknowledges is durable against ``kill -9`` of any process (``durability="power"``: against power loss
too). Methods may be awaited from any event loop in any thread. All raise StoreError when the database cannot be read or
written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from agentlightning.nouns import (
    Attempt,
    AttemptResult,
    Call,
    CreditRow,
    Failure,
    Intent,
    Json,
    Mode,
    Node,
    Reward,
    Rollout,
    RunRecord,
    RunStatus,
    SpanRecord,
    Status,
    StepRecord,
)


class Store(Protocol):
    # ------------------------------------------------------------------ runs, steps, resources
    async def create_run(self, run: RunRecord) -> None:
        """Raises StoreError if the id exists."""
        ...

    async def get_run(self, run_id: str) -> RunRecord | None: ...

    async def runs(self) -> list[RunRecord]:
        """Newest first."""
        ...

    async def end_run(self, run_id: str, status: RunStatus, error: str | None = None) -> None:
        """Sets the status (``running`` again on a resume: clears ``ended_at`` and ``error``)."""
        ...

    async def put_resources(self, run_id: str, resources: Mapping[str, Json]) -> int:
        """Stores a new version of the run's named resources and returns it: 1, 2, ..."""
        ...

    async def get_resources(self, run_id: str, version: int | None = None) -> Mapping[str, Json]:
        """The given or the latest version. Raises StoreError if there is none."""
        ...

    async def put_step(self, step: StepRecord, credit: Sequence[CreditRow] | None = None) -> None:
        """Inserts or replaces (a resumed run repeats the steps after its checkpoint), with the step's credit in the
        same transaction; None keeps what it has. Raises StoreError for a group that an earlier step has; a later step
        that has it is forgotten, since the run makes it again."""
        ...

    async def credit(self, run_id: str, *, step: int | None = None, attempt_id: str | None = None) -> list[CreditRow]:
        """What was put with the steps: of one, of one attempt, or all, in order of step, attempt and policy."""
        ...

    async def steps(self, run_id: str) -> list[StepRecord]:
        """In order of step."""
        ...

    async def put_intent(self, intent: Intent) -> None:
        """Inserts or replaces the intent of its mode and step."""
        ...

    async def intents(self, run_id: str, *, after_step: int = -1, mode: Mode | None = None) -> list[Intent]:
        """Those of the steps after ``after_step``, in order of step."""
        ...

    # ------------------------------------------------------------------ rollouts and attempts
    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Adds queued rollouts. One whose id exists is left as it is. Returns the stored ones, in the order given.
        Raises StoreError for one whose place (mode, group and index) another has."""
        ...

    async def get_rollout(self, rollout_id: str) -> Rollout | None: ...

    async def rollouts(
        self,
        run_id: str,
        *,
        mode: Mode | None = None,
        groups: Collection[int] | None = None,
        status: Status | None = None,
    ) -> list[Rollout]:
        """In order of creation; of ``groups`` alone where given, which are numbers within a mode."""
        ...

    async def lease(
        self,
        run_id: str,
        runner_id: str,
        *,
        limit: int,
        seconds: float,
        mode: Mode | None = None,
        groups: Collection[int] | None = None,
    ) -> list[tuple[Rollout, Attempt]]:
        """Hands out up to ``limit`` queued rollouts in the order they were enqueued, each with a new attempt; only of
        ``mode`` and ``groups`` where given. ``range(n)`` is all groups up to number n; any set of numbers will do.

        No rollout is ever leased twice at once. The rollout becomes ``running``.
        """
        ...

    async def renew(self, attempt_id: str, *, seconds: float) -> bool:
        """Extends the lease; False when the attempt is no longer running (expired, cancelled, finished)."""
        ...

    async def score(
        self,
        attempt_id: str,
        *,
        seconds: float,
        output: Json = None,
        marked: Sequence[str] = (),
        agents: Mapping[str, str] = {},
    ) -> Rollout:
        """Has a running attempt wait for its grader, for at most ``seconds``, with what its agent returned: attempt and
        rollout become ``scoring``, and no lease is held or renewed any more. ``finish`` ends it, or ``retry``.
        ``agents`` as in AttemptResult.

        Doing so a second time changes nothing. Raises LeaseLost when the attempt was ended by something else.
        """
        ...

    async def finish(self, attempt_id: str, result: AttemptResult) -> Rollout:
        """Ends the attempt, names the agents of its calls (those of others are left alone), records the calls that were
        given with their nodes, appends ``result.rewards`` and ends its rollout, in one transaction. Raises StoreError
        for a given call or node that cannot be recorded.

        Reporting the same attempt a second time changes nothing. Raises LeaseLost when the attempt was ended by
        something else.
        """
        ...

    async def retry(
        self, attempt_id: str, failure: Failure, *, marked: Sequence[str] = (), agents: Mapping[str, str] = {}
    ) -> Rollout:
        """Ends the attempt as failed and queues its rollout again; ``marked`` and ``agents`` as in AttemptResult.
        Raises LeaseLost as ``finish`` does."""
        ...

    async def expire(self, *, now: float | None = None, max_attempts: int = 1) -> list[Attempt]:
        """Ends attempts whose lease has passed, as ``lost``; their rollouts are queued again while attempts are left,
        else fail. Attempts that wait for a grader past their deadline are ``lost`` too, and their rollouts fail."""
        ...

    async def requeue_running(self, run_id: str) -> list[str]:
        """On resume: ends every running attempt of the run as ``lost`` and queues its rollout again. Returns the
        rollout ids. What is being scored stays so, until its deadline: its output is recorded and can be graded."""
        ...

    async def requeue_failed(self, rollout_ids: Sequence[str]) -> list[str]:
        """Queues those of the rollouts that failed once more, to be run by further attempts. Returns their ids."""
        ...

    async def cancel(self, rollout_ids: Sequence[str], message: str) -> list[str]:
        """Cancels those not yet final, with their attempts. Returns the ids it changed."""
        ...

    async def wait(self, rollout_ids: Sequence[str], *, timeout: float | None = None) -> list[Rollout]:
        """Returns when at least one of the given rollouts is final (all that are), or after ``timeout`` seconds
        (possibly [])."""
        ...

    async def attempts(self, rollout_id: str) -> list[Attempt]: ...

    async def get_attempt(self, attempt_id: str) -> Attempt | None: ...

    # ------------------------------------------------------------------ calls, trace nodes, rewards
    async def record(self, call: Call, nodes: Sequence[Node]) -> None:
        """Stores a call with the nodes it added, all or nothing; durable on return. Inserts, or replaces a call of the
        same id."""
        ...

    async def set_call_status(self, call_id: str, status: str) -> None: ...

    async def set_agent(self, call_id: str, agent: str) -> None:
        """Names the agent that made a call after the call was recorded, once: the name counts instead of the recorded
        one. Raises StoreError for a second, other name."""
        ...

    async def calls(self, attempt_id: str) -> list[Call]:
        """In order of ``index``."""
        ...

    async def nodes(self, attempt_id: str) -> list[Node]:
        """The trace tree, parents before children."""
        ...

    async def add_reward(self, reward: Reward) -> None:
        """Refused with StoreError when its value is not a finite number within ``MAX_REWARD``, with RewardRefused when
        its attempt does not exist, or has no such call, agent or tool call as the reward names. One that comes after
        its attempt has ended is stored as ``late``."""
        ...

    async def rewards(self, rollout_id: str) -> list[Reward]:
        """In the order they were accepted."""
        ...

    async def add_spans(self, attempt_id: str, spans: Sequence[SpanRecord]) -> None:
        """Stores what an agent told of its attempt, all or nothing. A span whose id the attempt has is left as it is,
        so that sending it twice changes nothing. Raises StoreError where there is no such attempt."""
        ...

    async def spans(self, attempt_id: str) -> list[SpanRecord]:
        """In the order in which they began."""
        ...

    async def close(self) -> None: ...
