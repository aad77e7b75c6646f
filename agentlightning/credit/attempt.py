"""The credit of one attempt: from its trace and what its rollout, or each of its calls, is worth, to a weight or a
reason for every sampled token.

This is the one place that decides which sampled tokens are trained. Each is either given a weight or masked for a named
reason, and both are kept, so that the ledger can be checked against what the learner says it trained. Pure: records in,
records out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentlightning.agent.trained_agents import TrainedAgents
from agentlightning.nouns import GIVEN, Call, CallStatus, Node
from agentlightning.records.credit import AttemptCredit, MaskedRun, NodeCredit
from agentlightning.records.traces import AttemptTrace

ABANDONED = "abandoned"
UNUSED_SAMPLE = "unused_sample"
OTHER_AGENT = "other_agent"
FORCED = "forced"
GREEDY = "greedy"
UNRECORDED_CALL = "unrecorded_call"
CALL_WITHOUT_REWARD = "call_without_reward"


def credit_attempt(
    attempt: AttemptTrace,
    worth: float | Mapping[int, float | str] | None,
    *,
    mask: str = "masked",
    trained_agents: str | None = None,
) -> AttemptCredit:
    """Gives every sampled token of an attempt, and every token that the user gave as a target, its rollout's advantage,
    or its call's, but for those that must not be trained.

    ``worth`` is the rollout's advantage; or, by the call's index, that of each call or the reason why it has none; or
    None, which masks all tokens as ``mask`` (the rollout failed, its group was degenerate). A weight belongs to what is
    worth it, not to a row: it does not depend on how many calls, branches or nodes the tokens are cut into (invariant
    7).

    Masked are samples of a call that nobody reclaimed (``abandoned``), members of a best-of-n that the agent did not
    continue (``unused_sample``, ruling 11), samples without a recorded call (``unrecorded_call``), samples of agents
    that neither ``trained_agents`` nor the attempt's own marks choose (``other_agent``; see `TrainedAgents`), samples
    drawn greedily (``greedy``: no distribution to learn from), those of a call that ``worth`` does not name
    (``call_without_reward``) and tokens that were the only possible choice (``forced``, ruling 4).
    """
    chosen = TrainedAgents(trained_agents, attempt.attempt.marked).among(call.agent for call in attempt.calls)
    calls = {call.index: call for call in attempt.calls}
    unwanted = _unwanted_samples(attempt.nodes, attempt.calls)
    targets = {sample.node for call in attempt.calls if call.wire == GIVEN for sample in call.samples}
    nodes: list[NodeCredit] = []
    given: list[NodeCredit] = []
    for node in attempt.nodes:
        if not node.sampled and node.id not in targets:
            continue
        tokens = len(node.token_ids)
        value = worth.get(node.call_index, CALL_WITHOUT_REWARD) if isinstance(worth, Mapping) else worth
        reason = mask if worth is None else unwanted.get(node.id) or _unfit(calls.get(node.call_index), chosen)
        if reason is None and isinstance(value, str):
            reason = value
        if reason is not None or value is None or isinstance(value, str):
            whole = (MaskedRun(0, tokens, reason or mask),) if tokens else ()
            credited = NodeCredit.of(node.id, tokens, (), whole)
        else:
            forced = [MaskedRun(t, 1, FORCED) for t in _forced(node)]
            credited = NodeCredit.of(node.id, tokens, (value,) if len(forced) < tokens else (), forced)
        (nodes if node.sampled else given).append(credited)
    return AttemptCredit(tuple(nodes), tuple(given))


def _unfit(call: Call | None, chosen: TrainedAgents) -> str | None:
    """Why nothing that the call sampled, or was given with, may be trained."""
    if call is None:
        return UNRECORDED_CALL
    if not chosen.trains(call.agent):
        return OTHER_AGENT
    if call.wire == GIVEN:
        return None
    return GREEDY if call.used is None or call.used.temperature == 0 else None


def _forced(node: Node) -> Iterable[int]:
    """Positions whose kept support has a single member (nouns.Segment says how that is seen)."""
    if node.kept is not None:
        offsets = node.kept.offsets
        return [t for t in range(len(node.token_ids)) if offsets[t + 1] - offsets[t] == 1]
    if node.log_kept is None or node.logprobs is None:
        return ()
    return [t for t, (mass, logprob) in enumerate(zip(node.log_kept, node.logprobs, strict=True)) if mass == logprob]


def _unwanted_samples(nodes: Sequence[Node], calls: Sequence[Call]) -> dict[int, str]:
    """Reasons to mask whole sampled nodes: those of abandoned calls and of samples that the agent did not go on
    with."""
    parents = {node.id: node.parent for node in nodes}
    continued = {node.parent for node in nodes if not node.sampled and node.parent is not None}
    reasons: dict[int, str] = {}
    for call in calls:
        for sample in call.samples:
            unused = len(call.samples) > 1 and sample.node not in continued
            reason = ABANDONED if call.status is CallStatus.ABANDONED else UNUSED_SAMPLE if unused else None
            node: int | None = sample.node
            while reason is not None and node is not None and node != call.prompt_node:
                reasons[node] = reason
                node = parents[node]
    return reasons
