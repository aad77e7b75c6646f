"""What goes past an agent's record, in the dev report: replies from a cache, clients with an address of their own,
rewards that change no weight. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentlightning.credit.settings import CreditSettings
from agentlightning.credit.step import EPISODE
from agentlightning.credit.unused import WHY, unused_rewards
from agentlightning.nouns import GIVEN, Call, CallStatus, Reason, Reward
from agentlightning.records.causes import CACHE_OFF, causes_elsewhere
from agentlightning.text import plural
from agentlightning.views.dev.finding import Finding

if TYPE_CHECKING:
    from agentlightning.records.attempts import AttemptReport
    from agentlightning.records.probe import AgentProbe


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the attempts. ``calls`` and ``rewards`` are each attempt's, by attempt id; ``repeats`` are
    rollouts that ran the task of an earlier one, ``credit`` is how the run would use rewards."""

    reports: Sequence[AttemptReport]
    calls: Mapping[str, Sequence[Call]]
    probe: AgentProbe | None
    rewards: Mapping[str, Sequence[Reward]]
    repeats: Mapping[str, str]
    credit: CreditSettings = EPISODE

    def cached(self) -> list[AttemptReport]:
        """Those that ran an earlier rollout's task again and made no call, where the earlier one made some and both
        came to an end."""
        called = {report.rollout.id for report in self.reports if report.usage.calls > report.usage.refused}
        return self.where(
            lambda report: (
                self.repeats.get(report.rollout.id) in called
                and report.usage.calls == 0
                and not report.usage.unserved
                and report not in self.reason(Reason.AGENT_ERROR, Reason.TIMEOUT, Reason.EXTERNAL)
            )
        )

    def where(self, test: Callable[[AttemptReport], bool]) -> list[AttemptReport]:
        return [report for report in self.reports if test(report)]

    def reason(self, *reasons: Reason) -> list[AttemptReport]:
        return self.where(lambda report: report.result.failure is not None and report.result.failure.reason in reasons)

    def complete(self, report: AttemptReport) -> list[Call]:
        """The calls to policies that got their reply."""
        return [
            call
            for call in self.calls.get(report.attempt.id, ())
            if call.status is CallStatus.COMPLETE and call.external is None and call.wire != GIVEN
        ]


def ids(reports: Iterable[AttemptReport]) -> tuple[str, ...]:
    return tuple(report.rollout.id for report in reports)


def cached(facts: Facts) -> list[Finding]:
    """The same task a second time, and no call: of a group of rollouts all but the first would be empty."""
    reports = facts.cached()
    if not reports:
        return []
    again = ", ".join(
        f"{report.rollout.id}, the task of {facts.repeats[report.rollout.id]} once more," for report in reports
    )
    seen = [f"{cache.place} says {cache.what}" for cache in facts.probe.caches] if facts.probe is not None else []
    kept = "; ".join(seen) or (
        "none was seen in the agent's code; it may be lru_cache or joblib in a module of its own, a file, or the cache "
        "of litellm, langchain, dspy or a proxy"
    )
    cause = f"{again} made no call: its replies came from a cache ({kept})"
    return [Finding("blocks", "The same task makes no second call", cause, CACHE_OFF, ids(reports))]


def elsewhere(facts: Facts) -> list[Finding]:
    """A second client with an address of its own, beside one that reached the endpoint."""
    if facts.probe is None or not all(report.usage.calls for report in facts.reports if report not in facts.cached()):
        return []
    remedy = (
        "nothing, if it is a model of somebody else's: what it says is neither recorded nor trained (as a resource, "
        "LLM(endpoint=...), it is recorded); else build it with base_url=llm.endpoint"
    )
    return [
        Finding("warns", "Some calls may go past the endpoint", cause, remedy)
        for cause in causes_elsewhere(facts.probe)
    ]


def tool_errors(facts: Facts) -> list[Finding]:
    reports = facts.where(lambda report: report.usage.tool_errors > 0)
    if not reports:
        return []
    cause = f"{plural(sum(report.usage.tool_errors for report in reports), 'tool call')} had a result that is an error"
    remedy = "nothing, if the model is to learn from them; gateway.tool_error_reward gives their calls a reward"
    return [Finding("notes", "Tools report errors", cause, remedy, ids(reports))]


def unused(facts: Facts) -> list[Finding]:
    counted: Counter[str] = Counter()
    reports: list[AttemptReport] = []
    for report in facts.reports:
        scored = report.result.reward is not None and not report.retried
        idle = unused_rewards(facts.rewards.get(report.attempt.id, ()), facts.credit, scored=scored)
        if report.usage.late_rewards:
            idle["late"] += report.usage.late_rewards
        del idle["failed"]  # that the attempt failed is said already
        counted += idle
        reports += [report] if idle.total() else []
    if not reports:
        return []
    why = "; ".join(f"{count}: {WHY[reason]}" for reason, count in counted.most_common())
    remedy = (
        "nothing, if they are for your own eyes; else emit one reward for the whole rollout, as the last act, or "
        "return the number; rewards of single calls are used where algorithm.credit.scheme is 'call', 'mixed' or "
        "'discounted'"
    )
    return [
        Finding(
            "warns",
            "Emitted rewards change no weight",
            f"{plural(counted.total(), 'reward')} ({why})",
            remedy,
            ids(reports),
        )
    ]
