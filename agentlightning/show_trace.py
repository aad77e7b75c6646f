"""A rollout's trace as a tree of text: what was given, what was sampled, and the weight and rewards beside it. Pure; loads no torch.

Text comes from a model and from users: control characters are shown, never sent to the terminal.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from agentlightning.credit.assign import assign
from agentlightning.metrics.state import counts, duration, number, plural
from agentlightning.run import AttemptTrace
from agentlightning.show import STATUS_STYLE, RunView, advantage_of, rollout_line
from agentlightning.store.base import Store
from agentlightning.types import Attempt, Call, CallStatus, Json, Node, Reward, Rollout, Status

Decoder = Callable[[Sequence[int]], str]
"""Token ids to text, control tokens included."""

SHORT = 320
"""Characters of a given text that are shown without ``full``."""


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A rollout with everything recorded of it."""

    run: RunView
    rollout: Rollout
    attempts: Sequence[AttemptTrace]
    rewards: Sequence[Reward]


async def read_rollout(store: Store, run: RunView, rollout: Rollout) -> RolloutView:
    attempts = [AttemptTrace(a, tuple(await store.calls(a.id)), tuple(await store.nodes(a.id))) for a in await store.attempts(rollout.id)]
    return RolloutView(run, rollout, attempts, await store.rewards(rollout.id))


def load_decoder(model: str | None) -> Decoder | None:
    """Reads the tokenizer of a model folder. None where there is no such folder, no tokenizer.json in it, or no `tokenizers` installed."""
    file = Path(model or "").expanduser() / "tokenizer.json"
    if not model or not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer: Any = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


# --------------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class _Credit:
    """What training did with a node: one weight per token (None: masked), and why where it is masked as a whole."""

    weights: Sequence[float | None] | None
    why: str | None = None


def _credits(view: RolloutView, trace: AttemptTrace) -> Mapping[int, _Credit]:
    """By node id, for sampled nodes of rollouts that were asked for in training."""
    rollout = view.rollout
    trained = trace.attempt.id == rollout.attempt_id
    advantage = advantage_of(view.run.steps, rollout) if trained else None
    tree = assign(rollout.id, trace.nodes, trace.calls, advantage, unit=0).tree
    calls = {call.index: call for call in trace.calls}
    found: dict[int, _Credit] = {}
    for node, train in zip(trace.nodes, tree.nodes, strict=True):
        if not node.sampled:
            continue
        if train.weights is not None:
            found[node.id] = _Credit([None if weight != weight else weight for weight in train.weights])
        elif advantage is not None:
            found[node.id] = _Credit(None, _why_node(calls.get(node.call_index)))
        else:
            found[node.id] = _Credit(None, _why_rollout(view, trained))
    return found


def _why_node(call: Call | None) -> str:
    if call is None:
        return "call not recorded"
    if call.status is CallStatus.ABANDONED:
        return "abandoned"
    return "greedy" if call.used is not None and call.used.temperature == 0 and len(call.samples) == 1 else "unused sample"


def _why_rollout(view: RolloutView, last_attempt: bool) -> str:
    rollout = view.rollout
    if rollout.mode != "train":
        return f"{rollout.mode} rollout"
    if not last_attempt and rollout.attempt_id is not None:
        return "retried"
    if rollout.status is Status.SUCCEEDED:
        done = any(step.step == rollout.step for step in view.run.steps)
        return "nothing in its group to compare it with" if done else "its step is not done"
    return f"{rollout.status}: {rollout.failure.reason}" if rollout.failure else str(rollout.status)


# --------------------------------------------------------------------------- JSON


def rollout_json(view: RolloutView, decode: Decoder | None = None) -> dict[str, Json]:
    """A rollout whole: attempts with their calls and trace nodes, rewards. Tokens as ids, with ``text`` where they can be decoded."""
    return {
        **rollout_line(view.run, view.rollout),
        "attempts": [_attempt_json(view, trace, decode) for trace in view.attempts],
        "rewards": [asdict(reward) for reward in view.rewards],
    }


def _attempt_json(view: RolloutView, trace: AttemptTrace, decode: Decoder | None) -> dict[str, Json]:
    attempt, credits = trace.attempt, _credits(view, trace)
    return {
        "id": attempt.id,
        "number": attempt.number,
        "status": str(attempt.status),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "failure": asdict(attempt.failure) if attempt.failure else None,
        "output": attempt.output,
        "calls": [{**asdict(call), "asked": dict(call.asked)} for call in trace.calls],
        "nodes": [_node_json(node, credits.get(node.id), decode) for node in trace.nodes],
    }


def _node_json(node: Node, credit: _Credit | None, decode: Decoder | None) -> dict[str, Json]:
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


def render_rollout(view: RolloutView, decode: Decoder | None = None, *, full: bool = False) -> RenderableType:
    """The rollout's head, then one tree for each attempt. ``full`` shows given texts whole."""
    parts: list[RenderableType] = [_head(view)]
    if decode is None:
        parts.append(Text("token ids are shown: the model's tokenizer.json is not here (or `tokenizers` is not installed)", style="dim"))
    for trace in view.attempts:
        parts += [Text(), _attempt_head(trace), *_forest(view, trace, decode, full=full)]
    return Group(*parts)


def _head(view: RolloutView) -> RenderableType:
    rollout = view.rollout
    head = Text.assemble(
        (rollout.id, "bold"),
        "  ",
        (str(rollout.status), STATUS_STYLE.get(str(rollout.status), "")),
        f"  {rollout.mode} step {rollout.step}, group {rollout.group}",
    )
    if rollout.reward is not None:
        head.append(f"  reward {number(rollout.reward)}", style="bold magenta")
    advantage = advantage_of(view.run.steps, rollout)
    if advantage is not None:
        head.append(f"  advantage {advantage:+.3f}", style="magenta")
    lines = [head, Text.assemble(("task  ", "dim"), printable(str(rollout.task)))]
    if rollout.failure is not None:
        lines.append(Text(f"{rollout.failure.reason}: {rollout.failure.message}", style="red"))
    lines += [_reward_line(reward) for reward in view.rewards if reward.call_id is None]
    return Group(*lines)


def _reward_line(reward: Reward) -> Text:
    about = "".join(f", {label} {value}" for label, value in (("agent", reward.agent), ("because", reward.reason)) if value)
    name = "reward" if reward.name == "reward" else f"reward {reward.name}"
    return Text(f"{name} {number(reward.value)} ({reward.source}{about})", style="magenta")


def _attempt_head(trace: AttemptTrace) -> RenderableType:
    attempt: Attempt = trace.attempt
    sampled = sum(len(node.token_ids) for node in trace.nodes if node.sampled)
    took = f" in {duration(attempt.ended_at - attempt.started_at)}" if attempt.ended_at is not None else ""
    line = Text.assemble(
        (f"attempt {attempt.number} ", "bold"), (str(attempt.status), STATUS_STYLE.get(str(attempt.status), "")), took,
        f", {plural(len(trace.calls), 'call')}, {plural(sampled, 'token')} sampled",
    )  # fmt: skip
    refused = [call for call in trace.calls if call.status in (CallStatus.REFUSED, CallStatus.INCOMPLETE)]
    parts: list[RenderableType] = [line]
    parts += [Text(f"  call {call.index} {call.status}: {call.error or 'no reason recorded'}", style="yellow") for call in refused]
    if attempt.failure is not None:
        parts.append(Text(f"  {attempt.failure.reason}: {attempt.failure.message}", style="red"))
        if attempt.failure.traceback:
            parts.append(Padding(Text(printable(attempt.failure.traceback.rstrip()), style="dim"), (0, 0, 0, 4), expand=False))
    return Group(*parts)


def _forest(view: RolloutView, trace: AttemptTrace, decode: Decoder | None, *, full: bool) -> list[RenderableType]:
    """One tree per root. A chain without branches is not indented; each branch is."""
    children: dict[int | None, list[Node]] = {}
    for node in trace.nodes:
        children.setdefault(node.parent, []).append(node)
    credits = _credits(view, trace)
    calls = {call.index: call for call in trace.calls}
    rewards: dict[str, list[Reward]] = {}
    for reward in view.rewards:
        if reward.call_id is not None:
            rewards.setdefault(reward.call_id, []).append(reward)

    def grow(tree: Tree, node: Node) -> None:
        stack = [(tree, node)]
        while stack:
            at, node = stack.pop()
            at.add(_node(node, calls.get(node.call_index), credits.get(node.id), rewards, decode, full=full))
            below = children.get(node.id, [])
            if len(below) == 1:
                stack.append((at, below[0]))
                continue
            branches = [(at.add(Text(f"branch {i} of {len(below)}", style="cyan")), child) for i, child in enumerate(below, 1)]
            stack.extend(reversed(branches))

    trees: list[RenderableType] = []
    for root in children.get(None, []):
        call = calls.get(root.call_index)
        tree = Tree(Text(f"conversation ({call.branch})" if call else "conversation", style="cyan"), guide_style="dim")
        grow(tree, root)
        trees.append(tree)
    return trees


def _node(
    node: Node, call: Call | None, credit: _Credit | None, rewards: Mapping[str, Sequence[Reward]], decode: Decoder | None, *, full: bool
) -> RenderableType:
    text = decode(node.token_ids) if decode is not None else " ".join(map(str, node.token_ids))
    if not node.sampled:
        head = Text(f"given    {_tokens(len(node.token_ids))}", style="dim")
        text = text.strip("\n")  # the template's line breaks between turns
        return Group(head, Padding(Text(printable(text if full else shorten(text)), style="dim"), (0, 0, 0, 2), expand=False))
    head = Text.assemble(("sampled", "bold green"), f"  {_tokens(len(node.token_ids))}")
    if credit is not None:
        head.append(f"  {_weight(credit)}", style="magenta" if credit.weights is not None else "yellow")
    facts = [f"version {node.version}"]
    if node.logprobs is not None and len(node.logprobs):
        facts.append(f"mean logprob {statistics.fmean(node.logprobs):.3f}")
    if call is not None:
        facts += [f"call {call.index}", call.wire, call.branch]
        facts += [str(sample.finish) for sample in call.samples if sample.node == node.id]
        if call.agent:
            facts.append(f"agent {call.agent}")
        if call.used is not None:
            facts.append(f"temperature {call.used.temperature:g}")
    head.append(f"  ({', '.join(facts)})", style="dim")
    lines: list[RenderableType] = [head, Padding(Text(printable(text), style="green"), (0, 0, 0, 2), expand=False)]
    if call is not None and any(sample.node == node.id for sample in call.samples):
        lines += [Padding(_reward_line(reward), (0, 0, 0, 2), expand=False) for reward in rewards.get(call.id, ())]
    return Group(*lines)


def _weight(credit: _Credit) -> str:
    if credit.weights is None:
        return f"masked: {credit.why}"
    trained = [weight for weight in credit.weights if weight is not None]
    forced = len(credit.weights) - len(trained)
    value = f"weight {trained[0]:+.3f}" if trained else "no weight"
    return value + (f" ({counts({'forced': forced})})" if forced else "")


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def shorten(text: str, limit: int = SHORT) -> str:
    """The beginning and the end of a long text, with how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def printable(text: str) -> str:
    """Control characters as escapes, so that no sampled text can move the cursor or change the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
