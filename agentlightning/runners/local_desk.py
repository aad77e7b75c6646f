"""LocalDesk: the desk of runners in the process of the run, over its store and its gateway, called directly.

It leases what the run asks for, opens and closes each attempt's endpoint, has outputs graded, and decides and records
what an attempt comes to. It runs no agent.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentlightning.agent.calling import NO_TEMPLATE, AgentSpec
from agentlightning.agent.resources import LLM, NamedResources
from agentlightning.agent.rollouts import Attempt as AttemptView
from agentlightning.agent.rollouts import Rollout as RolloutView
from agentlightning.agent.rollouts import RolloutConfig
from agentlightning.errors import ConfigError, LeaseLost, StoreError
from agentlightning.nouns import Attempt, Failure, Json, Mode, Reason, Rollout
from agentlightning.records.attempts import AttemptReport
from agentlightning.records.probe import AgentProbe
from agentlightning.records.traces import AttemptTrace
from agentlightning.records.usage import AttemptUsage
from agentlightning.runners.adapting import Adapting, own_adapt
from agentlightning.runners.assignment import Assignment, Endpoint
from agentlightning.runners.check import new_launcher
from agentlightning.runners.companions import Companions, Say
from agentlightning.runners.execution import AgentResult, Returned, or_failure
from agentlightning.runners.grading import Grader, Graders
from agentlightning.runners.isolation import isolate
from agentlightning.runners.matching import Matched, largest_unrecorded, match_triplets, unknown_token
from agentlightning.runners.output_log import OutputLog
from agentlightning.runners.pool import RunnerPool
from agentlightning.runners.process import Launcher
from agentlightning.runners.report import Facts, decide_outcome, needs_grader
from agentlightning.runners.said import Said
from agentlightning.settings.fields import EvaluationConfig, RunnerConfig, SamplingConfig

if TYPE_CHECKING:
    from agentlightning.gateway import Gateway
    from agentlightning.store.base import Store

logger = logging.getLogger("agentlightning.runners")
ExternalOf = Callable[[int], Mapping[str, LLM]]
"""The external models that a version of the resources was published with, besides those that the run was given."""


def _no_others(version: int) -> Mapping[str, LLM]:
    del version
    return {}


POLL = 0.05
"""Seconds between looks at an empty queue; ``Leases.serve`` cuts them short."""


class Leases:
    """A run's queue as one desk takes from it: what may be leased now, and until when a runner's silence is borne."""

    def __init__(self, store: Store, run_id: str, config: RunnerConfig) -> None:
        self._store = store
        self._run_id = run_id
        self._config = config
        self._runner_id = f"runner-{secrets.token_hex(4)}"
        self._scope: Mapping[Mode, Collection[int] | None] | None = None
        self._changed = asyncio.Event()
        self._next_expiry = 0.0
        self.closed = False

    def serve(self, scope: Mapping[Mode, Collection[int] | None]) -> None:
        """Leases rollouts of these modes, and of each mode's groups, alone from now on (None: of all)."""
        self._scope = scope
        self._changed.set()

    def look_again(self) -> None:
        """Something may have been queued."""
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    async def take(self, limit: int) -> list[tuple[Rollout, Attempt]] | None:
        """Up to ``limit`` rollouts with a new attempt each. Where there are none it waits up to ``POLL`` seconds and
        returns []. None once closed."""
        if self.closed:
            return None
        await self._expire()
        taken: list[tuple[Rollout, Attempt]] = []
        for mode, groups in {None: None}.items() if self._scope is None else self._scope.items():
            if (left := limit - len(taken)) > 0:
                taken += await self._store.lease(
                    self._run_id, self._runner_id, limit=left, seconds=self._config.lease, mode=mode, groups=groups
                )
        if not taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._changed.wait()
            self._changed.clear()
        return taken

    async def renew(self, attempt_id: str) -> bool:
        """Whether it is still leased; then for as long again."""
        await self._expire()
        return await self._store.renew(attempt_id, seconds=self._config.lease)

    async def _expire(self) -> None:
        """Ends the leases of runners that died, this or another process's: whoever leases or renews sees to it."""
        if time.monotonic() >= self._next_expiry:
            self._next_expiry = time.monotonic() + self._config.lease / 2
            await self._store.expire(max_attempts=self._config.max_attempts)


class HandedResources:
    """What agents are handed: the user's resources, with a version that the store holds laid over them."""

    def __init__(self, store: Store, run_id: str, given: Mapping[str, Any], external: ExternalOf) -> None:
        """``external`` has those external models of a version that it was published with."""
        self._store = store
        self._run_id = run_id
        self.external = external
        self._given = NamedResources(given)
        self._given.to_json()  # says by name what cannot be a resource
        self._versions: dict[int, NamedResources] = {0: self._given}
        self.keys = self._given.keys_of_external()

    async def version(self, number: int) -> NamedResources:
        """Of the version that a rollout names; 0 is none."""
        if number not in self._versions:
            recorded = await self._store.get_resources(self._run_id, number)
            known = NamedResources({**self._given, **self.external(number)})
            self._versions[number] = known.merged(NamedResources.from_json(recorded))
        return self._versions[number]

    async def latest(self) -> NamedResources:
        try:
            return self._given.merged(NamedResources.from_json(await self._store.get_resources(self._run_id)))
        except StoreError:  # none recorded yet
            return self._given


@dataclass(frozen=True, slots=True)
class _Open:
    """An attempt that is leased and not yet reported. ``stop`` ends its grading."""

    rollout: Rollout
    attempt: Attempt
    log: OutputLog
    began: float = field(default_factory=time.monotonic)
    stop: asyncio.Event = field(default_factory=asyncio.Event)


class LocalDesk:
    """The desk of one run. ``sampling`` says by mode how agents' calls are sampled; ``grader(task, output, attempt)``,
    plain or async, scores what returns no number; a program's own ``adapter`` makes triplets of attempts' spans.
    ``resources`` are the user's, with their API keys. Logs go to ``folder/logs``. ``on_attempt`` is called with each
    AttemptReport.

    Raises ConfigError, here or in ``start``, for what cannot work.
    """

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        config: RunnerConfig,
        run_id: str,
        *,
        sampling: Mapping[Mode, SamplingConfig | EvaluationConfig],
        resources: Mapping[str, Any] | None = None,
        external: ExternalOf = _no_others,
        tokenizer: str = "",
        grader: Grader | None = None,
        adapter: object = None,
        folder: Path | None = None,
    ) -> None:
        self.on_attempt: Callable[[AttemptReport], Any] | None = None
        self.config = config
        self._store = store
        self._gateway = gateway
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._leases = Leases(store, run_id, config)
        self._resources = HandedResources(store, run_id, resources or {}, external)
        self._graders = None if grader is None else Graders(grader, config.grader, config.n_runners, self.keys)
        self._adapting = None if own_adapt(adapter) is None else Adapting(adapter, config.deadline)
        self._logs = None if folder is None else folder / "logs"
        self._open: dict[str, _Open] = {}
        self._none_open = asyncio.Event()
        self._none_open.set()

    # ------------------------------------------------------------------ for the run

    async def start(self, probe: AgentProbe, launcher: Launcher | None = None) -> None:
        """Begins to import the grader, in a process of ``launcher`` (None: of one of its own). Raises ConfigError where
        the grader, or an agent as ``probe`` found it, cannot have what it needs."""
        if probe.needs_template and (await self._resources.latest()).prompt_template() is None:
            raise ConfigError(f"agent {probe.name!r}: {NO_TEMPLATE}")
        if self._graders is not None:
            try:
                await self._graders.start(launcher, partial(new_launcher, keys=self.keys))
            except BaseException:
                await self._graders.close()
                raise

    async def close(self) -> None:
        """Leases nothing more and ends what is graded. What is reported from now on is queued again, so that a resumed
        run runs it anew."""
        self._leases.close()
        for attempt in self._open.values():
            attempt.stop.set()
        if self._graders is not None:
            await self._graders.close()
        if self._adapting is not None:
            await self._adapting.close()

    def serve(self, mode: Mode, groups: Collection[int] | None) -> None:
        """Leases rollouts of this mode and these groups alone from now on (None: of all), and looks for them at once.
        Before the first call whatever is queued is leased.

        A resumed run finds rollouts of a later step queued while it still makes earlier steps again: run now, they
        would be sampled from the wrong weights.
        """
        self._leases.serve({mode: groups})

    def serve_together(self, scope: Mapping[Mode, Collection[int] | None]) -> None:
        """The same for several modes at once."""
        self._leases.serve(scope)

    def holds(self, rollout_ids: Collection[str]) -> bool:
        """Whether any of the rollouts is being run right now."""
        return any(attempt.rollout.id in rollout_ids for attempt in self._open.values())

    async def all_told(self) -> None:
        """Waits until ``on_attempt`` knows of every attempt that was leased: a rollout is final in the record a moment
        before. Each attempt has its own deadline."""
        await self._none_open.wait()

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys of external models, which agents must not see."""
        return self._resources.keys

    # ------------------------------------------------------------------ for runners

    @property
    def address(self) -> str:
        return self._gateway.url

    async def lease(self, limit: int) -> list[Assignment] | None:
        """Raises ConfigError where no sampling settings are known for a rollout's mode."""
        taken = await self._leases.take(limit)
        if taken is None:
            return None
        return await asyncio.gather(*(self._assign(rollout, attempt) for rollout, attempt in taken))

    async def beat(self, attempt_id: str) -> bool:
        kept = await self._leases.renew(attempt_id)
        if not kept and attempt_id in self._open:
            self._open[attempt_id].stop.set()
        return kept

    def log(self, attempt_id: str, data: bytes) -> None:
        if (attempt := self._open.get(attempt_id)) is not None:
            attempt.log.write(data)

    async def report(self, attempt_id: str, result: AgentResult | None, said: Said | None = None) -> None:
        attempt = self._open.get(attempt_id)
        if attempt is None:
            return  # it was reported before
        try:
            usage = await self._gateway.end(attempt_id)
            marked = () if said is None else tuple(said.marked)
            agents = {} if said is None else usage.name_calls(said.named)
            result, given = await self._match(attempt, result, agents)
            graded = await self._grade(attempt, result, usage)
            with suppress(LeaseLost):  # cancelled or expired meanwhile: what ended it has been recorded
                if result is None or self._is_stopped(attempt):
                    await self._give_back(attempt, marked, agents)
                else:
                    await self._record(attempt, Facts(result, usage, (), graded, marked, given), agents)
        finally:
            attempt.log.close()
            self._open.pop(attempt_id, None)
            if not self._open:
                self._none_open.set()
            self._leases.look_again()

    # ------------------------------------------------------------------ one attempt

    async def _assign(self, rollout: Rollout, attempt: Attempt) -> Assignment:
        path = None if self._logs is None else self._logs / f"{_file_name(attempt.id)}.log"
        self._open[attempt.id] = _Open(rollout, attempt, OutputLog(path))
        self._none_open.clear()
        resources = (await self._resources.version(rollout.resources_version)).to_json()
        sampling = self._sampling_of(rollout.mode)
        endpoint = await self._gateway.open(
            rollout,
            attempt,
            sampling=sampling,
            resources=resources,
            external=self._resources.external(rollout.resources_version),
        )
        return Assignment(
            self._view(rollout, attempt),
            Endpoint(urlsplit(endpoint.root_url).path, endpoint.key, endpoint.model),
            sampling=_handed_sampling(sampling),
            # As they are recorded, so that no key and no endpoint of an external model comes near the agent.
            resources=NamedResources.from_json(resources),
            tokenizer=self._tokenizer,
            seconds_left=self.config.deadline,
            lease_seconds=self.config.lease,
        )

    def _view(self, rollout: Rollout, attempt: Attempt) -> RolloutView:
        """What its agent is told of it."""
        return RolloutView(
            rollout_id=rollout.id,
            input=rollout.task,
            mode=rollout.mode,
            resources_id=str(rollout.resources_version),
            status="running",
            config=RolloutConfig(
                timeout_seconds=self.config.deadline,
                unresponsive_seconds=self.config.lease,
                max_attempts=self.config.max_attempts,
            ),
            attempt=AttemptView(
                rollout_id=rollout.id,
                attempt_id=attempt.id,
                sequence_id=attempt.number,
                status="running",
                worker_id=attempt.runner_id,
            ),
            group=rollout.group,
            index=rollout.index,
            seed=rollout.seed,
        )

    def _is_stopped(self, attempt: _Open) -> bool:
        return attempt.stop.is_set() or self._leases.closed

    async def _grade(self, attempt: _Open, result: AgentResult | None, usage: AttemptUsage) -> float | Failure | None:
        if self._graders is None or not isinstance(result, Returned) or self._is_stopped(attempt):
            return None
        if not needs_grader(result, attempt.rollout, usage):
            return None
        return await or_failure(
            self._graders.grade(
                attempt.rollout, result.output, attempt.attempt, attempt.log,
                deadline=self.config.deadline, stop=attempt.stop,
            )
        )  # fmt: skip

    async def _match(
        self, attempt: _Open, result: AgentResult | None, agents: Mapping[str, str]
    ) -> tuple[AgentResult | None, Matched | None]:
        """What the triplets that the agent returned, or the program's adapter made, come to; or the failure in place of
        the result where they cannot be."""
        if not isinstance(result, Returned) or self._is_stopped(attempt):
            return result, None
        adapting = None if result.triplets or attempt.rollout.mode is Mode.VAL else self._adapting
        if adapting is None and not result.triplets:
            return result, None
        id = attempt.attempt.id
        trace = AttemptTrace(attempt.attempt, tuple(await self._store.calls(id)), tuple(await self._store.nodes(id)))
        if adapting is not None:
            if not trace.calls:
                return result, None
            made = await adapting.triplets(await self._as_told(trace, agents), attempt.log, attempt.stop)
            if not isinstance(made, tuple):
                return made, None
            result = replace(result, triplets=made)
        policy = self._gateway.default_policy
        matched = await asyncio.to_thread(match_triplets, result.triplets, trace, policy, time.time())
        strange = largest_unrecorded(matched, trace)
        if strange is not None and not self._gateway.has_token(strange):
            whose = "the agent returned" if adapting is None else f"{adapting.what} made"
            return unknown_token(result.triplets, strange, whose), None
        return result, matched

    async def _as_told(self, trace: AttemptTrace, agents: Mapping[str, str]) -> AttemptTrace:
        """With everything that is known of the attempt by now, the agents of its calls too."""
        attempt = trace.attempt
        rewards = await self._store.rewards(attempt.rollout_id)
        return replace(
            trace,
            calls=tuple(replace(call, agent=agents.get(call.id, call.agent)) for call in trace.calls),
            rewards=tuple(reward for reward in rewards if reward.attempt_id == attempt.id),
            spans=tuple(await self._store.spans(attempt.id)),
        )

    async def _record(self, attempt: _Open, facts: Facts, agents: Mapping[str, str]) -> None:
        """``facts`` without what was emitted; ``agents`` made calls, by the call's id."""
        rewards = await self._store.rewards(attempt.rollout.id)
        emitted = [reward for reward in rewards if reward.attempt_id == attempt.attempt.id]
        outcome = decide_outcome(
            attempt.rollout,
            attempt.attempt,
            replace(facts, emitted=emitted),
            failure_reward=self.config.failure_reward,
            now=time.time(),
        )
        outcome = replace(outcome, agents=agents)
        retried = outcome.failure is not None and attempt.attempt.number < self.config.max_attempts
        if outcome.failure is not None and retried:
            failure, marked = outcome.failure, outcome.marked
            ended = await self._store.retry(attempt.attempt.id, failure, marked=marked, agents=agents)
        else:
            ended = await self._store.finish(attempt.attempt.id, outcome)
        if self.on_attempt is not None:
            seconds = time.monotonic() - attempt.began
            said = self.on_attempt(
                AttemptReport(ended, attempt.attempt, outcome, facts.usage, attempt.log.text(), seconds, retried)
            )
            if inspect.isawaitable(said):
                await said

    async def _give_back(self, attempt: _Open, marked: Sequence[str], agents: Mapping[str, str]) -> None:
        """Queues the rollout of an attempt that was stopped again. Raises LeaseLost where something else ended it."""
        why = "the run was closed" if self._leases.closed else "its runner was stopped"
        failure = Failure(Reason.CANCELLED, f"{why} while it was running")
        await self._store.retry(attempt.attempt.id, failure, marked=marked, agents=agents)

    def _sampling_of(self, mode: Mode) -> SamplingConfig | EvaluationConfig:
        found = self._sampling.get(mode) or (self._sampling.get(Mode.TRAIN) if mode is Mode.DEV else None)
        if found is None:
            raise ConfigError(f"no sampling settings for {str(mode)!r} rollouts")
        return found


def _handed_sampling(config: SamplingConfig | EvaluationConfig) -> dict[str, Json]:
    """The run's settings as an agent may pass them on: OpenAI's names, and only what differs from their defaults."""
    return {"temperature": config.temperature} | ({"top_p": config.top_p} if config.top_p < 1 else {})


def _file_name(attempt_id: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in attempt_id)


@asynccontextmanager
async def run_here(
    desk: LocalDesk,
    agent: AgentSpec,
    probe: AgentProbe,
    extra_env: Mapping[str, str] | None = None,
    companions: Companions | None = None,
    say: Say = logger.warning,
) -> AsyncGenerator[RunnerPool]:
    """Runs what the desk leases in this process and those it starts. ``probe`` is what a check of the agent found;
    ``companions`` go along with every attempt, and ``say`` is told, from any thread, what goes wrong with them.

    The desk is closed before the pool, so that nothing is leased or graded any more while attempts are stopped; what
    starts processes is closed last.
    """
    isolation = isolate(agent, probe, desk.address, extra_env=extra_env, keys=desk.keys, companions=companions, say=say)
    await isolation.start()
    try:
        await desk.start(probe, isolation.launcher)
        pool = RunnerPool(desk, isolation, desk.config.n_runners)
        pool.start()
        try:
            yield pool
        finally:
            await desk.close()
            await pool.close()
    finally:
        await isolation.close()
