"""The trace tree of one attempt while it is open: which recorded path a new request continues, and which nodes it adds.

Pure: no input or output, no wire, no engine, no store. What counts as the same is `equality`'s to say; here is decided
what is continued, and why a request starts a branch. Matching never compares rendered strings: a history is matched
message by message against what was recorded, the recorded messages then stand in for the client's copies, and the
template's text around them has to come out as it did before (else a branch ``template``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from agentlightning.engines.base import Sample
from agentlightning.errors import TemplateError
from agentlightning.gateway.equality import (
    Key,
    equality_key,
    in_call_order,
    joined,
    parts_of_a_turn,
    same_reasoning,
    stopped_key,
    tools_key,
)
from agentlightning.gateway.text_prompts import Prefix, Prefixes, PromptError, check_ids, encode_text, text_bytes
from agentlightning.nouns import Message, Node, Tool, ToolCall
from agentlightning.templates.base import SampledTurn, Template, shown

NO_COINCIDENCE = 40
"""Characters of a turn that two conversations do not share by chance."""


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --------------------------------------------------------------------------- the tree


class LiveNode:
    """A node of the open tree. ``id`` is None until a call that uses it is recorded; ``length`` counts the tokens from
    the root to its end.

    ``placements`` counts the calls that hold it as their prompt and are not recorded yet.
    """

    __slots__ = ("id", "length", "parent", "placements", "token_ids")

    def __init__(self, parent: LiveNode | None, token_ids: array[int]) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.length = len(token_ids) + (parent.length if parent else 0)
        self.id: int | None = None
        self.placements = 0

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

    ``parent`` is the recorded sample before it on its path, ``position`` the index of its message in a history,
    ``given`` the messages between the two, and ``before`` the digest of the text that was rendered between the two. The
    sampled tokens begin at ``start`` on the path to ``node``. ``stopped`` is the key that the message has with the stop
    string put back that cut it.
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
    tools_key: bytes
    stopped: Key | None = None
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
            self.turn = (
                SampledTurn(self.message.content, turn.ended_with) if turn.text == self.message.content else turn
            )
        return self.turn


@dataclass(slots=True)
class _History:
    """A history as it is matched: its messages, their keys, for each beginning of it (the empty one first) what tells
    it from others, and the key of its tools, behind which the template's kwargs follow."""

    messages: list[Message]
    keys: list[Key]
    chains: list[int]
    tools: bytes

    def add(self, message: Message, key: Key) -> None:
        self.messages.append(message)
        self.keys.append(key)
        self.chains.append(hash((self.chains[-1], key)))


@dataclass(slots=True, eq=False)
class Continuation:
    """Where a history goes on: from ``leaf``, with ``text``, whose digest is ``before``. ``tools`` are as they were
    listed on that path, ``given`` the messages behind it, under its ids.

    ``known``: an earlier prompt did so too, and ``text`` need not be tokenised. ``disagrees``: more of the history was
    recorded, but the template's text is another now.
    """

    leaf: Leaf | None
    disagrees: bool
    text: str
    before: bytes
    known: bool
    given: tuple[Message, ...]
    history: _History
    tools: tuple[Tool, ...]
    policy: str


@dataclass(slots=True, eq=False)
class Placement:
    """Where a call's prompt goes. ``node`` is its last node, ``prompt_ids`` the whole prompt, ``given`` the messages
    since ``parent``.

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
    tools_key: bytes = b""
    prompt: _Prompt | None = None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt that came as text or ids. ``text`` is None where it came as ids: those may hold control tokens, which no
    text may be taken for."""

    template: Template
    ids: Prefix
    text: Prefix | None


class TraceTree:
    """The trace tree of one attempt. Several policies and conversations may share it.

    A call goes through ``place`` or ``place_prompt`` (where its prompt belongs), ``grow`` (the nodes to store) and,
    once those are durable, ``publish`` (from then on its samples can be continued); or through a placement and
    ``withdraw``.
    """

    def __init__(self) -> None:
        self._next_id = 0
        self._roots: dict[tuple[str, bytes], LiveNode] = {}
        self._samples: dict[int, list[Leaf]] = {}
        self._stopped: dict[int, list[Leaf]] = {}
        self._answered: set[int] = set()
        self._by_id: dict[str, Leaf] = {}
        self._by_key: dict[int, Leaf] = {}
        self._prompts: dict[tuple[str, str], Prefixes[Leaf]] = {}

    # ----------------------------------------------------------------- placing
    def place(
        self,
        messages: Sequence[Message],
        tools: tuple[Tool, ...],
        policy: str,
        template: Template,
        after: Leaf | None = None,
    ) -> Placement:
        """Finds the longest recorded path that the history continues and tokenises what is new. Of samples that read
        the same it takes ``after``, the one that the client named, where it is among them. Raises TemplateError."""
        continuation = self.find(messages, tools, policy, template, after)
        known = continuation.known
        ids = array("i") if known else template.encode(continuation.text, start=continuation.leaf is None)
        return self.place_continuation(continuation, ids)

    def find(
        self,
        messages: Sequence[Message],
        tools: tuple[Tool, ...],
        policy: str,
        template: Template,
        after: Leaf | None = None,
    ) -> Continuation:
        """The first half of ``place``: up to the text that is to be tokenised. Raises TemplateError."""
        history = self._read(messages, tools_key(tools) + template.kwargs_key, policy)
        longest = self._longest(history, policy, after)
        leaf, texts, given = self._render(longest, history.messages, tools, template)
        before = _digest(texts[-1])
        known = self._node(leaf, policy, before) is not None
        return Continuation(
            leaf, leaf is not longest, texts[-1], before, known, given, history, leaf.tools if leaf else tools, policy
        )

    def place_continuation(self, continuation: Continuation, ids: array[int]) -> Placement:
        """The second half, with the ids of ``continuation.text`` (none needed where it is known, and nothing else has
        been placed since). Raises TemplateError."""
        leaf, start = continuation.leaf, continuation.leaf.position + 1 if continuation.leaf else 0
        first = not self._roots
        node = self._node(leaf, continuation.policy, continuation.before)
        if node is not None:
            branch = "forked"
        else:
            if leaf is None and not ids:
                raise TemplateError("the chat template rendered these messages to nothing")
            node = self._add(leaf, continuation.policy, continuation.before, ids)
            if continuation.disagrees:
                branch = "template"
            elif reason := self._changed(continuation.history, start, continuation.policy):
                branch = reason
            elif leaf is None:
                branch = "root" if first else "new"
            else:
                branch = "forked" if leaf.continuations else "continued"
        if leaf is not None:
            leaf.continuations += 1
        node.placements += 1
        history = continuation.history
        return Placement(
            branch, leaf, node, node.path_ids(), continuation.before, continuation.given, len(history.messages),
            history.chains[-1], continuation.policy, continuation.tools, history.tools,
        )  # fmt: skip

    def place_prompt(self, prompt: str | array[int], policy: str, template: Template) -> Placement:
        """Where a prompt without messages goes. One that begins with all of an earlier prompt and its sample, letter by
        letter or id by id, goes on from there; its text then stands for the sampled tokens, an end-of-turn token that
        no text shows among them. One that begins with an earlier prompt and
        then goes on otherwise is `edited`. Raises TemplateError."""
        kind = "text" if isinstance(prompt, str) else "ids"
        data = text_bytes(prompt) if isinstance(prompt, str) else prompt.tobytes()
        length, leaves = self._recorded(policy, kind).longest(data)
        leaf = max(enumerate(leaves), key=lambda each: (not each[1].continuations, each[0]))[1] if leaves else None
        begun, _ = self._recorded(policy, f"asked {kind}").longest(data)
        rest = data[length:]
        before = blake2b(rest, digest_size=16, person=kind.encode()).digest()
        first = not self._roots
        node = self._node(leaf, policy, before)
        known = node is not None
        if node is None:
            if isinstance(prompt, str):
                ids = (
                    encode_text(rest.decode("utf-8", "surrogatepass"), template, start=leaf is None)
                    if rest
                    else array("i")
                )
            else:
                ids = array("i", rest)
                check_ids(ids, template)
            if leaf is None and not ids:
                raise PromptError("the prompt has no tokens")
            node = self._add(leaf, policy, before, ids)
        if known:
            branch = "forked"
        elif length < begun < len(data):
            branch = "edited"
        elif leaf is not None:
            branch = "forked" if leaf.continuations else "continued"
        else:
            branch = "root" if first else "new"
        if leaf is not None:
            leaf.continuations += 1
        node.placements += 1
        ids = node.path_ids()
        whole = _Prompt(template, Prefix(ids.tobytes()), Prefix(data) if kind == "text" else None)
        return Placement(branch, leaf, node, ids, before, (), 0, 0, policy, (), prompt=whole)

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

    def _read(self, messages: Sequence[Message], tools: bytes, policy: str) -> _History:
        """The history as it is matched, with the results of parallel calls in the order of the calls."""
        history = _History([], [], [0], tools)
        at = 0
        while at < len(messages):
            message, key, results, at = self._turn(messages, at, history, policy)
            history.add(message, key)
            while message.tool_calls and at < len(messages) and messages[at].role == "tool":
                results.append(messages[at])
                at += 1
            for result in in_call_order(results, message) if len(results) > 1 else results:
                history.add(result, equality_key(result))
        return history

    def _turn(
        self, messages: Sequence[Message], at: int, history: _History, policy: str
    ) -> tuple[Message, Key, list[Message], int]:
        """The message at ``at`` and its key, and where the next one is: a recorded turn is whole again where its client
        sends it in parts (its text, then its calls), with the results that stood between them, and has its own key
        where its stop string was put back."""
        message, key = messages[at], equality_key(messages[at])
        if message.role != "assistant" or history.chains[-1] not in self._answered:
            return message, key, [], at + 1
        if recorded := self._recorded_key(message, key, history, policy):
            return message, recorded, [], at + 1
        for end in range(parts_of_a_turn(messages, at), at + 1, -1):
            if messages[end - 1].role == "assistant":
                whole, *results = joined(messages[at:end])
                # Calls that came one by one, each with its result, are one turn where their ids say so: the agent may
                # have made them one by one.
                if recorded := self._recorded_key(whole, equality_key(whole), history, policy, same_ids=bool(results)):
                    return whole, recorded, results, end
        return message, key, [], at + 1

    def _recorded_key(
        self, message: Message, key: Key, history: _History, policy: str, *, same_ids: bool = False
    ) -> Key | None:
        """The key of the sample that a message is (``same_ids``: by its calls' ids too), behind what is read of the
        history; None where it is none."""
        chain = hash((history.chains[-1], key))
        for leaf in (*self._samples.get(chain, ()), *self._stopped.get(chain, ())):
            if leaf.policy != policy or leaf.tools_key != history.tools or not same_reasoning(message, leaf.message):
                continue
            if not same_ids or [call.id for call in message.tool_calls] == [
                call.id for call in leaf.message.tool_calls
            ]:
                return leaf.key
        return None

    def _longest(self, history: _History, policy: str, after: Leaf | None) -> Leaf | None:
        for end in range(len(history.messages), 0, -1):
            if history.messages[end - 1].role != "assistant" or history.chains[end] not in self._samples:
                continue
            matches = [
                leaf
                for leaf in self._samples[history.chains[end]]
                if leaf.policy == policy and leaf.tools_key == history.tools and _holds(leaf, history)
            ]
            if len(matches) == 1:
                return matches[0]
            if matches:
                # Samples with equal texts: the one that the client named, then the longer exact path, then the one
                # whose ids the client holds, then one that nobody went on with, then the latest.
                ranked = [
                    (
                        after in (path := leaf.path()),
                        len(path),
                        _shared_ids(path, history.messages),
                        not leaf.continuations,
                        i,
                    )
                    for i, leaf in enumerate(matches)
                ]
                return matches[max(ranked)[-1]]
        return None

    def _render(
        self, leaf: Leaf | None, messages: Sequence[Message], tools: tuple[Tool, ...], template: Template
    ) -> tuple[Leaf | None, tuple[str, ...], tuple[Message, ...]]:
        """The rendering with the recorded samples kept, giving up samples from the end while the template's text
        disagrees with the record; and the messages behind the kept ones, under the recorded ids."""
        while leaf is not None:
            path = leaf.path()
            history = _substituted(path, messages)
            rendering = template.render(history, leaf.tools, {step.position: step.as_turn(template) for step in path})
            if rendering.rewrote is not None:
                first = min(rendering.rewritten, default=0)
                kept = sum(step.position < first for step in path)
            else:
                kept = next((i for i, step in enumerate(path) if _digest(rendering.texts[i]) != step.before), len(path))
                if kept == len(path):
                    return leaf, rendering.texts, tuple(history[leaf.position + 1 :])
            leaf = path[kept - 1] if kept else None
        return None, template.render(messages, tools, {}).texts, tuple(messages)

    def _changed(self, history: _History, start: int, policy: str) -> str | None:
        """Why an assistant turn after ``start`` that was sampled here could not be continued; None where none was."""
        for i in range(start, len(history.messages)):
            if history.messages[i].role != "assistant":
                continue
            leaves = self._samples.get(history.chains[i + 1])
            if leaves and not any(leaf.tools_key == history.tools for leaf in leaves):
                alike = history.tools.partition(b"\0")[0]
                return (
                    "kwargs_changed"
                    if any(leaf.tools_key.partition(b"\0")[0] == alike for leaf in leaves)
                    else "tools_changed"
                )
            if leaves or history.chains[i] in self._answered or self._known(history, i, policy, anywhere=start > 0):
                return "compacted" if self._compacted(history, policy) else "edited"
        return None

    def _known(self, history: _History, i: int, policy: str, *, anywhere: bool = False) -> Leaf | None:
        """A sample of this policy and these tools that has one of message i's ids, or says the same behind the same
        message (behind any where ``anywhere``, or where it says too much for a coincidence), wherever it stands."""
        leaves = [self._by_id.get(call.id) for call in history.messages[i].tool_calls]
        if i and history.messages[i].content.strip():
            leaves.append(self._by_key.get(hash((history.keys[i - 1], history.keys[i]))))
            anywhere = anywhere or len(history.messages[i].content) >= NO_COINCIDENCE
            leaves.append(self._by_key.get(hash(history.keys[i])) if anywhere else None)
        return next(
            (leaf for leaf in leaves if leaf and leaf.policy == policy and leaf.tools_key == history.tools), None
        )

    def _compacted(self, history: _History, policy: str) -> bool:
        """Whether earlier turns of a recorded path were dropped or summed up: the history's last turn and what leads to
        it stand on the path, with less in front of them than there was and a turn gone, behind the same system prompt
        or (a window) behind nothing at all. A label: no splice depends on it."""
        messages, keys = history.messages, history.keys
        last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "assistant"), None)
        leaf = self._known(history, last, policy) if last is not None else None
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
    def withdraw(self, placement: Placement) -> None:
        """Forgets a placement that will not be recorded."""
        placement.node.placements -= 1
        if placement.parent is not None:
            placement.parent.continuations -= 1
        if placement.node.id is not None or placement.node.placements:
            return
        if placement.parent is not None:
            (placement.parent.prompts or {}).pop(placement.before, None)
        else:
            self._roots.pop((placement.policy, placement.before), None)

    def undo_grow(self, placement: Placement, nodes: Sequence[Node]) -> None:
        """Takes back ``grow``, whose ``nodes`` could not be stored, and forgets the placement."""
        if nodes and not nodes[0].sampled:
            placement.node.id = None
        placement.node.placements += 1
        self.withdraw(placement)

    def grow(
        self, placement: Placement, samples: Sequence[tuple[Sample, Message]], call_index: int
    ) -> tuple[list[Node], list[Leaf]]:
        """The nodes that a call adds (parents first, its prompt's node only where no earlier call stored it) and its
        leaves, in order of ``samples``."""
        placement.node.placements -= 1
        nodes: list[Node] = []
        if placement.node.id is None:
            placement.node.id = self._take_id()
            nodes.append(
                Node(placement.node.id, _id(placement.node.parent), False, placement.node.token_ids, call_index)
            )
        leaves: list[Leaf] = []
        for sample, message in samples:
            node = placement.node
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
                    placement.node.length,
                    placement.parent,
                    placement.position,
                    placement.given,
                    message,
                    equality_key(message),
                    placement.before,
                    placement.policy,
                    placement.tools,
                    placement.tools_key,
                    stopped_key(message, sample.stop_string),
                )
            )
        return nodes, leaves

    def publish(self, placement: Placement, leaves: Sequence[Leaf]) -> None:
        """Makes recorded samples known to later requests."""
        if placement.prompt is not None:
            self._publish_prompt(placement.prompt, placement.policy, leaves)
            return
        self._answered.add(placement.chain)
        for leaf in leaves:
            self._samples.setdefault(hash((placement.chain, leaf.key)), []).append(leaf)
            if leaf.stopped is not None:
                self._stopped.setdefault(hash((placement.chain, leaf.stopped)), []).append(leaf)
            self._by_key[hash(leaf.key)] = leaf
            if before := leaf.given[-1] if leaf.given else leaf.parent and leaf.parent.message:
                self._by_key[hash((equality_key(before), leaf.key))] = leaf
            for call in leaf.message.tool_calls:
                self._by_id[call.id] = leaf

    def _publish_prompt(self, prompt: _Prompt, policy: str, leaves: Sequence[Leaf]) -> None:
        for kind, begun in (("ids", prompt.ids), ("text", prompt.text)):
            if begun is not None and leaves:
                self._recorded(policy, f"asked {kind}").add(begun, leaves[0])
        for leaf in leaves:
            sampled = leaf.node.path_ids(leaf.start)
            self._recorded(policy, "ids").add(prompt.ids.and_then(sampled.tobytes()), leaf)
            text = shown(prompt.template.sampled_turn(sampled).text) if prompt.text is not None else ""
            # A sample without text cannot be told from its prompt sent once more.
            if prompt.text is not None and text:
                self._recorded(policy, "text").add(prompt.text.and_then(text_bytes(text)), leaf)

    def _recorded(self, policy: str, kind: str) -> Prefixes[Leaf]:
        return self._prompts.setdefault((policy, kind), Prefixes[Leaf]())

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


# --------------------------------------------------------------------------- helpers


def _id(node: LiveNode | None) -> int | None:
    return node.id if node else None


def _same(theirs: Message, key: Key, recorded: Message) -> bool:
    return key == equality_key(recorded) and same_reasoning(theirs, recorded)


def _holds(leaf: Leaf, history: _History) -> bool:
    """Whether each recorded sample on the way to ``leaf`` is the history's own message at its place, and no reasoning
    between them is another."""
    for step in leaf.path():
        if history.keys[step.position] != step.key or not same_reasoning(history.messages[step.position], step.message):
            return False
        between = history.messages[step.position - len(step.given) : step.position]
        if not all(same_reasoning(theirs, ours) for theirs, ours in zip(between, step.given, strict=True)):
            return False
    return True


def _shared_ids(path: Sequence[Leaf], messages: Sequence[Message]) -> int:
    count = 0
    for step in path:
        theirs = messages[step.position].tool_calls
        count += sum(a.id == b.id for a, b in zip(theirs, step.message.tool_calls, strict=True))
    return count


def _substituted(path: Sequence[Leaf], messages: Sequence[Message]) -> list[Message]:
    """The history with the recorded messages in place of the client's copies, and the new tool results under the
    recorded ids."""
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
    return Message(
        message.role, message.content, calls, renamed.get(of, of) if of else of, message.name, message.reasoning
    )
