"""What keeping earlier reasoning costs, in the dev report: the tokens of an attempt's calls under either value of ``model.keep_reasoning``. Pure.

Where a chat template drops the reasoning of earlier turns, each such turn begins a branch: shorter prompts, but much of them new each time. Kept as it
was sampled, a conversation is one path. One of the two trees was recorded; the other is what the same calls and replies would have made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from agentlightning.gateway.otherwise import Placed
from agentlightning.text import plural
from agentlightning.types import Node

if TYPE_CHECKING:
    from agentlightning.run import Trace
    from agentlightning.runners import AttemptReport

_ID = 4
"""Bytes of a token id."""


@dataclass(frozen=True, slots=True)
class ReasoningCost:
    """Tokens, summed over attempts. ``paths`` are those from a root to a last reply.

    ``computed`` are prompt tokens that no earlier call of their attempt had among its own, prompt or reply: what an engine computes that remembers
    all of them. ``forwarded`` is what one pass of training forwards if every reply is trained and equal beginnings are forwarded once, ``rows`` the same
    with a row for each path.
    """

    paths: int = 0
    prompts: int = 0
    computed: int = 0
    forwarded: int = 0
    rows: int = 0

    def __add__(self, other: ReasoningCost) -> ReasoningCost:
        return ReasoningCost(
            self.paths + other.paths,
            self.prompts + other.prompts,
            self.computed + other.computed,
            self.forwarded + other.forwarded,
            self.rows + other.rows,
        )


@dataclass(frozen=True, slots=True)
class KeptReasoning:
    """Both ways, for ``calls`` calls in ``rollouts`` rollouts. ``used`` is the value of ``model.keep_reasoning`` that they ran under."""

    used: bool
    dropped: ReasoningCost
    kept: ReasoningCost
    rollouts: int
    calls: int


def cost(nodes: Sequence[Node], calls: Iterable[Placed]) -> ReasoningCost:
    """What an attempt's tree costs. ``calls`` in the order they were made; ``nodes`` parents first."""
    paths: dict[int, bytes] = {}
    for node in nodes:
        paths[node.id] = (paths[node.parent] if node.parent is not None else b"") + node.token_ids.tobytes()
    prompts = computed = 0
    seen: list[bytes] = []
    for call in calls:
        prompt = paths[call.prompt_node]
        prompts += len(prompt)
        computed += len(prompt) - max((_shared(prompt, earlier) for earlier in seen), default=0)
        seen += [paths[leaf] for leaf in call.leaves]
    above = _above_replies(nodes)
    # The last token of a path is predicted and never read.
    ends = sorted(paths[node.id][:-_ID] for node in nodes if node.sampled and node.id not in above)
    shared = [0, *(_shared(a, b) for a, b in pairwise(ends))]
    rows = sum(map(len, ends))
    return ReasoningCost(len(ends), prompts // _ID, computed // _ID, (rows - sum(shared)) // _ID, rows // _ID)


def _above_replies(nodes: Sequence[Node]) -> set[int]:
    """The nodes with a sampled one somewhere below them."""
    above: set[int] = set()
    for node in reversed(nodes):
        if node.parent is not None and (node.sampled or node.id in above):
            above.add(node.parent)
    return above


def _shared(a: bytes, b: bytes) -> int:
    """How many bytes at the beginning are of equal token ids."""
    low, high = 0, min(len(a), len(b)) // _ID
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * _ID : middle * _ID] == b[low * _ID : middle * _ID]:
            low = middle
        else:
            high = middle - 1
    return low * _ID


def compare(reports: Sequence[AttemptReport], traces: Sequence[Trace], keep_reasoning: bool) -> KeptReasoning | None:
    """Both ways, over the attempts whose calls were all placed in the other tree too. None where the setting makes no difference to any of them."""
    by_attempt = {attempt.attempt.id: attempt for trace in traces for attempt in trace.attempts}
    used = other = ReasoningCost()
    rollouts = calls = 0
    for report in reports:
        recorded, otherwise = by_attempt.get(report.attempt.id), report.usage.otherwise
        if recorded is None or otherwise is None or otherwise.failed is not None:
            continue
        placed = [
            Placed(c.index, c.prompt_node, tuple([s.node for s in c.samples]))
            for c in recorded.calls
            if c.prompt_node is not None and c.samples
        ]
        if len(placed) != len(otherwise.calls):
            continue
        used += cost(recorded.nodes, placed)
        other += cost(otherwise.nodes, sorted(otherwise.calls, key=lambda c: c.index))
        rollouts += 1
        calls += len(placed)
    if used == other:
        return None
    return KeptReasoning(keep_reasoning, other if keep_reasoning else used, used if keep_reasoning else other, rollouts, calls)


def reasoning_lines(found: KeptReasoning | None) -> Iterable[tuple[str, str]]:
    """Lines with their style; none where there is nothing to choose."""
    if found is None:
        return
    yield "", ""
    yield "bold", "The chat template drops earlier reasoning. What model.keep_reasoning costs, in tokens, with the same replies:"
    ways: Mapping[bool, ReasoningCost] = {False: found.dropped, True: found.kept}
    texts = {keep: _columns(way) for keep, way in ways.items()}
    widths = [max(map(len, column)) for column in zip(*texts.values(), strict=True)]
    for keep, columns in texts.items():
        line = "  ".join(text.rjust(width) for text, width in zip(columns, widths, strict=True))
        yield "", f"  {str(keep).lower():<5}  {line}{'  (as it ran)' if keep is found.used else ''}"
    yield (
        "dim",
        f"  in {plural(found.calls, 'call')} of {plural(found.rollouts, 'rollout')}; what the model would say to the other prompts is not known",
    )


def _columns(way: ReasoningCost) -> tuple[str, ...]:
    return (
        plural(way.paths, "path"),
        f"{way.prompts:,} in prompts",
        f"{way.computed:,} of them new",
        f"{way.forwarded:,} forwarded in training",
        f"({way.rows:,} as a row per path)",
    )
