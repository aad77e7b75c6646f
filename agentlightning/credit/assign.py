"""From an attempt's trace tree and its advantage to a tree the learner can train on.

This is the one place that decides which sampled tokens are trained. Each sampled token is either given a weight or
masked for a named reason, and both are counted, so that the ledger can be checked against what the learner says it
trained. Pure: records in, records out.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentlightning.agent.trained_agents import TrainedAgents
from agentlightning.records.batch import Constraint, TrainNode, TrainTree
from agentlightning.types import Call, CallStatus, Node

ABANDONED = "abandoned"
UNUSED_SAMPLE = "unused_sample"
OTHER_AGENT = "other_agent"
FORCED = "forced"
GREEDY = "greedy"
UNRECORDED_CALL = "unrecorded_call"


@dataclass(frozen=True, slots=True)
class CreditedRollout:
    """A rollout's tree with its weights. ``trained + sum(masked.values()) == sampled``, in tokens. ``reasons`` are
    those of nodes that are masked as a whole, by node id."""

    tree: TrainTree
    sampled: int
    trained: int
    masked: Mapping[str, int] = field(default_factory=dict[str, int])
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])


def assign(
    rollout_id: str,
    nodes: Sequence[Node],
    calls: Sequence[Call],
    advantage: float | None,
    *,
    unit: int,
    mask: str = "masked",
    trained_agents: str | None = None,
    marked: Sequence[str] = (),
) -> CreditedRollout:
    """Gives every sampled token of a rollout the rollout's advantage, except those that must not be trained.

    The weight belongs to the rollout, not to a row: it does not depend on how many calls, branches or nodes the tokens
    are cut into (invariant 7). ``advantage`` None masks all tokens, as ``mask`` (the rollout failed, its group was
    degenerate). Otherwise masked are samples of a call that nobody reclaimed (``abandoned``), members of a best-of-n
    that the agent did not continue (``unused_sample``, ruling 11), samples of agents that neither ``trained_agents``
    nor ``marked``, the attempt's own marks, chooses (``other_agent``; see `TrainedAgents`), tokens that were the only
    possible choice (``forced``, ruling 4) and samples drawn greedily (``greedy``: no distribution to learn from).

    ``nodes`` come parents before children, as the store returns them. Raises ValueError when a parent is missing.
    """
    chosen = TrainedAgents(trained_agents, tuple(marked))
    by_index = {call.index: call for call in calls}
    place: dict[int, int] = {}
    parents = {node.id: node.parent for node in nodes}
    node_reason = _sample_masks(nodes, calls, parents)
    masked: Counter[str] = Counter()
    reasons: dict[int, str] = {}
    sampled = trained = 0
    out: list[TrainNode] = []
    for node in nodes:
        if node.parent is not None and node.parent not in place:
            raise ValueError(
                f"rollout {rollout_id}: trace node {node.id} names a parent {node.parent} that is not before it"
            )
        place[node.id] = len(out)
        parent = -1 if node.parent is None else place[node.parent]
        if not node.sampled:
            out.append(TrainNode(parent=parent, token_ids=node.token_ids, sampled=False, unit=unit))
            continue
        count = len(node.token_ids)
        sampled += count
        call = by_index.get(node.call_index)
        temperature = call.used.temperature if call is not None and call.used is not None else 0.0
        reason = mask if advantage is None else node_reason.get(node.id)
        if reason is None and call is None:
            reason = UNRECORDED_CALL
        if reason is None and call is not None and not chosen.trains(call.agent):
            reason = OTHER_AGENT
        if reason is None and temperature == 0:
            reason = GREEDY
        weights: array[float] | None = None
        if reason is not None or advantage is None:
            reasons[node.id] = reason or mask
            masked[reasons[node.id]] += count
        else:
            weights = array("f", [advantage]) * count
            for t in _forced(node):
                weights[t] = math.nan
                masked[FORCED] += 1
                trained -= 1
            trained += count
        out.append(
            TrainNode(
                parent=parent,
                token_ids=node.token_ids,
                sampled=True,
                weights=weights,
                logprobs=node.logprobs,
                log_kept=node.log_kept,
                kept=node.kept,
                version=node.version or 0,
                unit=unit,
                temperature=temperature or 1.0,
                constraint=_constraint(node, call, out, parent),
            )
        )
    return CreditedRollout(TrainTree(tuple(out), rollout_id), sampled, trained, dict(masked), reasons)


def _forced(node: Node) -> list[int]:
    """Positions whose kept support has a single member (types.Segment says how that is seen)."""
    if node.kept is not None:
        offsets = node.kept.offsets
        return [t for t in range(len(node.token_ids)) if offsets[t + 1] - offsets[t] == 1]
    if node.log_kept is None or node.logprobs is None:
        return []
    return [t for t, (mass, logprob) in enumerate(zip(node.log_kept, node.logprobs, strict=True)) if mass == logprob]


def _constraint(node: Node, call: Call | None, nodes: Sequence[TrainNode], parent: int) -> Constraint | None:
    """What the learner has to replay where the kept ids are not recorded. ``nodes`` are those before it, ``parent`` its
    parent's place."""
    used = call.used if call is not None else None
    if used is None or used.grammar is None or node.kept is not None or node.log_kept is None:
        return None
    before = array("i")
    # A sample is cut into several nodes where the policy's version changed; the first one hangs below its prompt.
    while parent >= 0 and nodes[parent].constraint is not None:
        before = nodes[parent].token_ids + before
        parent = nodes[parent].parent
    return Constraint(used.grammar, used.stop_token_ids, before)


def _sample_masks(nodes: Sequence[Node], calls: Sequence[Call], parents: Mapping[int, int | None]) -> dict[int, str]:
    """Reasons to mask whole sampled nodes: those of abandoned calls and of samples that the agent did not go on
    with."""
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
