"""Grammar: what a reply has to look like, as one text that an engine can keep a sample to (engines/grammar.py says in
which language).

Pure. It is built from what was asked (tools, how many calls, a JSON schema) and from how the model's family writes
calls and reasoning. Reasoning before the reply stays free. JSON is written without line breaks, with or without a space
behind ``,`` and ``:``, so that no sample can run on in white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from agentlightning.errors import GrammarError
from agentlightning.nouns import Json, Tool
from agentlightning.templates import harmony
from agentlightning.templates.base import Template
from agentlightning.templates.formats import FUNCTION_GEMMA_QUOTE, GEMMA_QUOTE
from agentlightning.templates.grammar.infinite_schemas import is_infinite
from agentlightning.templates.grammar.schemas import NAMED, VALUES, exact
from agentlightning.templates.grammar.tool_arguments import Quoted, Tagged, arguments_rules, terminal, unanchored
from agentlightning.templates.tagged_calls import CALL, CALL_END, CALLS, CALLS_END, SEPARATOR


@dataclass(frozen=True, slots=True)
class Text:
    """What a reply has to be where that is no JSON: all of it after a ``regex``, one of ``choice``, or a sentence of a
    grammar in ``lark``."""

    regex: str | None = None
    choice: tuple[str, ...] = ()
    lark: str = ""


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
    """How a tool format writes calls: ``opener begin call (between call)* end``, and one as ``item NAME middle
    ARGUMENTS close``.

    ``opener`` is what makes calls of what follows it, anywhere in a reply; where it is "", they stand at the beginning
    of a reply and ``tag`` is what must not stand in a text. ``quoted``: the name is written as JSON. ``content`` is
    what the format writes before a reply that is no call. ``single``: a call ends the turn. ``apart``: a call can begin
    like any JSON, and has to be written in the pieces that JSON is read in. ``values``: how the arguments are written
    where they are no JSON.
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
    values: Tagged | Quoted | None = None


_NAME, _ARGUMENTS = ('{"name": ',), (', "arguments": ',)
_TAGGED = _Calls(
    "<tool_call>",
    ("\n",),
    _NAME,
    _ARGUMENTS,
    ("}",),
    ("\n", "</tool_call>", "\n", "<tool_call>", "\n"),
    ("\n", "</tool_call>"),
)
_CALLS: dict[str, _Calls] = {
    "hermes": _TAGGED,
    "text": _TAGGED,
    "llama3_json": _Calls(
        "", (), ("{", '"name"', ": "), (", ", '"parameters"', ": "), ("}",), ("\n",), (), tag="<|python_tag|>",
        apart=True
    ),
    "qwen3_coder": _Calls(
        "<tool_call>", ("\n",), ("<function=",), (">\n",), ("</function>",), ("\n", "</tool_call>", "\n", "<tool_call>",
        "\n"), ("\n", "</tool_call>"),
        quoted=False, values=Tagged(("<parameter=",), (">\n",), "\n", "</parameter>", "\n"),
    ),
    "glm": _Calls(
        "<tool_call>", (), (), ("\n",), (), ("</tool_call>", "\n", "<tool_call>"), ("</tool_call>",),
        quoted=False, values=Tagged(("<arg_key>",), ("</arg_key>", "\n", "<arg_value>"), "", "</arg_value>", "\n"),
    ),
    "gemma4": _Calls(
        "<|tool_call>", (), ("call:",), (), (), ("<tool_call|>", "<|tool_call>"), ("<tool_call|>",), quoted=False,
        values=Quoted(GEMMA_QUOTE)
    ),
    "function_gemma": _Calls(
        "<start_function_call>", (), ("call:",), (), (), ("<end_function_call>", "<start_function_call>"),
        ("<end_function_call>",),
        quoted=False, values=Quoted(FUNCTION_GEMMA_QUOTE),
    ),
    "phi4": _Calls("<|tool_call|>", ("[",), _NAME, _ARGUMENTS, ("}",), (", ",), ("]", "<|/tool_call|>")),
    "mistral": _Calls("[TOOL_CALLS]", (" [",), _NAME, _ARGUMENTS, ("}",), (", ",), ("]",)),
    "mistral_v11": _Calls("[TOOL_CALLS]", (), (), ("[ARGS]",), (), ("[TOOL_CALLS]",), (), quoted=False),
    "deepseek_v3": _Calls(
        CALLS, (), (CALL, "function", SEPARATOR), ("\n```json\n",), ("\n```", CALL_END), ("\n",), (CALLS_END,),
        quoted=False
    ),
    "deepseek_v31": _Calls(CALLS, (), (CALL,), (SEPARATOR,), (CALL_END,), (), (CALLS_END,), quoted=False),
    "harmony": _Calls(
        "", (), (harmony.CHANNEL, "commentary to=functions."), (" ", harmony.CONSTRAIN, "json", harmony.MESSAGE),
        (harmony.CALL,), (), (),
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
    output: Mapping[str, Json] | Text | None,
    reasoning: Reasoning | None = None,
    bare: bool = False,
) -> str:
    """The grammar of a reply that may call ``tools``.

    With ``required`` it is calls and nothing else; with ``output`` it is JSON after that schema (or what `Text` says),
    or calls; else text, with calls behind it or without. Without ``parallel`` there is one call at most. ``bare``: it
    goes on from a text, so that nothing of the family's stands before it. Raises GrammarError where the family's calls
    or a tool's parameters cannot be written as a grammar.
    """
    writer = _Writer(template)
    body = writer.output(output, bare=bare) if output is not None and not required else None
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
        return Reasoning(
            (harmony.CHANNEL, "analysis", harmony.MESSAGE), (harmony.END, harmony.START, "assistant"), False
        )
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

    def output(self, wanted: Mapping[str, Json] | Text, *, bare: bool) -> str:
        """All of a reply that calls nothing."""
        if not isinstance(wanted, Text):
            self._check(wanted)
            if is_infinite(wanted):
                raise GrammarError(_ENDLESS)
            self.rules.append(f"output: %json {_dumped(exact(wanted))}")
        elif wanted.regex is not None:
            self.rules.append(f"output: {terminal(unanchored(wanted.regex)[1])}")
        elif wanted.choice:
            self._check(list(wanted.choice))
            self.rules.append("output: " + " | ".join(map(_quoted, wanted.choice)))
        else:
            self.rules.append(f"output: %lark {{\n{wanted.lark}\n}}")
        return "output" if bare else f"{self.words(*self._form().content)} output".strip()

    def calls(self, tools: Sequence[Tool], *, parallel: bool) -> tuple[str, str]:
        """(calls, the same without the opener)"""
        form = self._form()
        for number, tool in enumerate(tools):
            name = json.dumps(tool.name, ensure_ascii=False) if form.quoted else tool.name
            head = (*form.item, name, *form.middle)
            written = " ".join(map(_quoted, head)) if form.apart else self.words(*head)
            self.rules.append(f"call_{number}: {written} args_{number} {self.words(*form.close)}")
            arguments = _arguments(tool)
            try:
                arguments = exact(arguments)
                self._check([tool.name, arguments])
            except GrammarError as error:
                raise GrammarError(f"tool {tool.name!r}: {error}") from error
            if form.values is None:
                self.rules.append(f"args_{number}: %json {_dumped(arguments)}")
            else:
                self.rules += arguments_rules(
                    replace(_nameable(tool), parameters=arguments if tool.parameters else {}),
                    f"args_{number}",
                    form.values,
                    self.words,
                )
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
        return _CALLS[self._format]

    def _token(self, tag: str) -> int | None:
        """The id of a tag that is a token of its own, whatever stands beside it."""
        ids = self._template.encode(tag, start=False)
        return (
            ids[0]
            if len(ids) == 1 and self._template.encode(f"\n{tag}\n{tag}", start=False).count(ids[0]) == 2
            else None
        )

    def _check(self, schema: Json) -> None:
        """Raises GrammarError for a schema with a name or value that holds the text of a token of its own: as text it
        could never be written."""
        if isinstance(schema, str):
            for found in _TAG.finditer(schema):
                if self._token(found[0]) is not None:
                    raise GrammarError(f"{schema!r} holds {found[0]!r}, which is a token of its own to this model")
        elif isinstance(schema, list):
            for each in cast("list[Json]", schema):
                self._check(each)
        elif isinstance(schema, Mapping):
            for key, value in cast("Mapping[str, Json]", schema).items():
                if key in NAMED and isinstance(value, Mapping):
                    self._check([[name, inner] for name, inner in cast("Mapping[str, Json]", value).items()])
                elif key not in _WORDS and (isinstance(value, list | Mapping) or key == "const"):
                    self._check(value)

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
"""What may be a token of its own."""


def _quoted(text: str) -> str:
    return json.dumps(text)


def _regex(text: str) -> str:
    """A text inside a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


# --------------------------------------------------------------------------- schemas

_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
"""Values of ``format`` that are kept to. Others say what a text means (`path`, `password`, `int64`), and are no rule in
JSON schema."""

_SPACING = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


def _nameable(tool: Tool) -> Tool:
    """The tool, where its name can stand between tags. Raises GrammarError."""
    if tool.name != tool.name.strip() or any(sign in tool.name for sign in '<>{}[]"\n'):
        raise GrammarError(f"tool {tool.name!r}: its name cannot be written in this model's tool format")
    return tool


def _arguments(tool: Tool) -> Mapping[str, Json]:
    """The schema of a tool's arguments, which are an object. Raises GrammarError."""
    schema: dict[str, Json] = dict(tool.parameters) or {"properties": {}}
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise GrammarError(
            f"tool {tool.name!r}: its parameters are of type {kinds!r}, and a call's arguments are an object"
        )
    whole: dict[str, Json] = {**schema, "type": "object"}
    if is_infinite(whole):
        raise GrammarError(f"tool {tool.name!r}: {_ENDLESS}")
    return whole


def _dumped(schema: Mapping[str, Json]) -> str:
    """A schema as the library is given it. A tool without any parameters takes none."""
    cleaned = cast("dict[str, Json]", _cleaned(schema, not _combines(schema)))
    for name in ("$schema", "$id"):
        cleaned.pop(name, None)
    return json.dumps({"x-guidance": _SPACING, **cleaned})


_ENDLESS = "the schema refers to itself so that no value of it could ever be finished"

_WORDS = ("default", "examples", "example")
"""Keywords whose values are never written."""
_OPEN = frozenset(("additionalProperties", "patternProperties", "anyOf", "$ref"))
"""Keywords beside which an object's members are not all that may be there."""
_COMBINES = frozenset(("allOf", "oneOf", "not", "if", "dependentSchemas", "unevaluatedProperties"))
"""Keywords that say something of an object that another schema describes as well."""


def _combines(schema: Json) -> bool:
    if isinstance(schema, list):
        return any(map(_combines, cast("list[Json]", schema)))
    return isinstance(schema, Mapping) and any(
        key in _COMBINES or _combines(value) for key, value in cast("Mapping[str, Json]", schema).items()
    )


def _cleaned(schema: Json, closed: bool) -> Json:
    """A schema without formats that are no rule. ``closed``: an object that names its members and says nothing of
    others has no others, in which a model that is still to learn would not come to an end."""
    if isinstance(schema, list):
        return [_cleaned(item, closed) for item in cast("list[Json]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    cleaned: dict[str, Json] = {}
    known = cast("Mapping[str, Json]", schema)
    for key, value in known.items():
        if key == "x-guidance" or (key == "format" and not (isinstance(value, str) and value in _FORMATS)):
            continue
        if key in NAMED and isinstance(value, Mapping):
            cleaned[key] = {name: _cleaned(item, closed) for name, item in cast("Mapping[str, Json]", value).items()}
        else:
            # Alternatives may name members each, beside those that are named outside.
            cleaned[key] = (
                value if key in VALUES else _cleaned(value, closed and not (key == "anyOf" and "properties" in known))
            )
    if closed and "properties" in known and not known.keys() & _OPEN:
        cleaned["additionalProperties"] = False
    return cleaned
