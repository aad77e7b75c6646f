"""Limits on the rows of an attempt: too long a row, and more rows than are wanted. Pure.

A row is what would be forwarded: the path from a root to a call's trained sample below which no other is trained. Calls
are masked whole, and only where they lie on no row that is kept: a conversation that has grown too long is trained up
to the call before.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from agentlightning.credit.settings import CreditSettings
from agentlightning.records.credit import AttemptCredit, NodeCredit
from agentlightning.records.traces import AttemptTrace
from agentlightning.text import derive_seed

ROW_LENGTH = "row_length"
ROW_LIMIT = "row_limit"


def limit_rows(
    attempt: AttemptTrace, credit: AttemptCredit, settings: CreditSettings, *, seed: int
) -> tuple[AttemptCredit, dict[str, int]]:
    """The credit with what is beyond the limits masked, and how many rows there were: ``made``, of these ``kept``, and
    left out as ``row_length`` or ``row_limit``.

    A row that was cut to a shorter one counts as kept. Which rows are kept of too many follows from ``seed``, the
    rollout's: a resumed run chooses the same.
    """
    parents = {node.id: node.parent for node in attempt.nodes}
    lengths: dict[int, int] = {}
    for node in attempt.nodes:
        lengths[node.id] = len(node.token_ids) + (0 if node.parent is None else lengths[node.parent])
    end_of = _ends(attempt, parents)
    trained = {end_of.get(node.node, node.node) for node in (*credit.nodes, *credit.given) if node.trained}
    made = _rows(trained, parents)
    limit = settings.max_row_length
    short = trained if limit is None else {end for end in trained if lengths[end] <= limit}
    rows = _rows(short, parents)
    chosen = rows
    if settings.max_rows is not None and len(rows) > settings.max_rows:
        chosen = random.Random(derive_seed(seed, "rows")).sample(rows, settings.max_rows)
    kept = short & _above(chosen, parents)
    reasons = {end: ROW_LENGTH if end not in short else ROW_LIMIT for end in trained - kept}

    def limited(nodes: tuple[NodeCredit, ...]) -> tuple[NodeCredit, ...]:
        why = [reasons.get(end_of.get(node.node, node.node)) for node in nodes]
        return tuple(
            node if reason is None else node.masked_as(reason) for node, reason in zip(nodes, why, strict=True)
        )

    counted = {
        "made": len(made),
        "kept": len(chosen),
        ROW_LENGTH: len(made) - len(rows),
        ROW_LIMIT: len(rows) - len(chosen),
    }
    return AttemptCredit(limited(credit.nodes), limited(credit.given)), counted


def _ends(attempt: AttemptTrace, parents: Mapping[int, int | None]) -> dict[int, int]:
    """The last node of the sample that a node belongs to: a sample may be cut into several."""
    ends: dict[int, int] = {}
    for call in attempt.calls:
        for sample in call.samples:
            node: int | None = sample.node
            while node is not None and node != call.prompt_node:
                ends[node] = sample.node
                node = parents[node]
    return ends


def _above(ends: list[int], parents: Mapping[int, int | None]) -> set[int]:
    """The nodes on the paths to these, themselves among them."""
    seen: set[int] = set()
    for end in ends:
        node: int | None = end
        while node is not None and node not in seen:
            seen.add(node)
            node = parents[node]
    return seen


def _rows(ends: set[int], parents: Mapping[int, int | None]) -> list[int]:
    """Those below which there is no other, in the record's order."""
    inner = _above([parent for end in ends if (parent := parents[end]) is not None], parents)
    return sorted(ends - inner)
