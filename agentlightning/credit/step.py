"""The credit of a step: which rewards are compared with each other, what each rollout's advantage follows from, and
why a rollout has none.

What is compared is what carries the reward, here rollouts: those of a task, or, where every task was tried once, all of
the step, so that the batch's mean is the baseline. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentlightning.credit.attempt import credit_attempt
from agentlightning.nouns import CreditRow
from agentlightning.records.credit import AttemptCredit, NodeCredit
from agentlightning.records.traces import Group, Trace

DEGENERATE = "degenerate_group"
TOO_FEW = "too_few_in_group"
RETRIED = "retried"

TASK = "rollouts of a task"
BATCH = "rollouts of the batch"


class CreditRule(Protocol):
    """What an algorithm says of rewards. Both are functions of what they are given: rewards that are compared with each
    other, and then the step's advantages together."""

    def advantages(self, rewards_G: Sequence[float]) -> Sequence[float]:
        """One advantage for each of the rewards that are compared. At least two, and not all equal."""
        ...

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        """The advantages of all rollouts of the step that have one, in their order, as they are used: whitened, or
        less a running baseline, say; or as they are."""
        ...


@dataclass(frozen=True, slots=True)
class StepCredit:
    """What a step's groups are worth, token by token. ``attempts`` are by attempt id, ``advantages`` by rollout id,
    those of masked rollouts left out; ``groups`` counts the tasks by ``trained``, ``degenerate`` and ``too_few``, and
    ``compared`` the advantages by what they were compared with."""

    attempts: Mapping[str, AttemptCredit]
    advantages: Mapping[str, float]
    groups: Mapping[str, int]
    compared: Mapping[str, int]

    @property
    def masked(self) -> dict[str, int]:
        """Tokens by reason."""
        counted: Counter[str] = Counter()
        for attempt in self.attempts.values():
            counted.update(attempt.masked)
        return dict(counted)

    @property
    def trained(self) -> int:
        return sum(attempt.trained for attempt in self.attempts.values())


def credit_step(groups: Sequence[Group], rule: CreditRule, trained_agents: str | None = None) -> StepCredit:
    """The credit of a step's finished groups. A group's failures are masked, and its advantages come from the others
    alone (invariant 4). ``trained_agents``: see `credit_attempt`.

    Raises ValueError where the rule does not give one advantage for each reward.
    """
    single = bool(groups) and all(len(group.traces) == 1 for group in groups)
    advantages: dict[str, float] = {}
    kinds: Counter[str] = Counter()
    masks: dict[str, str] = {}
    for traces in [[trace for group in groups for trace in group.traces]] if single else [g.traces for g in groups]:
        scored = [trace for trace in traces if trace.scored]
        rewards_G = [final_reward(trace) for trace in scored]
        kind = "too_few" if len(scored) < 2 else "trained" if differ(rewards_G) else "degenerate"
        kinds[kind] += len(traces) if single else 1
        masks.update((trace.rollout.id, _why_masked(trace, kind)) for trace in traces)
        if kind == "trained":
            values = _as_many(rule.advantages(rewards_G), len(scored), "advantages")
            advantages.update(zip((trace.rollout.id for trace in scored), values, strict=True))
    whole = _as_many(rule.over_batch(list(advantages.values())), len(advantages), "over_batch")
    advantages = dict(zip(advantages, whole, strict=True))
    attempts: dict[str, AttemptCredit] = {}
    for trace in (trace for group in groups for trace in group.traces):
        for attempt in trace.attempts:
            last = attempt is trace.attempts[-1]
            attempts[attempt.attempt.id] = credit_attempt(
                attempt,
                advantages.get(trace.rollout.id) if last else None,
                mask=masks[trace.rollout.id] if last else RETRIED,
                trained_agents=trained_agents,
            )
    compared = {BATCH if single else TASK: len(advantages)} if advantages else {}
    return StepCredit(attempts, advantages, dict(kinds), compared)


def credit_rows(groups: Sequence[Group], credits: Mapping[str, AttemptCredit], default: str) -> list[CreditRow]:
    """What is stored of a step: a row for each attempt that sampled something and each policy that it sampled from,
    which is that of the node's call, ``default`` where no call is recorded. ``credits`` are by attempt id."""
    rows: list[CreditRow] = []
    for attempt in (attempt for group in groups for trace in group.traces for attempt in trace.attempts):
        policies = {call.index: call.policy for call in attempt.calls}
        policy_of = {node.id: policies.get(node.call_index, default) for node in attempt.nodes}
        parts: dict[str, list[NodeCredit]] = {}
        for node in credits[attempt.attempt.id].nodes:
            parts.setdefault(policy_of[node.node], []).append(node)
        for policy, nodes in parts.items():
            rows.append(CreditRow(policy, attempt.attempt.id, AttemptCredit(tuple(nodes)).encode()))
    return rows


def final_reward(trace: Trace) -> float:
    """The reward of a rollout that has one."""
    assert trace.rollout.reward is not None
    return trace.rollout.reward


def differ(rewards_G: Sequence[float]) -> bool:
    """Whether rewards tell rollouts apart."""
    return max(rewards_G) - min(rewards_G) > 1e-9


def _why_masked(trace: Trace, kind: str) -> str:
    """The reason under which a rollout's tokens are masked if it has no advantage."""
    if not trace.scored:
        failure = trace.rollout.failure
        return f"failed: {failure.reason}" if failure is not None else str(trace.rollout.status)
    return DEGENERATE if kind == "degenerate" else TOO_FEW


def _as_many(values: Sequence[float], count: int, name: str) -> Sequence[float]:
    if len(values) != count:
        raise ValueError(f"{name} was given {count} numbers and returned {len(values)}: it has to return one for each")
    return values
