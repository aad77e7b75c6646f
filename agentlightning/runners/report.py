"""Report: what an attempt comes to, decided by ruling 8. ``decide_outcome`` is pure: facts in, result out.

A failure is masked, never scored: only ``failure_reward`` gives one a reward, and nothing gives an incomplete attempt
one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentlightning.credit import last_reward
from agentlightning.nouns import (
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
from agentlightning.runners.execution import AgentResult, Returned
from agentlightning.runners.matching import Matched
from agentlightning.text import plural

if TYPE_CHECKING:
    from agentlightning.records.usage import AttemptUsage

SLOW_ENGINE = "use fewer n_runners, a smaller sampling.max_tokens, or a higher runner.deadline"
"""What helps an attempt whose time went into its calls."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an attempt once its agent has ended: what came of it, what it did at the endpoint, the rewards
    it ``emitted``, in order, what a grader said (None where none was asked), the agents that it ``marked`` as
    trainable, and what the triplets that it returned come to. Marks hold also where it failed: a failure that is scored
    trains no others than a success."""

    result: AgentResult
    usage: AttemptUsage
    emitted: Sequence[Reward] = ()
    graded: float | Failure | None = None
    marked: Sequence[str] = ()
    given: Matched | None = None


def decide_outcome(
    rollout: Rollout,
    attempt: Attempt,
    facts: Facts,
    *,
    failure_reward: Mapping[ScorableReason, float] | None = None,
    now: float = 0.0,
) -> AttemptResult:
    """The result of an attempt. ``now`` is the time that its rewards are given.

    A returned number is final; else the mean of the rewards that returned triplets have; else the grader's; else the
    last emitted ``reward``; else the attempt fails as ``empty``. Of an attempt that failed no triplet is recorded.
    """
    decided = _reward_or_failure(rollout, facts)
    marked = tuple(facts.marked)
    output: Json = facts.result.output if isinstance(facts.result, Returned) else None

    def reward(value: float, source: str, reason: str | None = None) -> Reward:
        return Reward(rollout.id, attempt.id, value, source=source, reason=reason, created_at=now)

    if isinstance(decided, Failure):
        scored: Mapping[Reason, float] = {**failure_reward} if failure_reward else {}
        value = scored.get(decided.reason)
        if value is None:
            return AttemptResult(Status.FAILED, failure=decided, output=output, marked=marked)
        given = reward(value, "failure_reward", str(decided.reason))
        return AttemptResult(
            Status.FAILED, reward=value, failure=decided, output=output, rewards=(given,), marked=marked
        )
    value, source = decided
    rewards = () if source == "emit" else (reward(value, source),)
    given = facts.given or Matched()
    return AttemptResult(
        Status.SUCCEEDED,
        reward=value,
        output=output,
        rewards=(*given.rewards(attempt, now), *rewards),
        marked=marked,
        given_calls=given.calls,
        given_nodes=given.nodes,
    )


def needs_grader(result: AgentResult, rollout: Rollout, usage: AttemptUsage) -> bool:
    """Whether a grader would be asked: the agent returned no number and no triplet that has one, and nothing else has
    failed the attempt."""
    if not isinstance(result, Returned) or _returned_reward(result) is not None:
        return False
    return _endpoint_failure(rollout, usage, given=bool(result.triplets)) is None


def _reward_or_failure(rollout: Rollout, facts: Facts) -> tuple[float, str] | Failure:
    """A reward and its source, or why there is none."""
    result, usage, graded = facts.result, facts.usage, facts.graded
    if isinstance(result, Failure):
        if usage.incomplete:  # before all else: such an attempt may never be trained, and a failure can be scored
            return _incomplete(usage, result.traceback)
        if (failure := _external_failure(result, usage)) is not None:
            return failure
        if result.reason is Reason.AGENT_ERROR and usage.context_length_errors:
            return Failure(
                Reason.CONTEXT_LENGTH,
                f"a prompt did not fit the model's context, and then: {result.message}",
                result.traceback,
            )
        if result.reason is Reason.TIMEOUT and (spent := spent_by_engine(usage)) is not None:
            return Failure(result.reason, f"{result.message}: {spent}; {SLOW_ENGINE}", result.traceback)
        return result
    failure = _endpoint_failure(rollout, usage, given=bool(result.triplets))
    if failure is not None:
        return failure
    returned = _returned_reward(result)
    if returned is not None:
        return returned, "return"
    if isinstance(graded, Failure):
        return graded
    if graded is not None:
        return graded, "grader"
    last = last_reward(facts.emitted)
    if last is not None:
        return last.value, "emit"
    if result.not_number:
        return Failure(Reason.BAD_REWARD, f"{result.not_number}; no grader is set and no reward was emitted")
    if result.triplets:
        return Failure(
            Reason.EMPTY,
            f"none of the {len(result.triplets)} triplets that the agent returned has a reward, it emitted none, and "
            "no grader is set",
        )
    if result.output == []:
        return Failure(
            Reason.EMPTY,
            "the agent returned an empty list and no triplet, emitted no reward, and no grader is set",
        )
    return Failure(Reason.EMPTY, "the agent returned no reward, emitted none, and no grader is set")


def _returned_reward(result: Returned) -> float | None:
    """What the agent's return value says the whole rollout is worth."""
    own = [triplet.reward for triplet in result.triplets if triplet.reward is not None]
    return statistics.fmean(own) if own and result.reward is None else result.reward


def spent_by_engine(usage: AttemptUsage) -> str | None:
    """How much of an attempt's time its calls waited for the engine, and how fast that was. None where it was less than
    half of it."""
    engine = usage.engine
    if engine.seconds < engine.lasted / 2 or not engine.seconds:
        return None
    cut = f", and {plural(engine.cut, 'request')} not sampled to the end" if engine.cut else ""
    return (
        f"{engine.seconds:.1f} s of its {engine.lasted:.1f} s the engine had its calls, queued or sampled "
        f"({plural(engine.tokens, 'token')}, {engine.tokens / engine.seconds:.1f} tokens/s{cut})"
    )


def _external_failure(failure: Failure, usage: AttemptUsage) -> Failure | None:
    """An agent that an external model left without an answer failed through no fault of the policy's."""
    if failure.reason not in (Reason.AGENT_ERROR, Reason.TIMEOUT):
        return None
    trouble = usage.trouble
    if trouble is None and failure.reason is Reason.TIMEOUT:
        trouble = next(
            (f"external model {name!r} had not answered" for name, use in usage.external.items() if use.left), None
        )
    return (
        None
        if trouble is None
        else Failure(Reason.EXTERNAL, f"{trouble}; and then: {failure.message}", failure.traceback)
    )


def _endpoint_failure(rollout: Rollout, usage: AttemptUsage, *, given: bool) -> Failure | None:
    """In training an attempt whose agent got no reply from the endpoint, and was given none by its agent, has nothing
    to train."""
    if usage.incomplete:
        return _incomplete(usage)
    if given or rollout.mode is not Mode.TRAIN or usage.calls > usage.refused + usage.abandoned:
        return None
    if not usage.trainable and not (usage.abandoned or usage.refused or usage.unserved):
        return None  # nothing is trained, whoever was called
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
