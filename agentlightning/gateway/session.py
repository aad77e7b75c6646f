"""One attempt at the gateway: which policy a call goes to, how it is sampled, recorded and acknowledged, and what
becomes of it when its client leaves.

Belongs to the gateway's event loop. Knows nothing of HTTP and of no particular wire; may not touch rollouts, credit or
learning.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.errors import CompactionError, ContextLengthError, EngineError, StoreError, TemplateError
from agentlightning.gateway.call_order import CallOrder
from agentlightning.gateway.calls import Identity, OpenCall, attempt_ended
from agentlightning.gateway.compaction import (
    Compact,
    Compactions,
    as_messages,
    asked_of,
    checked,
    room_for_reply,
    with_messages,
)
from agentlightning.gateway.encoder import Encoder
from agentlightning.gateway.external.forwarding import Forwarding
from agentlightning.gateway.external.upstream import Upstreams
from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.open_calls import OpenCalls
from agentlightning.gateway.sampling import constraint, overruled, sample_seed, unconstrained_tools, used_sampling
from agentlightning.gateway.served import Notices, PoliciesByName, Served
from agentlightning.gateway.text_prompts import PromptError
from agentlightning.gateway.told_spans import TakenSpans
from agentlightning.gateway.tool_results import ToolResults
from agentlightning.gateway.tree import Placement, TraceTree
from agentlightning.gateway.wires.base import Begun, CallError, Choice, Reply, Wire, WireRequest
from agentlightning.nouns import (
    Attempt,
    Call,
    CallStatus,
    FinishReason,
    Json,
    Message,
    Reward,
    Rollout,
    SampleRecord,
    SamplingParams,
)
from agentlightning.records.traces import AttemptTrace
from agentlightning.records.usage import AttemptUsage
from agentlightning.settings.fields import EvaluationConfig, SamplingConfig
from agentlightning.store.base import Store
from agentlightning.templates.base import Parsed, ParsedDelta, StreamParser, Template
from agentlightning.tracing.messages import message_json

logger = logging.getLogger("agentlightning.gateway")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all attempts at one gateway have in common. ``call_order`` is there where a run has to repeat itself to the
    bit; ``orphan_grace`` are the seconds for which a call whose connection closed early goes on; ``compact`` shortens
    histories that have grown too long, where the user has something that does. ``tool_error_reward`` is given to a call
    for each of its tool calls whose result is an error; None: nothing is."""

    store: Store
    policies: Mapping[str, Served]
    encoder: Encoder
    upstreams: Upstreams
    notices: Notices
    call_order: CallOrder | None
    orphan_grace: float
    compact: Compact | None = None
    tool_error_reward: float | None = None


class Session:
    """The open attempt. ``end`` is the last thing called on it.

    ``tries`` says which try of the agent's it is, ``kept_replies`` what its requests may refer to: nothing at first,
    where it is left out.
    """

    def __init__(
        self,
        shared: Shared,
        rollout: Rollout,
        attempt: Attempt,
        *,
        tries: int,
        sampling: SamplingConfig | EvaluationConfig,
        resources: Mapping[str, Json],
        kept_replies: KeptReplies | None = None,
    ) -> None:
        self.rollout = rollout
        self.attempt = attempt
        self.usage = AttemptUsage(trainable=bool(shared.policies))
        self.tree = TraceTree()
        self.kept_replies = KeptReplies() if kept_replies is None else kept_replies
        self.calls = OpenCalls(shared.store, attempt.id, self.usage, shared.orphan_grace)
        self.external = Forwarding(shared.store, attempt.id, self.usage, shared.upstreams, resources, self.calls)
        self.spans = TakenSpans()
        self._shared = shared
        self._store = shared.store
        self._policies = PoliciesByName(shared.policies, resources, shared.notices)
        self._tries = tries
        self._sampling = sampling
        self._compactions = Compactions()
        self._tool_results = ToolResults()

    # ----------------------------------------------------------------- what the server calls
    def submit(
        self, wire: Wire, request: WireRequest, identity: Identity, *, retry: int, agent: str | None
    ) -> OpenCall:
        """Starts a call, or joins the one that this request repeats. ``retry`` is the client's retry count. Raises
        CallError.

        The caller awaits its ``reply`` (or follows ``more``) and in any case calls ``calls.left`` once.
        """
        now = time.monotonic()
        if (call := self.calls.join(identity, now, retry)) is not None:
            return call
        self.usage.calls += 1
        call = OpenCall(
            id=_new_id(wire),
            index=self.calls.next_index(),
            policy_index=self.usage.calls - 1,
            identity=identity,
            wire=wire.name,
            agent=agent,
            received_at=time.time(),
            started=now,
            retry=retry,
        )
        self.calls.start(call, self._run(call, request))
        return call

    async def refuse(self, wire: Wire, error: CallError, *, model: str = "", agent: str | None = None) -> None:
        """Records a request that was answered with an error before a call could be made of it."""
        self.usage.calls += 1
        index = self.calls.next_index()
        await self._record_refusal(_new_id(wire), index, wire.name, model, agent, error.message)

    def count(self, request: WireRequest) -> int:
        """Tokens of the prompt that a call would have. Raises CallError."""
        policy = self._policies.of(request.model)
        try:
            request = self._as_shortened(request, policy)
            placement = self._place(request, policy.with_kwargs(request.template_kwargs, self._shared.notices))
        except (TemplateError, RecursionError) as error:
            raise _too_bad(error, request.prompt_field) from error
        self.tree.withdraw(placement)
        return len(placement.prompt_ids)

    async def add_reward(self, reward: Reward) -> None:
        """Raises CallError where the reward names a call that is not this attempt's, StoreError where it was not
        stored."""
        if reward.call_id is not None and reward.call_id not in self.calls:
            raise CallError(422, f"call_id {reward.call_id!r} is no call of this attempt", param="call_id")
        await self._store.add_reward(reward)
        self.usage.rewards += 1

    async def rewards(self) -> list[Reward]:
        return [reward for reward in await self._store.rewards(self.rollout.id) if reward.attempt_id == self.attempt.id]

    async def add_spans(self, spans: Sequence[Json], size: int) -> int:
        """Stores what the agent told in a body of ``size`` bytes, and returns how many spans it was. Raises CallError
        for what is none, StoreError where they were not stored."""
        records = self.spans.take(spans, size, time.time())
        await self._store.add_spans(self.attempt.id, records)
        return len(records)

    async def trace(self) -> AttemptTrace:
        """What is recorded of the attempt by now: every call that has been answered, rewards, and what the agent
        told."""
        attempt = await self._store.get_attempt(self.attempt.id) or self.attempt
        return AttemptTrace(
            attempt,
            tuple(await self._store.calls(attempt.id)),
            tuple(await self._store.nodes(attempt.id)),
            tuple(await self.rewards()),
            tuple(await self._store.spans(attempt.id)),
        )

    async def end(self) -> AttemptUsage:
        """Withdraws what is still being sampled, waits for what is being recorded, and gives up the replies that nobody
        got."""
        await self.calls.end()
        return self.usage

    # ----------------------------------------------------------------- a call's life
    async def _run(self, call: OpenCall, request: WireRequest) -> None:
        """Plans, samples and records a call, and tells those who wait. Never raises: what goes wrong is the call's
        outcome."""
        policy = self._policies.of(request.model)
        placement: Placement | None = None
        try:
            await self._note_tool_errors(request)
            policy = policy.with_kwargs(request.template_kwargs, self._shared.notices)
            history, request = request, self._as_shortened(request, policy)
            placement = await self._placed(request, policy)
            if self._shared.compact is not None and len(placement.prompt_ids) > self._limit(request, policy):
                self.tree.withdraw(placement)
                placement = None
                request, placement = await self._shortened(call, history, policy, self._shared.compact)
            if len(placement.prompt_ids) >= policy.engine.context_length:
                raise ContextLengthError(len(placement.prompt_ids), policy.engine.context_length)
            params = self._params(call, request, policy, await constraint(request, policy.template, policy.engine))
            call.begin(Begun(len(placement.prompt_ids), params[0]))
            samples = await self._sample(call, request, policy, placement, params)
            call.recording = True
            call.settle(await self._record(call, request, policy, placement, params[0], samples))
        except asyncio.CancelledError:
            if call.given_up:
                await self._abandon_unsampled(call, request, policy, placement)
            else:
                await self._refused(
                    call, request, placement, CallError(500, "the engine withdrew the request", code="engine_error")
                )
        except (ContextLengthError, TemplateError, RecursionError) as error:
            await self._refused(call, request, placement, _too_bad(error, request.prompt_field))
        except CallError as error:
            await self._refused(call, request, placement, error)
        except EngineError as error:
            await self._refused(
                call, request, placement, CallError(500, f"the model could not sample: {error}", code="engine_error")
            )
        except StoreError as error:
            self.calls.fail(call, self.calls.lost(error))
        except (
            Exception
        ) as error:  # a defect of ours must not leave a client waiting, nor an attempt trained without the call
            logger.exception("a call of attempt %s could not be answered", self.attempt.id)
            self.calls.fail(call, self.calls.lost(error))
        else:
            if call.given_up:
                await self.calls.mark_abandoned(call)

    async def _note_tool_errors(self, request: WireRequest) -> None:
        """Counts the errors that the request brings as results of earlier tool calls, and gives the calls that made
        those what the user says that this is worth."""
        failed = self._tool_results.failed(request)
        self.usage.tool_errors += len(failed)
        if (worth := self._shared.tool_error_reward) is None:
            return
        where, now = (self.rollout.id, self.attempt.id), time.time()
        for id in failed:
            reason = "its result is an error"
            await self._store.add_reward(
                Reward(*where, worth, source="rule", tool_call_id=id, reason=reason, created_at=now)
            )

    def _as_shortened(self, request: WireRequest, policy: Served) -> WireRequest:
        """The request with what was shortened of its history in its shortened form."""
        messages = self._compactions.applied(request.messages, policy.name)
        return request if messages is request.messages else replace(request, messages=messages)

    def _limit(self, request: WireRequest, policy: Served) -> int:
        """Tokens that a prompt may have before its history is shortened: its reply needs room too."""
        most = min(request.sampling.max_tokens or self._sampling.max_tokens, self._sampling.max_tokens)
        return policy.engine.context_length - room_for_reply(most, policy.engine.context_length)

    async def _shortened(
        self, call: OpenCall, history: WireRequest, policy: Served, compact: Compact
    ) -> tuple[WireRequest, Placement]:
        """The request with its history shortened by the user's function, and where its prompt goes; as it was where
        that did not work and it fits all the same. Raises ContextLengthError where it does not."""
        async with self._compactions.lock:
            request = self._as_shortened(history, policy)
            placement = await self._placed(request, policy)
            before, limit = len(placement.prompt_ids), self._limit(request, policy)
            if before <= limit:  # shortened meanwhile, for an equal request
                return request, placement
            self.tree.withdraw(placement)

            async def count(messages: Json) -> int:
                try:
                    placed = self._place(replace(request, messages=as_messages(messages)), policy)
                except (TemplateError, RecursionError) as error:
                    raise ValueError(str(error)) from error
                self.tree.withdraw(placed)
                return len(placed.prompt_ids)

            seed = sample_seed(self.rollout.seed, self._tries, call.policy_index, 0, None)
            try:
                if request.prompt is not None:
                    raise CompactionError("shortens histories, and this request has a prompt without messages")
                said = await compact(asked_of(request.messages, request.tools, limit, seed), count)
                shorter = with_messages(request, checked(said, request.messages))
                placement = await self._placed(shorter, policy)
            except CompactionError as error:
                self.usage.compaction.fail(str(error))
                if before >= policy.engine.context_length:
                    raise ContextLengthError(before, policy.engine.context_length, str(error)) from error
                return request, await self._placed(request, policy)
            after = len(placement.prompt_ids)
            if after >= policy.engine.context_length:
                self.tree.withdraw(placement)
                aside = f"compact shortened a history from {before} tokens"
                self.usage.compaction.fail(f"{aside} to {after}, which do not fit either")
                raise ContextLengthError(after, policy.engine.context_length, aside)
            placement.branch = "compacted"
            self._compactions.note(history.messages, shorter.messages, policy.name)
            self.usage.compaction.done(before, after)
            return shorter, placement

    def _place(self, request: WireRequest, policy: Served) -> Placement:
        if request.prompt is not None:
            return self.tree.place_prompt(request.prompt, policy.name, policy.template)
        return self.tree.place(
            request.messages, request.tools, policy.name, policy.template, self.kept_replies.leaf(request.links.after)
        )

    async def _placed(self, request: WireRequest, policy: Served) -> Placement:
        """As ``_place``, tokenised beside the event loop."""
        if request.prompt is not None:
            return self._place(request, policy)
        continuation = self.tree.find(
            request.messages, request.tools, policy.name, policy.template, self.kept_replies.leaf(request.links.after)
        )
        if continuation.known:
            return self.tree.place_continuation(continuation, array("i"))
        encode = self._shared.encoder.encode
        ids = await encode(policy.template, continuation.text, start=continuation.leaf is None)
        return self.tree.place_continuation(continuation, ids)

    def _params(
        self, call: OpenCall, request: WireRequest, policy: Served, grammar: str | None
    ) -> list[SamplingParams]:
        """One set per sample: they differ in the seed."""
        seeds = [
            sample_seed(self.rollout.seed, self._tries, call.policy_index, i, request.sampling.seed)
            for i in range(request.options.n)
        ]
        first = used_sampling(self._sampling, request, policy.template.stop_token_ids, seeds[0], grammar)
        if asked := overruled(request, first):
            mode = self.rollout.mode.value
            advice = (
                '; sampling.owner = "agent" lets the agent decide' if isinstance(self._sampling, SamplingConfig) else ""
            )
            self._shared.notices.once(
                ("sampling", mode), f"the agent asks for {asked} in {mode}: the run's own settings hold{advice}"
            )
        if names := unconstrained_tools(request, policy.engine):
            engine = type(policy.engine).__name__
            self._shared.notices.once(
                ("strict", engine),
                f"tools are strict ({names}), and {engine} cannot keep a sample to a grammar: their calls may not "
                "follow their schemas",
            )
        return [first, *(replace(first, seed=seed) for seed in seeds[1:])]

    async def _sample(
        self, call: OpenCall, request: WireRequest, policy: Served, placement: Placement, params: list[SamplingParams]
    ) -> list[tuple[Sample, array[int], Parsed]]:
        if len(params) == 1:
            return [await self._sample_one(call, request, policy, placement, params[0], 0)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._sample_one(call, request, policy, placement, each, i))
                    for i, each in enumerate(params)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _sample_one(
        self,
        call: OpenCall,
        request: WireRequest,
        policy: Served,
        placement: Placement,
        params: SamplingParams,
        index: int,
    ) -> tuple[Sample, array[int], Parsed]:
        tools = request.tools if request.tool_use.choice != "none" else ()
        plain, streamed = request.prompt is not None, None
        if request.options.stream:
            streamed = _StreamedSample(call, index, policy.template.stream(tools, params.stop, plain=plain))
        asked = SampleRequest(f"{call.id}.{index}", placement.prompt_ids, params, policy.name, self.usage.engine)
        with self.usage.engine.waited_for():
            order = self._shared.call_order
            if order is not None:
                rollout = self.rollout
                await order.enter((rollout.group, rollout.index, self.attempt.number, call.index, index))
            try:
                sample = await policy.engine.sample(asked, streamed.feed if streamed else None)
            finally:
                if order is not None:
                    order.leave()
        if sample.finish is FinishReason.CANCELLED:
            raise EngineError("the engine withdrew the request")
        ids = sample.segments[0].token_ids if len(sample.segments) == 1 else _joined(sample)
        if streamed is not None:
            return sample, ids, streamed.finish(ids, sample)
        return sample, ids, policy.template.read(ids, tools, sample.finish, sample.stop_string, plain=plain)

    async def _record(
        self,
        call: OpenCall,
        request: WireRequest,
        policy: Served,
        placement: Placement,
        params: SamplingParams,
        samples: list[tuple[Sample, array[int], Parsed]],
    ) -> Reply:
        new = placement.node.id is None
        nodes, leaves = self.tree.grow(
            placement, [(sample, parsed.message) for sample, _, parsed in samples], call.index
        )
        status = CallStatus.COMPLETE if call.readers else CallStatus.ABANDONED
        sampled = sum([len(ids) for _, ids, _ in samples])
        reused = max([sample.reused_tokens for sample, _, _ in samples])
        record = self._as_record(
            call,
            replace(request, asked={**request.asked, **_texts_of(placement)}) if new else request,
            policy,
            status,
            branch=placement.branch,
            prompt_node=placement.node.id,
            samples=tuple(
                [
                    SampleRecord(cast("int", leaf.node.id), sample.finish, leaf.message, parsed.malformed)
                    for leaf, (sample, _, parsed) in zip(leaves, samples, strict=True)
                ]
            ),
            used=params,
            prompt_tokens=len(placement.prompt_ids),
            reused_tokens=reused,
            sampled_tokens=sampled,
            first_token_s=samples[0][0].first_token_s,
            total_s=time.monotonic() - call.started,
        )
        try:
            await self._store.record(record, nodes)
        except StoreError:
            self.tree.undo_grow(placement, nodes)
            raise
        call.stored = status
        self.tree.publish(placement, leaves)
        for leaf in leaves:
            self._tool_results.made(leaf.message)
        self.usage.sampled_tokens += sampled
        choices = [
            Choice(
                parsed.message,
                sample.finish,
                ids,
                _logprobs(sample),
                _texts(policy.template, ids) if request.options.logprobs else (),
                sample.stop_string,
                parsed.thought_tokens,
            )
            for sample, ids, parsed in samples
        ]
        prompt_ids = placement.prompt_ids if request.options.token_ids else None
        tokens = len(placement.prompt_ids), sampled, reused
        reply = Reply(call.id, int(call.received_at), choices, *tokens, prompt_ids, params, int(time.time()))
        if request.links.store:
            self.kept_replies.keep(request, reply, leaves[0])
        return reply

    async def _refused(
        self, call: OpenCall, request: WireRequest, placement: Placement | None, error: CallError
    ) -> None:
        if placement is not None:
            self.tree.withdraw(placement)
        if error.code == "context_length_exceeded":
            self.usage.context_length_errors += 1
        await self._record_refusal(call.id, call.index, call.wire, request.model, call.agent, error.message)
        self.calls.fail(call, error)

    async def _record_refusal(
        self, call_id: str, index: int, wire: str, model: str, agent: str | None, message: str
    ) -> None:
        self.usage.refused += 1
        self.usage.last_error = message
        record = Call(
            id=call_id, attempt_id=self.attempt.id, index=index, wire=wire, model=model,
            policy=self._policies.name_of(model),
            status=CallStatus.REFUSED, branch="", prompt_node=None, samples=(), asked={}, used=None, agent=agent,
            error=message,
            received_at=time.time(),
        )  # fmt: skip
        try:
            await self._store.record(record, ())
        except StoreError as error:
            self.calls.lost(error)

    async def _abandon_unsampled(
        self, call: OpenCall, request: WireRequest, policy: Served, placement: Placement | None
    ) -> None:
        """Records a call that was withdrawn while it sampled: it has no samples, and nothing of it can be trained."""
        if placement is not None:
            self.tree.withdraw(placement)
        record = self._as_record(
            call,
            request,
            policy,
            CallStatus.ABANDONED,
            prompt_tokens=len(placement.prompt_ids) if placement else 0,
            error="its client left before it was sampled to the end",
            total_s=time.monotonic() - call.started,
        )
        try:
            await self._store.record(record, ())
        except StoreError as error:
            self.calls.lost(error)
        self.calls.fail(call, attempt_ended())

    # ----------------------------------------------------------------- small things
    def _as_record(self, call: OpenCall, request: WireRequest, policy: Served, status: CallStatus, **more: Any) -> Call:
        """The record of a call; ``more`` are the fields that only one with samples has, or only one without."""
        found: dict[str, Any] = {"branch": "", "prompt_node": None, "samples": (), "used": None, **more}
        return Call(
            id=call.id, attempt_id=self.attempt.id, index=call.index, wire=call.wire, model=request.model,
            policy=policy.name,
            status=status, asked=request.asked, agent=call.agent, received_at=call.received_at, **found,
        )  # fmt: skip


def _texts_of(placement: Placement) -> dict[str, Json]:
    """What the record keeps of the messages that a prompt's new node adds, and of the tools where they are new."""
    texts: dict[str, Json] = {}
    if placement.given:
        texts["messages"] = [message_json(message) for message in placement.given]
    if placement.tools and (placement.parent is None or placement.parent.tools != placement.tools):
        texts["tools"] = [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in placement.tools
        ]
    return texts


class _StreamedSample:
    """A sample that is being streamed: feeds the parser and keeps what the client was given."""

    def __init__(self, call: OpenCall, index: int, parser: StreamParser) -> None:
        self._call = call
        self._index = index
        self._parser = parser
        self._fed = 0
        self._told: list[ParsedDelta] = []

    def feed(self, token_ids: array[int]) -> None:
        self._fed += len(token_ids)
        self._tell(self._parser.feed(token_ids))

    def _tell(self, delta: ParsedDelta) -> None:
        self._told.append(delta)
        self._call.add(self._index, delta)

    def finish(self, ids: array[int], sample: Sample) -> Parsed:
        """The sample as the deltas told it."""
        if self._fed < len(ids):
            self.feed(ids[self._fed :])
        self._tell(self._parser.finish(sample.finish, sample.stop_string))
        calls = tuple([call for delta in self._told for call in delta.tool_calls])
        reasoning = "".join([delta.reasoning for delta in self._told])
        message = Message(
            "assistant", "".join([delta.content for delta in self._told]), calls, None, None, reasoning or None
        )
        return Parsed(message, self._parser.malformed, self._parser.thought_tokens)


def _new_id(wire: Wire) -> str:
    return f"{wire.id_prefix}{secrets.token_hex(12)}"


def _too_bad(error: ContextLengthError | TemplateError | RecursionError, field: str) -> CallError:
    if isinstance(error, ContextLengthError):
        overflow = error.prompt_tokens, error.context_length
        return CallError(
            400, str(error), param=field, code="context_length_exceeded", overflow=overflow, aside=error.aside
        )
    if isinstance(error, PromptError):
        return CallError(400, str(error), param=field, code="invalid_prompt")
    if isinstance(error, TemplateError):
        return CallError(
            400, f"the model's chat template refused these messages: {error}", param=field, code="template_error"
        )
    return CallError(400, "the request is nested too deeply", param=field)


def _joined(sample: Sample) -> array[int]:
    ids = array("i")
    for segment in sample.segments:
        ids.extend(segment.token_ids)
    return ids


def _logprobs(sample: Sample) -> array[float]:
    if len(sample.segments) == 1:
        return sample.segments[0].logprobs
    logprobs = array("f")
    for segment in sample.segments:
        logprobs.extend(segment.logprobs)
    return logprobs


def _texts(template: Template, ids: array[int]) -> tuple[str, ...]:
    return tuple([template.decode([token]) for token in ids])
