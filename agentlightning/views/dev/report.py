"""The dev report: what a few rollouts called, what was recorded, what they were worth, and everything that would keep
the agent from being trained.

It is the first thing a new user runs. All of it is pure: facts of attempts in, findings and text out. A finding names a
cause only where one was seen; where none was, it says how to look for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, cast

from agentlightning.agent.trained_agents import TrainedAgents, together
from agentlightning.credit.settings import CreditSettings
from agentlightning.credit.step import EPISODE
from agentlightning.nouns import GIVEN, Call, Json, Reason, Reward
from agentlightning.records.card import card
from agentlightning.records.causes import causes_of_silence
from agentlightning.records.ledger import count_cut, count_malformed
from agentlightning.runners.report import SLOW_ENGINE, spent_by_engine
from agentlightning.text import plural, printable
from agentlightning.views.dev.agents import WIDTH, AgentLine, agent_lines, choices, list_agents, nameless, untrained
from agentlightning.views.dev.aside import Facts, cached, elsewhere, ids, tool_errors, unused
from agentlightning.views.dev.external import ExternalLine, external_lines, list_external, said_by
from agentlightning.views.dev.finding import Finding, Level, finding_lines

if TYPE_CHECKING:
    from rich.console import Group

    from agentlightning.agent.calling import AgentSpec
    from agentlightning.records.attempts import AttemptReport
    from agentlightning.records.probe import AgentProbe
    from agentlightning.records.traces import Trace
    from agentlightning.settings.fields import RunConfig

SHOWN_CALLS = 20
"""Calls of an attempt that the text lists; JSON has all."""

NOT_THE_TRAINED = "No call was to the model that is trained"
_NEVER_CONTINUED = ("edited", "compacted", "template", "new", "tools_changed", "kwargs_changed")
_WHY_BRANCHED = {
    "edited": "the agent sends back a history that differs from what was said",
    "compacted": "the agent drops or sums up its earlier turns before each call",
    "template": "the model's chat template drops or changes earlier turns",
    "new": "each call starts a new conversation",
    "tools_changed": "the tools differ from call to call",
    "kwargs_changed": "chat_template_kwargs differ from call to call",
}


@dataclass(frozen=True, slots=True)
class CallLine:
    """One call, for people."""

    index: int
    wire: str
    model: str
    status: str
    branch: str
    prompt_tokens: int
    sampled_tokens: int
    finish: str
    replies: tuple[str, ...]
    """One per sample; of a refused call, its error."""
    malformed: int = 0
    """How often something in them began like a tool call and was none."""


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """One rollout's attempt, for people. ``reward`` is None where it failed."""

    rollout_id: str
    outcome: str
    reward: float | None
    source: str
    seconds: float
    calls: tuple[CallLine, ...]
    printed: str
    repeats: str | None = None
    """The rollout whose task it ran once more."""


@dataclass(frozen=True, slots=True, repr=False)
class DevReport:
    """The whole report. ``trainable`` is False when a finding blocks. ``str(report)`` is the text; rich renders it in
    colour."""

    agent: str
    attempts: tuple[AttemptLine, ...]
    findings: tuple[Finding, ...]
    agents: tuple[AgentLine, ...] = ()
    chosen: TrainedAgents = field(default_factory=TrainedAgents)
    """What says which of them are trained, in any of the rollouts."""
    external: tuple[ExternalLine, ...] = ()
    """The external models of the resources."""
    template: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What is known of the model's chat template: see `templates.describe`."""
    interrupted: bool = False
    """Whether it was ended before all of its rollouts had."""
    trains: bool = True
    """Whether a model was there that could be trained; False where all calls were to somebody else's."""

    @property
    def trainable(self) -> bool:
        return not any(finding.level == "blocks" for finding in self.findings)

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "trainable": self.trainable}

    def __str__(self) -> str:
        return "\n".join(printable(text) for _, text in self._lines())

    def __rich__(self) -> Group:
        from rich.console import Group

        from agentlightning.views.screen import Hanging, Text

        return Group(*(Hanging(Text(text, style)) for style, text in self._lines()))

    def __repr__(self) -> str:
        return f"<DevReport {printable(self.agent)}: {self._verdict()}>"

    def _repr_html_(self) -> str:
        attempts = [
            (attempt.rollout_id, f"{attempt.outcome}, {_worth(attempt)}, {plural(len(attempt.calls), 'call')}")
            for attempt in self.attempts
        ]
        findings = [(finding.title, f"{finding.cause}\n{finding.remedy}") for finding in self.findings]
        return card(self.agent, [*attempts, ("", self._verdict()), *findings])

    def _verdict(self) -> str:
        blocks = sum(finding.level == "blocks" for finding in self.findings)
        if not self.trains:
            what = f"{plural(blocks, 'thing')} went wrong" if blocks else "Nothing was found to be wrong"
            return f"{what}, in {plural(len(self.attempts), 'rollout')} without a model of the run's own"
        if blocks:
            return f"{plural(blocks, 'thing')} would keep it from being trained"
        return f"Nothing was found that would keep it from being trained, in {plural(len(self.attempts), 'rollout')}"

    def _lines(self) -> Iterable[tuple[str, str]]:
        """Lines with their style, top to bottom."""
        yield "bold", self.agent
        chosen = cast("Mapping[str, Json]", self.template.get("chosen") or {})
        if chosen:
            yield (
                "",
                f"Tool calls are read as {chosen['name']} ({'sure' if chosen['sure'] else 'a guess'}: "
                f"{printable(str(chosen['why']))}); another: model.tool_format",
            )
        for fitted in cast("list[str]", self.template.get("made_fit") or []):
            yield "", f"Made fit for the chat template, which wants user and assistant to alternate: {fitted}"
        for attempt in self.attempts:
            yield from _attempt_lines(attempt)
        yield from agent_lines(self.agents, self.chosen)
        yield from external_lines(self.external)
        yield "", ""
        if self.interrupted:
            yield "bold yellow", f"Interrupted: this is what {plural(len(self.attempts), 'rollout')} told until then."
        yield ("bold green", f"{self._verdict()}.") if self.trainable else ("bold red", f"{self._verdict()}:")
        for number, finding in enumerate(self.findings, 1):
            yield from finding_lines(number, finding, len(self.attempts))


def _worth(attempt: AttemptLine) -> str:
    return f"reward {attempt.reward:g} ({attempt.source})" if attempt.reward is not None else "no reward"


def _attempt_lines(attempt: AttemptLine) -> Iterable[tuple[str, str]]:
    yield "", ""
    again = f" (the task of {attempt.repeats} once more)" if attempt.repeats is not None else ""
    yield (
        "red" if attempt.reward is None else "green",
        f"{attempt.rollout_id}{again}: {attempt.outcome}, {_worth(attempt)}, {attempt.seconds:.1f} s",
    )
    for call in attempt.calls[:SHOWN_CALLS]:
        if call.wire == GIVEN:
            yield "", f"  call {call.index}  a triplet of no recorded call  {call.prompt_tokens} prompt tokens"
            continue
        what = (
            call.status
            if call.status in ("refused", "late")
            else f"{call.prompt_tokens} -> {call.sampled_tokens} tokens"
        )
        malformed = f"{plural(call.malformed, 'malformed tool call')}" if call.malformed else ""
        end = "".join(f", {part}" for part in (call.finish, call.branch, malformed) if part)
        yield "", f"  call {call.index}  {call.wire} {call.model or '(no model)'}  {what}{end}"
        for reply in call.replies:
            yield "dim", f"      {reply}"
    if len(attempt.calls) > SHOWN_CALLS:
        yield "", f"  and {plural(len(attempt.calls) - SHOWN_CALLS, 'more call')}"
    if not attempt.calls:
        yield "", "  no call was recorded"
    for line in attempt.printed.splitlines():
        yield "dim", f"  | {_short(line)}"


# --------------------------------------------------------------------------- from facts to the report


def dev_report(
    reports: Sequence[AttemptReport],
    traces: Sequence[Trace],
    agent: AgentSpec,
    config: RunConfig,
    *,
    probe: AgentProbe | None = None,
    template: Mapping[str, Json] | None = None,
    interrupted: bool = False,
    external: Mapping[str, str] = {},
    trains: bool = True,
    repeats: Mapping[str, str] = {},
    credit: CreditSettings | None = None,
) -> DevReport:
    """The report on rollouts that ran: ``reports`` from the runner, ``traces`` from the record, and ``probe``, what was
    known of the agent before; ``external`` has the true names of external models by their names in the resources,
    ``trains`` says whether there was a model besides those, ``repeats`` the rollouts that ran the task of an earlier
    one again, each with that one; ``credit`` is how the run's algorithm would use rewards, where it has a say in
    that."""
    attempts = [attempt for trace in traces for attempt in trace.attempts]
    rewards = {attempt.attempt.id: attempt.rewards for attempt in attempts}
    calls = {attempt.attempt.id: attempt.calls for attempt in attempts}
    given = agent.source.given if agent.source is not None else agent.name
    isolation = f", isolation {probe.isolation}" if probe is not None else ""
    limit = f", up to {config.sampling.max_tokens} tokens a sample" if trains else ""
    return DevReport(
        agent=f"Agent {given}{isolation}, {plural(len(reports), 'rollout')}{limit}",
        attempts=tuple(_attempt_line(report, calls.get(report.attempt.id, ()), repeats) for report in reports),
        findings=tuple(
            find(
                reports,
                calls,
                probe,
                config.trained_agents,
                trains=trains,
                rewards=rewards,
                repeats=repeats,
                credit=credit,
            )
        ),
        agents=tuple(list_agents(reports, attempts, config.trained_agents)),
        chosen=together(choices(reports, config.trained_agents)).among(
            call.agent for each in attempts for call in each.calls
        ),
        external=tuple(list_external(reports, external)),
        template=template or {},
        interrupted=interrupted,
        trains=trains,
    )


def find(
    reports: Sequence[AttemptReport],
    calls: Mapping[str, Sequence[Call]],
    probe: AgentProbe | None = None,
    trained_agents: str | None = None,
    *,
    trains: bool = True,
    rewards: Mapping[str, Sequence[Reward]] = {},
    repeats: Mapping[str, str] = {},
    credit: CreditSettings | None = None,
) -> list[Finding]:
    """All findings, what blocks first; without ``trains`` only what is wrong whether or not anything is trained.
    ``calls`` and ``rewards`` are each attempt's, by attempt id; ``repeats`` and ``credit`` as in `dev_report`."""
    findings: list[Finding] = []
    facts = Facts(reports, calls, probe, rewards, repeats, credit or EPISODE)
    for rule in (_unreached, cached, _unserved, _refused, _failed, _external, _unrewarded, _incomplete, _left):
        findings += rule(facts)
    if not trains:
        return [finding for finding in findings if finding.title != NOT_THE_TRAINED]
    for rule in (_compacted, _constant, _never_continued, _cut, _malformed, tool_errors, elsewhere, unused):
        findings += rule(facts)
    for rule in (_off_record, _overruled, _late):
        findings += rule(facts)
    complete = {report.attempt.id: facts.complete(report) for report in reports}
    findings += untrained(reports, complete, trained_agents)
    findings += nameless(reports)
    order: list[Level] = ["blocks", "warns", "notes"]
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _unreached(facts: Facts) -> list[Finding]:
    """No call came to the endpoint at all: the commonest reason why no data reaches a trainer."""
    kept = facts.cached()
    unreached = facts.where(lambda report: report.usage.calls == 0 and not report.usage.unserved and report not in kept)
    reports = [report for report in unreached if not report.usage.external]
    findings: list[Finding] = []
    if elsewhere := [report for report in unreached if report.usage.external]:
        names = ", ".join(dict.fromkeys(name for report in elsewhere for name in report.usage.external))
        cause = f"all calls were to external models ({names}), and those are never trained"
        findings.append(
            Finding(
                "blocks",
                NOT_THE_TRAINED,
                cause,
                "call llm.model, with base_url=llm.endpoint",
                ids(elsewhere),
            )
        )
    if not reports:
        return findings
    causes = causes_of_silence(facts.probe) if facts.probe is not None else []
    if not causes:
        named = "the agent finished, or failed, before it made one; or its client talks to another address"
        remedy = (
            "build the client with base_url=llm.endpoint, or, with isolation='process', without a base_url; "
            "print(client.base_url) shows it"
        )
        causes = [(f"not found: {named}", remedy)]
    detail = next((report.result.failure.message for report in reports if report.result.failure is not None), "")
    findings += [
        Finding("blocks", "No call reached the endpoint", cause, remedy, ids(reports), detail)
        for cause, remedy in causes
    ]
    return findings


def _unserved(facts: Facts) -> list[Finding]:
    """One finding for each answer that such requests got: the answer says what to set instead."""
    by_answer: dict[str, dict[str, list[AttemptReport]]] = {}
    for report in facts.reports:
        for path, answer in report.usage.unserved.items():
            by_answer.setdefault(answer, {}).setdefault(path, []).append(report)
    findings: list[Finding] = []
    for answer, by_path in by_answer.items():
        reports = [report for report in facts.reports if any(report in asked for asked in by_path.values())]
        served = any(report.usage.calls > report.usage.refused for report in reports)
        level: Level = "warns" if served else "blocks"
        cause = f"requests came for {', '.join(by_path)}"
        findings.append(Finding(level, "The agent asked for a path that is not served", cause, answer, ids(reports)))
    return findings


def _refused(facts: Facts) -> list[Finding]:
    reports = facts.where(
        lambda report: (
            0 < report.usage.refused == report.usage.calls and report not in facts.reason(Reason.CONTEXT_LENGTH)
        )
    )
    findings: list[Finding] = []
    if reports:
        findings.append(
            Finding(
                "blocks",
                "Every call was refused",
                f"the last refusal says: {reports[0].usage.last_error}",
                "change what the agent sends; `agl show RUN ROLLOUT` has every call",
                ids(reports),
            )
        )
    some = facts.where(
        lambda report: (
            0 < report.usage.refused < report.usage.calls and report not in facts.reason(Reason.CONTEXT_LENGTH)
        )
    )
    if some:
        refused, calls = sum(report.usage.refused for report in some), sum(report.usage.calls for report in some)
        findings.append(
            Finding(
                "warns",
                "Some calls were refused",
                f"{refused} of {plural(calls, 'call')}; the last refusal says: {some[0].usage.last_error}",
                "change what the agent sends, or go on if it copes: it may have swallowed the error, or tried "
                "something else instead",
                ids(some),
            )
        )
    too_long = facts.reason(Reason.CONTEXT_LENGTH)
    if too_long:
        findings.append(
            Finding(
                "blocks",
                "A prompt did not fit the model's context",
                _message(too_long[0]),
                "shorten the prompt or the history in the agent, or pass compact=, a function that shortens it; "
                "or raise engine.context_length if the model allows it",
                ids(too_long),
            )
        )
    return findings


def _failed(facts: Facts) -> list[Finding]:
    findings: list[Finding] = []
    by_message: dict[str, list[AttemptReport]] = {}
    for report in facts.reason(Reason.AGENT_ERROR):
        by_message.setdefault(_message(report), []).append(report)
    for message, reports in by_message.items():
        failure = reports[0].result.failure
        tail = "\n".join(failure.traceback.splitlines()[-12:]) if failure is not None else ""
        findings.append(
            Finding(
                "blocks",
                "The agent failed",
                message,
                "mend it, or catch it: a failed rollout is not trained",
                ids(reports),
                tail,
            )
        )
    late = facts.reason(Reason.TIMEOUT)
    if slow := [report for report in late if spent_by_engine(report.usage) is not None]:
        cause = _message(slow[0]).removesuffix(f"; {SLOW_ENGINE}")
        findings.append(
            Finding("blocks", "The deadline passed while the engine sampled", cause, SLOW_ENGINE, ids(slow))
        )
    if waited := [report for report in late if report not in slow]:
        remedy = "raise runner.deadline, or find where it waits: what it printed last is above"
        findings.append(Finding("blocks", "The agent passed its deadline", _message(waited[0]), remedy, ids(waited)))
    return findings


def _compacted(facts: Facts) -> list[Finding]:
    """How often the user's function shortened a history, and how often it could not."""
    findings: list[Finding] = []
    if made := facts.where(lambda report: report.usage.compaction.made > 0):
        uses = [report.usage.compaction for report in made]
        count = sum(use.made for use in uses)
        before, after = (
            sum(each) // count for each in zip(*((u.tokens_before, u.tokens_after) for u in uses), strict=True)
        )
        cause = (
            f"compact shortened one {plural(count, 'time')} in {plural(len(made), 'rollout')}, from "
            f"{before:,} to {after:,} tokens on average"
        )
        remedy = "nothing to do: these calls are branches `compacted`, and later turns go on from the shortened history"
        findings.append(Finding("notes", "Histories were shortened", cause, remedy, ids(made)))
    if failed := facts.where(lambda report: report.usage.compaction.failed > 0):
        uses = [report.usage.compaction for report in failed]
        cause = f"{plural(sum(use.failed for use in uses), 'time')}, the last: {uses[-1].trouble}"
        remedy = "mend the function; a history that it cannot shorten is answered with the context-length error"
        findings.append(Finding("warns", "A history could not be shortened", cause, remedy, ids(failed)))
    return findings


def _external(facts: Facts) -> list[Finding]:
    by_message: dict[str, list[AttemptReport]] = {}
    for report in facts.reason(Reason.EXTERNAL):
        by_message.setdefault(report.usage.trouble or _message(report), []).append(report)
    remedy = (
        "look at its endpoint, key and model name, or catch the error: such a rollout is masked, for it is no "
        "fault of the model's"
    )
    return [
        Finding("blocks", "An external model failed the agent", message, remedy, ids(group))
        for message, group in by_message.items()
    ]


def _unrewarded(facts: Facts) -> list[Finding]:
    reports = facts.where(
        lambda report: (
            report.result.failure is not None
            and (
                report.result.failure.reason is Reason.BAD_REWARD
                or (
                    report.result.failure.reason is Reason.EMPTY
                    and (
                        report.usage.calls > report.usage.refused + report.usage.abandoned
                        or bool(report.usage.external)
                    )
                )
            )
        )
    )
    by_message: dict[str, list[AttemptReport]] = {}
    for report in reports:
        by_message.setdefault(_message(report), []).append(report)
    remedy = "return a number, call emit_reward(number), or pass grader=, a function of (task, output, attempt)"
    return [
        Finding("blocks", "There is no reward", message, remedy, ids(group)) for message, group in by_message.items()
    ]


def _incomplete(facts: Facts) -> list[Finding]:
    reports = facts.reason(Reason.INCOMPLETE)
    if not reports:
        return []
    return [
        Finding(
            "blocks",
            "A call could not be recorded",
            _message(reports[0]),
            "mend what it says; such a rollout is never trained",
            ids(reports),
        )
    ]


def _left(facts: Facts) -> list[Finding]:
    reports = facts.where(lambda report: report.usage.abandoned > 0 and report not in facts.reason(Reason.TIMEOUT))
    if not reports:
        return []
    nothing = all(report.usage.calls == report.usage.refused + report.usage.abandoned for report in reports)
    return [
        Finding(
            "blocks" if nothing else "warns",
            "Replies were not read to their end",
            f"{plural(sum(report.usage.abandoned for report in reports), 'call')} left before the reply was complete: "
            "a stream that is not read to its end, a client's timeout, or a task that nobody awaits",
            "read each stream to its end, raise the client's timeout, and await every call: tokens of replies that "
            "nobody got are not trained",
            ids(reports),
        )
    ]


def _constant(facts: Facts) -> list[Finding]:
    first = [report for report in facts.reports if report.rollout.id not in facts.repeats]
    rewards = [
        report.result.reward for report in first if report.result.reward is not None and report.result.failure is None
    ]
    if len(rewards) < 2 or len(set(rewards)) > 1:
        return []
    return [
        Finding(
            "warns",
            f"All rewards are {rewards[0]:g}",
            f"{len(rewards)} rollouts were worth the same; training compares rollouts of a task, and from equal ones "
            "there is nothing to learn",
            "run more of them (-n, or n= in Python); if they stay equal, make the reward finer, or choose tasks that "
            "the model solves sometimes",
        )
    ]


def _never_continued(facts: Facts) -> list[Finding]:
    reports: list[AttemptReport] = []
    branches: Counter[str] = Counter()
    for report in facts.reports:
        met: set[str | None] = set()
        later: list[str] = []
        for call in facts.complete(report):
            if call.agent in met:  # an agent's own first call continues nothing, whoever called before
                later.append(call.branch)
            met.add(call.agent)
        if later and all(branch in _NEVER_CONTINUED for branch in later):
            reports.append(report)
            branches.update(later)
    if not reports:
        return []
    counted = ", ".join(f"{branch} {count}" for branch, count in branches.most_common())
    return [
        Finding(
            "warns",
            "No call continues an earlier one",
            f"{_WHY_BRANCHED[branches.most_common(1)[0][0]]} (later calls by branch: {counted})",
            "it can be trained, but every turn is forwarded anew; send the history back unchanged if turns belong "
            "together",
            ids(reports),
        )
    ]


def _cut(facts: Facts) -> list[Finding]:
    samples = [sample for report in facts.reports for call in facts.complete(report) for sample in call.samples]
    cut = count_cut(samples)
    if not cut:
        return []
    limits = sorted(
        {call.used.max_tokens for report in facts.reports for call in facts.complete(report) if call.used is not None}
    )
    remedy = "raise max_tokens, in the run (sampling.max_tokens) and in the agent's request, or ask for shorter answers"
    ran_into = (
        f"ran into max_tokens ({', '.join(map(str, limits))}) before their end of turn, in the middle of a tool "
        "call where there was one"
    )
    if cut == len(samples):
        return [Finding("warns", "Every sample was cut by its length", f"{plural(cut, 'sample')} {ran_into}", remedy)]
    return [
        Finding(
            "notes",
            "Some samples were cut by their length",
            f"{cut} of {plural(len(samples), 'sample')} {ran_into}",
            remedy,
        )
    ]


def _malformed(facts: Facts) -> list[Finding]:
    samples = [sample for report in facts.reports for call in facts.complete(report) for sample in call.samples]
    broken, whole = count_malformed(samples), sum(len(sample.message.tool_calls) for sample in samples)
    if not broken:
        return []
    cause = (
        f"{broken} of {plural(broken + whole, 'tool call')} could not be read, and the agent was given the model's "
        "words as text"
    )
    remedy = (
        "nothing, where training is to teach the form; if the model knows another, name it as model.tool_format, "
        "or ask for strict tools"
    )
    return [Finding("warns", "Tool calls were malformed", cause, remedy)]


def _overruled(facts: Facts) -> list[Finding]:
    changed: Counter[str] = Counter()
    for report in facts.reports:
        for call in facts.complete(report):
            for name in ("temperature", "top_p", "top_k"):
                asked, used = call.asked.get(name), getattr(call.used, name, None)
                if asked is not None and used is not None and asked != used:
                    changed[f"{name} {asked} asked, {used} used"] += 1
    if not changed:
        return []
    said = "; ".join(f"{text} ({plural(count, 'call')})" for text, count in changed.most_common())
    remedy = "nothing, as a rule; set sampling.owner='agent' to let the agent's request win"
    return [Finding("notes", "The run's sampling settings hold, not the agent's", said, remedy)]


def _off_record(facts: Facts) -> list[Finding]:
    reports = facts.where(lambda report: bool(report.result.given_calls))
    if not reports:
        return []
    count = sum(len(report.result.given_calls) for report in reports)
    return [
        Finding(
            "warns",
            "Triplets are off the record",
            f"{plural(count, 'triplet')} that the agent returned have the tokens of no recorded call: they are trained "
            "as targets, without the probabilities that they were sampled with",
            "return the token ids of the replies as they came (a request with return_token_ids=true gets them), and "
            "not a text that was tokenised again; leave it where such triplets are meant",
            ids(reports),
        )
    ]


def _late(facts: Facts) -> list[Finding]:
    reports = facts.where(lambda report: report.usage.late > 0)
    if not reports:
        return []
    count = sum(report.usage.late for report in reports)
    cause = (
        f"{plural(count, 'request')} came after the rollout had ended and got a refusal: the agent leaves threads "
        "or tasks running"
    )
    return [Finding("warns", "Calls came too late", cause, "wait for all calls before the agent returns", ids(reports))]


# --------------------------------------------------------------------------- lines


def _message(report: AttemptReport) -> str:
    return report.result.failure.message if report.result.failure is not None else ""


def _attempt_line(report: AttemptReport, calls: Sequence[Call], repeats: Mapping[str, str]) -> AttemptLine:
    result = report.result
    outcome = f"failed: {result.failure.reason}" if result.failure is not None else str(result.status)
    source = result.rewards[-1].source if result.rewards else "emitted"
    printed = "\n".join(report.stdout.splitlines()[-5:])
    lines = tuple(_call_line(call) for call in calls)
    again = repeats.get(report.rollout.id)
    return AttemptLine(report.rollout.id, outcome, result.reward, source, report.seconds, lines, printed, again)


def _call_line(call: Call) -> CallLine:
    replies = [
        sample.message.content + "".join(f" [{tool.name}({tool.arguments})]" for tool in sample.message.tool_calls)
        for sample in call.samples
    ]
    if not replies and call.error:
        replies = [call.error]
    prompt, reply = call.prompt_tokens, call.sampled_tokens
    if call.external is not None:
        prompt, reply = call.external.tokens
        replies = replies or [said_by(call.external)[:1000]]
    return CallLine(
        index=call.index,
        wire=call.wire,
        model=call.model,
        status=str(call.status),
        branch="external" if call.external is not None else call.branch,
        prompt_tokens=prompt,
        sampled_tokens=reply,
        finish=" ".join(str(sample.finish) for sample in call.samples),
        replies=tuple(_short(" ".join(reply.split())) for reply in replies),
        malformed=count_malformed(call.samples),
    )


def _short(text: str) -> str:
    """A line for a terminal: no control characters, not wider than ``WIDTH``."""
    text = printable(text)
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
