"""``lightning_cli`` as programs call it: objects made of a command line, ``--trainer.n-workers 4``, by what their
constructors take."""

from __future__ import annotations

import argparse
import builtins
import inspect
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, get_type_hints

import pydantic

from agentlightning.errors import ConfigError
from agentlightning.settings.fields import RunConfig

__all__ = ["RunConfig", "lightning_cli"]


def lightning_cli(*classes: type) -> Any:
    """One object of each class, in their order; one alone where there is one class.

    Every parameter of a constructor that text can stand for is a flag, ``--CLASS.PARAMETER VALUE`` with the class in
    lower case and ``-`` for ``_``; a list or a dict is written as JSON. What the command line does not give has its
    default. ``--help`` lists them. An unknown flag, and a parameter without a default that is not given, end the
    program with a line.
    """
    if not classes:
        raise ConfigError("lightning_cli() needs the classes to make: trainer = lightning_cli(Trainer)")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for made in classes:
        group = parser.add_argument_group(made.__name__)
        for parameter, read in _flags(made).items():
            needed = read.default is inspect.Parameter.empty
            group.add_argument(
                _flag(made, parameter),
                type=read,
                required=needed,
                default=argparse.SUPPRESS,
                dest=f"{made.__name__}.{parameter}",
                metavar=read.metavar,
                help=None if needed else f"default: {read.default}".replace("%", "%%"),
            )
    given = vars(parser.parse_args())
    objects = tuple(made(**_of(made, given)) for made in classes)
    return objects if len(classes) > 1 else next(iter(objects))


class _Reader:
    """Reads the text of one flag as what its parameter takes."""

    def __init__(self, annotation: Any, default: Any) -> None:
        self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        self.default = default
        self.metavar = getattr(annotation, "__name__", None) or str(annotation).removeprefix("typing.")
        self.__name__ = self.metavar  # what argparse calls it in its complaint

    def __call__(self, text: str) -> Any:
        if text.lower() in ("none", "null"):
            return self._adapter.validate_python(None)
        try:
            return self._adapter.validate_strings(text, strict=False)
        except pydantic.ValidationError:
            try:
                return self._adapter.validate_json(text)
            except pydantic.ValidationError as error:
                raise argparse.ArgumentTypeError(f"{text!r}: {error.errors()[0]['msg']}") from None


def _flags(made: type) -> dict[str, _Reader]:
    """By parameter, those that text can stand for."""
    parameters = list(inspect.signature(made).parameters.values())
    hints = _hints(made)
    found: dict[str, _Reader] = {}
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        default = parameter.default
        annotation = hints.get(parameter.name, str if default in (None, inspect.Parameter.empty) else type(default))
        if _is_plain(annotation):
            found[parameter.name] = _Reader(annotation, default)
    return found


def _hints(made: Any) -> Mapping[str, Any]:
    """The annotations of its constructors, those of its bases too, to which it may hand on what it does not name."""
    hints: dict[str, Any] = {}
    for each in reversed(made.__mro__):
        if "__init__" in vars(each):
            function = inspect.unwrap(each.__init__)
            names = _Names(getattr(function, "__globals__", {}))
            for name, annotation in getattr(function, "__annotations__", {}).items():
                with suppress(TypeError):  # it names another annotation: no flag stands for what that is
                    hints |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), localns=names)
    return hints


class _Names(dict[str, Any]):
    """The names that annotations are made of. One that only a type checker knows may be anything."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        return getattr(builtins, name, Any)


def _is_plain(annotation: Any) -> bool:
    """Whether it is made of text, numbers, lists and dicts alone."""
    try:
        return pydantic.TypeAdapter(annotation).json_schema() != {}
    except pydantic.PydanticUserError:  # a class of somebody's, a function
        return False


def _flag(made: type, parameter: str) -> str:
    return f"--{made.__name__.lower()}.{parameter.replace('_', '-')}"


def _of(made: type, given: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{made.__name__}."
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
