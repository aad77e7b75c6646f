"""A rollout's trace as a tree of text: what was given, what was sampled, and the weight and rewards beside it. Pure;
loads no torch.

``node_facts`` says once what there is to say about each node; the tree of texts (``agl show``), that of lines (``agl
trace``), the JSON and the picture (tree.py) are made of it. Text comes from a model and from users: control
characters are shown, never sent to the terminal.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.tree import Tree

from agentlightning.credit.step import DEGENERATE, TOO_FEW
from agentlightning.errors import ConfigError
from agentlightning.nouns import GIVEN, Attempt, Call, CallStatus, FinishReason, Json, Node, Reward, Rollout, Status
from agentlightning.records.credit import AttemptCredit, NodeCredit, join
from agentlightning.records.traces import AttemptTrace
from agentlightning.store.base import Store
from agentlightning.text import (
    at_home,
    clip,
    clip_start,
    duration,
    encodable,
    number,
    one_line,
    plural,
    printable,
    shorten,
    width,
)
from agentlightning.views.live.state import counts
from agentlightning.views.runs import STATUS_STYLE, RunView, advantage_of, credit_text, rollout_line
from agentlightning.views.screen import Text
from agentlightning.views.told import told_lines

Decoder = Callable[[Sequence[int]], str]
"""Token ids to text, control tokens included."""

WORDS = 120
"""Columns of a node's text in a line, at most."""

_SIGNS = re.compile(r"\s*(<[|｜][^<>]{1,40}[|｜]>|</?(start|end)_of_turn>|\[/?INST\]|</?s>|<bos>|<eos>)\n*")
"""Signs around turns in the common templates."""

_PLAIN = ("root", "continued")
"""How a call's prompt relates to the tree where nothing branched."""


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """A rollout with everything recorded of it. ``credits`` are those of the attempts of a step that is done, by
    attempt id."""

    run: RunView
    rollout: Rollout
    attempts: Sequence[AttemptTrace]
    rewards: Sequence[Reward]
    credits: Mapping[str, AttemptCredit] = field(default_factory=dict[str, AttemptCredit])


async def read_rollout(store: Store, run: RunView, rollout: Rollout) -> ShownRollout:
    rewards = await store.rewards(rollout.id)
    attempts = [
        AttemptTrace(
            a,
            tuple(await store.calls(a.id)),
            tuple(await store.nodes(a.id)),
            tuple(reward for reward in rewards if reward.attempt_id == a.id),
            spans=tuple(await store.spans(a.id)),
        )
        for a in await store.attempts(rollout.id)
    ]
    credits = {
        trace.attempt.id: join(AttemptCredit.decode(row.blob) for row in rows)
        for trace in attempts
        if (rows := await store.credit(rollout.run_id, attempt_id=trace.attempt.id))
    }
    return ShownRollout(run, rollout, attempts, rewards, credits)


def load_decoder(model: str | None) -> Decoder | None:
    """Reads the tokenizer of a model folder. None where there is no such folder, no tokenizer.json in it, or no
    `tokenizers` installed."""
    file = at_home(model or "") / "tokenizer.json"
    if not model or not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer: Any = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def words_of(text: str) -> str:
    """A decoded text without the signs that a chat template puts around turns (``<|im_start|>`` and its like), for
    where there is little room."""
    return re.sub(r"\n{2,}", "\n", _SIGNS.sub("\n", text)).strip("\n")


# --------------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class Credit:
    """What training did with a node: one weight per token (None: masked), and why where it is masked as a whole.
    ``masked`` counts, by reason, the tokens of a node of which others are trained."""

    weights: Sequence[float | None] | None
    why: str | None = None
    masked: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def trained(self) -> int:
        """Tokens that have a weight."""
        return sum(weight is not None for weight in self.weights or ())

    @property
    def weight(self) -> float | None:
        """The weight of the first token that has one."""
        return next((weight for weight in self.weights or () if weight is not None), None)


_WORDS = {DEGENERATE: "all rewards of its group are equal", TOO_FEW: "nothing in its group to compare it with"}
"""Reasons whose names do not say enough."""


def _credits(view: ShownRollout, trace: AttemptTrace) -> Mapping[int, Credit]:
    """By node id, for sampled nodes and those given as targets: what was stored of them, or why nothing is."""
    stored = view.credits.get(trace.attempt.id)
    if stored is not None:
        return {node.node: _credit_of(node) for node in (*stored.nodes, *stored.given)}
    why = _why_no_credit(view, trace)
    if why is None:
        return {}
    targets = {sample.node for call in trace.calls if call.wire == GIVEN for sample in call.samples}
    return {node.id: Credit(None, why) for node in trace.nodes if node.sampled or node.id in targets}


def _credit_of(node: NodeCredit) -> Credit:
    if node.why is not None:
        return Credit(None, _reason_text(node.why))
    masked: Counter[str] = Counter()
    for run in node.masked:
        masked[_reason_text(run.reason)] += run.count
    return Credit([None if weight != weight else weight for weight in node.per_token()], None, masked)


def _reason_text(reason: str) -> str:
    return _WORDS.get(reason, reason.replace("_", " "))


def _why_no_credit(view: ShownRollout, trace: AttemptTrace) -> str | None:
    """None where a step that is done should have stored it."""
    rollout = view.rollout
    if rollout.mode != "train":
        return f"{rollout.mode} rollout"
    if _step_is_done(view):
        return None
    if trace.attempt.id != rollout.attempt_id and rollout.attempt_id is not None:
        return "retried"
    if rollout.status is Status.SUCCEEDED:
        return "its step is not done"
    return f"{rollout.status}: {rollout.failure.reason}" if rollout.failure else str(rollout.status)


def _step_is_done(view: ShownRollout) -> bool:
    return view.rollout.mode == "train" and any(view.rollout.group in step.groups for step in view.run.steps)


def missing_credit(view: ShownRollout, traces: Iterable[AttemptTrace]) -> str | None:
    """One line where the rollout's step is done and credit of these attempts should be stored, and is not."""
    lacking = any(
        trace.attempt.id not in view.credits and any(node.sampled for node in trace.nodes) for trace in traces
    )
    if not lacking or not _step_is_done(view):
        return None
    return (
        f"step {view.run.step_of(view.rollout)} has no stored credit (an older version made it): what was trained is "
        "not shown"
    )


# --------------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What there is to say about a node of a trace.

    ``branch`` is why a call branched off here; None where nothing did, or where a node above says it. ``sample`` is
    (which, of how many) at the beginning of one of several samples; ``finish``, ``rewards`` and how often a tool call
    was ``malformed`` stand at a sample's end. ``text`` holds the token ids where they could not be decoded. ``call``
    began the node (see `_begun`); ``more`` counts the other calls whose prompt ends in it as well.
    """

    node: Node
    text: str
    call: Call | None
    branch: str | None
    sample: tuple[int, int] | None
    finish: str | None
    credit: Credit | None
    rewards: Sequence[Reward]
    malformed: int = 0
    more: int = 0

    @property
    def call_index(self) -> int:
        return self.call.index if self.call is not None else self.node.call_index

    @property
    def call_text(self) -> str:
        """``call 3``, or ``call 3 and 2 more``."""
        return f"call {self.call_index}{f' and {self.more} more' if self.more else ''}"


def node_facts(view: ShownRollout, trace: AttemptTrace, decode: Decoder | None = None) -> list[NodeFacts]:
    """One for each node of the attempt, in the record's order: parents before children."""
    credits = _credits(view, trace)
    calls = {call.index: call for call in trace.calls}
    begun, sharing = _begun(trace)
    branches, samples = _branches(trace, begun), _samples(trace)
    finishes = {sample.node: str(sample.finish) for call in trace.calls for sample in call.samples}
    malformed = {sample.node: sample.malformed for call in trace.calls for sample in call.samples}
    rewards: dict[int, list[Reward]] = {}
    by_id = {call.id: call for call in trace.calls}
    for reward in view.rewards:
        call = by_id.get(reward.call_id or "")
        for sample in call.samples if call is not None else ():
            rewards.setdefault(sample.node, []).append(reward)
    return [
        NodeFacts(
            node,
            decode(node.token_ids) if decode is not None else " ".join(map(str, node.token_ids)),
            begun.get(node.id) or calls.get(node.call_index),
            branches.get(node.id),
            samples.get(node.id),
            finishes.get(node.id),
            credits.get(node.id),
            tuple(rewards.get(node.id, ())),
            malformed.get(node.id, 0),
            max(0, sharing[node.id] - 1) if node.id in begun else 0,
        )
        for node in trace.nodes
    ]


def _begun(trace: AttemptTrace) -> tuple[dict[int, Call], Counter[int]]:
    """By given node, which of the calls whose prompt ends there began it, and how many there are.

    The record names the call that was written first, which of parallel calls may be any; the reasons of their branches
    say which was there first.
    """
    given = {node.id for node in trace.nodes if not node.sampled}
    begun: dict[int, Call] = {}
    sharing: Counter[int] = Counter()
    for call in sorted(trace.calls, key=lambda call: (call.branch == "forked", call.index)):
        if call.prompt_node in given:
            begun.setdefault(call.prompt_node, call)
            sharing[call.prompt_node] += 1
    return begun, sharing


def _branches(trace: AttemptTrace, begun: Mapping[int, Call]) -> dict[int, str]:
    """By node, the reason of the call that branched there: at the prompt that it added, or at its samples where the
    prompt was there before."""
    nodes = {node.id: node for node in trace.nodes}
    children = children_of(trace.nodes)
    found: dict[int, str] = {}
    for call in sorted(trace.calls, key=lambda call: call.index):
        prompt = nodes.get(call.prompt_node) if call.prompt_node is not None else None
        if prompt is not None and call.branch not in _PLAIN:
            own = [node for node in children.get(prompt.id, ()) if node.sampled and node.call_index == call.index]
            at = [prompt] if begun.get(prompt.id) is call else own
            found.update({node.id: call.branch for node in at})
    return found


def _samples(trace: AttemptTrace) -> dict[int, tuple[int, int]]:
    """By the first node of each sample of a call with several: which it is, from 1, and of how many."""
    parents = {node.id: node.parent for node in trace.nodes}
    found: dict[int, tuple[int, int]] = {}
    for call in trace.calls:
        for i, sample in enumerate(call.samples, 1):
            node: int | None = sample.node
            while node is not None and node != call.prompt_node and parents.get(node) != call.prompt_node:
                node = parents.get(node)
            if len(call.samples) > 1 and node is not None and node != call.prompt_node:
                found[node] = (i, len(call.samples))
    return found


def children_of(nodes: Sequence[Node]) -> dict[int | None, list[Node]]:
    """By parent, in the record's order; the roots under None."""
    children: dict[int | None, list[Node]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    return children


def head_rewards(view: ShownRollout, trace: AttemptTrace) -> list[Reward]:
    """The attempt's rewards that stand beside none of its nodes."""
    beside = {call.id for call in trace.calls if call.samples}
    return [reward for reward in view.rewards if reward.attempt_id == trace.attempt.id and reward.call_id not in beside]


def attempt_of(view: ShownRollout, number: int | None = None) -> AttemptTrace:
    """The attempt with that number, or the last one, which is the one that counts. Raises ConfigError."""
    if not view.attempts:
        raise ConfigError(
            f"rollout {view.rollout.id} is {view.rollout.status}: it has no attempt, so nothing is recorded of it"
        )
    found = [trace for trace in view.attempts if number in (None, trace.attempt.number)]
    if not found:
        last = view.attempts[-1].attempt.number
        known = f"attempts 1 to {last}" if last > 1 else "one attempt, 1"
        raise ConfigError(f"rollout {view.rollout.id} has no attempt {number}; it has {known}")
    return found[-1]


# --------------------------------------------------------------------------- JSON


def rollout_json(view: ShownRollout, decode: Decoder | None = None) -> dict[str, Json]:
    """A rollout whole: attempts with their calls and trace nodes, rewards. Tokens as ids, with ``text`` where they can
    be decoded."""
    return {
        **rollout_line(view.run, view.rollout),
        "attempts": [_attempt_json(view, trace, decode) for trace in view.attempts],
        "rewards": [asdict(reward) for reward in view.rewards],
    }


def tree_json(view: ShownRollout, trace: AttemptTrace, decode: Decoder | None = None) -> dict[str, Json]:
    """An attempt's tree as `agl trace` shows it: a line for each node, with counts of tokens and no ids or logprobs
    (``rollout_json`` has those)."""
    return {
        **rollout_line(view.run, view.rollout),
        "run": view.run.record.id,
        "attempt": {
            "id": trace.attempt.id,
            "number": trace.attempt.number,
            "status": str(trace.attempt.status),
            "marked": list(trace.attempt.marked),
        },
        "nodes": [_facts_json(facts, decoded=decode is not None) for facts in node_facts(view, trace, decode)],
        "rewards": [asdict(reward) for reward in head_rewards(view, trace)],
    }


def _facts_json(facts: NodeFacts, *, decoded: bool) -> dict[str, Json]:
    node, call = facts.node, facts.call
    return {
        "id": node.id,
        "parent": node.parent,
        "sampled": node.sampled,
        "tokens": len(node.token_ids),
        "text": facts.text if decoded else None,
        "call_index": facts.call_index,
        "more_calls": facts.more,
        "call_id": call.id if call is not None else None,
        "call_status": str(call.status) if call is not None else None,
        "agent": call.agent if call is not None else None,
        "branch": facts.branch,
        "sample": list(facts.sample) if facts.sample is not None else None,
        "finish": facts.finish,
        "malformed": facts.malformed,
        "version": node.version,
        "trained": facts.credit.trained if facts.credit is not None else 0,
        "weight": facts.credit.weight if facts.credit is not None else None,
        "masked": facts.credit.why if facts.credit is not None else None,
        "rewards": [asdict(reward) for reward in facts.rewards],
    }


def _attempt_json(view: ShownRollout, trace: AttemptTrace, decode: Decoder | None) -> dict[str, Json]:
    attempt, credits = trace.attempt, _credits(view, trace)
    return {
        "id": attempt.id,
        "number": attempt.number,
        "status": str(attempt.status),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "failure": asdict(attempt.failure) if attempt.failure else None,
        "output": attempt.output,
        "marked": list(attempt.marked),
        "calls": [{**asdict(call), "asked": dict(call.asked)} for call in trace.calls],
        "nodes": [_node_json(node, credits.get(node.id), decode) for node in trace.nodes],
        "spans": [{**asdict(span), "attributes": dict(span.attributes)} for span in trace.spans],
    }


def _node_json(node: Node, credit: Credit | None, decode: Decoder | None) -> dict[str, Json]:
    line: dict[str, Json] = {
        "id": node.id,
        "parent": node.parent,
        "sampled": node.sampled,
        "call_index": node.call_index,
        "token_ids": list(node.token_ids),
        "text": decode(node.token_ids) if decode is not None else None,
    }
    if node.sampled:
        line |= {
            "version": node.version,
            "logprobs": list(node.logprobs) if node.logprobs is not None else None,
            "log_kept": list(node.log_kept) if node.log_kept is not None else None,
            "weights": list(credit.weights) if credit is not None and credit.weights is not None else None,
            "masked": credit.why if credit is not None else None,
        }
    return line


# --------------------------------------------------------------------------- text


NO_DECODER = "token ids are shown: the model's tokenizer.json is not here (or `tokenizers` is not installed)"


def render_rollout(view: ShownRollout, decode: Decoder | None = None, *, full: bool = False) -> RenderableType:
    """The rollout's head, then one tree for each attempt. ``full`` shows given texts whole."""
    parts: list[RenderableType] = [_head(view, [reward for reward in view.rewards if reward.call_id is None])]
    if (missing := missing_credit(view, view.attempts)) is not None:
        parts.append(Text(missing, style="yellow"))
    if decode is None:
        parts.append(Text(NO_DECODER, style="dim"))
    for trace in view.attempts:
        facts = node_facts(view, trace, decode)
        parts += [Text(), _attempt_head(view, trace), *_forest(trace, [_node(one, full=full) for one in facts], facts)]
        parts += _external_calls(trace, full=full)
        parts += told_lines(trace.attempt, trace.spans, full=full)
    return Group(*parts)


def render_tree(view: ShownRollout, trace: AttemptTrace, decode: Decoder | None = None) -> RenderableType:
    """The rollout's head, then one attempt's tree with a line for each node."""
    parts: list[RenderableType] = [_head(view, head_rewards(view, trace))]
    if (missing := missing_credit(view, [trace])) is not None:
        parts.append(Text(missing, style="yellow"))
    if decode is None:
        parts.append(Text(NO_DECODER, style="dim"))
    facts = node_facts(view, trace, decode)
    parts += [Text(), _attempt_head(view, trace), *_forest(trace, [_line(one) for one in facts], facts)]
    if not facts:
        parts.append(Text("no call of it was recorded", style="dim"))
    return Group(*parts)


def _head(view: ShownRollout, rewards: Sequence[Reward]) -> RenderableType:
    rollout = view.rollout
    head = Text.assemble(
        (rollout.id, "bold"),
        "  ",
        (str(rollout.status), STATUS_STYLE.get(str(rollout.status), "")),
        f"  {rollout.mode} step {view.run.step_of(rollout)}, group {rollout.group}",
    )
    if rollout.reward is not None:
        head.append(f"  reward {number(rollout.reward)}", style="bold magenta")
    advantage = advantage_of(view.run, rollout)
    if advantage is not None:
        head.append(f"  advantage {advantage:+.3f}", style="magenta")
    lines = [head, Text.assemble(("task  ", "dim"), printable(str(rollout.task)))]
    if rollout.mode == "train" and (how := credit_text(view.run)):
        lines.append(Text.assemble(("credit  ", "dim"), how))
    if rollout.failure is not None:
        lines.append(Text(printable(f"{rollout.failure.reason}: {rollout.failure.message}"), style="red"))
    lines += [_reward_line(reward) for reward in rewards]
    return Group(*lines)


def _reward_line(reward: Reward) -> Text:
    about = "".join(
        f", {label} {value}" for label, value in (("agent", reward.agent), ("because", reward.reason)) if value
    )
    return Text(f"{reward_text(reward)} ({reward.source}{printable(about)})", style="magenta")


def _attempt_head(view: ShownRollout, trace: AttemptTrace) -> RenderableType:
    attempt: Attempt = trace.attempt
    sampled = sum(len(node.token_ids) for node in trace.nodes if node.sampled)
    took = f" in {duration(attempt.ended_at - attempt.started_at)}" if attempt.ended_at is not None else ""
    line = Text.assemble(
        (f"attempt {attempt.number} ", "bold"), (str(attempt.status), STATUS_STYLE.get(str(attempt.status), "")), took,
        f", {calls_text(trace)}, {plural(sampled, 'token')} sampled",
    )  # fmt: skip
    refused = [
        call for call in trace.calls if call.status in (CallStatus.REFUSED, CallStatus.INCOMPLETE, CallStatus.LATE)
    ]
    parts: list[RenderableType] = [line]
    if (credit := view.credits.get(trace.attempt.id)) is not None:
        parts.append(Text(f"  {_counted(credit)}"))
    if attempt.marked:
        parts.append(Text(f"  marked as trainable: {', '.join(map(one_line, attempt.marked))}"))
    parts += [
        Text(f"  call {call.index} {call.status}: {one_line(call.error or 'no reason recorded')}", style="yellow")
        for call in refused
    ]
    if attempt.failure is not None:
        parts.append(Text(printable(f"  {attempt.failure.reason}: {attempt.failure.message}"), style="red"))
        if attempt.failure.traceback:
            parts.append(
                Padding(Text(printable(attempt.failure.traceback.rstrip()), style="dim"), (0, 0, 0, 4), expand=False)
            )
    return Group(*parts)


def _counted(credit: AttemptCredit) -> str:
    """``8 of 12 tokens trained, masked: row limit 4``, and the same of those given as targets."""

    def said(part: AttemptCredit, what: str) -> str:
        why = f", masked: {counts({_reason_text(reason): n for reason, n in part.masked.items()})}"
        return f"{part.trained:,} of {plural(part.sampled, what)} trained{why if part.masked else ''}"

    parts = ((AttemptCredit(credit.nodes), "sampled token"), (AttemptCredit(credit.given), "target token"))
    return "; ".join(said(part, what) for part, what in parts if part.nodes)


def calls_text(trace: AttemptTrace) -> str:
    """``3 calls``, ``3 calls and 2 to external models``, ``3 calls and 2 triplets off the record``."""
    outside = sum(call.external is not None for call in trace.calls)
    given = sum(call.wire == GIVEN for call in trace.calls)
    parts = [plural(len(trace.calls) - outside - given, "call")]
    parts += [f"{outside} to external models"] if outside else []
    parts += [f"{plural(given, 'triplet')} off the record"] if given else []
    return " and ".join(parts)


def _external_calls(trace: AttemptTrace, *, full: bool) -> Iterable[RenderableType]:
    """What went to external models and what came back, as given. They are no part of the tree."""
    for call in trace.calls:
        if call.external is None:
            continue
        prompt, reply = call.external.tokens
        said = f"{call.external.status or 'no answer'}, {prompt:,} -> {reply:,} tokens"
        took = f", {duration(call.total_s)}" if call.total_s is not None else ""
        agent = f", agent {one_line(call.agent)}" if call.agent else ""
        status = "" if call.status is CallStatus.COMPLETE else f", {call.status}"
        head = f"external {one_line(call.model)} ({one_line(call.external.model)})"
        yield Text.assemble((head, "bold cyan"), f"  call {call.index}, {call.wire}{agent}: {said}{took}{status}")
        for label, text in (("asked", call.external.request), ("reply", call.external.reply)):
            shown = printable(text.strip())
            yield Padding(
                Text.assemble((f"{label}  ", "dim"), shown if full else shorten(shown)), (0, 0, 0, 4), expand=False
            )


def _forest(trace: AttemptTrace, shown: Sequence[RenderableType], facts: Sequence[NodeFacts]) -> list[RenderableType]:
    """One tree per root, ``shown`` in place of its nodes. A chain without branches is not indented; each branch is."""
    children = children_of(trace.nodes)
    of_node = {one.node.id: (at, one) for at, one in zip(shown, facts, strict=True)}

    def grow(tree: Tree, node: Node) -> None:
        stack = [(tree, node)]
        while stack:
            at, node = stack.pop()
            at.add(of_node[node.id][0])
            below = children.get(node.id, [])
            if len(below) == 1:
                stack.append((at, below[0]))
                continue
            branches = [
                (at.add(Text(f"branch {i} of {len(below)}", style="cyan")), child) for i, child in enumerate(below, 1)
            ]
            stack.extend(reversed(branches))

    trees: list[RenderableType] = []
    for root in children.get(None, []):
        tree = Tree(Text(f"conversation ({of_node[root.id][1].branch or 'root'})", style="cyan"), guide_style="dim")
        grow(tree, root)
        trees.append(tree)
    return trees


def _line(facts: NodeFacts) -> RenderableType:
    """A node in one line, cut where the terminal ends."""
    node, call = facts.node, facts.call
    line = Text()
    kind = "sampled" if node.sampled else "given  " if facts.credit is None else "target "
    line.append(kind, style="bold green" if node.sampled else "dim")
    line.append(f" {_tokens(len(node.token_ids)):>12}  {facts.call_text}", style="" if node.sampled else "dim")
    if call is not None and call.agent:
        line.append(f"  {one_line(call.agent)}", style="bold blue")
    if facts.branch is not None:
        line.append(f"  {facts.branch}", style="bold cyan")
    if facts.sample is not None:
        line.append(f"  sample {facts.sample[0]} of {facts.sample[1]}", style="cyan")
    if call is not None and call.status is not CallStatus.COMPLETE:
        line.append(f"  {call.status}", style="yellow")
    if facts.finish is not None:
        line.append(f"  {facts.finish}", style="yellow" if facts.finish == FinishReason.LENGTH else "dim")
    if facts.malformed:
        line.append(f"  {facts.malformed} malformed", style="yellow")
    if facts.credit is not None:
        line.append(f"  {weight_text(facts.credit)}", style="magenta" if facts.credit.weights is not None else "yellow")
    for reward in facts.rewards:
        line.append(f"  {reward_text(reward)}", style="bold magenta")
    return _Line(line, one_line(facts.text if node.sampled else words_of(facts.text)), sampled=node.sampled)


@dataclass(frozen=True, slots=True)
class _Line:
    """What is said of a node, and as much of its text as has room: of a sample the beginning, of a prompt the end,
    which is what was asked last."""

    facts: Text
    text: str
    sampled: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        words = encodable(self.text, options.encoding)
        room = min(options.max_width - width(encodable(self.facts.plain, options.encoding)) - 2, WORDS)
        line = Text(no_wrap=True, overflow="ellipsis").append(self.facts)
        if room > 3:
            line.append(
                f"  {(clip if self.sampled else clip_start)(words, room)}", style="green" if self.sampled else "dim"
            )
        yield line


def _node(facts: NodeFacts, *, full: bool) -> RenderableType:
    node, call, credit, text = facts.node, facts.call, facts.credit, facts.text
    if not node.sampled:
        head = Text(f"{'given ' if credit is None else 'target'}   {_tokens(len(node.token_ids))}", style="dim")
        if credit is not None:
            head.append(f"  {weight_text(credit)}", style="magenta" if credit.weights is not None else "yellow")
        text = text.strip("\n")  # the template's line breaks between turns
        return Group(head, *_below(Text(printable(text if full else shorten(text)), style="dim"), facts.rewards))
    head = Text.assemble(("sampled", "bold green"), f"  {_tokens(len(node.token_ids))}")
    if credit is not None:
        head.append(f"  {weight_text(credit)}", style="magenta" if credit.weights is not None else "yellow")
    details = [f"version {node.version}"]
    if node.logprobs is not None and len(node.logprobs):
        details.append(f"mean logprob {statistics.fmean(node.logprobs):.3f}")
    if call is not None:
        details += [f"call {call.index}", call.wire, call.branch]
        if facts.finish is not None:
            details.append(facts.finish)
        if facts.malformed:
            details.append(plural(facts.malformed, "malformed tool call"))
        if call.agent:
            details.append(f"agent {one_line(call.agent)}")
        if call.used is not None:
            details.append(f"temperature {call.used.temperature:g}")
    head.append(f"  ({', '.join(details)})", style="dim")
    return Group(head, *_below(Text(printable(text), style="green"), facts.rewards))


def _below(text: Text, rewards: Sequence[Reward]) -> list[RenderableType]:
    return [Padding(line, (0, 0, 0, 2), expand=False) for line in (text, *map(_reward_line, rewards))]


def weight_text(credit: Credit) -> str:
    """``weight +0.707``, with the tokens that were forced, or ``masked: unused sample``."""
    if credit.weights is None:
        return f"masked: {credit.why}"
    value = f"weight {credit.weight:+.3f}" if credit.weight is not None else "no weight"
    return value + (f" ({counts(credit.masked)})" if credit.masked else "")


def reward_text(reward: Reward) -> str:
    """``reward 1.000`` or ``reward format 0.500``."""
    return f"{'reward' if reward.name == 'reward' else f'reward {one_line(reward.name)}'} {number(reward.value)}"


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"
