"""The agents of a program in the dev report: who made calls, how each is known, and whether its samples would be
trained. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentlightning.agent.trained_agents import TrainedAgents, as_search, together
from agentlightning.credit import credit_attempt
from agentlightning.nouns import Call
from agentlightning.text import clip, plural, printable
from agentlightning.views.dev.finding import Finding

if TYPE_CHECKING:
    from agentlightning.records.attempts import AttemptReport
    from agentlightning.records.traces import AttemptTrace

WIDTH = 120
"""Columns of what an agent or a model says."""


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One agent of the program, as the endpoint tells it from others. ``how`` it got its name: ``learned`` is from its
    system prompt and tools alone.

    ``trained`` counts those of its rollouts in which its samples would be trained; None where no rollout chose among
    agents, so that all are.
    """

    name: str
    how: str
    calls: int
    rollouts: int
    system: str
    tools: tuple[str, ...]
    trained: int | None = None


def choices(reports: Sequence[AttemptReport], trained_agents: str | None) -> list[TrainedAgents]:
    """Which agents each attempt has trained: those of the run's setting and those it marked itself."""
    return [TrainedAgents(trained_agents, report.result.marked) for report in reports]


def trained_in(attempt: AttemptTrace, trained_agents: str | None) -> frozenset[str]:
    """The agents of whose samples some would be trained, were the attempt one of a training run: what credit says."""
    credit = credit_attempt(attempt, 1.0, trained_agents=trained_agents)
    names = {call.index: call.agent or "" for call in attempt.calls}
    return frozenset(
        names[node.call_index] for node in attempt.nodes if node.sampled and credit.by_node[node.id].trained
    )


def list_agents(
    reports: Sequence[AttemptReport], traces: Sequence[AttemptTrace], trained_agents: str | None = None
) -> list[AgentLine]:
    """The agents in the order of their first calls. ``traces`` are those of the reports' attempts, in any order."""
    by_id = {trace.attempt.id: trace for trace in traces}
    calls = {id: trace.calls for id, trace in by_id.items()}
    pattern = as_search(trained_agents, {call.agent for trace in traces for call in trace.calls})
    trained = [
        trained_in(by_id[report.attempt.id], pattern) if report.attempt.id in by_id else frozenset[str]()
        for report in reports
    ]
    everyone = all(one.everyone for one in choices(reports, trained_agents))
    named: dict[str, dict[int, list[Call]]] = {}
    for number, report in enumerate(reports):
        for call in (call for call in calls.get(report.attempt.id, ()) if call.external is None):
            named.setdefault(call.agent or "", {}).setdefault(number, []).append(call)
    lines: list[AgentLine] = []
    for name, by_report in named.items():
        seen = next((report.usage.agents[name] for report in reports if name in report.usage.agents), None)
        if seen is not None:
            kept = {reports[i].rollout.id for i in by_report if name in trained[i] and not reports[i].retried}
            count, rollouts = sum(map(len, by_report.values())), len({reports[i].rollout.id for i in by_report})
            lines.append(
                AgentLine(name, seen.how, count, rollouts, seen.system, seen.tools, None if everyone else len(kept))
            )
    return lines


def agent_lines(agents: Sequence[AgentLine], chosen: TrainedAgents) -> Iterable[tuple[str, str]]:
    """Lines with their style; none where there is nothing to tell apart."""
    if len(agents) < 2 and all(agent.trained is None for agent in agents):
        return
    yield "", ""
    who = "1 agent makes calls" if len(agents) == 1 else f"{len(agents)} agents make calls"
    how = "trained_agents chooses which are trained" if chosen.everyone else f"chosen to be trained by {chosen}"
    yield "bold", printable(f"{who} ({how}):")
    for agent in agents:
        yield from _lines_of(agent)
    if chosen.pattern is not None:
        found = [agent.name for agent in agents if TrainedAgents(chosen.pattern, (), chosen.whole).trains(agent.name)]
        what = "an agent's name, so it means that one" if chosen.whole else "searched in their names, and finds"
        names = "" if chosen.whole else f" {', '.join(found) or 'none'}"
        yield "", printable(f"  trained_agents={chosen.pattern!r} is {what}{names}")


def _lines_of(agent: AgentLine) -> Iterable[tuple[str, str]]:
    tools = f", tools {', '.join(agent.tools)}" if agent.tools else ""
    how = "its prompt and tools" if agent.how == "learned" else f"its {agent.how}" if agent.how != "rule" else "a rule"
    match agent.trained:
        case None:
            trained = ""
        case 0:
            trained = ", not trained"
        case agent.rollouts:
            trained = ", trained"
        case _:
            trained = f", trained in {agent.trained} of {agent.rollouts}"
    line = (
        f"{agent.name} (known by {how}): {plural(agent.calls, 'call')} in "
        f"{plural(agent.rollouts, 'rollout')}{trained}{tools}"
    )
    yield "", f"  {printable(line)}"
    if agent.system:
        yield "dim", f"      {clip(printable(' '.join(agent.system.split())), WIDTH)}"


def untrained(
    reports: Sequence[AttemptReport], calls: Mapping[str, Sequence[Call]], trained_agents: str | None
) -> list[Finding]:
    """The user chose agents to train, and none of the ``calls``, by attempt id, is theirs; or the agent marked one that
    made none."""
    made = [{call.agent or "" for call in calls.get(report.attempt.id, ())} for report in reports]
    chosen = choices(reports, trained_agents)
    names = ", ".join(
        dict.fromkeys(call.agent or "" for report in reports for call in calls.get(report.attempt.id, ()))
    )
    if not names:
        return []
    everyone = set[str]().union(*made)
    if not any(one.among(everyone).trains(name) for one, theirs in zip(chosen, made, strict=True) for name in theirs):
        title = f"No call is of an agent that was chosen to be trained ({together(chosen)})"
        return [
            Finding(
                "blocks",
                title,
                f"calls came from {names}",
                "choose agents by the names that their calls are recorded under",
            )
        ]
    missed: dict[str, list[str]] = {}
    for report, theirs in zip(reports, made, strict=True):
        for name in report.result.marked if theirs else ():
            missed.setdefault(name, []).extend([] if name in theirs else [report.rollout.id])
    return [
        Finding(
            "warns",
            f"Agent {name!r} was marked as trainable and made no call",
            f"calls came from {names}",
            "mark an agent by the name that its calls are recorded under, in rollouts in which it makes calls",
            tuple(rollouts),
        )
        for name, rollouts in missed.items()
        if rollouts
    ]


def nameless(reports: Sequence[AttemptReport]) -> list[Finding]:
    """Agents that are told apart by their prompts alone, and whose prompts never come twice: a clock or a task in the
    system prompt."""
    by_attempt = [
        {name for name, seen in report.usage.agents.items() if seen.how == "learned"}
        for report in reports
        if report.usage.agents
    ]
    if len(by_attempt) < 2 or not all(by_attempt) or set[str].intersection(*by_attempt):
        return []
    cause = (
        "the system prompt or the tools differ in every rollout (a clock, or the task, stands in them), so that no "
        "agent is met twice"
    )
    remedy = (
        "nothing, unless trained_agents or rewards for single agents are used: then name agents in "
        "gateway.agents, e.g. {system = 'You plan'}"
    )
    return [Finding("notes", "Agents have no lasting names", cause, remedy)]
