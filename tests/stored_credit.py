"""The credit of a step whose rollouts a test wrote into a store by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentlightning.credit import credit_attempt, credit_rows
from agentlightning.nouns import CreditRow
from agentlightning.records.traces import AttemptTrace, Group, Trace
from agentlightning.store import Store


async def rows_of(store: Store, rollout_ids: Sequence[str], advantages: Mapping[str, float]) -> list[CreditRow]:
    """The last attempt of a rollout has its advantage, and is masked as failed without one; the others were
    retried."""
    traces: list[Trace] = []
    for id in rollout_ids:
        rollout = await store.get_rollout(id)
        assert rollout is not None
        attempts = [
            AttemptTrace(one, tuple(await store.calls(one.id)), tuple(await store.nodes(one.id)))
            for one in await store.attempts(id)
        ]
        traces.append(Trace(rollout, tuple(attempts)))
    credits = {
        attempt.attempt.id: credit_attempt(attempt, advantages.get(trace.rollout.id), mask="failed: agent_error")
        if attempt is trace.attempts[-1]
        else credit_attempt(attempt, None, mask="retried")
        for trace in traces
        for attempt in trace.attempts
    }
    return credit_rows([Group(0, tuple(traces))], credits, "main")
