"""Ledger: a step's accounts. What happened to each rollout and to each sampled token, and where the time went. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from agentlightning.errors import AgentLightningError
from agentlightning.nouns import GIVEN, Call, CallStatus, FinishReason, Json, Rollout, SampleRecord, Status


class LedgerError(AgentLightningError):
    """The accounts do not add up: a sampled token is neither trained nor masked for a named reason. A defect, never to
    be ignored."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The accounts of one step, or of a whole run (``total``). Tokens and rollouts are counts; ``seconds`` is wall time
    by phase.

    ``rollouts`` is keyed by outcome: ``succeeded``, ``cancelled`` or ``failed: <reason>``. ``groups`` by ``trained``,
    ``degenerate`` (all rewards equal: nothing to compare), ``too_few`` (fewer than two rollouts to compare). ``masked``
    by reason; ``branches`` counts calls by how their prompt relates to what was recorded before; parity is None where
    nothing was trained, so that it was not measured; ``staleness`` is how many versions behind the learner the trained
    tokens were sampled. ``malformed`` counts what began like a tool call and was none, ``cut`` the samples that ran
    into their ``max_tokens`` (a tool call that ends with such a sample is cut, not malformed): their tokens are trained
    like any others. ``late`` counts the calls that came after their attempt had ended, of whatever step, and were
    refused; ``unused`` the emitted rewards that changed no weight, by reason (credit/unused.py). ``external`` has, by
    the model's name in the resources, the ``calls`` to external models, how many of them ``failed``, and the tokens
    that their endpoints report; none of that is in ``calls``, ``sampled`` or ``masked``. ``compared`` counts the
    advantages by what was compared (credit/compare.py): rollouts or calls, of a task or of the whole batch.

    ``off_record`` are tokens that users gave as targets (calls of wire ``given``), trained or masked for a reason like
    sampled ones and in none of their counts. ``rows`` counts, where rows are limited, the attempts' rows ``made``,
    those ``kept``, and those left out as ``row_length`` and ``row_limit`` (credit/rows.py).
    """

    rollouts: Mapping[str, int] = field(default_factory=dict[str, int])
    groups: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: Mapping[str, int] = field(default_factory=dict[str, int])
    branches: Mapping[str, int] = field(default_factory=dict[str, int])
    sampled: int = 0
    trained: int = 0
    masked: Mapping[str, int] = field(default_factory=dict[str, int])
    staleness_max: int = 0
    parity_max: float | None = None
    parity_k3: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    malformed: int = 0
    external: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    cut: int = 0
    late: int = 0
    unused: Mapping[str, int] = field(default_factory=dict[str, int])
    compared: Mapping[str, int] = field(default_factory=dict[str, int])
    off_record: int = 0
    off_record_trained: int = 0
    off_record_masked: Mapping[str, int] = field(default_factory=dict[str, int])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])

    def check(self) -> Ledger:
        """Returns itself, or raises LedgerError when sampled tokens are not exactly trained plus masked, or those given
        as targets."""
        for what, tokens, trained, masked in (
            ("sampled", self.sampled, self.trained, self.masked),
            ("off the record", self.off_record, self.off_record_trained, self.off_record_masked),
        ):
            if tokens != trained + sum(masked.values()):
                raise LedgerError(
                    f"the ledger does not add up: {tokens} tokens {what}, {trained} trained, {sum(masked.values())} "
                    f"masked ({dict(masked)})"
                )
        return self

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Ledger:
        return cls(**value)


def outcome(rollout: Rollout) -> str:
    """The key a finished rollout is counted under."""
    if rollout.status is Status.FAILED and rollout.failure is not None:
        return f"failed: {rollout.failure.reason}"
    return str(rollout.status)


def count_outcomes(rollouts: Iterable[Rollout]) -> dict[str, int]:
    return dict(Counter(outcome(rollout) for rollout in rollouts))


def commonest_cause(rollouts: Iterable[Rollout]) -> str:
    """Why most of the rollouts that failed did, in words: ``3 of 4: agent_error: ...``."""
    rollouts = list(rollouts)
    failures = Counter((str(r.failure.reason), r.failure.message) for r in rollouts if r.failure is not None)
    if not failures:
        return "none of them says why"
    (reason, message), often = failures.most_common(1)[0]
    return f"{often} of {len(rollouts)}: {reason}: {message}"


def count_calls(calls: Iterable[Call]) -> tuple[dict[str, int], dict[str, int]]:
    """Calls to policies by status, and those with a prompt by branch. Late ones have a count of their own, and given
    ones are none."""
    calls = [
        call for call in calls if call.external is None and call.status is not CallStatus.LATE and call.wire != GIVEN
    ]
    return (
        dict(Counter(str(call.status) for call in calls)),
        dict(Counter(call.branch for call in calls if call.prompt_node is not None)),
    )


def count_external(calls: Iterable[Call]) -> dict[str, Mapping[str, int]]:
    """Calls to external models, as `Ledger.external` has them."""
    found: dict[str, Counter[str]] = {}
    for call in calls:
        if call.external is not None:
            prompt, reply = call.external.tokens
            counted = Counter(
                calls=1, failed=int(call.status is CallStatus.REFUSED), prompt_tokens=prompt, reply_tokens=reply
            )
            found.setdefault(call.model, Counter()).update(counted)
    return {name: dict(counted) for name, counted in found.items()}


def describe_external(external: Mapping[str, Mapping[str, int]]) -> str:
    """In words: ``judge: 32 calls, 1 failed, 1,000 -> 300 tokens``."""
    return "; ".join(
        f"{name}: {counted['calls']} call{'s' if counted['calls'] != 1 else ''}"
        + (f", {counted['failed']} failed" if counted["failed"] else "")
        + f", {counted['prompt_tokens']:,} -> {counted['reply_tokens']:,} tokens"
        for name, counted in external.items()
    )


def describe_off_record(tokens: int, trained: int, masked: Mapping[str, int]) -> str:
    """In words: ``30 tokens given as targets = 20 trained + 10 masked (row_limit 10)``; nothing where there are
    none."""
    if not tokens:
        return ""
    why = f" ({', '.join(f'{reason} {count:,}' for reason, count in masked.items())})" if masked else ""
    return f"{tokens:,} tokens given as targets = {trained:,} trained + {sum(masked.values()):,} masked{why}"


def describe_rows(rows: Mapping[str, int]) -> str:
    """In words: ``300 made = 64 kept + 6 row_length + 230 row_limit``; nothing where rows are not limited."""
    if not rows:
        return ""
    parts = [f"{count:,} {name}" for name, count in rows.items() if name != "made" and (count or name == "kept")]
    return f"{rows['made']:,} made = {' + '.join(parts)}"


def count_malformed(samples: Iterable[SampleRecord]) -> int:
    """How often something in them began like a tool call and was none."""
    return sum(sample.malformed for sample in samples)


def count_cut(samples: Iterable[SampleRecord]) -> int:
    """How many of them ran into their ``max_tokens``, or filled the context."""
    return sum(sample.finish is FinishReason.LENGTH for sample in samples)


def _worst(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum over steps; staleness and parity are the worst seen."""
    rollouts, groups, calls, branches, masked = (
        Counter[str](),
        Counter[str](),
        Counter[str](),
        Counter[str](),
        Counter[str](),
    )
    seconds: Counter[str] = Counter()
    external: dict[str, Counter[str]] = {}
    unused: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    off_record_masked: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    off_record = off_record_trained = 0
    sampled = trained = staleness = malformed = cut = late = 0
    parity_max: float | None = None
    parity_k3: float | None = None
    for ledger in ledgers:
        rollouts.update(ledger.rollouts)
        groups.update(ledger.groups)
        calls.update(ledger.calls)
        branches.update(ledger.branches)
        masked.update(ledger.masked)
        for name, counted in ledger.external.items():
            external.setdefault(name, Counter()).update(counted)
        for phase, value in ledger.seconds.items():
            seconds[phase] += value  # pyright: ignore[reportArgumentType]  # Counter holds floats just as well
        sampled += ledger.sampled
        trained += ledger.trained
        malformed += ledger.malformed
        cut += ledger.cut
        late += ledger.late
        unused.update(ledger.unused)
        compared.update(ledger.compared)
        off_record += ledger.off_record
        off_record_trained += ledger.off_record_trained
        off_record_masked.update(ledger.off_record_masked)
        rows.update(ledger.rows)
        staleness = max(staleness, ledger.staleness_max)
        parity_max = _worst(parity_max, ledger.parity_max)
        parity_k3 = _worst(parity_k3, ledger.parity_k3)
    return Ledger(
        dict(rollouts), dict(groups), dict(calls), dict(branches), sampled, trained, dict(masked), staleness,
        parity_max, parity_k3,
        dict(seconds), malformed, {name: dict(counted) for name, counted in external.items()}, cut, late, dict(unused),
        dict(compared), off_record, off_record_trained, dict(off_record_masked), dict(rows),
    )  # fmt: skip
