"""Function state: what a user's function (a grader, say) reads besides its arguments, so that it can be told whether a
copy of it that another process imports is the same."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast


def plain_state(given: Callable[..., Any]) -> dict[str, str]:
    """Fingerprints of the plain values that a function reads from its module and its own attributes, by name: a copy of
    it that is imported elsewhere has to have the same."""
    owner = getattr(given, "__self__", None) if inspect.ismethod(given) else None
    function: Any = inspect.unwrap(getattr(given, "__func__", given))
    if not isinstance(function, FunctionType):
        owner, function = given, inspect.getattr_static(type(given), "__call__", None)
    values = dict(_read_by(function, set())) if isinstance(function, FunctionType) else {}
    if owner is not None and not isinstance(owner, ModuleType):
        values.update(
            {f"self.{name}": value for name, value in vars(owner).items()} if hasattr(owner, "__dict__") else {}
        )
    fingerprints = {name: _fingerprint(value) for name, value in values.items()}
    return {name: text for name, text in fingerprints.items() if text is not None}


def _read_by(function: FunctionType, seen: set[FunctionType]) -> Iterator[tuple[str, object]]:
    """The globals that a function reads, and those that the functions of its module which it calls read."""
    seen.add(function)
    for name in _names(function.__code__):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if not isinstance(value, FunctionType):
            yield name, value
        elif value.__globals__ is function.__globals__ and value not in seen:
            yield from _read_by(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _fingerprint(value: object) -> str | None:
    """The fingerprint of a plain value; None for anything else, of which nothing can be said."""
    try:
        text = _plain_text(value, itertools.count())
    except (TypeError, RecursionError):
        return None
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _plain_text(value: object, count: Iterator[int]) -> str:
    """Raises TypeError for what is not plain. Of a very large value the first items and the number of each
    container's."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, Namespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        value = dict(vars(value)) if hasattr(value, "__dict__") else repr(value)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        pairs = [f"{_plain_text(k, count)}:{_plain_text(v, count)}" for k, v in items if next(count) < 100_000]
        return f"{len(items)}{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        members = cast("list[object]", value)
        return f"{len(members)}[{','.join(_plain_text(item, count) for item in members if next(count) < 100_000)}]"
    if isinstance(value, set | frozenset):
        found = cast("set[object]", value)
        return f"{len(found)}({','.join(sorted(_plain_text(item, count) for item in found if next(count) < 100_000))})"
    raise TypeError(type(value).__name__)
