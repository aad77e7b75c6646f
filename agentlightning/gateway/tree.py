"""The trace tree of one attempt while it is open: which recorded path a new request continues, and which nodes it adds.

Pure: no input or output, no wire, no engine, no store. Only here is decided what counts as the same conversation (`equality_key`), and why a
request starts a branch. Matching never compares rendered strings: a history is matched message by message against what was recorded, the recorded
messages then stand in for the client's copies, and the template's text around them has to come out as it did before (else a branch ``template``).
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, cast

import orjson

from agentlightning.engines.base import Sample
from agentlightning.errors import TemplateError
from agentlightning.gateway.prompts import Prefix, Prefixes, PromptError, check_ids, encode_text, text_bytes
from agentlightning.templates.base import SampledTurn, Template
from agentlightning.types import Message, Node, Tool, ToolCall

MOST_PARTS = 32
"""Messages in a row that are looked at as the parts of one turn."""

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""What two messages must share to be the same turn: role, stripped text, and the tool calls' names and canonical arguments."""


# --------------------------------------------------------------------------- equality


def canonical_arguments(raw: str) -> str:
    """A form of tool arguments that is equal exactly where the JSON values are (1.0 is 1, key order and escapes do not matter).

    Arguments that are no JSON stay as they are.
    """
    try:
        # orjson rounds integers beyond 64 bits; an edited digit must not pass for the same number.
        value = json.loads(raw, parse_constant=_refuse) if _LONG_NUMBER.search(raw) else orjson.loads(raw)
        value = _integral(value)
    except (ValueError, RecursionError):
        return "raw " + raw.strip()
    try:
        return "json " + orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return "json " + json.dumps(value, sort_keys=True)


_LONG_NUMBER = re.compile(r"[0-9]{19}")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _integral(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_integral(item) for item in cast("list[Any]", value)]
    return value


def equality_key(message: Message) -> Key:
    """Ids, names and reasoning are left out: ids only pick among candidates, names are often dropped, and reasoning may be missing."""
    calls = tuple([(call.name, canonical_arguments(call.arguments)) for call in message.tool_calls]) if message.tool_calls else ()
    return message.role, message.content.strip(), calls


def same_reasoning(theirs: Message, recorded: Message) -> bool:
    """A client may drop reasoning; it may not change it."""
    return not theirs.reasoning or theirs.reasoning.strip() == (recorded.reasoning or "").strip()


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --------------------------------------------------------------------------- the tree


class LiveNode:
    """A node of the open tree. ``id`` is None until a call that uses it is recorded; ``length`` counts the tokens from the root to its end.

    ``plans`` counts the calls that hold it as their prompt and are not recorded yet.
    """

    __slots__ = ("id", "length", "parent", "plans", "token_ids")

    def __init__(self, parent: LiveNode | None, token_ids: array[int]) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.length = len(token_ids) + (parent.length if parent else 0)
        self.id: int | None = None
        self.plans = 0

    def path_ids(self, start: int = 0) -> array[int]:
        """The tokens from the root, or from the node that begins at position ``start``, to the end of this node."""
        parts: list[array[int]] = []
        node: LiveNode | None = self
        while node is not None and node.length > start:
            parts.append(node.token_ids)
            node = node.parent
        ids = array("i")
        for part in reversed(parts):
            ids.extend(part)
        return ids


@dataclass(slots=True, eq=False)
class Leaf:
    """A recorded sample: where a history that holds its message goes on.

    ``parent`` is the recorded sample before it on its path, ``position`` the index of its message in a history, ``given`` the messages between the
    two, and ``before`` the digest of the text that was rendered between the two. The sampled tokens begin at ``start`` on the path to ``node``.
    """

    node: LiveNode
    start: int
    parent: Leaf | None
    position: int
    given: tuple[Message, ...]
    message: Message
    key: Key
    before: bytes
    policy: str
    tools: tuple[Tool, ...]
    turn: SampledTurn | None = None
    continuations: int = 0
    prompts: dict[bytes, LiveNode] | None = None

    def path(self) -> list[Leaf]:
        """The recorded samples from the first one to this one."""
        leaves: list[Leaf] = []
        leaf: Leaf | None = self
        while leaf is not None:
            leaves.append(leaf)
            leaf = leaf.parent
        leaves.reverse()
        return leaves

    def as_turn(self, template: Template) -> SampledTurn:
        """The sample as the template takes it, decoded when it is first continued."""
        if self.turn is None:
            turn = template.sampled_turn(self.node.path_ids(self.start))
            # Most samples are their message: keep one string, not two.
            self.turn = SampledTurn(self.message.content, turn.ended_with) if turn.text == self.message.content else turn
        return self.turn


@dataclass(slots=True, eq=False)
class Found:
    """Where a history goes on: from ``leaf``, with ``text``, whose digest is ``before``.

    ``known``: an earlier prompt did so too, and ``text`` need not be tokenised. ``disagrees``: more of the history was recorded, but the template's
    text is another now.
    """

    leaf: Leaf | None
    disagrees: bool
    text: str
    before: bytes
    known: bool
    messages: Sequence[Message]
    tools: tuple[Tool, ...]
    policy: str
    keys: list[Key]
    chains: list[int]


@dataclass(slots=True, eq=False)
class Plan:
    """Where a call's prompt goes. ``node`` is its last node, ``prompt_ids`` the whole prompt, ``given`` the messages since ``parent``.

    ``prompt`` is there where the call has no messages.
    """

    branch: str
    parent: Leaf | None
    node: LiveNode
    prompt_ids: array[int]
    before: bytes
    given: tuple[Message, ...]
    position: int
    chain: int
    policy: str
    tools: tuple[Tool, ...]
    prompt: _Prompt | None = None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt that came as text or ids. ``text`` is None where it came as ids: those may hold control tokens, which no text may be taken for."""

    template: Template
    ids: Prefix
    text: Prefix | None


class TraceTree:
    """The trace tree of one attempt. Several policies and conversations may share it.

    A call goes through ``plan`` or ``plan_prompt`` (where its prompt belongs), ``grow`` (the nodes to store) and, once those are durable, ``publish``
    (from then on its samples can be continued); or through a plan and ``withdraw``.
    """

    def __init__(self) -> None:
        self._next_id = 0
        self._roots: dict[tuple[str, bytes], LiveNode] = {}
        self._samples: dict[int, list[Leaf]] = {}
        self._answered: set[int] = set()
        self._by_id: dict[str, Leaf] = {}
        self._by_key: dict[int, Leaf] = {}
        self._prompts: dict[tuple[str, str], Prefixes[Leaf]] = {}

    # ----------------------------------------------------------------- planning
    def plan(self, messages: Sequence[Message], tools: tuple[Tool, ...], policy: str, template: Template) -> Plan:
        """Finds the longest recorded path that the history continues and tokenises what is new. Raises TemplateError."""
        found = self.find(messages, tools, policy, template)
        return self.place(found, array("i") if found.known else template.encode(found.text, start=found.leaf is None))

    def find(self, messages: Sequence[Message], tools: tuple[Tool, ...], policy: str, template: Template) -> Found:
        """The first half of ``plan``: up to the text that is to be tokenised. Raises TemplateError."""
        messages = self._rejoined(messages, tools, policy)
        keys = [equality_key(message) for message in messages]
        chains = [0]
        for key in keys:
            chains.append(hash((chains[-1], key)))
        longest = self._longest(messages, keys, chains, tools, policy)
        leaf, texts = self._render(longest, messages, tools, template)
        before = _digest(texts[-1])
        known = self._node(leaf, policy, before) is not None
        return Found(leaf, leaf is not longest, texts[-1], before, known, messages, tools, policy, keys, chains)

    def place(self, found: Found, ids: array[int]) -> Plan:
        """The second half, with the ids of ``found.text`` (none needed where it is known, and nothing else has been planned since). Raises TemplateError."""
        leaf, start = found.leaf, found.leaf.position + 1 if found.leaf else 0
        first = not self._roots
        node = self._node(leaf, found.policy, found.before)
        if node is not None:
            branch = "forked"
        else:
            if leaf is None and not ids:
                raise TemplateError("the chat template rendered these messages to nothing")
            node = self._add(leaf, found.policy, found.before, ids)
            if found.disagrees:
                branch = "template"
            elif reason := self._changed(found.messages, found.keys, found.chains, start, found.tools, found.policy):
                branch = reason
            elif leaf is None:
                branch = "root" if first else "new"
            else:
                branch = "forked" if leaf.continuations else "continued"
        if leaf is not None:
            leaf.continuations += 1
        node.plans += 1
        return Plan(
            branch, leaf, node, node.path_ids(), found.before, tuple(found.messages[start:]), len(found.messages), found.chains[-1],
            found.policy, found.tools,
        )  # fmt: skip

    def plan_prompt(self, prompt: str | array[int], policy: str, template: Template) -> Plan:
        """Where a prompt without messages goes. One that begins with all of an earlier prompt and its sample, letter by letter or id by id, goes on from
        there; its text then stands for the sampled tokens, an end-of-turn token that no text shows among them. Raises TemplateError."""
        kind = "text" if isinstance(prompt, str) else "ids"
        data = text_bytes(prompt) if isinstance(prompt, str) else prompt.tobytes()
        length, leaves = self._recorded(policy, kind).longest(data)
        leaf = max(enumerate(leaves), key=lambda each: (not each[1].continuations, each[0]))[1] if leaves else None
        rest = data[length:]
        before = blake2b(rest, digest_size=16, person=kind.encode()).digest()
        first = not self._roots
        node = self._node(leaf, policy, before)
        known = node is not None
        if node is None:
            if isinstance(prompt, str):
                ids = encode_text(rest.decode("utf-8", "surrogatepass"), template, start=leaf is None) if rest else array("i")
            else:
                ids = array("i", rest)
                check_ids(ids, template)
            if leaf is None and not ids:
                raise PromptError("the prompt has no tokens")
            node = self._add(leaf, policy, before, ids)
        if leaf is not None:
            branch = "forked" if known or leaf.continuations else "continued"
            leaf.continuations += 1
        else:
            branch = "forked" if known else "root" if first else "new"
        node.plans += 1
        ids = node.path_ids()
        whole = _Prompt(template, Prefix(ids.tobytes()), Prefix(data) if kind == "text" else None)
        return Plan(branch, leaf, node, ids, before, (), 0, 0, policy, (), whole)

    def _node(self, leaf: Leaf | None, policy: str, before: bytes) -> LiveNode | None:
        """The last node of an earlier prompt that goes on from ``leaf`` with what ``before`` is the digest of."""
        return (leaf.prompts or {}).get(before) if leaf else self._roots.get((policy, before))

    def _add(self, leaf: Leaf | None, policy: str, before: bytes, ids: array[int]) -> LiveNode:
        node = LiveNode(leaf.node if leaf else None, ids) if ids or leaf is None else leaf.node
        if leaf is None:
            self._roots[policy, before] = node
        elif leaf.prompts is None:
            leaf.prompts = {before: node}
        else:
            leaf.prompts[before] = node
        return node

    def _rejoined(self, messages: Sequence[Message], tools: tuple[Tool, ...], policy: str) -> Sequence[Message]:
        """The history with a recorded turn whole again where its client sends it in parts (its text, then its calls)."""
        if not any(a.role == b.role == "assistant" for a, b in pairwise(messages)):
            return messages
        history: list[Message] = []
        chain = i = 0
        while i < len(messages):
            end, most = i + 1, min(i + MOST_PARTS, len(messages)) if chain in self._answered else i + 1
            while end < most and messages[i].role == messages[end].role == "assistant":
                end += 1
            message = _joined(messages[i:end])
            while end > i + 1 and not self._recorded_turn(message, chain, tools, policy):
                end -= 1
                message = _joined(messages[i:end])
            history.append(message)
            chain, i = hash((chain, equality_key(message))), end
        return history

    def _recorded_turn(self, message: Message, chain: int, tools: tuple[Tool, ...], policy: str) -> bool:
        leaves = self._samples.get(hash((chain, equality_key(message))), ())
        return any(leaf.policy == policy and same_tools(leaf.tools, tools) and same_reasoning(message, leaf.message) for leaf in leaves)

    def _longest(
        self, messages: Sequence[Message], keys: list[Key], chains: list[int], tools: tuple[Tool, ...], policy: str
    ) -> Leaf | None:
        for end in range(len(messages), 0, -1):
            if messages[end - 1].role != "assistant" or chains[end] not in self._samples:
                continue
            matches = [
                leaf
                for leaf in self._samples[chains[end]]
                if leaf.policy == policy and same_tools(leaf.tools, tools) and _holds(leaf, messages, keys)
            ]
            if len(matches) == 1:
                return matches[0]
            if matches:
                # Samples with equal texts: the longer exact path, then the one whose ids the client holds, then one nobody went on with, then the latest.
                ranked = [(len(leaf.path()), _shared_ids(leaf, messages), not leaf.continuations, i) for i, leaf in enumerate(matches)]
                return matches[max(ranked)[-1]]
        return None

    def _render(
        self, leaf: Leaf | None, messages: Sequence[Message], tools: tuple[Tool, ...], template: Template
    ) -> tuple[Leaf | None, tuple[str, ...]]:
        """The rendering with the recorded samples kept, giving up samples from the end while the template's text disagrees with the record."""
        while leaf is not None:
            path = leaf.path()
            rendering = template.render(_substituted(path, messages), tools, {step.position: step.as_turn(template) for step in path})
            if rendering.rewrote is not None:
                first = min(rendering.rewritten, default=0)
                kept = sum(step.position < first for step in path)
            else:
                kept = next((i for i, step in enumerate(path) if _digest(rendering.texts[i]) != step.before), len(path))
                if kept == len(path):
                    return leaf, rendering.texts
            leaf = path[kept - 1] if kept else None
        return None, template.render(messages, tools, {}).texts

    def _changed(
        self, messages: Sequence[Message], keys: list[Key], chains: list[int], start: int, tools: tuple[Tool, ...], policy: str
    ) -> str | None:
        """Why an assistant turn after ``start`` that was sampled here could not be continued; None where none was."""
        for i in range(start, len(messages)):
            message = messages[i]
            if message.role != "assistant":
                continue
            leaves = self._samples.get(chains[i + 1])
            if leaves and not any(same_tools(leaf.tools, tools) for leaf in leaves):
                return "tools_changed"
            if leaves or chains[i] in self._answered or self._known(message, keys[i], tools, policy):
                return "compacted" if self._compacted(messages, keys, tools, policy) else "edited"
        return None

    def _known(self, message: Message, key: Key, tools: tuple[Tool, ...], policy: str) -> Leaf | None:
        """A sample of this policy and these tools that has one of the message's ids or says the same, wherever it stands."""
        leaves = [self._by_id.get(call.id) for call in message.tool_calls]
        if message.content.strip():
            leaves.append(self._by_key.get(hash(key)))
        return next((leaf for leaf in leaves if leaf and leaf.policy == policy and same_tools(leaf.tools, tools)), None)

    def _compacted(self, messages: Sequence[Message], keys: list[Key], tools: tuple[Tool, ...], policy: str) -> bool:
        """Whether earlier turns of a recorded path were dropped or summed up: the history's last turn and what leads to it stand on the path, with less in
        front of them than there was and a turn gone, behind the same system prompt or (a window) behind nothing at all. A label: no splice depends on it."""
        last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "assistant"), None)
        leaf = self._known(messages[last], keys[last], tools, policy) if last is not None else None
        if last is None or leaf is None or last >= leaf.position:
            return False
        recorded = [message for step in leaf.path() for message in (*step.given, step.message)]
        kept = 0
        while kept <= last and _same(messages[last - kept], keys[last - kept], recorded[leaf.position - kept]):
            kept += 1
        gone, instead = recorded[: leaf.position + 1 - kept], keys[: last + 1 - kept]
        left = set(instead)
        if not kept or all(message.role != "assistant" or equality_key(message) in left for message in gone):
            return False
        return not instead or gone[0].role != "system" or equality_key(gone[0]) == instead[0]

    # ----------------------------------------------------------------- recording
    def withdraw(self, plan: Plan) -> None:
        """Forgets a plan that will not be recorded."""
        plan.node.plans -= 1
        if plan.parent is not None:
            plan.parent.continuations -= 1
        if plan.node.id is not None or plan.node.plans:
            return
        if plan.parent is not None:
            (plan.parent.prompts or {}).pop(plan.before, None)
        else:
            self._roots.pop((plan.policy, plan.before), None)

    def grow(self, plan: Plan, samples: Sequence[tuple[Sample, Message]], call_index: int) -> tuple[list[Node], list[Leaf]]:
        """The nodes that a call adds (parents first, its prompt's node only where no earlier call stored it) and its leaves, in order of ``samples``."""
        plan.node.plans -= 1
        nodes: list[Node] = []
        if plan.node.id is None:
            plan.node.id = self._take_id()
            nodes.append(Node(plan.node.id, _id(plan.node.parent), False, plan.node.token_ids, call_index))
        leaves: list[Leaf] = []
        for sample, message in samples:
            node = plan.node
            for segment in sample.segments:
                if not segment.token_ids:
                    continue
                parent, node = node, LiveNode(node, segment.token_ids)
                node.id = self._take_id()
                nodes.append(
                    Node(
                        node.id, parent.id, True, segment.token_ids, call_index,
                        segment.logprobs, segment.log_kept, segment.kept, segment.version,
                    )
                )  # fmt: skip
            leaves.append(
                Leaf(
                    node,
                    plan.node.length,
                    plan.parent,
                    plan.position,
                    plan.given,
                    message,
                    equality_key(message),
                    plan.before,
                    plan.policy,
                    plan.tools,
                )
            )
        return nodes, leaves

    def publish(self, plan: Plan, leaves: Sequence[Leaf]) -> None:
        """Makes recorded samples known to later requests."""
        if plan.prompt is not None:
            self._publish_prompt(plan.prompt, leaves)
            return
        self._answered.add(plan.chain)
        for leaf in leaves:
            self._samples.setdefault(hash((plan.chain, leaf.key)), []).append(leaf)
            self._by_key[hash(leaf.key)] = leaf
            for call in leaf.message.tool_calls:
                self._by_id[call.id] = leaf

    def _publish_prompt(self, prompt: _Prompt, leaves: Sequence[Leaf]) -> None:
        for leaf in leaves:
            sampled = leaf.node.path_ids(leaf.start)
            self._recorded(leaf.policy, "ids").add(prompt.ids.and_then(sampled.tobytes()), leaf)
            text = prompt.template.sampled_turn(sampled).text if prompt.text is not None else ""
            # A sample without text cannot be told from its prompt sent once more.
            if prompt.text is not None and text:
                self._recorded(leaf.policy, "text").add(prompt.text.and_then(text_bytes(text)), leaf)

    def _recorded(self, policy: str, kind: str) -> Prefixes[Leaf]:
        return self._prompts.setdefault((policy, kind), Prefixes[Leaf]())

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


# --------------------------------------------------------------------------- helpers


def _id(node: LiveNode | None) -> int | None:
    return node.id if node else None


def same_tools(a: tuple[Tool, ...], b: tuple[Tool, ...]) -> bool:
    """Equal names, descriptions and schemas in the same order."""
    return a is b or a == b


def _joined(parts: Sequence[Message]) -> Message:
    """One turn of the parts it came in."""
    if len(parts) == 1:
        return parts[0]
    calls = tuple([call for part in parts for call in part.tool_calls])
    reasoning = "".join([part.reasoning or "" for part in parts])
    return Message("assistant", "".join([part.content for part in parts]), calls, None, parts[0].name, reasoning or None)


def _same(theirs: Message, key: Key, recorded: Message) -> bool:
    return key == equality_key(recorded) and same_reasoning(theirs, recorded)


def _holds(leaf: Leaf, messages: Sequence[Message], keys: list[Key]) -> bool:
    """Whether each recorded sample on the way to ``leaf`` is the history's own message at its place."""
    return all(keys[step.position] == step.key and same_reasoning(messages[step.position], step.message) for step in leaf.path())


def _shared_ids(leaf: Leaf, messages: Sequence[Message]) -> int:
    count = 0
    for step in leaf.path():
        theirs = messages[step.position].tool_calls
        count += sum(a.id == b.id for a, b in zip(theirs, step.message.tool_calls, strict=True))
    return count


def _substituted(path: Sequence[Leaf], messages: Sequence[Message]) -> list[Message]:
    """The history with the recorded messages in place of the client's copies, and the new tool results under the recorded ids."""
    history: list[Message] = []
    renamed: dict[str, str] = {}
    for step in path:
        history.extend(step.given)
        history.append(step.message)
        for theirs, ours in zip(messages[step.position].tool_calls, step.message.tool_calls, strict=True):
            if theirs.id != ours.id:
                renamed[theirs.id] = ours.id
    rest = messages[len(history) :]
    history.extend([_renamed(message, renamed) for message in rest] if renamed else rest)
    return history


def _renamed(message: Message, renamed: dict[str, str]) -> Message:
    calls = tuple(ToolCall(renamed.get(call.id, call.id), call.name, call.arguments) for call in message.tool_calls)
    of = message.tool_call_id
    return Message(message.role, message.content, calls, renamed.get(of, of) if of else of, message.name, message.reasoning)
