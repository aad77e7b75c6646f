"""The loop of all policy-gradient algorithms: sample groups, credit, learn, publish, account.

A subclass says how many rollouts a task gets and what their advantages are; it never sees tokens. This file knows no
tensors, no HTTP and no SQL: what a line asks of the machine is one call on a port (ports.py).
"""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from agentlightning.agent.resources import POLICY
from agentlightning.algorithms.base import Algorithm
from agentlightning.credit import (
    CreditSettings,
    StepCredit,
    TrainedAgents,
    credit_rows,
    credit_step,
    together,
    train_batch,
    unused_rewards,
)
from agentlightning.credit.rewards import final_reward
from agentlightning.credit.step import agents_of, informative
from agentlightning.errors import ConfigError, RunFailed
from agentlightning.learning.objective import ObjectiveSettings
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss
from agentlightning.nouns import Json
from agentlightning.records.batch import LearnerStats
from agentlightning.records.causes import likely_cause
from agentlightning.records.ledger import (
    Ledger,
    commonest_cause,
    count_calls,
    count_cut,
    count_external,
    count_malformed,
    count_outcomes,
)
from agentlightning.settings.fields import RunConfig

if TYPE_CHECKING:
    from agentlightning.algorithms.ports import Run
    from agentlightning.records.probe import AgentProbe
    from agentlightning.records.traces import Group, Trace


class PolicyGradient(Algorithm, PolicyGradientLoss):
    """Base of algorithms that weight sampled tokens by an advantage. The settings of the loss are its own."""

    trains_weights: ClassVar[bool] = True
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks whose groups make one step's batch."""
    dynamic_filtering: bool = False
    """Sample further tasks until the step has `tasks_per_step` groups whose rewards differ, at most `filtering_rounds`
    times."""
    filtering_rounds: int = Field(default=4, ge=1)
    """How often a step may sample, with `dynamic_filtering`."""

    credit: CreditSettings = CreditSettings()
    """What carries a reward, rollouts or calls, and which rows are trained."""

    @abstractmethod
    def rollouts_per_task(self) -> int: ...

    @abstractmethod
    def advantages(self, rewards_G: Sequence[float]) -> list[float]:
        """One advantage for each of the rewards that are compared: those of a task's rollouts, or of all their calls
        (`credit`). At least two rewards, not all equal. Where each task gets a single rollout, those of the whole batch
        are compared, unless calls have rewards."""

    def over_batch(self, advantages_N: Sequence[float]) -> Sequence[float]:
        """The advantages of all rollouts of a step that have one, or of their calls, as they are used; a hook for what
        is the batch's, as whitening is."""
        return advantages_N

    def check(self, config: RunConfig) -> None:
        if config.sampling.temperature == 0:
            raise ConfigError(
                "sampling.temperature=0 in training: all rollouts of a group would be the same and there is nothing "
                "to learn from; use 1.0, or `agl eval` to score a model greedily"
            )
        worth = config.gateway.tool_error_reward
        if worth is not None and not self.credit.reads_calls:
            raise ConfigError(
                f"gateway.tool_error_reward={worth:g} is a reward of single calls, and algorithm.credit.scheme="
                f"{self.credit.scheme!r} uses none of those: set it to 'call', 'mixed' or 'discounted'"
            )
        if self.rollouts_per_task() > 1 or self.credit.reads_calls:
            return
        if self.dynamic_filtering:
            raise ConfigError(
                "dynamic_filtering samples further tasks where the rollouts of one have equal rewards, and each task "
                "gets a single rollout here: leave it out"
            )
        if self.tasks_per_step == 1:
            raise ConfigError(
                "a step of one task with a single rollout has nothing to compare its reward with: use more "
                "tasks_per_step (the batch's mean is then the baseline), a larger group_size, or rewards of single "
                "calls (algorithm.credit.scheme)"
            )

    def objective(self) -> ObjectiveSettings:
        """What the learner is to minimise."""
        return PolicyGradientLoss(**{name: getattr(self, name) for name in PolicyGradientLoss.model_fields})

    # ------------------------------------------------------------------ the story of a run and of a step

    def total_steps(self, config: RunConfig, tasks: int) -> int:
        """As set, else as many as ``epochs`` over the tasks need."""
        return config.steps or -(-tasks * config.epochs // self.tasks_per_step)

    async def fit(self, run: Run) -> None:
        journal = run.journal
        await journal.validate(journal.last_step)  # a new run's model as it is; a resumed run may lack it
        for step in range(journal.last_step + 1, journal.total_steps + 1):
            if journal.should_stop():
                break
            await self.step(run, step)
            await journal.validate(step)
            await journal.checkpoint(step)
        await journal.finish()

    async def step(self, run: Run, step: int) -> None:
        """Samples, credits, learns and makes one step durable."""
        clock = _Clock()
        groups = await self.sample(run)
        clock.mark("sampling")
        chosen = run.config.trained_agents
        credited = self.credit_of(groups, chosen)
        if not any(trace.scored for group in groups for trace in group.traces):
            raise RunFailed(_all_failed(step, groups, run.rollouts.probe))
        if nobody := _nobody_trained(groups, chosen):
            raise RunFailed(f"step {step}: {nobody}")
        await run.journal.intend(step, groups)
        stats = await run.policy.learn(train_batch(groups, credited.attempts), self.objective())
        clock.mark("training")
        ledger = self.account(run, groups, credited, stats, clock.seconds)
        rows = credit_rows(groups, credited.attempts, POLICY)
        await run.journal.commit(step, self.metrics(step, groups, credited, stats, ledger), ledger, groups, rows)

    async def sample(self, run: Run) -> list[Group]:
        """A step's groups."""
        groups: list[Group] = []
        for _ in range(self.filtering_rounds if self.dynamic_filtering else 1):
            wanted = self.tasks_per_step - sum(
                1 for group in groups if informative(group, self.credit, run.config.trained_agents)
            )
            if groups and wanted <= 0:
                break
            groups += await run.rollouts.sample(run.tasks.take(wanted), self.rollouts_per_task())
        return groups

    def credit_of(self, groups: Sequence[Group], trained_agents: str | None = None) -> StepCredit:
        """One weight, or the reason why there is none, for every token that the groups sampled; see credit/step.py."""
        return credit_step(groups, self, trained_agents, self.credit)

    def account(
        self, run: Run, groups: Sequence[Group], credited: StepCredit, stats: LearnerStats, seconds: dict[str, float]
    ) -> Ledger:
        traces = [trace for group in groups for trace in group.traces]
        calls, branches = count_calls(call for trace in traces for attempt in trace.attempts for call in attempt.calls)
        samples = [
            sample
            for trace in traces
            for attempt in trace.attempts
            for call in attempt.calls
            for sample in call.samples
        ]
        late_calls, late_rewards = run.rollouts.take_late()
        nodes = [node for trace in traces for attempt in trace.attempts for node in attempt.nodes if node.sampled]
        versions = _trained_versions(traces, credited)
        return Ledger(
            rollouts=count_outcomes(trace.rollout for trace in traces),
            groups=dict(credited.groups),
            calls=calls,
            branches=branches,
            sampled=sum(len(node.token_ids) for node in nodes),
            trained=stats.trained_tokens,
            masked=credited.masked,
            staleness_max=max((run.policy.learned_from - version for version in versions), default=0),
            parity_max=stats.parity.max if stats.parity is not None else None,
            parity_k3=stats.parity.k3 if stats.parity is not None else None,
            seconds=seconds,
            malformed=count_malformed(samples),
            external=count_external(call for trace in traces for attempt in trace.attempts for call in attempt.calls),
            cut=count_cut(samples),
            late=late_calls,
            unused=_unused(traces, late_rewards, self.credit),
            compared=dict(credited.compared),
            off_record=credited.off_record.sampled,
            off_record_trained=stats.target_tokens,
            off_record_masked=credited.off_record.masked,
            rows=dict(credited.rows),
        ).check()

    def metrics(
        self, step: int, groups: Sequence[Group], credited: StepCredit, stats: LearnerStats, ledger: Ledger
    ) -> dict[str, Json]:
        """One step's JSON line, the objective's statistics under their own names. Raises ValueError for one that is
        taken."""
        scored = [trace for group in groups for trace in group.traces if trace.scored]
        rewards = [final_reward(trace) for trace in scored]
        sampling_s, training_s = ledger.seconds.get("sampling", 0.0), ledger.seconds.get("training", 0.0)
        line: dict[str, Json] = {
            "step": step,
            "reward": statistics.fmean(rewards),
            "reward_std": statistics.pstdev(rewards),
            "rewards": rewards,
            "rollouts": dict(ledger.rollouts),
            "groups": dict(ledger.groups),
            "sampled_tokens": ledger.sampled,
            "trained_tokens": ledger.trained,
            "tokens_per_s": ledger.sampled / sampling_s if sampling_s > 0 else 0.0,
            "calls": sum(ledger.calls.values()),
            "malformed_tool_calls": ledger.malformed,
            "cut_samples": ledger.cut,
            "loss": stats.loss,
            "grad_norm": stats.grad_norm,
            "lr": stats.lr,
            "parity_max": ledger.parity_max,
            "parity_mean": stats.parity.mean if stats.parity is not None else None,
            "parity_k3": ledger.parity_k3,
            "forward_tokens": stats.forward_tokens,
            "flat_tokens": stats.flat_tokens,
            "tree_groups": stats.tree_groups,
            "flat_groups": stats.flat_groups,
            "peak_memory": stats.peak_memory,
            "sampling_s": sampling_s,
            "training_s": training_s,
            "advantages": {id: value for id, value in credited.advantages.items() if not isinstance(value, Mapping)},
        }
        if taken := line.keys() & stats.statistics.keys():
            raise ValueError(f"the objective's statistics have names that metrics have: {', '.join(sorted(taken))}")
        return {**line, **stats.statistics}


class _Clock:
    """Wall time by phase, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def mark(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


def _trained_versions(traces: Sequence[Trace], credited: StepCredit) -> set[int]:
    """The policy's versions that sampled what is trained."""
    return {
        node.version or 0
        for trace in traces
        for attempt in trace.attempts
        for node in attempt.nodes
        if node.sampled and credited.attempts[attempt.attempt.id].by_node[node.id].trained
    }


def _unused(traces: Sequence[Trace], late: int, settings: CreditSettings) -> dict[str, int]:
    """Emitted rewards that changed no weight, by reason. ``late`` ones are not in the traces."""
    counted = Counter({"late": late} if late else {})
    for trace in traces:
        for number, attempt in enumerate(trace.attempts):
            last = trace.scored and number == len(trace.attempts) - 1
            counted += unused_rewards(attempt.rewards, settings, scored=last)
    return dict(counted)


def _nobody_trained(groups: Sequence[Group], trained_agents: str | None) -> str | None:
    """In words, that none of the calls is of an agent that was chosen to be trained, and whose they are; None where one
    is."""
    attempts = [attempt for group in groups for trace in group.traces for attempt in trace.attempts]
    agents = agents_of(groups)
    made = [
        (TrainedAgents(trained_agents, attempt.attempt.marked).among(agents), call.agent)
        for attempt in attempts
        for call in attempt.calls
        if call.external is None
    ]
    if not made or any(chosen.trains(agent) for chosen, agent in made):
        return None
    names = ", ".join(sorted({agent or "" for _, agent in made}))
    return (
        f"no call is of an agent that was chosen to be trained ({together(chosen for chosen, _ in made)}); calls "
        f"came from {names}"
    )


def _all_failed(step: int, groups: Sequence[Group], probe: AgentProbe | None) -> str:
    traces = [trace for group in groups for trace in group.traces]
    silent = not any(attempt.calls for trace in traces for attempt in trace.attempts)
    cause = commonest_cause(trace.rollout for trace in traces) + (likely_cause(probe) if silent else "")
    return (
        f"step {step}: all {len(traces)} rollouts failed and there is nothing to train on; the commonest cause, {cause}"
    )
