"""Report: what came of an attempt, decided by ruling 8, and the log of what it printed. ``resolve`` is pure: facts in,
result out.

A failure is masked, never scored: only ``failure_reward`` gives one a reward, and nothing gives an incomplete attempt
one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentlightning.credit.unused import last_reward
from agentlightning.runners.job import Ran, Returned
from agentlightning.text import plural
from agentlightning.types import (
    Attempt,
    AttemptResult,
    Failure,
    Json,
    Mode,
    Reason,
    Reward,
    Rollout,
    ScorableReason,
    Status,
)

if TYPE_CHECKING:
    from agentlightning.records.usage import AttemptUsage

TAIL_BYTES = 64 * 1024
LOG_BYTES = 16 * 1024 * 1024
SLOW_ENGINE = "use fewer n_runners, a smaller sampling.max_tokens, or a higher runner.deadline"
"""What helps an attempt whose time went into its calls."""


def resolve(
    rollout: Rollout,
    attempt: Attempt,
    ran: Ran,
    usage: AttemptUsage,
    *,
    emitted: Sequence[Reward] = (),
    graded: float | Failure | None = None,
    failure_reward: Mapping[ScorableReason, float] | None = None,
    marked: Sequence[str] = (),
    now: float = 0.0,
) -> AttemptResult:
    """The result of an attempt. ``emitted`` are the rewards it emitted, in order; ``graded`` what the grader said, None
    where none was asked; ``marked`` the agents that it marked as trainable, which hold also where it failed: a failure
    that is scored trains no others than a success.

    A returned number is final; else the grader's; else the last emitted ``reward``; else the attempt fails as
    ``empty``.
    """
    decided = _decide(rollout, ran, usage, emitted, graded)
    output: Json = ran.output if isinstance(ran, Returned) else None

    def reward(value: float, source: str, reason: str | None = None) -> Reward:
        return Reward(rollout.id, attempt.id, value, source=source, reason=reason, created_at=now)

    if isinstance(decided, Failure):
        scored: Mapping[Reason, float] = {**failure_reward} if failure_reward else {}
        value = scored.get(decided.reason)
        if value is None:
            return AttemptResult(Status.FAILED, failure=decided, output=output, marked=tuple(marked))
        given = reward(value, "failure_reward", str(decided.reason))
        return AttemptResult(
            Status.FAILED, reward=value, failure=decided, output=output, rewards=(given,), marked=tuple(marked)
        )
    value, source = decided
    rewards = () if source == "emit" else (reward(value, source),)
    return AttemptResult(Status.SUCCEEDED, reward=value, output=output, rewards=rewards, marked=tuple(marked))


def needs_grader(ran: Ran, rollout: Rollout, usage: AttemptUsage) -> bool:
    """Whether a grader would be asked: the agent returned no number, and nothing else has failed the attempt."""
    return isinstance(ran, Returned) and ran.reward is None and _endpoint_failure(rollout, usage) is None


def _decide(
    rollout: Rollout, ran: Ran, usage: AttemptUsage, emitted: Sequence[Reward], graded: float | Failure | None
) -> tuple[float, str] | Failure:
    if isinstance(ran, Failure):
        if usage.incomplete:  # before all else: such an attempt may never be trained, and a failure can be scored
            return _incomplete(usage, ran.traceback)
        if (failure := _external_failure(ran, usage)) is not None:
            return failure
        if ran.reason is Reason.AGENT_ERROR and usage.context_length_errors:
            return Failure(
                Reason.CONTEXT_LENGTH,
                f"a prompt did not fit the model's context, and then: {ran.message}",
                ran.traceback,
            )
        if ran.reason is Reason.TIMEOUT and (spent := spent_by_engine(usage)) is not None:
            return Failure(ran.reason, f"{ran.message}: {spent}; {SLOW_ENGINE}", ran.traceback)
        return ran
    failure = _endpoint_failure(rollout, usage)
    if failure is not None:
        return failure
    if ran.reward is not None:
        return ran.reward, "return"
    if isinstance(graded, Failure):
        return graded
    if graded is not None:
        return graded, "grader"
    last = last_reward(emitted)
    if last is not None:
        return last.value, "emit"
    if ran.not_number:
        return Failure(Reason.BAD_REWARD, f"{ran.not_number}; no grader is set and no reward was emitted")
    return Failure(Reason.EMPTY, "the agent returned no reward, emitted none, and no grader is set")


def spent_by_engine(usage: AttemptUsage) -> str | None:
    """How much of an attempt's time its calls waited for the engine, and how fast that was. None where it was less than
    half of it."""
    engine = usage.engine
    if engine.seconds < engine.lasted / 2 or not engine.seconds:
        return None
    cut = f", and {plural(engine.cut, 'request')} not sampled to the end" if engine.cut else ""
    return (
        f"{engine.seconds:.1f} s of its {engine.lasted:.1f} s the engine had its calls, queued or sampled "
        f"({plural(engine.tokens, 'token')}, "
        f"{engine.tokens / engine.seconds:.1f} tokens/s{cut})"
    )


def _external_failure(ran: Failure, usage: AttemptUsage) -> Failure | None:
    """An agent that an external model left without an answer failed through no fault of the policy's."""
    if ran.reason not in (Reason.AGENT_ERROR, Reason.TIMEOUT):
        return None
    trouble = usage.trouble
    if trouble is None and ran.reason is Reason.TIMEOUT:
        trouble = next(
            (f"external model {name!r} had not answered" for name, use in usage.external.items() if use.left), None
        )
    return None if trouble is None else Failure(Reason.EXTERNAL, f"{trouble}; and then: {ran.message}", ran.traceback)


def _endpoint_failure(rollout: Rollout, usage: AttemptUsage) -> Failure | None:
    """In training an attempt whose agent got no reply from the endpoint has nothing to train."""
    if usage.incomplete:
        return _incomplete(usage)
    if rollout.mode is not Mode.TRAIN or usage.calls > usage.refused + usage.abandoned:
        return None
    if usage.abandoned:
        return Failure(
            Reason.EMPTY,
            f"the agent read no reply to the end: {usage.abandoned} of its calls were left before their reply was "
            "complete",
        )
    if usage.refused:
        return Failure(
            Reason.EMPTY,
            f"every call to the endpoint was refused ({usage.refused}), the last one with: {usage.last_error}",
        )
    if usage.unserved:
        answer = next(iter(usage.unserved.values()))
        return Failure(
            Reason.EMPTY, f"no call was served: the agent asked for {', '.join(usage.unserved)}, and was told: {answer}"
        )
    if usage.external:
        names = ", ".join(usage.external)
        return Failure(
            Reason.EMPTY,
            f"no call was to the model that is trained: all were to external models ({names}), which are recorded and "
            "never trained",
        )
    return Failure(
        Reason.EMPTY,
        "no call reached the endpoint: is the client built with llm.endpoint as its base URL? `agl dev` looks for the "
        "cause",
    )


def _incomplete(usage: AttemptUsage, traceback: str = "") -> Failure:
    message = f"{usage.incomplete} of its {usage.calls} calls could not be recorded whole: {usage.last_error}"
    return Failure(Reason.INCOMPLETE, message, traceback)


class OutputLog:
    """What an attempt printed: the last 64 KB in memory, and with a ``path`` the first 16 MB in a file. Written from
    any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._chunks: deque[bytes] = deque()
        self._kept = 0
        self._total = 0
        self._lock = threading.Lock()
        self._file = None
        self._closed = False

    def write(self, data: bytes) -> None:
        """Takes bytes; after ``close`` they are dropped."""
        with self._lock:
            if self._closed or not data:
                return
            if self._path is not None and self._total < LOG_BYTES:
                try:
                    self._write_file(self._path, data)
                except OSError as error:  # a full disk costs the log its file, not the attempt its life
                    data += f"\n[the log file {self._path} could not be written: {error.strerror}]\n".encode()
                    self._path = None
            self._total += len(data)
            self._chunks.append(data[-TAIL_BYTES:])
            self._kept += len(self._chunks[-1])
            while self._kept - len(self._chunks[0]) >= TAIL_BYTES:
                self._kept -= len(self._chunks.popleft())

    def _write_file(self, path: Path, data: bytes) -> None:
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        room = LOG_BYTES - self._total
        self._file.write(data[:room])
        if len(data) >= room:
            self._file.write(b"\n[the log ends here: an attempt's file holds at most 16 MB]\n")

    def text(self) -> str:
        """The last 64 KB as text."""
        with self._lock:
            return b"".join(self._chunks)[-TAIL_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                with suppress(OSError):  # a disk that fails only now: the attempt has its result all the same
                    self._file.close()
