"""Jinja: a chat template's source compiled once, to be called many times. Knows nothing of messages.

Chat templates are programs that come with a model, so they run in Jinja's sandbox, with the filters and functions that
Hugging Face's documentation ("Chat templates", "Writing a chat template") promises them: ``tojson`` that escapes no
HTML, ``raise_exception``, ``strftime_now``, loop controls, and ``{% generation %}`` blocks, which mark text for others
and change nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Compiled = Callable[..., str]
"""Takes what the template may use as keywords. Raises whatever the template raises."""


def compile_template(source: str) -> Compiled:
    """Raises jinja2's TemplateError for a source that is no template."""
    template = _environment().from_string(source)
    template.globals = dict(template.globals)  # else each rendering gathers them from a chain of dictionaries
    return template.render


def names_in(source: str) -> frozenset[str]:
    """What a template asks of those who call it. Raises jinja2's TemplateError for a source that is no template."""
    environment = _environment()
    return frozenset(meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys())


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what templates ask most: the members of plain dictionaries and the state of a
    loop."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute not in _DICT and _is_dict(obj):
            found = obj.get(attribute, _MISSING)
            return self.undefined(obj=obj, name=attribute) if found is _MISSING else found
        if type(obj) is LoopContext and attribute in _LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _is_dict(value: Any) -> bool:
    return type(value) is dict


_MISSING = object()
_DICT = frozenset(dir(dict))
_LOOP = frozenset(("first", "last", "index", "index0", "length"))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    cast("dict[str, Any]", environment.globals).update(raise_exception=_raise, strftime_now=_now, namespace=_Names)
    return environment


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """A namespace that cannot be made to hold what looks like Python's own attributes."""

    def __init__(*args: Any, **given: Any) -> None:  # pyright: ignore[reportSelfClsParameterName]
        for name in dict(*args[1:], **given):
            _plain(name)
        Namespace.__init__(*args, **given)

    def __setitem__(self, name: str, value: Any) -> None:
        _plain(name)
        super().__setitem__(name, value)


def _plain(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a chat template may not set {name!r}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
