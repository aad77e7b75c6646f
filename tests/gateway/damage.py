"""Random agents' conversations, what clients do to them on the way back, and an independent judge of what the trace
tree made of it.

A history is kept as Chat Completions JSON, as a client holds it; each turn it is damaged, parsed by the wire and
planned by a tree. The judge shares no code with either: it compares JSON with JSON, and tokens with what transformers'
own `apply_chat_template` makes of the client's history in which each spliced turn stands as it was sampled.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentlightning.engines.base import Sample
from agentlightning.gateway.kept_replies import KeptReplies
from agentlightning.gateway.tree import Leaf, Placement, TraceTree
from agentlightning.gateway.wires import CHAT
from agentlightning.gateway.wires.base import Target, WireRequest
from agentlightning.nouns import FinishReason, Message, Segment, ToolCall
from tests.templates.fixtures import CALC, CLOCK, FAMILIES, template_of, tokenizer_of

Json = dict[str, Any]
Damage = Callable[[random.Random, list[Json]], list[Json]]

WORDS = [
    "the",
    "sum",
    "of",
    "17",
    "and",
    "23",
    "is",
    "asked;",
    "north",
    "wind?",
    "é",
    "日本",
    "«quoted»",
    "<b>",
    "{x}",
    "\n",
    "-",
    "so",
    "it",
    "is",
    "391.",
]
POST = Target("POST", "chat/completions")


# --------------------------------------------------------------------------- what clients do


def _assistants(history: list[Json]) -> list[Json]:
    return [message for message in history if message["role"] == "assistant"]


def _rewritten(write: Callable[[Any], str]) -> Damage:
    def damage(rng: random.Random, history: list[Json]) -> list[Json]:
        for message in _assistants(history):
            for call in message.get("tool_calls") or ():
                call["function"]["arguments"] = write(json.loads(call["function"]["arguments"]))
        return history

    return damage


def _each(change: Callable[[random.Random, Json], None]) -> Damage:
    def damage(rng: random.Random, history: list[Json]) -> list[Json]:
        for message in _assistants(history):
            change(rng, message)
        return history

    return damage


def _one(change: Callable[[random.Random, Json], None], wanted: Callable[[Json], Any] = bool) -> Damage:
    """Changes one assistant turn in place, where there is one that can be."""

    def damage(rng: random.Random, history: list[Json]) -> list[Json]:
        found = [message for message in _assistants(history) if wanted(message)]
        if found:
            change(rng, rng.choice(found))
        return history

    return damage


def _parts(_: random.Random, message: Json) -> None:
    if isinstance(message.get("content"), str):
        message["content"] = [{"type": "text", "text": message["content"]}]


def _absent(_: random.Random, message: Json) -> None:
    if not message.get("content"):
        message.pop("content", None)


def _empty(rng: random.Random, message: Json) -> None:
    if not message.get("content"):
        message.pop("content", None)
        message |= rng.choice([{}, {"content": None}, {"content": ""}, {"content": []}])


def _padded(rng: random.Random, message: Json) -> None:
    if isinstance(message.get("content"), str):
        message["content"] = rng.choice(["", " ", "\n"]) + message["content"].strip() + rng.choice(["", " ", "\n\n"])


def _edited_argument(rng: random.Random, message: Json) -> None:
    function = rng.choice(message["tool_calls"])["function"]
    function["arguments"] = json.dumps({**json.loads(function["arguments"]), "guarded": rng.random()})


def _edited_text(rng: random.Random, message: Json) -> None:
    message["content"] = f"{_said(message)} (redacted {rng.random():.3f})"


def _reordered(rng: random.Random, history: list[Json]) -> list[Json]:
    """Parallel tool results in another order, new ones and those of earlier turns."""
    out: list[Json] = []
    run: list[Json] = []
    for message in [*history, {"role": "end"}]:
        if message["role"] == "tool":
            run.append(message)
            continue
        rng.shuffle(run)
        out += run
        run = []
        out.append(message)
    return out[:-1]


def _split(rng: random.Random, history: list[Json]) -> list[Json]:
    """Turns of text and calls come back as several messages."""
    out: list[Json] = []
    for message in history:
        calls = message.get("tool_calls") or []
        if message["role"] != "assistant" or not (calls and message.get("content")) or rng.random() < 0.3:
            out.append(message)
            continue
        text = {key: value for key, value in message.items() if key != "tool_calls"}
        parts = [[call] for call in calls] if rng.random() < 0.5 else [calls]
        out += [text, *({"role": "assistant", "content": None, "tool_calls": part} for part in parts)]
    return out


def _questions_joined(rng: random.Random, history: list[Json]) -> list[Json]:
    """The last results of tools become a part of what the user says."""
    last = next((i for i in range(len(history) - 1, 0, -1) if history[i]["role"] == "tool"), None)
    if last is None:
        return history
    said = f"Result: {history[last]['content']}\n"
    rest = history[last + 1 :]
    if rest and rest[0]["role"] == "user":
        rest = [{**rest[0], "content": said + rest[0]["content"]}, *rest[1:]]
    else:
        rest = [{"role": "user", "content": said}, *rest]
    return [*history[:last], *rest]


def _sub_agent(rng: random.Random, history: list[Json]) -> list[Json]:
    """Somebody else with a task of its own, over the same endpoint."""
    return [{"role": "system", "content": "You look things up."}, {"role": "user", "content": f"Find {rng.random()}."}]


def _gap(rng: random.Random, history: list[Json]) -> list[Json]:
    """Turns between the first question and the last one are dropped, or summed up."""
    users = [i for i, message in enumerate(history) if message["role"] == "user"]
    if len(users) < 4:
        return history
    summary = [{"role": "user", "content": "(In between: nothing new.)"}] if rng.random() < 0.5 else []
    return [*history[: users[1]], *summary, *history[users[-2] :]]


def _window(rng: random.Random, history: list[Json]) -> list[Json]:
    users = [i for i, message in enumerate(history) if message["role"] == "user"]
    if len(users) < 3:
        return history
    return [history[0], *history[users[-2] :]] if history[0]["role"] == "system" else history[users[-2] :]


def _compacted(rng: random.Random, history: list[Json]) -> list[Json]:
    users = [i for i, message in enumerate(history) if message["role"] == "user"]
    if len(users) < 3:
        return history
    head = history[:1] if history[0]["role"] == "system" else []
    return [
        *head,
        {"role": "user", "content": f"So far: {len(history)} messages."},
        {"role": "assistant", "content": "Understood."},
        *history[users[-1] :],
    ]


def _clock(rng: random.Random, history: list[Json]) -> list[Json]:
    return (
        [{**history[0], "content": f"It is {rng.random()}."}, *history[1:]]
        if history[0]["role"] == "system"
        else history
    )


def _replayed(rng: random.Random, history: list[Json]) -> list[Json]:
    users = [i for i, message in enumerate(history) if message["role"] == "user"]
    return history[: rng.choice(users) + 1]


def _handoff(rng: random.Random, history: list[Json]) -> list[Json]:
    """Another agent goes on: its own instructions, and the first one's turns as assistant messages."""
    rest = history[1:] if history[0]["role"] == "system" else history
    return [{"role": "system", "content": "You are another agent."}, *rest]


DAMAGE: dict[str, Damage] = {
    "none": lambda rng, history: history,
    "re-serialised": _rewritten(json.dumps),
    "compact, sorted, escaped": _rewritten(lambda value: json.dumps(value, sort_keys=True, separators=(",", ":"))),
    "indented, unescaped": _rewritten(lambda value: json.dumps(value, indent=2, ensure_ascii=False)),
    "reasoning dropped": _each(lambda _, message: message.pop("reasoning_content", None)),
    "content in parts": _each(_parts),
    "empty content absent": _each(_absent),
    "trimmed or padded": _each(_padded),
    "name added": _each(lambda _, message: message.update(name="solver")),
    "results reordered": _reordered,
    "empty content in any way": _each(_empty),
    "turn in parts": _split,
    "result told by the user": _questions_joined,
    "sub-agent": _sub_agent,
    "turns left out": _gap,
    "sliding window": _window,
    "compacted": _compacted,
    "clock in the system prompt": _clock,
    "old turn replayed": _replayed,
    "handoff": _handoff,
    "argument edited": _one(_edited_argument, lambda message: message.get("tool_calls")),
    "text edited": _one(_edited_text),
    "calls dropped": _one(
        lambda _, message: message.pop("tool_calls"),
        lambda message: message.get("tool_calls") and message.get("content"),
    ),
    "a tool less": lambda rng, history: history,
    "best of three": lambda rng, history: history,
    "asked again": lambda rng, history: history,
}
"""What clients do to the history that they send back, by name. The last three are the request's: another list of tools,
several samples of which the client goes on with one, and the same request once more, as after a reply that was lost;
the client goes on with either reply."""

HARMLESS = frozenset(
    (
        "none",
        "re-serialised",
        "compact, sorted, escaped",
        "indented, unescaped",
        "reasoning dropped",
        "content in parts",
        "empty content absent",
        "trimmed or padded",
        "name added",
        "empty content in any way",
        "turn in parts",
        "best of three",
        "asked again",
    )
)
"""Damage after which the conversation is still the same one, so that its tokens have to go on."""


# --------------------------------------------------------------------------- conversations


@dataclass
class Turn:
    """What one request came to. ``wrong`` says why a splice is no true one; None where it is, or where nothing was
    spliced. ``again``: it is the last request once more."""

    damage: str
    branch: str
    spliced: int
    wrong: str | None
    again: bool = False


@dataclass
class Talk:
    """One agent's conversation with a tree, over the template of ``family``."""

    family: str
    rng: random.Random
    tools: bool = True
    both: bool = True
    """Both tools, not one."""
    tree: TraceTree = field(default_factory=TraceTree)
    raw: dict[int, str] = field(default_factory=dict)
    """The sampled text of each leaf, by identity."""
    calls: int = 0

    def words(self, most: int = 12) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, most))).strip() or "so"

    def arguments(self) -> str:
        value = {
            self.rng.choice("xyz"): self.rng.choice([1, 1.5, "17 * 23 é", None, [1, {"k": "«v»"}], True])
            for _ in range(self.rng.randint(1, 3))
        }
        return self.rng.choice(
            [
                json.dumps(value),
                json.dumps(value, ensure_ascii=False),
                json.dumps(value, separators=(" ,", ":"), ensure_ascii=False),
            ]
        )

    def says(self) -> str:
        """What the model samples: text, or text with calls, in the family's own format."""
        text = self.words()
        if self.tools and self.rng.random() < 0.5:
            count = 1 if self.family == "llama3" else self.rng.randint(1, 3)
            names = [self.rng.choice(["calc", "clock"]) for _ in range(count)]
            calls = tuple(ToolCall("", name, self.arguments()) for name in names)
            return FAMILIES[self.family].writes(
                Message("assistant", "" if self.rng.random() < 0.5 or self.family == "llama3" else text, calls)
            )
        return text

    def request(self, history: list[Json]) -> WireRequest:
        body: Json = {"model": "m", "messages": history}
        if self.tools:
            body["tools"] = self.listed()
        return CHAT.request(POST, json.loads(json.dumps(body)), KeptReplies())

    def listed(self) -> list[Json]:
        """The tools as the API has them."""
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
            }
            for tool in ((CALC, CLOCK) if self.both else (CALC,))
        ]

    def ask(self, history: list[Json], samples: int = 1) -> tuple[Placement, Json]:
        """Plans, samples and records a call. Returns the placement and a reply as the client holds it."""
        template, request = template_of(self.family), self.request(history)
        placement = self.tree.place(request.messages, request.tools, "main", template)
        drawn: list[tuple[Sample, Message]] = []
        texts = [self.says() for _ in range(samples)]
        for said in texts:
            ids = array("i", [*template.encode(said, start=False), template.stop_token_ids[0]])
            sample = Sample((Segment(ids, array("f", [-0.1] * len(ids)), 1),), FinishReason.STOP)
            drawn.append((sample, template.read(ids, request.tools, FinishReason.STOP).message))
        _, leaves = self.tree.grow(placement, drawn, self.calls)
        self.tree.publish(placement, leaves)
        self.calls += 1
        self.raw |= {id(leaf): said for leaf, said in zip(leaves, texts, strict=True)}
        message = self.rng.choice(drawn)[1]
        reply: Json = {"role": "assistant", "content": message.content or None, "refusal": None}
        if message.tool_calls:
            reply["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        return placement, reply

    def play(self, turns: int, damages: list[str]) -> list[Turn]:
        """A conversation in which each request but the first may be damaged."""
        history: list[Json] = [{"role": "system", "content": self.words()}] if self.rng.random() < 0.8 else []
        history.append({"role": "user", "content": self.words()})
        played: list[Turn] = []
        for turn in range(turns):
            name = self.rng.choice(damages) if turn else "none"
            sent = DAMAGE[name](self.rng, json.loads(json.dumps(history)))
            self.both = name != "a tool less"
            replies: list[Json] = []
            for again in (False, True) if name == "asked again" else (False,):
                placement, reply = self.ask(sent, 3 if name == "best of three" else 1)
                replies.append(reply)
                played.append(
                    Turn(
                        name,
                        placement.branch,
                        len(placement.parent.path()) if placement.parent else 0,
                        self.judge(placement, sent),
                        again,
                    )
                )
            reply = self.rng.choice(replies)
            if name == "sub-agent":  # what another agent is asked for is no part of the first one's conversation
                continue
            history = [*sent, reply]
            for call in reply.get("tool_calls") or ():
                history.append({"role": "tool", "tool_call_id": call["id"], "content": self.words(4)})
            if not reply.get("tool_calls") or self.rng.random() < 0.3:
                history.append({"role": "user", "content": self.words()})
        return played

    # ----------------------------------------------------------------- the judge
    def judge(self, placement: Placement, sent: list[Json]) -> str | None:
        """Why the prompt is not what the client sent, None where it is."""
        leaf: Leaf | None = placement.parent
        path = leaf.path() if leaf else []
        kept = [message for step in path for message in (*step.given, step.message)]
        sent = _results_as_called(_whole_turns(json.loads(json.dumps(sent)), kept))
        for i, (theirs, ours) in enumerate(zip(sent, kept, strict=False)):
            calls = [
                (call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in theirs.get("tool_calls") or ()
            ]
            says = theirs["role"], _said(theirs), calls
            if says != (
                ours.role,
                ours.content.strip(),
                [(call.name, json.loads(call.arguments)) for call in ours.tool_calls],
            ):
                return f"message {i} is {says}, the spliced path's {ours}"
            for call, recorded in zip(theirs.get("tool_calls") or (), ours.tool_calls, strict=True):
                call["function"]["arguments"] = (
                    recorded.arguments
                )  # the same value, in the order of keys that it had first
        standing = json.loads(json.dumps(sent))
        for step in path:
            standing[step.position] = {"role": "assistant", "content": self.raw[id(step)]}
        if leaf is None:
            return None
        told = _squeezed(template_of(self.family).decode(placement.prompt_ids))
        wanted = _squeezed(self._whole(standing))
        return None if told == wanted else f"the prompt reads\n{told}\nand the client's history\n{wanted}"

    def _whole(self, history: list[Json]) -> str:
        for message in history:
            message["content"] = _said(message)
            calls = message.pop("tool_calls", None) or ()
            for call in calls:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            if calls and message["content"] and self.family == "llama3":
                # Its template would drop the text beside a call; ours does not.
                written = [
                    ToolCall(
                        "", call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False)
                    )
                    for call in calls
                ]
                message["content"] = FAMILIES[self.family].writes(
                    Message("assistant", message["content"], tuple(written))
                )
            elif calls:
                message["tool_calls"] = calls
        text = tokenizer_of(self.family).apply_chat_template(
            history, tools=self.listed() if self.tools else None, add_generation_prompt=True, tokenize=False
        )
        return str(text)


def _whole_turns(history: list[Json], kept: list[Message]) -> list[Json]:
    """The history in which a turn that came in parts is one message where the path has it as one."""
    out: list[Json] = []
    for message in history:
        whole = kept[len(out) - 1] if out and len(out) <= len(kept) else None
        if whole and whole.role == message["role"] == out[-1]["role"] == "assistant":
            text = _said(out[-1]) + _said(message)
            calls = [*(out[-1].get("tool_calls") or ()), *(message.get("tool_calls") or ())]
            if text.strip() == whole.content.strip() and len(calls) <= len(whole.tool_calls):
                out[-1] = {**out[-1], "content": text, "tool_calls": calls}
                continue
        out.append(message)
    return out


def _results_as_called(history: list[Json]) -> list[Json]:
    """The history with the results of a turn's calls in the order of the calls: a client may send them in any. One
    under another id stays where it is."""
    out = list(history)
    for at, message in enumerate(history):
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        end = next((i for i in range(at + 1, len(history)) if history[i]["role"] != "tool"), len(history))
        mine = [i for i in range(at + 1, end) if history[i]["tool_call_id"] in ids]
        for i, wanted in zip(mine, sorted(mine, key=lambda i: ids.index(history[i]["tool_call_id"])), strict=True):
            out[i] = history[wanted]
    return out


def _said(message: Json) -> str:
    content = message.get("content") or ""
    return ("".join(part["text"] for part in content) if isinstance(content, list) else content).strip()


def _squeezed(text: str) -> str:
    """White space at the edges of a turn is the template's business."""
    return " ".join(text.replace("<|", " <|").replace("|>", "|> ").split())
