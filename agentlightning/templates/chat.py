"""ChatTemplate: the `Template` over a Hugging Face tokenizer.

Renders a history with a marker in place of each recorded sample, so that what is between the markers is exactly the
template's and the client's text. What the probe found the template not to do is done here in text: tools, calls and
results, system messages, roles in a row.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from tokenizers import Tokenizer

from agentlightning.errors import ConfigError, ModelError, TemplateError
from agentlightning.nouns import FinishReason, Json, Message, Tool
from agentlightning.templates.base import Parsed, Rendering, SampledTurn
from agentlightning.templates.codec import Codec, control_tokens
from agentlightning.templates.escaping import MARK, MARKER, Escaper, marker
from agentlightning.templates.formats import FORMATS, tool_response
from agentlightning.templates.harmony import CHANNEL, END, MESSAGE, START, HarmonyReader
from agentlightning.templates.parser import TAGS, Reader, ReplyParser, Tags, TextReader, joined
from agentlightning.templates.probe import REASONING_FIELDS, Probe, Start, called, probe, short_id
from agentlightning.templates.renderer import Renderer
from agentlightning.templates.tool_rendering import ToolRendering

logger = logging.getLogger(__name__)

_ANALYSIS = f"{CHANNEL}analysis"

MAX_VARIANTS = 32
"""Sets of `chat_template_kwargs` whose template is kept."""


@dataclass(slots=True)
class _Turn:
    """A message on its way to the template: its text escaped or a marker, and what the marker becomes."""

    role: str
    content: str
    fields: dict[str, Json] = field(default_factory=dict[str, Json])
    place: _Place | None = None

    def joined(self, other: _Turn) -> _Turn:
        """With a turn that follows it, neither of which holds a sample."""
        text = "\n\n".join(part for part in (self.content, other.content) if part)
        return _Turn(self.role, text, {**other.fields, **self.fields})

    def as_json(self) -> Json:
        return {"role": self.role, "content": self.content, **self.fields}


@dataclass(slots=True)
class _Place:
    """What a marked turn becomes. ``sample`` None: the calls that the template was given are written here,
    ``reasoning`` where it shows any."""

    sample: SampledTurn | None
    reasoning: str
    text: str
    reasons: bool
    call: bool
    """The template was given a call, so that its marker stands in front of a name."""
    start: Start


class _Variants:
    """The variants of one template that were asked for last. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[bytes, ChatTemplate] = OrderedDict()

    def get(self, key: bytes, make: Callable[[bytes], ChatTemplate]) -> ChatTemplate:
        with self._lock:
            found = self._made.pop(key, None) or make(key)
            self._made[key] = found
            if len(self._made) > MAX_VARIANTS:
                self._made.popitem(last=False)
            return found


class ChatTemplate:
    """Made by `load_template`. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        tool_format: str | None = None,
        stop_token_ids: Sequence[int] = (),
        keep_reasoning: bool = False,
        reasoning_tags: Tags | None = None,
    ) -> None:
        if tool_format is not None and tool_format not in FORMATS:
            raise ConfigError(
                f"tool_format {tool_format!r} is not known: use one of {', '.join(sorted(FORMATS))}, or leave it out"
            )
        core, source, sources = _parts_of(tokenizer)
        control = control_tokens(core, source)
        self._escaper = Escaper(control)
        self.kwargs_key = b""
        self._variants = _Variants()
        self._keep_reasoning = keep_reasoning
        eos = cast("str | None", tokenizer.eos_token)
        known = {token.content for token in core.get_added_tokens_decoder().values()}
        harmony = all(sign in known or sign in source for sign in FORMATS["harmony"].signs)
        if reasoning_tags and harmony:
            raise ConfigError(
                f"reasoning_tags {list(reasoning_tags)} cannot hold: this model writes its reasoning into a channel of "
                "its own, which is read anyway; leave them out"
            )
        spoken = [tags for tags in TAGS if any(tag in source or tag in known for tag in tags)]
        self.reasoning_tags = reasoning_tags or (spoken[0] if spoken and not harmony else None)
        """What encloses the model's reasoning; None where it has none, or channels instead."""
        self._probed = partial(
            probe,
            escaper=self._escaper,
            reasoning=harmony or self.reasoning_tags is not None,
            tags=self.reasoning_tags,
            ends=[eos] if eos else [],
        )
        try:
            self._renderer = Renderer.of(sources, cast("dict[str, str]", tokenizer.special_tokens_map))
            self.probe: Probe = self._probed(self._renderer)
        except TemplateError as error:
            raise ModelError(
                f"the tokenizer's chat template cannot be used: {error}; give the model folder one that can"
            ) from error
        found = self.probe
        self.tool_rendering = ToolRendering.of(tool_format, found, known, source)
        self.tool_format: str = self.tool_rendering.choice.name
        form = self.tool_rendering.format
        ends = [found.end_of_turn, *form.ends, *([found.calls.end] if found.calls else [])]
        eos_id = cast("int | None", tokenizer.eos_token_id)
        ids = [control[end] for end in ends if end in control and end not in form.goes_on]
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*ids, *([] if eos_id is None else [eos_id]), *stop_token_ids])
        )
        self._stop_ids = frozenset(self.stop_token_ids)
        unknown = cast("str | None", getattr(core.model, "unk_token", tokenizer.unk_token))
        self._codec = Codec(core, control, self._escaper, separator=found.end_of_turn or eos, unknown=unknown)
        self._warned = False
        self.fitted: dict[str, None] = {}
        """What orders of roles, so far, were made fit for a template that refuses them."""

    # ----------------------------------------------------------------- what clients hand to the template
    def unused_kwargs(self, kwargs: Mapping[str, Json]) -> tuple[str, ...]:
        """As in `base.Template`."""
        return tuple(name for name in kwargs if name not in self._renderer.takes)

    def with_kwargs(self, kwargs: Mapping[str, Json]) -> ChatTemplate:
        """As in `base.Template`. It is probed anew, since what begins a reply may be another; the same one is given for
        the same values."""
        taken = {name: kwargs[name] for name in sorted(kwargs.keys() & self._renderer.takes)}
        return (
            self._variants.get(
                b"\0" + json.dumps(taken, sort_keys=True).encode(), lambda key: self._variant(key, taken)
            )
            if taken
            else self
        )

    def _variant(self, key: bytes, taken: dict[str, Json]) -> ChatTemplate:
        other = copy.copy(self)
        other._renderer = self._renderer.handed(cast("dict[str, Json]", self._escaper.escape_json(taken)))
        other.kwargs_key = key
        other.probe = other._probed(other._renderer)
        return other

    # ----------------------------------------------------------------- rendering
    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], sampled: Mapping[int, SampledTurn]
    ) -> Rendering:
        """As in `base.Template`."""
        if not messages:
            raise TemplateError("there are no messages")
        offered = [self._escaper.escape_json(_as_function(tool)) for tool in tools]
        places: dict[int, _Place] = {}
        turns = self._turns(messages, offered, sampled, places)
        shown = offered if offered and self.tool_rendering.native_list and not self.probe.tools_in_system else None
        text = self._renderer([turn.as_json() for turn in turns], shown, True)
        return self._split(text, places)

    def _turns(
        self,
        messages: Sequence[Message],
        offered: Sequence[Json],
        sampled: Mapping[int, SampledTurn],
        places: dict[int, _Place],
    ) -> list[_Turn]:
        lost = not self.tool_rendering.native_calls and any(m.tool_calls or m.role == "tool" for m in messages)
        if not self._warned and (lost or (offered and not self.tool_rendering.native_list)):
            self._warned = True
            logger.warning("%s", self.tool_rendering.fallback)
        turns: list[_Turn] = []
        names: dict[str, str] = {}
        extra = (
            self.tool_rendering.format.instructions(offered, as_text=not self.tool_rendering.native_calls)
            if offered and not self.tool_rendering.native_list
            else ""
        )
        as_json = (
            self._escaper.broken(json.dumps(offered, ensure_ascii=False))
            if offered and self.tool_rendering.native_list and self.probe.tools_in_system
            else ""
        )
        if (extra or as_json) and messages[0].role != "system":
            turns.append(_Turn("system", extra, {"tools": as_json} if as_json else {}))
        for i, message in enumerate(messages):
            for call in message.tool_calls:
                names[call.id] = call.name
            if message.role == "assistant":
                turn = self._assistant(i, messages, sampled.get(i), places)
            elif message.role == "tool":
                turn = self._result(message, names)
            elif message.role in ("system", "user"):
                turn = _Turn(message.role, self._escaper.escape(message.content))
                if message.name:
                    turn.fields["name"] = self._escaper.escape(message.name)
                if i == 0 and message.role == "system":
                    if extra:
                        turn = turn.joined(_Turn("system", extra))
                    if as_json:
                        turn.fields["tools"] = as_json
            else:
                raise TemplateError(
                    f"a message has the role {message.role!r}: it has to be system, user, assistant or tool"
                )
            if (
                turn.role == "user"
                and message.role == "tool"
                and i > 0
                and messages[i - 1].role == "tool"
                and turns[-1].role == "user"
            ):
                # Results of one round are one user turn, as in templates that know tools.
                turns[-1].content += "\n" + turn.content
            else:
                turns.append(turn)
        return self._alternating(self._accepted(turns), bool(offered) and self.tool_rendering.native_list)

    def _assistant(
        self, i: int, messages: Sequence[Message], sample: SampledTurn | None, places: dict[int, _Place]
    ) -> _Turn:
        message = messages[i]
        given = bool(message.tool_calls) and self.tool_rendering.native_calls and self.probe.calls is not None
        if sample is None and not given:
            return self._written(message)
        reasons = self._reasons(sample.text) if sample else bool(message.reasoning) and self.probe.reasoning
        reasoning, text = ("", "") if sample else self._as_sampled(message)
        turn = self._given(i, message) if given else _Turn("assistant", marker("c", i))
        turn.place = places[i] = _Place(sample, reasoning, text, reasons, given, self.probe.after_user)
        if reasons and self.probe.reasoning_field:
            turn.fields |= dict.fromkeys(REASONING_FIELDS, marker("r", i))
        elif reasons and self.reasoning_tags and not given:
            turn.content = marker("r", i) + "".join(self.reasoning_tags) + turn.content
        return turn

    def _reasons(self, text: str) -> bool:
        """Whether a sample holds reasoning. An empty pair of tags is none: no template loses anything by leaving it
        out."""
        if not self.probe.reasoning:
            return False
        if self.reasoning_tags is None:
            return _ANALYSIS in text
        opening, closing = self.reasoning_tags
        rest = text.lstrip()
        if rest.startswith(opening):
            rest = rest[len(opening) :].lstrip()
        elif not self.probe.thinks_first:
            return False
        return not rest.startswith(closing)

    def _given(self, i: int, message: Message) -> _Turn:
        """A turn with calls as the template wants them: marked names, and arguments that are nothing but a marker."""
        style = self.probe.calls
        assert style is not None
        escape = self._escaper.escape
        calls = [
            (escape(call.id), marker("c", i) + escape(call.name), {"value": marker("e", i)})
            for call in message.tool_calls
        ]
        return _Turn("assistant", "", called(style, calls))

    def _as_sampled(self, message: Message) -> tuple[str, str]:
        """The reasoning and the rest of a turn that was not sampled here, as the model would have written them."""
        content, thought = self._escaper.escape(message.content), self._escaper.escape(message.reasoning or "")
        if self.tool_rendering.format.scanner is None:
            again = f"{END}{START}assistant"
            said = f"{CHANNEL}commentary{MESSAGE}{content}{again}" if content else ""
            return f"{_ANALYSIS}{MESSAGE}{thought}{again}", self.tool_rendering.format.write_reply(
                said, self._calls(message)
            )
        opening, closing = self.reasoning_tags or ("", "")
        return f"{opening}\n{thought}\n{closing}\n\n", self.tool_rendering.format.write_reply(
            content, self._calls(message)
        )

    def _calls(self, message: Message) -> list[tuple[str, str]]:
        """Names and arguments, escaped: JSON objects re-serialised as templates do it, anything else as it is."""
        escape = self._escaper.escape
        return [(escape(c.name), self._object(c.arguments) or escape(c.arguments)) for c in message.tool_calls]

    def _object(self, arguments: str) -> str | None:
        """Its strings are escaped before they are JSON: a format may write them bare, and a token's text may hold what
        JSON writes with a backslash."""
        if not arguments.strip():
            return "{}"
        try:
            value = json.loads(arguments)
            if not isinstance(value, dict):
                return None
            return self._escaper.broken(json.dumps(self._escaper.escape_json(cast("Json", value)), ensure_ascii=False))
        except (ValueError, RecursionError):
            return None

    def _written(self, message: Message) -> _Turn:
        """An assistant turn that was not sampled here (or that the template rewrites). Its calls are written as the
        model would write them."""
        escape = self._escaper.escape
        turn = _Turn("assistant", self.tool_rendering.format.write_reply(escape(message.content), self._calls(message)))
        if message.reasoning is not None and self.probe.reasoning:
            reasoning = escape(message.reasoning)
            if self.probe.reasoning_field:
                turn.fields |= dict.fromkeys(REASONING_FIELDS, reasoning)
            elif self.reasoning_tags:
                turn.content = f"{self.reasoning_tags[0]}\n{reasoning}\n{self.reasoning_tags[1]}\n\n{turn.content}"
        return turn

    def _result(self, message: Message, names: Mapping[str, str]) -> _Turn:
        content = self._escaper.escape(message.content)
        of = message.tool_call_id or ""
        if not self.tool_rendering.native_calls or (self.probe.calls and of not in names):
            # A template that asks for calls as such refuses a result whose call a client has cut away.
            return _Turn("user", tool_response(content))
        name = message.name or names.get(of, "")
        if of and self.probe.calls and self.probe.calls.short_ids:
            of = short_id(of)
        fields = {"tool_call_id": of, "name": name}
        return _Turn("tool", content, {key: self._escaper.escape(value) for key, value in fields.items() if value})

    def _accepted(self, turns: list[_Turn]) -> list[_Turn]:
        """The turns with the system texts that the template refuses or drops put where it does neither."""
        found = self.probe
        accepted: list[_Turn] = []
        waiting: _Turn | None = None
        # What comes behind a sample must not change what is before it: a first system text is judged by the turn that
        # follows it.
        behind = next((turn.role for turn in turns if turn.role != "system"), None)
        first_system = found.system if behind == "user" else found.lone_system
        for position, turn in enumerate(turns):
            if turn.role == "system" and not (found.later_system if position else first_system):
                turn = _Turn("user", turn.content)
                waiting = waiting.joined(turn) if waiting else turn
                continue
            if waiting:
                if turn.role == "user":
                    turn = waiting.joined(turn)
                else:
                    accepted.append(waiting)
                waiting = None
            accepted.append(turn)
        if waiting:
            accepted.append(waiting)
        return accepted

    def _alternating(self, turns: list[_Turn], tools: bool) -> list[_Turn]:
        """The turns in an order that the template takes: where user and assistant must alternate, users in a row are
        joined and an empty turn stands where another is missing. What is in front of an assistant's turn is the same
        whatever comes behind it."""
        found = self.probe
        opens = found.assistant_first_with_tools if tools else found.assistant_first
        result: list[_Turn] = []
        last: str | None = None  # whose turn the last one was that counts

        def fill(role: str, why: str) -> str:
            self.fitted.setdefault(why)
            result.append(_Turn(role, ""))
            return role

        for turn in (*turns, None):
            behind = result[-1] if result else None
            if turn is None or turn.role in ("assistant", "tool"):  # None: the reply that is about to be sampled
                if last is None and not opens:
                    last = fill(
                        "user", "a conversation that the user does not open begins with an empty turn of the user's"
                    )
                elif (
                    last == "assistant" and not found.repeated_assistants and (turn is None or turn.role == "assistant")
                ):
                    last = fill("user", "replies in a row have an empty turn of the user's between them")
                elif turn and turn.place and behind and behind.role == "tool":
                    turn.place.start = found.after_tool
            elif turn.role == "user" and behind:
                if behind.role == "user" and not found.repeated_users:
                    result[-1] = behind.joined(turn)
                    continue
                called = behind.role == "tool" or "tool_calls" in behind.fields
                fits = found.user_after_results if behind.role == "tool" else found.user_after_calls
                if called and not fits and (last != "assistant" or found.repeated_assistants):
                    fill("assistant", "a user's turn behind a call has an empty reply in front of it")
            if turn is not None:
                result.append(turn)
                # Results, and calls given as such, are none of the turns that alternate.
                counts = turn.role == "user" or (turn.role == "assistant" and "tool_calls" not in turn.fields)
                last = turn.role if counts else last or ("user" if turn.role != "system" else None)
        return result

    def _split(self, text: str, places: Mapping[int, _Place]) -> Rendering:
        """Cuts a rendering at its markers and makes the text around each read as it did when the sample was drawn."""
        if not places:
            return Rendering((text,))
        spans: dict[str, list[tuple[int, int]]] = {}
        for found in MARKER.finditer(text):
            spans.setdefault(found[0], []).append(found.span())
        texts: list[str] = []
        changed: dict[str, list[int]] = {}
        cursor, so_far = 0, ""
        for i, place in places.items():
            found = spans.get(marker("c", i), ())
            if cursor and found:
                found = [span for span in found if span[0] >= cursor]
            ends = spans.get(marker("e", i), ()) if place.call else found
            if not found or not ends or (len(found) > 1 and not place.call):
                if place.sample is None:
                    raise TemplateError(f"the chat template leaves out the tool calls of message {i}")
                changed.setdefault("repeats" if found else "leaves out", []).append(i)
                texts.append(so_far)
                so_far = ""
                continue
            start, end = found[0][0], ends[-1][1]
            openings: Sequence[int] = ()
            if place.reasons:
                openings = [opening for opening, _ in spans.get(marker("r", i), ()) if cursor <= opening < start]
                if openings:
                    start = openings[0]
                elif place.sample and not self._keep_reasoning:
                    changed.setdefault("drops the reasoning of", []).append(i)
            before, past = (
                self._head(_unmarked(text[cursor:start]), place, bool(openings)),
                self._past_end(text, end, place),
            )
            if before is None or past is None:
                if place.sample is None:
                    raise TemplateError(f"the chat template renders the tool calls of message {i} in a form of its own")
                changed.setdefault("has a form of its own for", []).append(i)
                before, past = "", end
            cursor = past
            if place.sample is None:
                so_far += before + (place.reasoning if openings else "") + place.text
            else:
                texts.append(so_far + before)
                so_far = ""
        texts.append(so_far + _unmarked(text[cursor:]))
        why = "; ".join(
            f"the chat template {what} message {', '.join(map(str, which))}" for what, which in changed.items()
        )
        return Rendering(tuple(texts), why or None, tuple(sorted({i for which in changed.values() for i in which})))

    def _head(self, before: str, place: _Place, reasons: bool) -> str | None:
        """The text before a sample with the generation prompt in place of what a history has there. None for a call
        that starts in no known way."""
        heads = place.start.heads if not place.call or reasons else (place.start.call_head,)
        for head in heads:
            if head is not None and before.endswith(head):
                if place.sample is None:
                    # What the format writes itself goes; anything before that is the template's.
                    return before.removesuffix(
                        head
                        if reasons
                        else self.tool_rendering.opening
                        if head.endswith(self.tool_rendering.opening)
                        else head
                    )
                return before[: len(before) - len(head)] + place.start.generation
        return None if place.call else before

    def _past_end(self, text: str, at: int, place: _Place) -> int | None:
        """Where the text behind a sample goes on, past the end-of-turn that the sample holds already. None for a call
        that ends in no known way."""
        ends = (self.probe.end_of_turn, *self.tool_rendering.format.goes_on)
        if place.call:
            style = self.probe.calls
            assert style is not None
            if not text.startswith(style.tail, at):
                return None
            at += len(style.tail)
            ends = (style.end, *ends)
        if place.sample and place.sample.ended_with:
            past = at
            while text[past : past + 1].isspace():
                past += 1
            for word in (place.sample.ended_with, *ends):
                if word and text.startswith(word, past):
                    return past + len(word)
        return at

    # ----------------------------------------------------------------- tokens
    def encode(self, text: str, *, start: bool) -> array[int]:
        """As in `base.Template`."""
        return self._codec.encode(text, start=start)

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
        """As in `base.Template`."""
        return self._codec.encode_all(texts)

    def decode(self, token_ids: Sequence[int]) -> str:
        """As in `base.Template`, reading as it would behind other tokens."""
        return self._codec.decode(token_ids)

    def sampled_turn(self, token_ids: Sequence[int]) -> SampledTurn:
        """As in `base.Template`."""
        if token_ids and token_ids[-1] in self._stop_ids:
            return SampledTurn(self.decode(token_ids[:-1]), self.decode(token_ids[-1:]))
        return SampledTurn(self.decode(token_ids), "")

    # ----------------------------------------------------------------- replies
    def stream(self, tools: Sequence[Tool], stop: Sequence[str] = (), *, plain: bool = False) -> ReplyParser:
        """As in `base.Template`."""
        reader = TextReader(None, None, inside=False) if plain else self._reader(tools)
        return ReplyParser(self._codec, self._stop_ids, reader, stop)

    def _reader(self, tools: Sequence[Tool]) -> Reader:
        scanner = self.tool_rendering.format.scanner
        if scanner is None:
            return HarmonyReader(tools=bool(tools))
        return TextReader(self.reasoning_tags, scanner(tools) if tools else None, inside=self.probe.thinks_first)

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        finish: FinishReason,
        stop_string: str | None = None,
        *,
        plain: bool = False,
    ) -> Parsed:
        """As in `base.Template`. The message's ``reasoning`` is None where there is none."""
        parser = self.stream(tools, (stop_string,) if stop_string else (), plain=plain)
        whole = joined(parser.feed(array("i", token_ids)), parser.finish(finish, stop_string))
        message = Message("assistant", whole.content, whole.tool_calls, reasoning=whole.reasoning or None)
        return Parsed(message, parser.malformed, parser.thought_tokens)


def _parts_of(tokenizer: Any) -> tuple[Tokenizer, str, dict[str, str]]:
    """The Rust tokenizer, the chat template's source, and the source for each use (``default``, ``tool_use``). Raises
    ModelError."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(core, Tokenizer):
        raise ModelError(f"{type(tokenizer).__name__} is not a fast tokenizer: the model folder needs a tokenizer.json")
    template = cast("str | dict[str, str] | None", tokenizer.chat_template)
    if not template:
        raise ModelError(
            "the tokenizer has no chat template: put a chat_template.jinja into the model folder (an instruct model's "
            "folder has one)"
        )
    if isinstance(template, str):
        return core, template, {"default": template, "tool_use": template}
    default = template.get("default") or next(iter(template.values()))
    return core, "\n".join(template.values()), {"default": default, "tool_use": template.get("tool_use") or default}


def _unmarked(text: str) -> str:
    return MARKER.sub("", text) if MARK in text else text


def _as_function(tool: Tool) -> Json:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
    }
