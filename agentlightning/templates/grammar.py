"""Grammar: what a reply has to look like, as one text that an engine can keep a sample to (engines/grammar.py says in which language).

Pure. It is built from what was asked (tools, how many calls, a JSON schema) and from how the model's family writes calls and reasoning. Reasoning before the
reply stays free. JSON is written without line breaks, with or without a space behind ``,`` and ``:``, so that no sample can run on in white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentlightning.errors import GrammarError
from agentlightning.templates import harmony
from agentlightning.templates.base import Template
from agentlightning.templates.tagged import CALL, CALL_END, CALLS, CALLS_END, SEPARATOR
from agentlightning.types import Json, Tool

ANY_OBJECT: Mapping[str, Json] = {"type": "object"}
"""The schema of any JSON object."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a family writes around its reasoning. ``opened``: the prompt has written ``start`` already."""

    start: tuple[str, ...]
    end: tuple[str, ...]
    opened: bool


@dataclass(frozen=True, slots=True)
class _Calls:
    """How a tool format writes calls: ``opener begin call (between call)* end``, and one as ``item NAME middle ARGUMENTS close``.

    ``opener`` is what makes calls of what follows it, anywhere in a reply; where it is "", they stand at the beginning of a reply and ``tag`` is what must
    not stand in a text. ``quoted``: the name is written as JSON. ``content`` is what the format writes before a reply that is no call. ``single``: a call ends
    the turn. ``apart``: a call can begin like any JSON, and has to be written in the pieces that JSON is read in.
    """

    opener: str
    begin: tuple[str, ...]
    item: tuple[str, ...]
    middle: tuple[str, ...]
    close: tuple[str, ...]
    between: tuple[str, ...]
    end: tuple[str, ...]
    tag: str = ""
    quoted: bool = True
    content: tuple[str, ...] = ()
    single: bool = False
    apart: bool = False


_NAME, _ARGUMENTS = ('{"name": ',), (', "arguments": ',)
_TAGGED = _Calls(
    "<tool_call>", ("\n",), _NAME, _ARGUMENTS, ("}",), ("\n", "</tool_call>", "\n", "<tool_call>", "\n"), ("\n", "</tool_call>")
)
_CALLS: dict[str, _Calls] = {
    "hermes": _TAGGED,
    "text": _TAGGED,
    "llama3_json": _Calls(
        "", (), ("{", '"name"', ": "), (", ", '"parameters"', ": "), ("}",), ("\n",), (), tag="<|python_tag|>", apart=True
    ),
    "phi4": _Calls("<|tool_call|>", ("[",), _NAME, _ARGUMENTS, ("}",), (", ",), ("]", "<|/tool_call|>")),
    "mistral": _Calls("[TOOL_CALLS]", (" [",), _NAME, _ARGUMENTS, ("}",), (", ",), ("]",)),
    "mistral_v11": _Calls("[TOOL_CALLS]", (), (), ("[ARGS]",), (), ("[TOOL_CALLS]",), (), quoted=False),
    "deepseek_v3": _Calls(
        CALLS, (), (CALL, "function", SEPARATOR), ("\n```json\n",), ("\n```", CALL_END), ("\n",), (CALLS_END,), quoted=False
    ),
    "deepseek_v31": _Calls(CALLS, (), (CALL,), (SEPARATOR,), (CALL_END,), (), (CALLS_END,), quoted=False),
    "harmony": _Calls(
        "", (), (harmony.CHANNEL, "commentary to=functions."), (" ", harmony.CONSTRAIN, "json", harmony.MESSAGE), (harmony.CALL,), (), (),
        quoted=False, content=(harmony.CHANNEL, "final", harmony.MESSAGE), single=True,
    ),
}  # fmt: skip
"""By the name of a tool format (formats.py)."""


def reply_grammar(
    template: Template,
    tools: Sequence[Tool],
    *,
    required: bool,
    parallel: bool,
    output: Mapping[str, Json] | None,
    reasoning: Reasoning | None = None,
) -> str:
    """The grammar of a reply that may call ``tools``.

    With ``required`` it is calls and nothing else; with ``output`` it is JSON after that schema, or calls; else text, with calls behind it or without.
    Without ``parallel`` there is one call at most. Raises GrammarError where the family's calls or a tool's parameters cannot be written as a grammar.
    """
    writer = _Writer(template)
    body = writer.json(output) if output is not None else None
    if tools or output is None:
        calls = writer.calls(tools, parallel=parallel) if tools else None
        if required:
            if calls is None:
                raise GrammarError("a call is required and there is no tool to call")
            body = calls[0]
        elif output is None:
            body = writer.text_or(calls)
        elif calls is not None:
            body = f"{body} | {calls[0]}"
    before = writer.reasoning(reasoning) if reasoning is not None else ""
    return "\n".join(["%llguidance {}", f"start: {before}body", f"body: {body}", *writer.rules, ""])


def reasoning_of(template: Template) -> Reasoning | None:
    """How the template's family marks its reasoning, None where it has none."""
    from agentlightning.templates.chat import ChatTemplate

    if template.tool_format == "harmony":
        return Reasoning((harmony.CHANNEL, "analysis", harmony.MESSAGE), (harmony.END, harmony.START, "assistant"), False)
    if not isinstance(template, ChatTemplate) or template.reasoning_tags is None:
        return None
    start, end = template.reasoning_tags
    return Reasoning((start,), (end,), template.probe.thinks_first)


class _Writer:
    """Writes the parts of one grammar; ``rules`` are those that the parts refer to."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._format = template.tool_format
        self.rules: list[str] = []

    # ----------------------------------------------------------------- parts of a reply
    def reasoning(self, tags: Reasoning) -> str:
        if self._token(tags.end[0]) is not None:
            self.rules.append(f"thought: (/(?s:.+)/)? {self.words(*tags.end)}")
        else:
            self.rules.append(f"thought[lazy]: /(?s:.*){_regex(''.join(tags.end))}/")
        space = " (/[ \\n]{1,2}/)?" if len(tags.end) == 1 else ""
        return f"thought{space} " if tags.opened else f"({self.words(*tags.start)} thought{space})? "

    def json(self, schema: Mapping[str, Json]) -> str:
        form = _CALLS.get(self._format)
        self.rules.append(f"output: %json {_dumped(schema)}")
        return f"{self.words(*form.content)} output".strip() if form else "output"

    def calls(self, tools: Sequence[Tool], *, parallel: bool) -> tuple[str, str]:
        """(calls, the same without the opener)"""
        form = self._form()
        for number, tool in enumerate(tools):
            name = json.dumps(tool.name, ensure_ascii=False) if form.quoted else tool.name
            head = (*form.item, name, *form.middle)
            written = " ".join(map(_quoted, head)) if form.apart else self.words(*head)
            self.rules.append(f"call_{number}: {written} args_{number} {self.words(*form.close)}")
            self.rules.append(f"args_{number}: %json {_dumped(_arguments(tool))}")
        self.rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        more = f"({self.words(*form.between)} call)*".replace("( ", "(") if parallel and not form.single else ""
        inner = " ".join(part for part in (self.words(*form.begin), "call", more, self.words(*form.end)) if part)
        return f"{self.words(form.opener)} {inner}".strip(), inner

    def text_or(self, calls: tuple[str, str] | None) -> str:
        """Text that holds no call, or calls, or one behind the other where the format has a place for that."""
        form = self._form()
        if form.content:  # nothing that a text may hold makes a call
            self.rules.append("TEXT: /(?s:.+)/")
            text = f"{self.words(*form.content)} TEXT?"
            return text if calls is None else f"{text} | {calls[0]}"
        first = ".+" if form.opener else "[ \\t\\r\\n]*[^{ \\t\\r\\n].*"
        self.rules.append(f"TEXT: /(?s:{first})/ & ~/(?s:.*){_regex(form.opener or form.tag)}(?s:.*)/")
        if calls is None:
            return "TEXT?"
        if not form.opener:
            return f"TEXT? | {calls[0]}"
        if self._token(form.opener) is not None:
            return f"TEXT? ({calls[0]})?"
        # A tag that is text could go on being text: the lazy rule ends with it.
        self.rules.append(f"lead[lazy]: /(?s:.*){_regex(form.opener)}/")
        return f"TEXT? | lead {calls[1]}"

    # ----------------------------------------------------------------- words
    def _form(self) -> _Calls:
        form = _CALLS.get(self._format)
        if form is None:
            raise GrammarError(
                f"calls in the tool format {self._format!r} cannot be kept to a grammar: use one of {', '.join(sorted(_CALLS))}"
            )
        return form

    def _token(self, tag: str) -> int | None:
        """The id of a tag that is a token of its own, whatever stands beside it."""
        ids = self._template.encode(tag, start=False)
        return ids[0] if len(ids) == 1 and self._template.encode(f"\n{tag}\n{tag}", start=False).count(ids[0]) == 2 else None

    def words(self, *parts: str) -> str:
        """Fixed text: what is a token of its own as that token, what lies between as text."""
        written: list[str] = []
        text = ""
        for part in parts:
            token = self._token(part) if _TAG.fullmatch(part) else None
            if token is None:
                text += part
                continue
            written += [*([_quoted(text)] if text else []), f"<[{token}]>"]
            text = ""
        return " ".join([*written, *([_quoted(text)] if text else [])])


_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")


def _quoted(text: str) -> str:
    return json.dumps(text)


def _regex(text: str) -> str:
    """A text inside a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


# --------------------------------------------------------------------------- schemas

_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
"""Values of ``format`` that are kept to. Others say what a text means (`path`, `password`, `int64`), and are no rule in JSON schema."""

_SPACING = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values hold schemas by name."""
_VALUES = ("const", "enum", "default", "examples", "example", "required", "title", "description")
"""Keywords whose values hold no schemas."""


def _arguments(tool: Tool) -> Mapping[str, Json]:
    """The schema of a tool's arguments, which are an object. Raises GrammarError."""
    schema = dict(tool.parameters)
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise GrammarError(f"tool {tool.name!r}: its parameters are of type {kinds!r}, and a call's arguments are an object")
    return {**schema, "type": "object"}


def _dumped(schema: Mapping[str, Json]) -> str:
    cleaned = cast("dict[str, Json]", _cleaned(schema))
    for name in ("$schema", "$id"):
        cleaned.pop(name, None)
    return json.dumps({"x-guidance": _SPACING, **cleaned})


def _cleaned(schema: Json) -> Json:
    """A schema without formats that are no rule."""
    if isinstance(schema, list):
        return [_cleaned(item) for item in cast("list[Json]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    cleaned: dict[str, Json] = {}
    for key, value in cast("Mapping[str, Json]", schema).items():
        if key == "x-guidance" or (key == "format" and value not in _FORMATS):
            continue
        if key in _NAMED and isinstance(value, Mapping):
            cleaned[key] = {name: _cleaned(item) for name, item in cast("Mapping[str, Json]", value).items()}
        else:
            cleaned[key] = value if key in _VALUES else _cleaned(value)
    return cleaned
