"""The credit of a step: from what is compared to an advantage for each rollout or call, and to a weight or a reason for
every token. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agentlightning.agent.trained_agents import as_search
from agentlightning.credit.attempt import CALL_WITHOUT_REWARD, credit_attempt
from agentlightning.credit.compare import Pool, Unit, comparisons, episodes, trainable_calls
from agentlightning.credit.rewards import own_reward
from agentlightning.credit.rows import limit_rows
from agentlightning.credit.settings import CreditSettings
from agentlightning.nouns import CreditRow
from agentlightning.records.credit import AttemptCredit
from agentlightning.records.traces import Group, Trace

DEGENERATE = "degenerate_group"
TOO_FEW = "too_few_in_group"
RETRIED = "retried"

EPISODE = CreditSettings()
"""A rollout's reward for each of its calls."""

Advantage = float | Mapping[int, float]
"""Of a rollout: one for all its calls, or one for each of those that have one, by index."""


class CreditRule(Protocol):
    """What an algorithm says of rewards. Both are functions of what they are given: rewards that are compared with each
    other, and then the step's advantages together."""

    def advantages(self, rewards_G: Sequence[float]) -> Sequence[float]:
        """One advantage for each of the rewards that are compared. At least two, and not all equal."""
        ...

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        """The advantages of all rollouts of the step that have one (or of all calls, where those are compared), in
        their order, as they are used: whitened, or less a running baseline, say; or as they are. Called once for each
        term of the credit's scheme that has some: with ``mixed`` for rollouts and for calls."""
        ...


@dataclass(frozen=True, slots=True)
class StepCredit:
    """What a step's groups are worth, token by token. ``attempts`` are by attempt id, ``advantages`` by rollout id,
    those of masked rollouts left out; ``groups`` counts the tasks by ``trained``, ``degenerate`` and ``too_few``,
    ``compared`` the advantages by what they were compared with, and ``rows`` what the limits did (credit/rows.py)."""

    attempts: Mapping[str, AttemptCredit]
    advantages: Mapping[str, Advantage]
    groups: Mapping[str, int]
    compared: Mapping[str, int]
    rows: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def masked(self) -> dict[str, int]:
        """Sampled tokens by reason."""
        counted: Counter[str] = Counter()
        for attempt in self.attempts.values():
            counted.update(attempt.masked)
        return dict(counted)

    @property
    def trained(self) -> int:
        return sum(attempt.trained for attempt in self.attempts.values())

    @property
    def off_record(self) -> AttemptCredit:
        """Tokens that users gave as targets, of all attempts; none of them was sampled."""
        return AttemptCredit(tuple(node for attempt in self.attempts.values() for node in attempt.given))


def credit_step(
    groups: Sequence[Group],
    rule: CreditRule,
    trained_agents: str | None = None,
    settings: CreditSettings = EPISODE,
) -> StepCredit:
    """The credit of a step's finished groups. A group's failures are masked, and its advantages come from the others
    alone (invariant 4). ``trained_agents``: see `credit_attempt`.

    Raises ValueError where the rule does not give one advantage for each reward.
    """
    trained_agents = as_search(trained_agents, agents_of(groups))
    terms = comparisons(groups, settings, trained_agents)
    compared: Counter[str] = Counter()
    parts: list[dict[Unit, float]] = []
    reasons: dict[Unit, str] = {}
    for term, pools in terms:
        part: dict[Unit, float] = {}
        for pool in pools:
            if pool.kind == "trained":
                values = _as_many(rule.advantages(list(pool.rewards.values())), len(pool.rewards), "advantages")
                part.update(zip(pool.rewards, values, strict=True))
                compared[pool.name] += len(values)
            else:
                reason = DEGENERATE if pool.kind == "degenerate" else TOO_FEW
                reasons.update({unit: reason for unit in pool.rewards if unit not in reasons})
        if part:
            values = _as_many(rule.over_batch(list(part.values())), len(part), "over_batch")
            part = {unit: term.weight * value for unit, value in zip(part, values, strict=True)}
        parts.append(part)
    advantages = parts[0] if len(parts) == 1 else _added(parts, groups, settings, trained_agents)

    attempts: dict[str, AttemptCredit] = {}
    by_rollout: dict[str, Advantage] = {}
    rows: Counter[str] = Counter()
    for trace in (trace for group in groups for trace in group.traces):
        for attempt in trace.attempts:
            last = attempt is trace.attempts[-1]
            worth, mask = _of_rollout(trace, advantages, reasons, settings.by_agent) if last else (None, RETRIED)
            credit = credit_attempt(attempt, worth, mask=mask, trained_agents=trained_agents)
            if settings.limits_rows and last:
                credit, counted = limit_rows(attempt, credit, settings, seed=trace.rollout.seed)
                rows.update(counted)
            attempts[attempt.attempt.id] = credit
            if isinstance(worth, float | int):
                by_rollout[trace.rollout.id] = worth
            elif worth is not None:
                own = {at: value for at, value in worth.items() if not isinstance(value, str)}
                by_rollout.update({trace.rollout.id: own} if own else {})
    kinds = _kinds(len(groups), [pool for _, pools in terms for pool in pools])
    return StepCredit(attempts, by_rollout, kinds, dict(compared), dict(rows))


def informative(group: Group, settings: CreditSettings, trained_agents: str | None) -> bool:
    """Whether anything of a group can be told apart by its rewards."""
    terms = comparisons([group], settings, as_search(trained_agents, agents_of([group])))
    return any(pool.kind == "trained" for _, pools in terms for pool in pools)


def credit_rows(groups: Sequence[Group], credits: Mapping[str, AttemptCredit], default: str) -> list[CreditRow]:
    """What is stored of a step: a row for each attempt that sampled something and each policy that it sampled from,
    which is that of the node's call, ``default`` where no call is recorded. ``credits`` are by attempt id."""
    rows: list[CreditRow] = []
    for attempt in (attempt for group in groups for trace in group.traces for attempt in trace.attempts):
        policies = {call.index: call.policy for call in attempt.calls}
        policy_of = {node.id: policies.get(node.call_index, default) for node in attempt.nodes}
        credit = credits[attempt.attempt.id]
        for policy in dict.fromkeys(policy_of[node] for node in credit.by_node):
            part = credit.part({node for node, its in policy_of.items() if its == policy})
            rows.append(CreditRow(policy, attempt.attempt.id, part.encode()))
    return rows


def agents_of(groups: Sequence[Group]) -> frozenset[str | None]:
    """Those whose calls the groups recorded."""
    return frozenset(
        call.agent for group in groups for trace in group.traces for attempt in trace.attempts for call in attempt.calls
    )


def _added(
    parts: Sequence[Mapping[Unit, float]], groups: Sequence[Group], settings: CreditSettings, trained_agents: str | None
) -> dict[Unit, float]:
    """For each call the sum of what it and its episode have in the parts; what its episode has only where that is not
    made of what it and other calls have. An episode whose calls have nothing of their own stays whole."""
    added: dict[Unit, float] = {}
    for trace in (trace for group in groups for trace in group.traces if trace.scored):
        for episode in episodes(trace, settings.by_agent):
            whole = Unit(trace.rollout.id, None, episode.agent)
            calls = [replace(whole, call=call.index) for call in trainable_calls(episode, trained_agents)]
            own = {unit for unit in calls if any(unit in part for part in parts)}
            made = own_reward(trace, episode.agent) is None
            for unit in calls if own else [whole]:
                keys = {unit} if made and unit in own else {unit, whole}
                values = [part[key] for part in parts for key in keys if key in part]
                if values:
                    added[unit] = sum(values)
    return added


def _of_rollout(
    trace: Trace, advantages: Mapping[Unit, float], reasons: Mapping[Unit, str], by_agent: bool
) -> tuple[float | Mapping[int, float | str] | None, str]:
    """What the attempt that counts is worth, see `credit_attempt`, and the reason where it is nothing."""
    if not trace.scored:
        failure = trace.rollout.failure
        return None, f"failed: {failure.reason}" if failure is not None else str(trace.rollout.status)
    whole = Unit(trace.rollout.id)
    if whole in advantages:
        return advantages[whole], ""
    by_call: dict[int, float | str] = {}
    for call in trace.attempts[-1].calls:
        unit = Unit(trace.rollout.id, call.index, (call.agent or "") if by_agent else None)
        value = advantages.get(unit, advantages.get(unit.whole))
        reason = reasons.get(unit) or reasons.get(unit.whole) or CALL_WITHOUT_REWARD
        by_call[call.index] = reason if value is None else value
    if whole in reasons and all(isinstance(value, str) for value in by_call.values()):
        return None, reasons[whole]
    return by_call, CALL_WITHOUT_REWARD


def _kinds(groups: int, pools: Sequence[Pool]) -> dict[str, int]:
    """Groups by the best that can be said of anything in them."""
    best = ["too_few"] * groups
    for kind in ("degenerate", "trained"):
        for pool in pools:
            if pool.kind == kind:
                best = [kind if place in pool.groups else known for place, known in enumerate(best)]
    return dict(Counter(best))


def _as_many(values: Sequence[float], count: int, name: str) -> Sequence[float]:
    if len(values) != count:
        raise ValueError(f"{name} was given {count} numbers and returned {len(values)}: it has to return one for each")
    return values
