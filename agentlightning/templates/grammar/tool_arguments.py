"""The arguments of a tool as grammar rules, in the formats that do not write them as one JSON object.

Pure. A JSON schema is compiled by hand into a subset of what it allows: only what the format's reader (arguments.py)
reads back as a value that the schema allows. Members that a schema does not name are not written. What cannot be
written so is a GrammarError that names the parameter and the keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agentlightning.errors import GrammarError
from agentlightning.nouns import Json, Tool
from agentlightning.templates.arguments import Types, as_json, kinds_of, local_reference, types_of

Words = Callable[..., str]
"""Fixed texts in a row as an expression: what is a token of its own as that token."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tag for each argument: ``before KEY middle VALUE after tag behind``. Strings are written bare, other values as
    JSON."""

    before: tuple[str, ...]
    middle: tuple[str, ...]
    after: str
    tag: str
    behind: str


@dataclass(frozen=True, slots=True)
class Quoted:
    """Gemma's grammar: one object with bare keys, and strings between two ``quote``."""

    quote: str


@dataclass(frozen=True, slots=True)
class _Style:
    """How values inside values are written: JSON, or Gemma's way. ``never``: a text that no value may hold, since the
    reader would end it there."""

    quote: str
    never: str
    comma: str
    colon: str
    escapes: bool


@dataclass(frozen=True, slots=True)
class _Text:
    """Strings without their quotes, as an expression of a terminal. ``empty``: the empty one is among them."""

    terminal: str
    empty: bool


@dataclass(slots=True)
class _Found:
    """The ways to write a value. ``literals`` are single strings, ``texts`` many; ``words`` are true, false, null and
    single numbers, as JSON; ``numbers`` are schemas of numbers; ``others`` are expressions of arrays and objects."""

    literals: list[str] = field(default_factory=list[str])
    texts: list[_Text] = field(default_factory=list["_Text"])
    words: list[str] = field(default_factory=list[str])
    numbers: list[Mapping[str, Json]] = field(default_factory=list[Mapping[str, Json]])
    others: list[str] = field(default_factory=list[str])

    @property
    def empty(self) -> bool:
        """Whether the empty string is among them."""
        return "" in self.literals or any(text.empty for text in self.texts)

    def add(self, more: _Found) -> None:
        self.literals += [each for each in more.literals if each not in self.literals]
        self.texts += [each for each in more.texts if each not in self.texts]
        self.words += [each for each in more.words if each not in self.words]
        self.numbers += [each for each in more.numbers if each not in self.numbers]
        self.others += [each for each in more.others if each not in self.others]


def arguments_rules(tool: Tool, name: str, form: Tagged | Quoted, words: Words) -> list[str]:
    """The rules of the arguments of a call of ``tool``; the first is called ``name``. Raises GrammarError by name."""
    schema = local_reference(tool.parameters, tool.parameters)
    try:
        _check_shapes(schema)
    except GrammarError as error:
        raise GrammarError(f"the parameters of tool {tool.name!r}: {error}") from error
    wrong = [key for key in schema if key not in _OBJECT and not _says_nothing(key, schema[key])]
    if wrong:
        raise GrammarError(
            f"the parameters of tool {tool.name!r}: {wrong[0]!r} cannot be kept to where each argument is written by "
            "itself"
        )
    style = (
        _Style('"', form.tag, ", ?", ": ?", True)
        if isinstance(form, Tagged)
        else _Style(form.quote, form.quote, ",", ":", False)
    )
    values = _Values(name, style, tool.parameters, words)
    if isinstance(form, Quoted):
        try:
            return [f"{name}: {values.members(schema, top=True)}", *values.rules]
        except GrammarError as error:
            raise GrammarError(f"the parameters of tool {tool.name!r}: {error}") from error
    types = types_of([tool]).get(tool.name, {})
    parts: list[str] = []
    for i, (key, inner, needed) in enumerate(_members(schema)):
        if key != key.strip() or not key or any(sign in key for sign in "<>[]\n"):
            raise GrammarError(f"the parameters of tool {tool.name!r}: the name {key!r} cannot be written as a tag")
        try:
            values.rules.append(
                f"{name}_p{i}: {words(*form.before, key, *form.middle)} {values.bare(inner, types, key, form)}"
            )
        except GrammarError as error:
            raise GrammarError(f"the parameters of tool {tool.name!r}: {key!r}: {error}") from error
        parts.append(f"{name}_p{i}" + ("" if needed else "?"))
    return [f"{name}: {' '.join(parts)}", *values.rules]


class _Values:
    """Writes the rules of one tool's values; their names begin with ``prefix``."""

    def __init__(self, prefix: str, style: _Style, root: Mapping[str, Json], words: Words) -> None:
        self._prefix, self._style, self._root, self._words = prefix, style, root, words
        self._known: dict[str, _Found] = {}
        self._count = 0
        self.rules: list[str] = []

    # ----------------------------------------------------------------- a value between tags
    def bare(self, schema: Json, types: Types, key: str, form: Tagged) -> str:
        """A value up to and with what ends it."""
        found, kinds = self._compile(schema), types.get(key, frozenset[str]())
        sure = kinds == _STRING
        texts = [text.terminal if sure else f"({text.terminal} & ~{terminal(_misread(kinds))})" for text in found.texts]
        numbers = found.numbers
        if texts and numbers:
            # A number would go on being text: both have to be one terminal.
            if any(len(each) > 1 for each in numbers):
                raise GrammarError("a text or a number within limits cannot be told apart without quotes")
            texts += [terminal(_NUMBER if any(each["type"] == "number" for each in numbers) else _INTEGER)]
            numbers = []
        for text, value in (
            *((text, text) for text in found.literals),
            *((word, json.loads(word)) for word in found.words),
        ):
            written = next(
                (each for each in (text, json.dumps(value, ensure_ascii=False)) if _reads(each, kinds, value)), None
            )
            if written is None or form.tag in written:
                raise GrammarError(f"the value {value!r} cannot be written without quotes")
            texts.append(terminal(re.escape(written)))
        ways = [self._bare_text(texts, form, found.empty)] if texts else []
        ways += [
            f"{each} {self._words(form.after, form.tag, form.behind)}" for each in (*self._json(numbers), *found.others)
        ]
        return self._either(ways)

    def _bare_text(self, texts: Sequence[str], form: Tagged, empty: bool) -> str:
        # What ends a text is part of its terminal, or the text would go on with it.
        body = self._terminal(f"({' | '.join(texts)}) & ~{terminal(_ANY + re.escape(form.tag) + _ANY)}")
        tag, behind = self._words(form.tag), self._words(form.behind)
        if not tag.endswith(">"):
            return f"{self._terminal(f'{body} {json.dumps(form.after + form.tag)}')} {behind}"
        if form.after:
            return f"{self._terminal(f'{body} {json.dumps(form.after)}')} {tag} {behind}"
        return f"{self._filled(body, empty)} {tag} {behind}"

    def _filled(self, body: str, empty: bool) -> str:
        """A terminal between tokens, which cannot be empty itself."""
        filled = self._terminal(f"{body} & {terminal('(?s:.+)')}")
        return f"({filled})?" if empty else filled

    # ----------------------------------------------------------------- a value inside a value
    def value(self, schema: Json) -> str:
        return self._ways(self._compile(schema))

    def _ways(self, found: _Found) -> str:
        ways = [self._string(found)] if found.literals or found.texts else []
        return self._either([*ways, *map(json.dumps, found.words), *self._json(found.numbers), *found.others])

    def _either(self, ways: Sequence[str]) -> str:
        if not ways:
            raise GrammarError("it allows no value")
        return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"

    def _string(self, found: _Found) -> str:
        style = self._style
        texts: list[str] = []
        for text in found.literals:
            inside = json.dumps(text, ensure_ascii=False)[1:-1] if style.escapes else text
            if style.never in inside:
                raise GrammarError(f"the value {text!r} holds {style.never!r}, which would end it")
            texts.append(terminal(re.escape(inside)))
        for text in found.texts:
            free, plain = text.terminal == _FREE, f"({text.terminal} & {terminal(_PLAIN)})"
            texts.append(text.terminal if not style.escapes else terminal(_JSON_STRING) if free else plain)
        body = self._terminal(f"({' | '.join(texts)}) & ~{terminal(_ANY + re.escape(style.never) + _ANY)}")
        quote = self._words(style.quote)
        if quote.endswith(">"):  # a token
            return f"{quote} {self._filled(body, found.empty)} {quote}"
        return self._terminal(f"{quote} {body} {quote}")

    def _json(self, numbers: Sequence[Mapping[str, Json]]) -> list[str]:
        if not numbers:
            return []
        self._count += 1
        name = f"{self._prefix}_n{self._count}"
        self.rules.append(f"{name}: %json {json.dumps(numbers[0] if len(numbers) == 1 else {'anyOf': list(numbers)})}")
        return [name]

    def _terminal(self, body: str) -> str:
        self._count += 1
        name = f"{self._prefix}_T{self._count}".upper()
        self.rules.append(f"{name}: {body}")
        return name

    # ----------------------------------------------------------------- schemas
    def _compile(self, schema: Json) -> _Found:
        if schema is True or schema is None:
            schema = {}
        if schema is False:
            return _Found()
        if not isinstance(schema, Mapping):
            raise GrammarError(f"{schema!r} is no schema")
        known = {
            key: value for key, value in cast("Mapping[str, Json]", schema).items() if not _says_nothing(key, value)
        }
        _check_shapes(known)
        for key, read in (
            ("$ref", self._reference),
            ("anyOf", self._any_of),
            ("oneOf", self._one_of),
            ("allOf", self._all_of),
        ):
            if key in known:
                more = [other for other in known if other not in (key, "$defs", "definitions")]
                if more:
                    raise GrammarError(f"{key!r} beside {more[0]!r} cannot be kept to")
                return read(known[key])
        if "enum" in known or "const" in known:
            return self._enum(known)
        if not known:
            return self._once("anything", {"type": ["string", "boolean", "null", "number", "array", "object"]})
        found = _Found()
        kinds = known.get("type")
        for kind in (
            _guessed(known) if kinds is None else [kinds] if isinstance(kinds, str) else cast("list[Any]", kinds)
        ):
            if kind not in _KEYWORDS:
                raise GrammarError(f"there is no type {kind!r}")
            found.add(self._of_type(kind, known))
        allowed = {keyword for kind in _KEYWORDS for keyword in _KEYWORDS[kind]}
        wrong = [key for key in known if key not in allowed and key not in ("type", "$defs", "definitions")]
        if wrong:
            raise GrammarError(f"{wrong[0]!r} cannot be kept to in this tool format")
        return found

    def _of_type(self, kind: str, schema: Mapping[str, Json]) -> _Found:
        if kind == "string":
            return _Found(texts=[_text(schema)])
        if kind == "boolean":
            return _Found(words=["true", "false"])
        if kind == "null":
            return _Found(words=["null"])
        if kind in ("integer", "number"):
            limits = {key: schema[key] for key in _KEYWORDS[kind] if key in schema}
            return _Found(numbers=[{"type": kind, **limits}])
        return _Found(others=[self._array(schema) if kind == "array" else self.members(schema)])

    def _any_of(self, schemas: Json) -> _Found:
        found = _Found()
        for each in cast("list[Json]", schemas):
            found.add(self._compile(each))
        return found

    def _one_of(self, schemas: Json) -> _Found:
        known = types_of(
            [
                Tool(
                    "",
                    "",
                    {**self._root, "properties": {str(i): one for i, one in enumerate(cast("list[Json]", schemas))}},
                )
            ]
        )[""]
        each = [{"number" if kind == "integer" else kind for kind in kinds} for kinds in known.values()]
        if not all(each) or sum(map(len, each)) != len(set[str]().union(*each)):
            raise GrammarError("'oneOf' cannot be kept to unless its schemas are of different types")
        return self._any_of(schemas)

    def _all_of(self, schemas: Json) -> _Found:
        if len(schemas) != 1:
            raise GrammarError("'allOf' cannot be kept to")
        return self._compile(schemas[0])

    def _reference(self, name: Json) -> _Found:
        target = local_reference({"$ref": name}, self._root)
        if "$ref" in target:
            raise GrammarError(f"there is no schema at {name!r}")
        return self._once(str(name), target)

    def _once(self, name: str, schema: Mapping[str, Json]) -> _Found:
        """A schema that is met inside itself is a rule there."""
        if name in self._known:
            return self._known[name]
        rule = f"{self._prefix}_r{len(self._known)}"
        self._known[name] = _Found(others=[rule])
        found = self._compile(schema)
        self._known[name] = found
        self.rules.append(f"{rule}: {self._ways(found)}")
        return found

    def _enum(self, schema: Mapping[str, Json]) -> _Found:
        wrong = [key for key in schema if key not in ("enum", "const", "type", "$defs", "definitions")]
        if wrong:
            raise GrammarError(f"{wrong[0]!r} beside 'enum' or 'const' cannot be kept to")
        values = cast("list[Json]", schema["enum"]) if "enum" in schema else [schema["const"]]
        kinds = schema.get("type")
        found = _Found()
        for value in values:
            of = set(kinds_of(value))
            if ("const" in schema and json.dumps(value) != json.dumps(schema["const"])) or not (
                kinds is None or of & ({kinds} if isinstance(kinds, str) else set(cast("list[str]", kinds)))
            ):
                continue
            if isinstance(value, str):
                found.add(_Found(literals=[value]))
            elif value is None or isinstance(value, bool | int | float):
                found.add(_Found(words=[json.dumps(value)]))
            else:
                raise GrammarError(f"the value {json.dumps(value)} cannot be written in this tool format")
        return found

    # ----------------------------------------------------------------- arrays and objects
    def _array(self, schema: Mapping[str, Json]) -> str:
        least, most = cast("int", schema.get("minItems", 0)), cast("int | None", schema.get("maxItems"))
        if most == 0:
            return '"[" "]"'
        if most is not None and most < least:
            raise GrammarError(f"maxItems={most} is less than minItems={least}")
        item, comma = self._rule(self.value(schema.get("items", True))), self._sign(self._style.comma)
        more = "" if most is None else most - 1
        rest = "" if more == 0 else f"({comma} {item}){{{max(least - 1, 0)},{more}}}"
        return f'"[" {item} {rest} "]"' if least else f'"[" ({item} {rest})? "]"'

    def members(self, schema: Mapping[str, Json], *, top: bool = False) -> str:
        """An object. Its named members come in the order of the schema; only one without any, not at the ``top``, may
        have others."""
        comma, colon = self._sign(self._style.comma), self._sign(self._style.colon)
        members = _members(schema)
        extra = schema.get("additionalProperties", True)
        if not members:
            if extra is False or top:
                return '"{" "}"'
            key = self._terminal(
                terminal('"[A-Za-z_][A-Za-z0-9_ -]*"' if self._style.escapes else "[A-Za-z_][A-Za-z0-9_]*")
            )
            value = self._rule(self.value(extra))
            return f'"{{" ({key} {colon} {value} ({comma} {key} {colon} {value})*)? "}}"'
        written: list[str] = []
        for name, inner, _ in members:
            if self._style.never in name:
                raise GrammarError(f"the name {name!r} cannot be written in this tool format")
            try:
                written.append(self._rule(f"{self._key(name)} {colon} {self.value(inner)}"))
            except GrammarError as error:
                raise GrammarError(f"{name!r}: {error}") from error
        # after[i]: what may follow where something stands before member i.
        after = [""] * (len(members) + 1)
        for i in reversed(range(len(members))):
            one = f"({comma} {written[i]})" + ("" if members[i][2] else "?")
            after[i] = self._rule(f"{one} {after[i + 1]}".strip())
        ways: list[str] = []
        for i, (_, _, needed) in enumerate(members):
            ways.append(f"{written[i]} {after[i + 1]}".strip())
            if needed:
                return f'"{{" ({" | ".join(ways)}) "}}"'
        return f'"{{" ({" | ".join(ways)})? "}}"'

    def _key(self, name: str) -> str:
        if self._style.escapes:
            return json.dumps(json.dumps(name, ensure_ascii=False))
        if name == name.strip() and _BARE_KEY.fullmatch(name):
            return json.dumps(name)
        quote = self._words(self._style.quote)
        return f"{quote} {json.dumps(name)} {quote}" if name else f"{quote} {quote}"

    def _rule(self, body: str) -> str:
        self._count += 1
        name = f"{self._prefix}_v{self._count}"
        self.rules.append(f"{name}: {body}")
        return name

    def _sign(self, sign: str) -> str:
        return f"/{sign}/" if "?" in sign else json.dumps(sign)


# --------------------------------------------------------------------------- keywords

_TEXT = ("minLength", "maxLength", "pattern", "format")
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": _TEXT,
    "integer": _LIMITS,
    "number": _LIMITS,
    "boolean": (),
    "null": (),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
_OBJECT = ("type", *_KEYWORDS["object"], "$defs", "definitions")

_BARE_KEY = re.compile(r'[^:{}\[\],"]+')

_ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$id",
        "$comment",
        "strict",
    )
)
_DATE = (
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "email": r"[a-z0-9_+-]+(?:\.[a-z0-9_+-]+)*@[a-z0-9]+(?:-[a-z0-9]+)*(?:\.[a-z0-9]+(?:-[a-z0-9]+)*)+",
}
"""Regular expressions of what is surely in a format, which need not be all that is."""
_OTHER_FORMATS = frozenset(("duration", "hostname", "ipv6", "uri"))
"""Formats that say which strings are allowed, and that have no regular expression here."""


_SHAPES: Mapping[str, tuple[type, ...]] = {
    "type": (str, list), "properties": (dict,), "required": (list,), "enum": (list,), "anyOf": (list,),
    "oneOf": (list,), "allOf": (list,), "minItems": (int,),
    "maxItems": (int,), "minLength": (int,), "maxLength": (int,), "pattern": (str,), "format": (str,), "$ref": (str,),
}  # fmt: skip


def _check_shapes(schema: Mapping[str, Json]) -> None:
    """Raises GrammarError for a keyword whose value is none for it."""
    for key, value in schema.items():
        names = key in ("type", "required") and isinstance(value, list)
        wrong = names and not all(isinstance(name, str) for name in cast("list[Json]", value))
        if wrong or (key in _SHAPES and not isinstance(value, _SHAPES[key])):
            raise GrammarError(f"{key}={value!r} is no JSON schema")


def _says_nothing(key: str, value: Json) -> bool:
    return key in _ANNOTATIONS or key.startswith("x-") or (key == "uniqueItems" and value is False)


def _guessed(schema: Mapping[str, Json]) -> list[str]:
    """The types of a schema that names none: those that its keywords are about."""
    return [
        kind
        for kind, keywords in _KEYWORDS.items()
        if kind != "integer" and any(keyword in schema for keyword in keywords)
    ]


def _members(schema: Mapping[str, Json]) -> list[tuple[str, Json, bool]]:
    """Name, schema and whether it has to be there, of each member that an object's schema names."""
    properties = cast("Mapping[str, Json]", schema.get("properties") or {})
    required = cast("list[str]", schema.get("required") or [])
    extra = schema.get("additionalProperties", True)
    named = {**properties, **{name: extra for name in required if name not in properties}}
    return [(name, inner, name in required) for name, inner in named.items()]


# --------------------------------------------------------------------------- texts

_STRING = frozenset(("string",))
_ANY = "(?s:.*)"
_WHITE = r"[\s\x1c-\x1f]*"
_INTEGER = "-?(?:0|[1-9][0-9]*)"
_NUMBER = _INTEGER + r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_JSON_STRING = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f])*'
_PLAIN = r'[^"\\\x00-\x1f]*'

_NOT_READ: Mapping[str, str] = {
    "string": f'"{_ANY}',
    "null": f"(?:null|None){_WHITE}",
    "boolean": f"(?:true|false|True|False){_WHITE}",
    "number": f"-?[0-9][0-9.eE+-]*{_WHITE}",
    "array": rf"\[{_ANY}",
    "object": rf"\{{{_ANY}",
}
"""By type, what may be read as a value of it."""


def _misread(kinds: frozenset[str]) -> str:
    """Texts that may be read as something else than themselves. ``kinds``: the types that a reader knows to be
    allowed."""
    wide = {"number" if kind == "integer" else kind for kind in kinds} or set(_NOT_READ)
    return f"{_WHITE}(?:{'|'.join(_NOT_READ[kind] for kind in sorted(wide) if kind in _NOT_READ)})"


def _reads(written: str, kinds: frozenset[str], value: Json) -> bool:
    read = json.loads(as_json(written, kinds))
    return type(read) is type(value) and read == value


def _text(schema: Mapping[str, Json]) -> _Text:
    """The strings that a schema allows."""
    parts: list[str] = []
    empty = True
    least, most = cast("int", schema.get("minLength", 0)), cast("int | None", schema.get("maxLength"))
    if most is not None and most < least:
        raise GrammarError(f"maxLength={most} is less than minLength={least}")
    if least or most is not None:
        parts.append(terminal(f"(?s:.{{{least},{'' if most is None else most}}})"))
        empty = not least
    if "pattern" in schema:
        whole = _whole(schema["pattern"])
        parts.append(terminal(whole))
        try:
            empty = empty and re.fullmatch(whole, "") is not None
        except re.error as error:
            raise GrammarError(f"pattern={schema['pattern']!r} is no regular expression: {error}") from error
    wanted = schema.get("format")
    if wanted in _OTHER_FORMATS:
        raise GrammarError(f"format={wanted!r} cannot be kept to in this tool format")
    if wanted in _FORMATS:
        parts.append(terminal(_FORMATS[wanted]))
        empty = False
    return _Text(f"({' & '.join(parts)})" if parts else _FREE, empty)


def _whole(pattern: str) -> str:
    """A pattern, which may match anywhere, as one of whole texts."""
    begins, inner, ends = unanchored(pattern)
    return ("" if begins else _ANY) + f"(?:{inner})" + ("" if ends else _ANY)


def unanchored(pattern: str) -> tuple[bool, str, bool]:
    """A pattern without its anchors, and whether it had one at its start and at its end. Raises GrammarError for
    anchors elsewhere."""
    begins, ends = pattern.startswith("^"), _ENDS.search(pattern) is not None
    inner = pattern[begins : len(pattern) - ends]
    outside = _CLASS.sub("", _ESCAPED.sub("", inner))
    if "^" in outside or "$" in outside or ((begins or ends) and _has_bar(outside)):
        raise GrammarError(f"pattern={pattern!r} cannot be kept to: write ^(?:...)$ around the whole of it")
    return begins, inner, ends


_ENDS = re.compile(r"(?<!\\)(?:\\\\)*\$\Z")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[[^\]]*\]")


def _has_bar(pattern: str) -> bool:
    """Whether there is a choice outside all groups, so that an anchor belongs to a part of the pattern only."""
    depth = 0
    for sign in pattern:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and not depth:
            return True
    return False


def terminal(text: str) -> str:
    """A regular expression as a terminal."""
    return "/" + (re.sub(r"\\.|/|\n", _slash, text, flags=re.DOTALL) or "(?:)") + "/"


def _slash(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(found[0], found[0])


_FREE = terminal(_ANY)
