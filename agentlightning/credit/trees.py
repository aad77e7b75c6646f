"""From traces and their credit to the batch that the learner gets. Pure; decides nothing about what is trained."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from agentlightning.nouns import Call, Node
from agentlightning.records.batch import Batch, Constraint, TrainNode, TrainTree
from agentlightning.records.credit import AttemptCredit, NodeCredit
from agentlightning.records.traces import AttemptTrace, Group


def train_batch(groups: Sequence[Group], credits: Mapping[str, AttemptCredit]) -> Batch:
    """The trees of the attempts of which something is trained, group by group. ``credits`` are by attempt id; a tree's
    unit numbers its rollout among all of the step."""
    batch: list[tuple[TrainTree, ...]] = []
    unit = 0
    for group in groups:
        trees: list[TrainTree] = []
        for trace in group.traces:
            for attempt in trace.attempts:
                credit = credits[attempt.attempt.id]
                if credit.trained or any(node.trained for node in credit.given):
                    trees.append(train_tree(trace.rollout.id, attempt, credit, unit))
            unit += 1
        if trees:
            batch.append(tuple(trees))
    return Batch(tuple(batch))


def train_tree(rollout_id: str, attempt: AttemptTrace, credit: AttemptCredit, unit: int) -> TrainTree:
    """One attempt's tree with its weights: the nodes that are trained and those above them, so that what is masked, and
    what only that depends on, takes no memory. Nodes come parents before children, as the store returns them; raises
    ValueError when a parent is missing."""
    calls = {call.index: call for call in attempt.calls}
    by_node = credit.by_node
    needed = _needed(rollout_id, attempt.nodes, by_node)
    place: dict[int, int] = {}
    out: list[TrainNode] = []
    for node in attempt.nodes:
        if node.id not in needed:
            continue
        place[node.id] = len(out)
        parent = -1 if node.parent is None else place[node.parent]
        if not node.sampled and node.id in by_node:
            columns = {"advantage": by_node[node.id].per_token()} if by_node[node.id].trained else {}
            out.append(TrainNode(parent, node.token_ids, sampled=False, columns=columns, target=True, unit=unit))
            continue
        if not node.sampled:
            out.append(TrainNode(parent=parent, token_ids=node.token_ids, sampled=False, unit=unit))
            continue
        credited = by_node[node.id]
        call = calls.get(node.call_index)
        temperature = call.used.temperature if call is not None and call.used is not None else 0.0
        out.append(
            TrainNode(
                parent=parent,
                token_ids=node.token_ids,
                sampled=True,
                columns={"advantage": credited.per_token()} if credited.trained else {},
                logprobs=node.logprobs,
                log_kept=node.log_kept,
                kept=node.kept,
                version=node.version or 0,
                unit=unit,
                temperature=temperature or 1.0,
                constraint=_constraint(node, call, out, parent),
            )
        )
    return TrainTree(tuple(out), rollout_id)


def _needed(rollout_id: str, nodes: Sequence[Node], by_node: Mapping[int, NodeCredit]) -> set[int]:
    """The ids of the nodes of which something is trained, and of all above them."""
    before: set[int] = set()
    for node in nodes:
        if node.parent is not None and node.parent not in before:
            raise ValueError(
                f"rollout {rollout_id}: trace node {node.id} names a parent {node.parent} that is not before it"
            )
        before.add(node.id)
    needed: set[int] = set()
    for node in reversed(nodes):
        if node.id in needed or (node.id in by_node and by_node[node.id].trained):
            needed.add(node.id)
            needed.update(() if node.parent is None else (node.parent,))
    return needed


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
