"""Probe: what a chat template does with each thing a conversation can hold, found by rendering known words and looking for them.

Templates drop tool lists, calls and results in silence, merge or refuse roles, and rewrite earlier turns; none of that can be read off their source.
Runs once, when a template is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentlightning.errors import TemplateError
from agentlightning.templates.formats import FORMATS
from agentlightning.templates.guard import Guard
from agentlightning.templates.parser import END_THINK, THINK
from agentlightning.types import Json

Render = Callable[[Sequence[Json], Sequence[Json] | None, bool], str]
"""(messages, tools, with the generation prompt) -> text. Raises TemplateError."""


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
    tools: bool
    """A tool's name, description and parameters are shown, before the first reply."""
    call_format: str | None
    """The format that an assistant's tool call is rendered in; None: it is dropped, refused or in no known format."""
    results: bool
    """Tool results are shown, also behind a call that was given as text."""
    reasoning: bool
    """It is a reasoning template: <think> is in the template or among the tokenizer's added tokens."""
    reasoning_field: bool
    """Reasoning is rendered from ``reasoning_content``."""
    keeps_reasoning: bool
    """The reasoning of earlier turns stays."""
    thinks_first: bool
    """The generation prompt opens <think> itself."""
    end_of_turn: str
    """The control token that ends an assistant turn; "" where there is none."""
    generation: str
    """What the generation prompt has beyond the head of an assistant turn in a history."""
    heads: tuple[str, ...]
    """What a history puts before an assistant's reply and the generation prompt does not, the longest first."""

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
_SYSTEM, _USER, _USER_2, _REPLY, _REPLY_2, _REASON = "zsystemq", "zuseraq", "zuserbq", "zreplyaq", "zreplybq", "zreasonq"
_NAME, _WHAT, _PARAMETER, _VALUE, _RESULT, _RESULT_2 = "znameq", "zdescribedq", "zparameterq", "zvalueq", "zresultaq", "zresultbq"

_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _WHAT,
        "parameters": {"type": "object", "properties": {_PARAMETER: {"type": "string", "description": "text"}}, "required": [_PARAMETER]},
    },
}
_CALL = {"id": "call_0", "type": "function", "function": {"name": _NAME, "arguments": {_PARAMETER: _VALUE}}}


_system: Json = {"role": "system", "content": _SYSTEM}


def _user(text: str = _USER) -> Json:
    return {"role": "user", "content": text}


def _assistant(text: str = _REPLY, **more: Json) -> Json:
    return {"role": "assistant", "content": text, **more}


def _result(text: str = _RESULT, call: str = "call_0") -> Json:
    return {"role": "tool", "content": text, "tool_call_id": call, "name": _NAME}


def probe(render: Render, guard: Guard, *, reasoning: bool) -> Probe:
    """Asks the template. ``render`` is called about twenty times. Raises TemplateError where it refuses even one user message."""
    prompt = render([_user()], None, True)
    if _USER not in prompt:
        raise TemplateError("it leaves out the user's message")

    def attempt(messages: Sequence[Json], tools: Sequence[Json] | None = None, generate: bool = True) -> str:
        try:
            return render(messages, tools, generate)
        except TemplateError:
            return ""

    def shows(words: Sequence[str], messages: Sequence[Json], tools: Sequence[Json] | None = None) -> bool:
        """All words, in this order."""
        text = attempt(messages, tools)
        at = 0
        for word in words:
            at = text.find(word, at) + 1
            if not at:
                return False
        return True

    with_call = [_user(), _assistant(), _result(), _result(_RESULT_2, "call_1")]
    both = (_USER, _REPLY, _RESULT, _RESULT_2)
    results = all(
        shows(both, with_call, tools) and shows((*both, _REPLY_2, _USER_2), [*with_call, _assistant(_REPLY_2), _user(_USER_2)], tools)
        for tools in (None, [_TOOL])
    )

    heads: set[str] = set()
    end_of_turn = ""
    seen: list[bool] = []
    for field in ({"reasoning_content": _REASON}, {}) if reasoning else ({},):
        for after in ([], [_user(_USER_2)]):
            text = attempt([_user(), _assistant(**field), *after], None, False)
            head, shown, rest = text.partition(_REPLY)
            if field:
                seen.append(_REASON in head)
                head = head.partition(_REASON)[0]
            if shown:
                heads.add(head)
                # Behind the last turn it cannot be the start of the next one.
                if not after and (found := guard.pattern.match(rest.lstrip())):
                    end_of_turn = found[0]
    common = _shared_start([prompt, *heads])
    field_read = any(seen)
    return Probe(
        system=shows((_SYSTEM, _USER), [_system, _user()])
        and shows((_SYSTEM, _USER, _REPLY), [_system, _user(), _assistant(), _user(_USER_2)]),
        lone_system=_SYSTEM in attempt([_system]),
        later_system=shows((_REPLY, _SYSTEM, _USER_2), [_user(), _assistant(), _system, _user(_USER_2)]),
        repeated_users=shows((_USER, _USER_2), [_user(), _user(_USER_2)]),
        repeated_assistants=shows((_REPLY, _REPLY_2), [_user(), _assistant(), _assistant(_REPLY_2), _user(_USER_2)]),
        tools=all(
            shows((word, _USER_2), [_user(_USER_2)], [_TOOL]) and shows((word, _REPLY), [_user(), _assistant(), _user(_USER_2)], [_TOOL])
            for word in (_NAME, _WHAT, _PARAMETER)
        ),
        call_format=_call_format(attempt([_user(), _assistant("", tool_calls=[_CALL]), _result()], [_TOOL], False), guard),
        results=results,
        reasoning=reasoning,
        reasoning_field=field_read,
        keeps_reasoning=seen[-1]
        if field_read
        else shows((_REASON, _REPLY), [_user(), _assistant(f"{THINK}{_REASON}{END_THINK}{_REPLY}"), _user(_USER_2)]),
        thinks_first=reasoning and prompt.rstrip().endswith(THINK),
        end_of_turn=end_of_turn,
        generation=prompt[len(common) :],
        heads=tuple(sorted({head[len(common) :] for head in heads}, key=lambda head: (-len(head), head))),
    )


def _call_format(text: str, guard: Guard) -> str | None:
    """Which format finds the call of ``_CALL``, and nothing else, in what the template made of it."""
    _, shown, turn = text.partition(_USER)
    if not shown or _VALUE not in turn:
        return None
    at = turn.rindex(_VALUE)
    before = max((found.end() for found in guard.pattern.finditer(turn, 0, at)), default=0)
    after = guard.pattern.search(turn, at)
    reply = turn[before : after.start() if after else len(turn)]
    for name, region in (("hermes", turn), ("llama3_json", reply)):
        scanner = FORMATS[name].scanner()
        content, calls = scanner.feed(region)
        content, calls = content + (rest := scanner.finish())[0], calls + rest[1]
        if [call.name for call in calls] == [_NAME] and _VALUE not in content and json.loads(calls[0].arguments) == {_PARAMETER: _VALUE}:
            return name
    return None


def _shared_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]
