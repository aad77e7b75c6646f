"""What is compared with what: what carries the reward, rollouts or calls, of a task or of the whole step. Pure.

However a rollout or a call is cut into nodes and rows, it counts once (invariant 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentlightning.agent.trained_agents import TrainedAgents
from agentlightning.credit.rewards import call_rewards
from agentlightning.credit.schemes.base import Episode, Term
from agentlightning.credit.settings import CreditSettings
from agentlightning.nouns import Call, CallStatus
from agentlightning.records.traces import Group, Trace

TASK = "rollouts of a task"
BATCH = "rollouts of the batch"


@dataclass(frozen=True, slots=True)
class Unit:
    """What has an advantage: a rollout, or one of its calls, by index. ``agent`` is there where agents are told
    apart."""

    rollout: str
    call: int | None = None
    agent: str | None = None

    @property
    def whole(self) -> Unit:
        """The unit that its episode has."""
        return replace(self, call=None)


@dataclass(frozen=True, slots=True)
class Pool:
    """Rewards that are compared with each other, by what carries them. ``name`` says what these are, for the
    ledger; ``groups`` are the places of the groups that they come from."""

    name: str
    groups: frozenset[int]
    rewards: dict[Unit, float] = field(default_factory=dict[Unit, float])

    @property
    def kind(self) -> str:
        """``trained``, ``degenerate`` (all are equal) or ``too_few`` to compare."""
        values = self.rewards.values()
        return "too_few" if len(values) < 2 else "trained" if differ(list(values)) else "degenerate"


def differ(rewards_G: Sequence[float]) -> bool:
    """Whether rewards tell what has them apart."""
    return max(rewards_G) - min(rewards_G) > 1e-9


def comparisons(
    groups: Sequence[Group], settings: CreditSettings, trained_agents: str | None = None
) -> list[tuple[Term, list[Pool]]]:
    """For each term of the scheme the pools of all that has a reward: those of a task, also of its calls where it was
    tried once; where every task was tried once and no reward names a call, those of the whole batch.

    Only calls that may be trained are compared: those with samples, of a chosen agent, whose reply was read.
    """
    single = bool(groups) and all(len(group.traces) == 1 for group in groups)
    scored = [trace for group in groups for trace in group.traces if trace.scored and trace.attempts]
    named = any(call_rewards(trace.attempts[-1]) for trace in scored)
    return [
        (term, list(_pools(groups, term, single and not (term.per_call and named), settings.by_agent, trained_agents)))
        for term in settings.terms
    ]


def _pools(
    groups: Sequence[Group], term: Term, batch: bool, by_agent: bool, trained_agents: str | None
) -> Iterator[Pool]:
    what = f"{'calls' if term.per_call else 'rollouts'} of {'the batch' if batch else 'a task'}"
    name = what + (", by agent" if by_agent else "")
    for places in [range(len(groups))] if batch else [range(i, i + 1) for i in range(len(groups))]:
        pools: dict[str | None, Pool] = {}
        for trace in (trace for place in places for trace in groups[place].traces if trace.scored):
            for episode in episodes(trace, by_agent):
                trainable = {call.index for call in trainable_calls(episode, trained_agents)}
                if by_agent and not trainable:
                    continue
                rewards = pools.setdefault(episode.agent, Pool(name, frozenset(places))).rewards
                whole = Unit(trace.rollout.id, None, episode.agent)
                worth = term.worth(episode)
                if isinstance(worth, Mapping):
                    rewards.update({replace(whole, call=at): worth[at] for at in sorted(worth.keys() & trainable)})
                else:
                    rewards[whole] = worth
        yield from pools.values() or [Pool(name, frozenset(places))]


def episodes(trace: Trace, by_agent: bool) -> list[Episode]:
    """A scored rollout, or its parts by agent. Of its attempts the last one counts."""
    attempt = trace.attempts[-1]
    calls = sorted((call for call in attempt.calls if call.external is None), key=lambda call: call.index)
    if not by_agent:
        return [Episode(trace, attempt, calls)]
    agents = dict.fromkeys(call.agent or "" for call in calls)
    return [Episode(trace, attempt, [c for c in calls if (c.agent or "") == agent], agent) for agent in agents]


def trainable_calls(episode: Episode, trained_agents: str | None) -> list[Call]:
    chosen = TrainedAgents(trained_agents, episode.attempt.attempt.marked)
    return [
        call
        for call in episode.calls
        if call.samples and call.status is not CallStatus.ABANDONED and chosen.trains(call.agent)
    ]
