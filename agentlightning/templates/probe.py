"""Probe: what a chat template does with each thing a conversation can hold, found by rendering known words and looking
for them.

Templates drop tool lists, calls and results in silence, merge or refuse roles, and rewrite earlier turns; none of that
can be read off their source. Runs once, when a template is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from agentlightning.errors import TemplateError
from agentlightning.nouns import Json, Tool
from agentlightning.templates.escaping import Escaper, marker
from agentlightning.templates.formats import FORMATS, read_whole
from agentlightning.templates.parser import Tags

Render = Callable[[Sequence[Json], "Sequence[Json] | None", bool], str]
"""(messages, tools, with the generation prompt) -> text. Raises TemplateError."""

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""The names under which templates look for a message's reasoning."""


@dataclass(frozen=True, slots=True)
class Start:
    """How an assistant's turn begins, in a history and when it is about to be sampled."""

    generation: str = ""
    """What the generation prompt has beyond the head of a turn in a history."""
    heads: tuple[str, ...] = ("",)
    """What a history puts before a reply and the generation prompt does not, the longest first."""
    call_head: str | None = None
    """The same before the name of a call that was given as such; None where that is not needed."""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """How a tool call has to be given to a template that asks for ``tool_calls``, and what it puts behind the last
    one."""

    content: str | None
    as_text: bool
    """The arguments as JSON text, not as an object."""
    short_ids: bool
    """Ids have to be nine letters and digits, as Mistral's."""
    many: bool = True
    """Several calls in one turn are all shown."""
    tail: str = ""
    """From the end of the last argument to the end of the turn."""
    end: str = ""
    """The control token that ends the turn; "" where there is none."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found. Texts are the template's own."""

    system: bool
    """A system message is shown before everything else (perhaps inside the first user turn), and stays there."""
    lone_system: bool
    """So is one without a user message."""
    later_system: bool
    """One after the first turns is shown in its place."""
    repeated_users: bool
    """Two user messages in a row are both shown."""
    repeated_assistants: bool
    assistant_first: bool
    """A conversation may begin with the assistant, whose turn then looks as it does later."""
    assistant_first_with_tools: bool
    """So may one with tools."""
    tools: bool
    """A tool's name, description and parameters are shown, before the first reply."""
    tools_in_system: bool
    """They are where the system message carries them as JSON text, in a field of its own (Phi)."""
    call_format: str | None
    """The format that an assistant's tool call is rendered in; None: it is dropped, refused or in no known format."""
    calls: CallStyle | None
    """A call must be given as such: as text of the reply it would be refused, or what follows would be rendered
    otherwise. None: text will do."""
    results: bool
    """Tool results are shown, also behind a call that was given as ``calls`` says."""
    user_after_results: bool
    """A user message right behind results is shown, with no reply in between."""
    user_after_calls: bool
    """So is one behind calls without a result."""
    reasoning: bool
    """It is a reasoning template: its tags are in the template or among the tokenizer's added tokens."""
    reasoning_field: bool
    """Reasoning is rendered from a field of the message."""
    keeps_reasoning: bool
    """The reasoning of earlier turns stays."""
    thinks_first: bool
    """The generation prompt opens the tag itself."""
    end_of_turn: str
    """The control token that ends an assistant turn; "" where there is none."""
    after_user: Start
    after_tool: Start

    @property
    def lacks(self) -> tuple[str, ...]:
        """What stands in the way of the template's own tool rendering, in words."""
        found = (
            ("the tool list", self.tools),
            ("tool calls in a form that can be read back", self.call_format is not None),
            ("tool results", self.results),
        )
        return tuple(what for what, there in found if not there)


# Words that no template holds, that survive trimming, and that are no part of each other.
_SYSTEM, _USER, _USER_2, _REPLY, _REPLY_2, _REASON = (
    "zsystemq",
    "zuseraq",
    "zuserbq",
    "zreplyaq",
    "zreplybq",
    "zreasonq",
)
_NAME, _WHAT, _PARAMETER, _VALUE, _RESULT, _RESULT_2 = (
    "znameq",
    "zdescribedq",
    "zparameterq",
    "zvalueq",
    "zresultaq",
    "zresultbq",
)

_TOOL: Json = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _WHAT,
        "parameters": {
            "type": "object",
            "properties": {_PARAMETER: {"type": "string", "description": "text"}},
            "required": [_PARAMETER],
        },
    },
}
_TOOLS = (Tool(_NAME, _WHAT, _TOOL["function"]["parameters"]),)
_ARGUMENTS = {_PARAMETER: _VALUE}

_system: Json = {"role": "system", "content": _SYSTEM}
_START, _END = marker("c", 0), marker("e", 0)


def _user(text: str = _USER) -> Json:
    return {"role": "user", "content": text}


def _assistant(text: str = _REPLY, **more: Json) -> Json:
    return {"role": "assistant", "content": text, **more}


def short_id(call_id: str) -> str:
    """Nine letters and digits for any id. Of an id that ends in a model's own (`call_scanner.new_call_id`), that
    one."""
    kept = "".join([character for character in call_id if character.isascii() and character.isalnum()])
    return kept[-9:].rjust(9, "0")


def called(style: CallStyle, calls: Sequence[tuple[str, str, Json]], **more: Json) -> Json:
    """An assistant message with calls: (id, name, arguments as a JSON object)."""
    shown = calls if style.many else calls[:1]
    listed = [
        {
            "id": short_id(call_id) if style.short_ids else call_id,
            "type": "function",
            "function": {
                "name": name,
                "arguments": json.dumps(arguments, ensure_ascii=False) if style.as_text else arguments,
            },
        }
        for call_id, name, arguments in shown
    ]
    return {"role": "assistant", "content": style.content, "tool_calls": listed, **more}


class _Asked:
    """The template, asked. A refusal is the empty text."""

    def __init__(self, render: Render, escaper: Escaper) -> None:
        self._render = render
        self.escaper = escaper

    def text(self, messages: Sequence[Json], tools: Sequence[Json] | None = None, generate: bool = True) -> str:
        try:
            return self._render(messages, tools, generate)
        except TemplateError:
            return ""

    def shows(self, words: Sequence[str], messages: Sequence[Json], tools: Sequence[Json] | None = None) -> bool:
        """All words, in this order."""
        text = self.text(messages, tools)
        at = 0
        for word in words:
            at = text.find(word, at) + 1
            if not at:
                return False
        return True


def probe(render: Render, escaper: Escaper, *, reasoning: bool, tags: Tags | None, ends: Collection[str]) -> Probe:
    """Asks the template. ``render`` is called about seventy times. ``ends``: the tokenizer's own control tokens that
    end a turn.

    Raises TemplateError where the template refuses even one user message.
    """
    prompt = render([_user()], None, True)
    if _USER not in prompt:
        raise TemplateError("it leaves out the user's message")
    asked = _Asked(render, escaper)
    shows = asked.shows
    fields: tuple[dict[str, Json], ...] = (dict.fromkeys(REASONING_FIELDS, _REASON), {}) if reasoning else ({},)
    end_of_turn = _end_of_turn(asked)
    call_format, style = _how_called(asked)
    after_user, seen = _start(asked, [_user()], None, fields, style)
    beside_calls = style is not None and any(
        _REASON in asked.text([_user(), _with(style, **field)], [_TOOL], False) for field in fields
    )
    plain = [_assistant(), _result(), _result(_RESULT_2, "call_1")]
    results = _results(asked, plain)
    first: list[Json] = (
        [_user(), _with(style), _result_of(style)] if style else [_user(), _assistant(_REPLY_2), _result()]
    )
    after_tool, _ = _start(asked, first, [_TOOL], fields, style)
    if style:
        style = _measured(asked, style, {*ends, end_of_turn, *FORMATS[call_format or "text"].ends} - {""})
    if style and (not results or not _same_as_text(asked, style)):
        one, two = (
            _with_call_head(asked, after_user, style, [_user()], None),
            _with_call_head(asked, after_tool, style, first, [_TOOL]),
        )
        if one and two and _results(asked, [_with(style), _result_of(style), _result_of(style, _RESULT_2)]):
            after_user, after_tool, results = one, two, True
        else:
            style = None
    else:
        style = None

    tools = all(
        shows((word, _USER_2), [_user(_USER_2)], [_TOOL])
        and shows((word, _REPLY), [_user(), _assistant(), _user(_USER_2)], [_TOOL])
        for word in (_NAME, _WHAT, _PARAMETER)
    )
    carrying = {**_system, "tools": json.dumps([_TOOL])}
    tools_in_system = not tools and shows((_SYSTEM, _NAME, _WHAT, _PARAMETER, _USER_2), [carrying, _user(_USER_2)])
    tagged = f"{tags[0]}{_REASON}{tags[1]}{_REPLY}" if tags else _REPLY
    return Probe(
        system=shows((_SYSTEM, _USER), [_system, _user()])
        and shows((_SYSTEM, _USER, _REPLY), [_system, _user(), _assistant(), _user(_USER_2)]),
        lone_system=_SYSTEM in asked.text([_system]),
        later_system=shows((_REPLY, _SYSTEM, _USER_2), [_user(), _assistant(), _system, _user(_USER_2)]),
        repeated_users=shows((_USER, _USER_2), [_user(), _user(_USER_2)]),
        repeated_assistants=shows((_REPLY, _REPLY_2), [_user(), _assistant(), _assistant(_REPLY_2), _user(_USER_2)]),
        assistant_first=_opens(asked, None),
        assistant_first_with_tools=_opens(asked, [_TOOL]),
        tools=tools or tools_in_system,
        tools_in_system=tools_in_system,
        call_format=call_format,
        calls=style,
        results=results,
        user_after_results=shows((_RESULT, _USER_2), [*first, _user(_USER_2)], [_TOOL]),
        user_after_calls=shows((_USER, _USER_2), [*first[:2], _user(_USER_2)], [_TOOL]),
        reasoning=reasoning,
        reasoning_field=any(seen) or beside_calls,
        keeps_reasoning=seen[-1]
        if any(seen)
        else shows((_REASON, _REPLY), [_user(), _assistant(tagged), _user(_USER_2)]),
        thinks_first=tags is not None and prompt.rstrip().endswith(tags[0]),
        end_of_turn=end_of_turn,
        after_user=after_user,
        after_tool=after_tool,
    )


# --------------------------------------------------------------------------- how turns begin and end


def _start(
    asked: _Asked,
    before: Sequence[Json],
    tools: Sequence[Json] | None,
    fields: Sequence[dict[str, Json]],
    style: CallStyle | None,
) -> tuple[Start, list[bool]]:
    """How a turn behind ``before`` begins, and for each rendering of a reply with reasoning in its field whether that
    was shown."""
    prompt = asked.text(before, tools)
    heads: set[str] = set()
    seen: list[bool] = []
    for field in fields:
        for after in ([], [_user(_USER_2)]):
            head, shown, _ = asked.text([*before, _assistant(**field), *after], tools, False).partition(_REPLY)
            if field:
                seen.append(_REASON in head)
                head = head.partition(_REASON)[0]
            if shown:
                heads.add(head)
        if field and style:
            head, shown, _ = asked.text([*before, _with(style, **field), _result_of(style)], tools, False).partition(
                _REASON
            )
            if shown and (not prompt or _NAME not in head[len(prompt) :]):
                heads.add(head)
    if not prompt or not heads:
        return Start(), seen
    common = _shared_start([prompt, *heads])
    return Start(prompt[len(common) :], _longest_first({head[len(common) :] for head in heads})), seen


def _opens(asked: _Asked, tools: Sequence[Json] | None) -> bool:
    """Whether a reply may stand before any user message, as a turn of the assistant's: some templates take the first
    message for the user's, whoever said it."""
    one, two = (asked.text([_user(), _assistant(text), _user(_USER_2)], tools) for text in (_REPLY, _REPLY_2))
    history = asked.text([_user()], tools, False)
    head = _shared_start([one, two, asked.text([_user()], tools)]).removeprefix(history) if history else ""
    return all(
        asked.shows((*said, _REPLY, _USER_2), [*system, _assistant(), _user(_USER_2)], tools)
        and asked.text([*system, _assistant(), _user(_USER_2)], tools).partition(_REPLY)[0].endswith(head)
        for system, said in (([], ()), ([_system], (_SYSTEM,)))
    )


def _longest_first(heads: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(heads, key=lambda head: (-len(head), head)))


def _end_of_turn(asked: _Asked) -> str:
    _, shown, rest = asked.text([_user(), _assistant()], None, False).partition(_REPLY)
    found = asked.escaper.pattern.match(rest.lstrip()) if shown else None
    return found[0] if found else ""


def _shared_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


# --------------------------------------------------------------------------- calls and results


def _result(text: str = _RESULT, call: str = "call_0") -> Json:
    return {"role": "tool", "content": text, "tool_call_id": call, "name": _NAME}


def _result_of(style: CallStyle, text: str = _RESULT) -> Json:
    return _result(text, short_id("call_0") if style.short_ids else "call_0")


def _with(style: CallStyle, start: str = "", end: str = "", **more: Json) -> Json:
    return called(style, [("call_0", start + _NAME, {_PARAMETER: _VALUE + end})], **more)


def _results(asked: _Asked, turns: Sequence[Json]) -> bool:
    """Whether the two results that end ``turns`` are shown, now and later, with tools offered and without."""
    words = (_USER, _RESULT, _RESULT_2)
    later = [_user(), *turns, _assistant(_REPLY_2), _user(_USER_2)]
    return all(
        asked.shows(words, [_user(), *turns], tools) and asked.shows((*words, _REPLY_2, _USER_2), later, tools)
        for tools in (None, [_TOOL])
    )


def _how_called(asked: _Asked) -> tuple[str | None, CallStyle | None]:
    """The format that the template writes a call in, and how the call had to be given. A plain object is tried first,
    text and None last."""
    for content in ("", None):
        for as_text in (False, True):
            for short_ids in (False, True):
                style = CallStyle(content, as_text, short_ids)
                before = asked.text([_user()], [_TOOL])
                text = asked.text([_user(), _with(style), _result_of(style)], [_TOOL], False)
                if name := _call_format(text, before, asked.escaper):
                    return name, style
    return None, None


def _call_format(text: str, before: str, escaper: Escaper) -> str | None:
    """The format that finds the call in what the template made of it, and nothing else; of several, the one that would
    write it most alike."""
    _, shown, turn = text.partition(_USER)
    if not shown or _VALUE not in turn:
        return None
    at = turn.rindex(_VALUE)
    start = max((found.end() for found in escaper.pattern.finditer(turn, 0, at)), default=0)
    after = escaper.pattern.search(turn, at)
    bare = turn[start : after.start() if after else len(turn)]
    behind = text[len(_shared_start([text, before])) :]
    best: tuple[int, str] | None = None
    for form in FORMATS.values():
        for region in (bare,) if form.name == "llama3_json" else (behind,) if form.scanner is None else (turn,):
            content, calls = read_whole(form, _TOOLS, region)
            if (
                [call.name for call in calls] != [_NAME]
                or _VALUE in content
                or json.loads(calls[0].arguments) != _ARGUMENTS
            ):
                continue
            alike = _alike(form.write_all([(_NAME, json.dumps(_ARGUMENTS))]), region)
            if best is None or alike > best[0]:
                best = alike, form.name
    return best[1] if best else None


def _alike(written: str, region: str) -> int:
    """How far the two agree from where the first few characters of ``written`` stand, white space aside."""
    written, region = "".join(written.split()), "".join(region.split())
    return len(_shared_start([written, region[max(region.find(written[:8]), 0) :]]))


def _measured(asked: _Asked, style: CallStyle, ends: Collection[str]) -> CallStyle | None:
    """The style with what the template puts behind a call. None where a call cannot be found again in the rendering."""
    alone = _behind(asked.text([_user(), _with(style, _START, _END)], [_TOOL], False))
    followed = _behind(asked.text([_user(), _with(style, _START, _END), _result_of(style)], [_TOOL], False))
    if followed is None:
        return None
    both = followed if alone is None else _shared_start([alone, followed])
    tail, end = both[: _between_tokens(asked, followed, len(both))], ""
    for found in asked.escaper.pattern.finditer(tail):
        if found[0] in ends:
            tail, end = tail[: found.start()], found[0]
            break
    two = called(style, [("call_0", _NAME, _ARGUMENTS), ("call_1", _NAME, {_PARAMETER: _REASON})])
    many = asked.shows((_VALUE, _REASON, _RESULT), [_user(), two, _result_of(style)], [_TOOL])
    return replace(style, tail=tail if end else tail.rstrip(), end=end, many=many)


def _behind(text: str) -> str | None:
    """What follows the call, where the markers came through."""
    start, end = text.find(_START), text.rfind(_END)
    return text[end + len(_END) :] if 0 <= start < end else None


def _between_tokens(asked: _Asked, text: str, at: int) -> int:
    """``at``, or the start of the control token that it lies within."""
    return next(
        (found.start() for found in asked.escaper.pattern.finditer(text) if found.start() < at < found.end()), at
    )


def _same_as_text(asked: _Asked, style: CallStyle) -> bool:
    """Whether a conversation reads the same when its calls are given as text of the replies."""
    history = asked.text([_user(), _with(style, end=_END), _result_of(style)], [_TOOL], False)
    start = _between_tokens(asked, history, len(_shared_start([history, asked.text([_user()], [_TOOL])])))
    at = history.rfind(_END)
    written = (history[start:at] + history[at + len(_END) :][: len(style.tail)]).strip()

    def conversation(call: Json) -> str:
        turns = [
            _user(),
            call,
            _result_of(style),
            _result_of(style, _RESULT_2),
            call,
            _result_of(style),
            _assistant(),
            _user(_USER_2),
        ]
        return asked.text(turns, [_TOOL])

    return conversation(_with(style)) == conversation(_assistant(written))


def _with_call_head(
    asked: _Asked, start: Start, style: CallStyle, before: Sequence[Json], tools: Sequence[Json] | None
) -> Start | None:
    """The start with what the template puts in front of a call; None where that cannot be told."""
    prompt = asked.text(before, tools)
    head, shown, _ = asked.text([*before, _with(style, _START, _END), _result_of(style)], tools, False).partition(
        _START
    )
    common = prompt[: len(prompt) - len(start.generation)]
    return replace(start, call_head=head[len(common) :]) if prompt and shown and head.startswith(common) else None
