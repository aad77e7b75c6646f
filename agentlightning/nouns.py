"""The nouns of Agent Lightning as plain typed records.

Every room speaks in these. The module imports nothing of ours, holds no behaviour beyond small derived values, and must
stay importable without torch or numpy: token ids and logprobs are ``array.array`` ("i" = int32, "f" = float32), which
numpy and torch read without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""


# --------------------------------------------------------------------------- outcomes


class Mode(StrEnum):
    """What a rollout is for. Only ``train`` rollouts are ever trained."""

    TRAIN = "train"
    VAL = "val"
    DEV = "dev"


class Status(StrEnum):
    """The state of a rollout or an attempt: ``queued -> running -> (scoring ->) succeeded | failed | cancelled``."""

    QUEUED = "queued"
    RUNNING = "running"
    SCORING = "scoring"
    """Its agent has ended and its grader has not: no runner holds it, and it has a deadline of its own."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


class Reason(StrEnum):
    """Why an attempt failed. A failure is masked, never scored, unless ``failure_reward`` names its reason."""

    AGENT_ERROR = "agent_error"
    """The agent raised, or its process exited."""
    TIMEOUT = "timeout"
    """The attempt passed its deadline."""
    EMPTY = "empty"
    """No reward of any kind, or no call reached the endpoint in training."""
    BAD_REWARD = "bad_reward"
    """A returned, emitted or graded reward was not a finite number within ``MAX_REWARD``."""
    INCOMPLETE = "incomplete"
    """A call of the attempt could not be recorded whole."""
    CONTEXT_LENGTH = "context_length"
    """A prompt did not fit the model's context and the agent did not recover."""
    EXTERNAL = "external"
    """An external model could not be reached, or failed, and the agent did not recover."""
    LOST = "lost"
    """The runner died or stopped renewing its lease, or no grader scored the attempt in time."""
    CANCELLED = "cancelled"
    """The run cancelled it: quorum met, shutdown, or the user asked."""


ScorableReason = Literal[Reason.AGENT_ERROR, Reason.TIMEOUT, Reason.EMPTY, Reason.BAD_REWARD, Reason.CONTEXT_LENGTH]
"""Failures that the policy may have caused. The others have no whole record or were ended by the run, and are never
scored."""


class FinishReason(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    """An end-of-turn token or a stop string was sampled."""
    LENGTH = "length"
    """``max_tokens`` or the context ran out."""
    CANCELLED = "cancelled"
    """The request was withdrawn while it was sampling."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: a typed reason, one line for people, and the traceback where there is one."""

    reason: Reason
    message: str
    traceback: str = ""


# --------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool. ``arguments`` is the raw text, which need not be valid JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn, in the form every wire is translated to.

    ``role`` is ``system``, ``user``, ``assistant`` or ``tool`` (a wire's ``developer`` becomes ``system``). ``content``
    is plain text ("" where the wire had null, nothing or an empty list). ``reasoning`` is None where the wire carried
    none.
    """

    role: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool offered to the model. ``parameters`` is a JSON schema. ``strict``: calls of it have to follow the schema;
    the prompt is the same with it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])
    strict: bool = field(default=False, compare=False)


# --------------------------------------------------------------------------- sampling


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sample is drawn, fully resolved: what the engine was told, not what the agent asked for.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 keep the whole vocabulary. ``stop_token_ids`` end a turn
    and stay in the sample, as do the tokens of a ``stop`` string. ``grammar`` is the whole text of the grammar that the
    sample follows (engines/grammar.py says in which language); under it only the first of ``stop_token_ids`` ends the
    turn, where the grammar lets it end.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    grammar: str | None = None

    @property
    def cuts_support(self) -> bool:
        """Whether some of the vocabulary can never be drawn, so that ``log_kept`` has to be recorded."""
        return self.cuts_tail or (self.temperature > 0 and self.grammar is not None)

    @property
    def cuts_tail(self) -> bool:
        """Whether top_p or top_k cut it, so that the kept ids have to be recorded: the grammar's alone follow from its
        text."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class KeptIds:
    """The kept support of each token of a segment under top_p or top_k (within what a grammar allows), ragged.

    ``ids[offsets[t]:offsets[t + 1]]`` are the token ids that could have been drawn at position t. len(offsets) = tokens
    + 1.
    """

    ids: array[int]
    offsets: array[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of sampled tokens drawn under one policy version. Lengths of all arrays are equal.

    ``logprobs`` are natural logs under the full softmax at the temperature used (temperature 0: at temperature 1).
    ``log_kept`` is the log of the probability mass of the kept support, present only where ``params.cuts_support``: the
    behaviour logprob of a token is ``logprobs[t] - log_kept[t]``. ``kept`` is present only where ``params.cuts_tail``.
    A token whose kept support has one member was forced; under a grammar without ``kept`` that is where ``log_kept[t]
    == logprobs[t]``, and nowhere else.
    """

    token_ids: array[int]
    logprobs: array[float]
    version: int
    log_kept: array[float] | None = None
    kept: KeptIds | None = None


# --------------------------------------------------------------------------- the record


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an attempt's trace tree: only the tokens it adds to its parent's path.

    ``id`` counts from 0 within the attempt, parents before children; ``parent`` is None for a root. Given tokens have
    no logprobs and no version. ``call_index`` is the call that added it.
    """

    id: int
    parent: int | None
    sampled: bool
    token_ids: array[int]
    call_index: int
    logprobs: array[float] | None = None
    log_kept: array[float] | None = None
    kept: KeptIds | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One of a call's ``n`` samples: the leaf node it ends in, and the message the client was given. ``malformed``
    counts what in it began like a tool call and was none, so that the client was given it as text."""

    node: int
    finish: FinishReason
    message: Message
    malformed: int = 0


class CallStatus(StrEnum):
    COMPLETE = "complete"
    """Recorded whole, and its reply was written to its end."""
    ABANDONED = "abandoned"
    """The client left and nobody reclaimed the reply: its tokens are masked, the attempt stays trainable."""
    INCOMPLETE = "incomplete"
    """Recording failed. The attempt is never trained."""
    REFUSED = "refused"
    """Answered with an error before sampling (context length, bad request). It has no samples."""
    LATE = "late"
    """It came after its attempt had ended, and was refused: the agent had left something running. It has no samples and
    belongs to no policy."""


@dataclass(frozen=True, slots=True)
class External:
    """What went to an external model and what came back, as given: text, never tokens of ours.

    ``model`` is its true name. ``status`` is HTTP's, None where it never answered. ``request`` is the body as the agent
    sent it, ``reply`` the body as it came, which is JSON or server-sent events; only the endpoint's key is blotted out.
    ``usage`` is what the endpoint itself says.
    """

    model: str
    status: int | None
    request: str
    reply: str
    usage: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of the prompt and of the reply, by any API's names for them; 0 where the endpoint says nothing."""
        return self._count("prompt_tokens", "input_tokens"), self._count("completion_tokens", "output_tokens")

    def _count(self, *names: str) -> int:
        return next((value for name in names if isinstance(value := self.usage.get(name), int)), 0)


GIVEN = "given"
"""The wire of a call that came from no API: a triplet that the agent returned, whose tokens are those of no recorded
call. It is stored like any other call, with the branch ``given`` and one sample, whose single node is no sampled one,
since nobody knows its logprobs: those are the tokens that the user gave as a target."""


@dataclass(frozen=True, slots=True)
class GivenTriplet:
    """A triplet that an agent returned: the tokens of a prompt and of a reply to it, none of them empty, and what the
    reply is worth. ``reward`` is None where the agent says nothing of it. ``metadata`` is the agent's own JSON."""

    prompt_ids: array[int]
    response_ids: array[int]
    reward: float | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def agent(self) -> str | None:
        """The name of the agent that made the reply, where the metadata has one as ``agent_name``."""
        name = self.metadata.get("agent_name")
        return name if isinstance(name, str) and name else None


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of an attempt. ``prompt_node`` is the last node of its prompt; the samples' nodes hang below it.

    ``asked`` is what its agent asked for; in it ``messages`` are those that the prompt's last node adds, where this
    call was the first to record that, and ``tools`` those it was offered, where they are not the ones of the call that
    it goes on from. ``wire`` is the name of the API it came by, or ``given``. ``agent`` may be set once after the call,
    where only a span tells it.

    One to an external model has ``external``, and neither policy, branch, nodes nor samples; ``model`` is then the name
    of the resource.

    ``branch`` says how its prompt relates to the tree: ``root`` (the attempt's first), ``continued`` (extends a
    recorded sample), ``forked`` (same prompt as an earlier call, or an earlier turn replayed), or the reason why no
    sample could be continued: ``new`` (another conversation), ``edited``, ``compacted``, ``tools_changed``,
    ``kwargs_changed``, ``template``. One of wire ``given`` has the branch ``given``.
    """

    id: str
    attempt_id: str
    index: int
    wire: str
    model: str
    policy: str
    status: CallStatus
    branch: str
    prompt_node: int | None
    samples: tuple[SampleRecord, ...]
    asked: Mapping[str, Json]
    used: SamplingParams | None
    prompt_tokens: int = 0
    reused_tokens: int = 0
    sampled_tokens: int = 0
    agent: str | None = None
    error: str | None = None
    received_at: float = 0.0
    first_token_s: float | None = None
    total_s: float | None = None
    external: External | None = None


MAX_REWARD = 1e9
"""The largest reward that is taken, of either sign: sums and squares of such rewards, and gradients that are weighted
with them, stay finite in float32."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A score. It attaches to a rollout, and within it to one call, one agent or one tool call where those are given,
    which have to be of its own attempt. Append-only.

    ``source`` is ``return``, ``emit``, ``grader``, ``rule`` or ``failure_reward``. ``tool_call_id`` is the id that the
    model's request to run the tool has. ``late``, which the store sets: it came after its attempt had ended, and counts
    for nothing that was decided then. ``attributes`` are what its emitter said besides.
    """

    rollout_id: str
    attempt_id: str
    value: float
    name: str = "reward"
    source: str = "emit"
    call_id: str | None = None
    agent: str | None = None
    reason: str | None = None
    created_at: float = 0.0
    tool_call_id: str | None = None
    late: bool = False
    attributes: Mapping[str, Json] | None = None


class SpanStatus(StrEnum):
    """How what a span tells of ended, in OpenTelemetry's words."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """Something that an agent told of its attempt: a message, an object, a note, an exception, an operation with its
    time. It says nothing of tokens and counts for nothing that is trained.

    ``span_id`` is unique within the attempt, ``parent_id`` the span that it happened in. Times are Unix time in
    seconds by the clock of the machine that keeps the record; of a moment both are the same.
    """

    span_id: str
    parent_id: str | None
    name: str
    attributes: Mapping[str, Json]
    status: SpanStatus
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Rollout:
    """One execution of an agent on a task. ``seed`` fixes everything random below it.

    ``group`` is the number of its group, the rollouts that are compared with each other: the group's place in the run's
    order, counted from 0 for each mode. ``index`` is the place within it. Id and seed follow from mode, group and
    index. Which step a group belongs to is said by the step, which lists its groups. ``reward`` is the final one and is
    None until the rollout succeeded (or ``failure_reward`` named its failure).
    """

    id: str
    run_id: str
    task: Json
    mode: Mode
    group: int
    index: int
    seed: int
    resources_version: int
    status: Status = Status.QUEUED
    attempt_id: str | None = None
    reward: float | None = None
    failure: Failure | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a rollout, held by a runner under a lease. ``number`` counts from 1. ``lease_until`` is Unix time in
    seconds, and so is ``score_until``: the deadline of an attempt that is, or was, ``scoring``. ``marked`` are the
    agents that it marked as trainable."""

    id: str
    rollout_id: str
    number: int
    runner_id: str
    status: Status
    lease_until: float
    started_at: float
    ended_at: float | None = None
    failure: Failure | None = None
    output: Json = None
    marked: tuple[str, ...] = ()
    score_until: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What a runner reports when an attempt ended: either ``rewards`` whose last ``final`` entry counts, or a
    ``failure``. ``marked`` are the names of the agents that it marked as trainable, in the order of the marks;
    ``agents`` those that made its calls, by the call's id, where only a span told it.

    ``given_calls`` are calls of wire ``given`` with their ``given_nodes``, recorded with the end of the attempt or not
    at all; ``rewards`` may name them. Their indexes follow each other, and those of the attempt's own calls: where
    another call has been recorded meanwhile, the store moves them all behind it.
    """

    status: Status
    reward: float | None = None
    failure: Failure | None = None
    output: Json = None
    rewards: tuple[Reward, ...] = ()
    marked: tuple[str, ...] = ()
    given_calls: tuple[Call, ...] = ()
    given_nodes: tuple[Node, ...] = ()
    agents: Mapping[str, str] = field(default_factory=dict[str, str])


class RunStatus(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Ended early on purpose: Ctrl-C or max_time. Its last checkpoint is whole."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of an algorithm over tasks, as the store keeps it. ``config`` is the resolved configuration."""

    id: str
    name: str
    folder: str
    status: RunStatus
    config: Mapping[str, Json]
    created_at: float
    ended_at: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step as the store keeps it: ``metrics`` is the JSON line, ``ledger`` the step's accounts.

    ``versions`` are the policies' after the step, by name. ``groups`` are the numbers of the groups that it learned
    from, in ascending order: each ends in exactly one step.
    """

    run_id: str
    step: int
    versions: Mapping[str, int]
    groups: tuple[int, ...]
    metrics: Mapping[str, Json]
    ledger: Mapping[str, Json]
    checkpoint: str | None = None
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Intent:
    """What a step is about to learn from, written before it learns: a resumed run replays the intents since its
    checkpoint. With mode ``val``, which groups validate the weights after a step, written before they are sampled.

    ``versions`` are the policies' at that moment, by name.
    """

    run_id: str
    step: int
    groups: tuple[int, ...]
    versions: Mapping[str, int]
    mode: Mode = Mode.TRAIN


@dataclass(frozen=True, slots=True)
class CreditRow:
    """What a step's training of one policy did with the sampled tokens of one attempt. ``blob`` is written and read by
    records/credit.py."""

    policy: str
    attempt_id: str
    blob: bytes
