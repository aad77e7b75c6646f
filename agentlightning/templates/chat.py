"""ChatTemplate: the `Template` over a Hugging Face tokenizer.

Renders a history with a marker in place of each recorded sample, so that what is between the markers is exactly the template's and the client's
text. What the probe found the template not to do is done here in text: tools, calls and results, system messages, roles in a row.
"""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tokenizers import Tokenizer

from agentlightning.errors import ConfigError, ModelError, TemplateError
from agentlightning.templates.base import Rendering, SampledTurn
from agentlightning.templates.codec import Codec, control_tokens
from agentlightning.templates.formats import FORMATS, tool_response
from agentlightning.templates.guard import MARKER, Guard, marker
from agentlightning.templates.parser import END_THINK, THINK, ReplyParser
from agentlightning.templates.probe import probe
from agentlightning.types import FinishReason, Json, Message, Tool

logger = logging.getLogger(__name__)

_SPACE = re.compile(r"\s*")


@dataclass(slots=True)
class _Turn:
    """A message on its way to the template: its text escaped or a marker, and which messages' samples it holds."""

    role: str
    content: str
    fields: dict[str, Json] = field(default_factory=dict[str, Json])
    samples: tuple[int, ...] = ()
    merged: bool = False

    def joined(self, other: _Turn) -> _Turn:
        text = "\n\n".join(part for part in (self.content, other.content) if part)
        return _Turn(self.role, text, {**other.fields, **self.fields}, self.samples + other.samples, True)


class ChatTemplate:
    """Made by `load_template`. Safe to use from several threads."""

    def __init__(self, tokenizer: Any, *, tool_format: str | None = None, stop_token_ids: Sequence[int] = ()) -> None:
        if tool_format is not None and tool_format not in FORMATS:
            raise ConfigError(f"tool_format {tool_format!r} is not known: use one of {', '.join(sorted(FORMATS))}, or leave it out")
        self._tokenizer = tokenizer
        core, source = _parts_of(tokenizer)
        control = control_tokens(core, source)
        self._guard = Guard(control)
        added = [token.content for token in core.get_added_tokens_decoder().values()]
        try:
            self.probe = probe(self._apply, self._guard, reasoning=THINK in source or THINK in added)
        except TemplateError as error:
            raise ModelError(f"the tokenizer's chat template cannot be used: {error}; give the model folder one that can") from error
        found = self.probe
        ends = [control[found.end_of_turn]] if found.end_of_turn else []
        eos = cast("int | None", tokenizer.eos_token_id)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*ends, *([] if eos is None else [eos]), *stop_token_ids]))
        self._stop_ids = frozenset(self.stop_token_ids)
        unknown = cast("str | None", getattr(core.model, "unk_token", tokenizer.unk_token))
        self._codec = Codec(
            core, control, self._guard, separator=found.end_of_turn or cast("str | None", tokenizer.eos_token), unknown=unknown
        )

        self.tool_format: str = tool_format or found.call_format or "text"
        self.native_tools: bool = not found.lacks and self.tool_format == found.call_format
        """The template's own rendering of tools is used."""
        self.chosen_by: str = "asked for" if tool_format else "found in the template" if found.call_format else "the template has none"
        self._format = FORMATS[self.tool_format]
        self._warned = False

    # ----------------------------------------------------------------- rendering
    def render(self, messages: Sequence[Message], tools: Sequence[Tool], sampled: Mapping[int, SampledTurn]) -> Rendering:
        """As in `base.Template`."""
        if not messages:
            raise TemplateError("there are no messages")
        offered = [self._guard.escape_json(_as_function(tool)) for tool in tools]
        turns = self._turns(messages, offered, sampled)
        text = self._apply(
            [{"role": turn.role, "content": turn.content, **turn.fields} for turn in turns],
            offered if offered and self.native_tools else None,
            True,
        )
        return self._split(text, sampled, {i for turn in turns if turn.merged for i in turn.samples})

    def _apply(self, messages: Sequence[Json], tools: Sequence[Json] | None, generate: bool) -> str:
        try:
            return cast(str, self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=generate))
        except Exception as error:  # a template is a program of somebody else's: it may fail in any way
            raise TemplateError(
                f"the chat template refused the conversation: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error

    def _turns(self, messages: Sequence[Message], offered: Sequence[Json], sampled: Mapping[int, SampledTurn]) -> list[_Turn]:
        if not self.native_tools and not self._warned and (offered or any(m.tool_calls or m.role == "tool" for m in messages)):
            self._warned = True
            logger.warning("%s", self.fallback)
        turns: list[_Turn] = []
        names: dict[str, str] = {}
        extra = self._format.instructions(offered) if offered and not self.native_tools else ""
        if extra and messages[0].role != "system":
            turns.append(_Turn("system", extra))
        for i, message in enumerate(messages):
            for call in message.tool_calls:
                names[call.id] = call.name
            if i in sampled:
                turn = self._recorded(i, sampled[i])
            elif message.role == "assistant":
                turn = self._written(message)
            elif message.role == "tool":
                turn = self._result(message, names)
            elif message.role in ("system", "user"):
                turn = _Turn(message.role, self._guard.escape(message.content))
                if message.name:
                    turn.fields["name"] = self._guard.escape(message.name)
                if extra and i == 0 and message.role == "system":
                    turn = turn.joined(_Turn("system", extra))
            else:
                raise TemplateError(f"a message has the role {message.role!r}: it has to be system, user, assistant or tool")
            if turn.role == "user" and message.role == "tool" and i > 0 and messages[i - 1].role == "tool":
                # Results of one round are one user turn, as in templates that know tools.
                turns[-1].content += "\n" + turn.content
            else:
                turns.append(turn)
        return self._accepted(turns)

    def _recorded(self, i: int, sample: SampledTurn) -> _Turn:
        turn = _Turn("assistant", marker("c", i), samples=(i,))
        if self._reasons(sample.text):
            if self.probe.reasoning_field:
                turn.fields["reasoning_content"] = marker("r", i)
            else:
                turn.content = marker("r", i) + THINK + END_THINK + turn.content
        return turn

    def _reasons(self, text: str) -> bool:
        return self.probe.reasoning and (self.probe.thinks_first or text.lstrip().startswith(THINK))

    def _written(self, message: Message) -> _Turn:
        """An assistant turn that was not sampled here (or that the template rewrites). Its calls are written as the model would write them."""
        escape = self._guard.escape
        calls = [self._format.write(escape(call.name), escape(_canonical(call.arguments))) for call in message.tool_calls]
        turn = _Turn("assistant", "\n".join([*([escape(message.content)] if message.content else []), *calls]))
        if message.reasoning is not None and self.probe.reasoning:
            reasoning = escape(message.reasoning)
            if self.probe.reasoning_field:
                turn.fields["reasoning_content"] = reasoning
            else:
                turn.content = f"{THINK}\n{reasoning}\n{END_THINK}\n\n{turn.content}"
        return turn

    def _result(self, message: Message, names: Mapping[str, str]) -> _Turn:
        content = self._guard.escape(message.content)
        if not self.native_tools:
            return _Turn("user", tool_response(content))
        of = message.tool_call_id or ""
        fields = {"tool_call_id": of, "name": message.name or names.get(of, "")}
        return _Turn("tool", content, {key: self._guard.escape(value) for key, value in fields.items() if value})

    def _accepted(self, turns: list[_Turn]) -> list[_Turn]:
        """The turns with what the template refuses or drops put where it does neither: system texts, and the same role twice in a row."""
        found = self.probe
        accepted: list[_Turn] = []
        waiting: _Turn | None = None
        first_system = found.system if any(turn.role == "user" for turn in turns) else found.lone_system
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
        repeated = {"user": found.repeated_users, "assistant": found.repeated_assistants}
        result: list[_Turn] = []
        for turn in accepted:
            if result and result[-1].role == turn.role and not repeated.get(turn.role, True):
                result[-1] = result[-1].joined(turn)
            else:
                result.append(turn)
        return result

    def _split(self, text: str, sampled: Mapping[int, SampledTurn], joined: set[int]) -> Rendering:
        """Cuts a rendering at its markers and makes the text around each read as it did when the sample was drawn."""
        spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for found in MARKER.finditer(text):
            spans.setdefault((found[1], int(found[2])), []).append(found.span())
        texts: list[str] = []
        changed: dict[str, list[int]] = {}
        cursor = 0
        for i in sorted(sampled):
            places = [span for span in spans.get(("c", i), []) if span[0] >= cursor]
            if len(places) != 1:
                changed.setdefault("leaves out" if not places else "repeats", []).append(i)
                texts.append("")
                continue
            start, end = places[0]
            if self._reasons(sampled[i].text):
                openings = [opening for opening, _ in spans.get(("r", i), []) if cursor <= opening < start]
                if openings:
                    start = openings[0]
                else:
                    changed.setdefault("drops the reasoning of", []).append(i)
            if i in joined:
                changed.setdefault("cannot show apart from its neighbour", []).append(i)
            texts.append(self._head(MARKER.sub("", text[cursor:start])))
            cursor = self._past_end(text, end, sampled[i])
        texts.append(MARKER.sub("", text[cursor:]))
        why = "; ".join(f"the chat template {what} message {', '.join(map(str, which))}" for what, which in changed.items())
        return Rendering(tuple(texts), why or None, tuple(sorted({i for which in changed.values() for i in which})))

    def _head(self, before: str) -> str:
        """The text before a sample with the generation prompt in place of what a history has there."""
        for head in self.probe.heads:
            if before.endswith(head):
                return before[: len(before) - len(head)] + self.probe.generation
        return before

    def _past_end(self, text: str, at: int, sample: SampledTurn) -> int:
        """Where the text behind a sample goes on, past the end-of-turn that the sample holds already."""
        if sample.ended_with:
            space = _SPACE.match(text, at)
            past = space.end() if space else at
            for word in (sample.ended_with, self.probe.end_of_turn):
                if word and text.startswith(word, past):
                    return past + len(word)
        return at

    @property
    def fallback(self) -> str:
        """One line for people: why tools are rendered as text. "" where the template's own rendering is used."""
        if self.native_tools:
            return ""
        if self.probe.lacks:
            why = f"the chat template does not render {' or '.join(self.probe.lacks)}"
        else:
            why = f"tool_format {self.tool_format!r} is not what the chat template writes ({self.probe.call_format!r})"
        return f"{why}: tools, calls and results are written as text, in the form {self.tool_format!r}"

    # ----------------------------------------------------------------- tokens
    def encode(self, text: str, *, start: bool) -> array[int]:
        """As in `base.Template`."""
        return self._codec.encode(text, start=start)

    def decode(self, token_ids: Sequence[int]) -> str:
        """As in `base.Template`, reading as it would behind other tokens."""
        return self._codec.decode(token_ids)

    def sampled_turn(self, token_ids: Sequence[int]) -> SampledTurn:
        """As in `base.Template`."""
        if token_ids and token_ids[-1] in self._stop_ids:
            return SampledTurn(self.decode(token_ids[:-1]), self.decode(token_ids[-1:]))
        return SampledTurn(self.decode(token_ids), "")

    # ----------------------------------------------------------------- replies
    def stream(self, tools: Sequence[Tool], stop: Sequence[str] = ()) -> ReplyParser:
        """As in `base.Template`."""
        return ReplyParser(
            self._codec,
            self._stop_ids,
            self._format.scanner() if tools else None,
            stop,
            reasoning=self.probe.reasoning,
            inside=self.probe.thinks_first,
        )

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool], finish: FinishReason, stop_string: str | None = None) -> Message:
        """As in `base.Template`. ``reasoning`` is None where there is none."""
        parser = self.stream(tools, (stop_string,) if stop_string else ())
        first, last = parser.feed(array("i", token_ids)), parser.finish(finish, stop_string)
        return Message(
            "assistant",
            first.content + last.content,
            first.tool_calls + last.tool_calls,
            reasoning=(first.reasoning + last.reasoning) or None,
        )


def _parts_of(tokenizer: Any) -> tuple[Tokenizer, str]:
    """The Rust tokenizer and the chat template's source. Raises ModelError."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(core, Tokenizer):
        raise ModelError(f"{type(tokenizer).__name__} is not a fast tokenizer: the model folder needs a tokenizer.json")
    template = cast("str | dict[str, str] | None", tokenizer.chat_template)
    if not template:
        raise ModelError(
            "the tokenizer has no chat template: put a chat_template.jinja into the model folder (an instruct model's folder has one)"
        )
    return core, template if isinstance(template, str) else "\n".join(template.values())


def _as_function(tool: Tool) -> Json:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
    }


def _canonical(arguments: str) -> str:
    """Arguments as templates write them: JSON objects re-serialised, anything else as it is."""
    try:
        value = json.loads(arguments)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else arguments
    except (ValueError, RecursionError):
        return arguments if arguments.strip() else "{}"
