"""JSON values: whether a value is one as it stands, what it is as one where that loses nothing, and else exactly
where in it something is not.

Values come from parquet files, data frames and users' own code. numpy's numbers and arrays and tuples are turned into
what they equal; a missing value, a date or an object is never guessed at: the message names its place and what would
make it JSON. Imports none of the libraries whose values it knows.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

from agentlightning.errors import TaskError
from agentlightning.nouns import Json

MOST_LEVELS = 128
"""How deep a JSON value that is recorded may be nested."""

_LEAST, _MOST = -(2**63), 2**64 - 1
"""The integers that the record gives back as they were."""


def is_json(value: object, depth: int = MOST_LEVELS) -> bool:
    """Whether a value is plain JSON as it stands, of which the record gives back exactly the same.

    A tuple is not (it would come back as a list), nor NaN, an integer of more than 64 bits, half of a surrogate pair,
    numpy's numbers, or what is nested more than ``depth`` levels deep.
    """
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return _LEAST <= value <= _MOST
    if isinstance(value, str):
        return _is_text(value)
    if type(value) is float:
        return value - value == 0
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(is_json(item, depth - 1) for item in cast("list[object]", value))
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return all(type(key) is str and _is_text(key) and is_json(item, depth - 1) for key, item in items)
    return False


def exact_json(value: object, place: str) -> Json:
    """The value as plain JSON; the same object where it is JSON already. Tuples become lists, numpy's numbers, texts
    and arrays what they equal.

    Raises TaskError for everything else, with its place, e.g. ``train_dataset[0]['when'] is a datetime: use
    .isoformat()``.
    """
    return value if is_json(value) else _convert(value, place, MOST_LEVELS)


def _convert(value: object, place: str, depth: int) -> Json:
    plain = out_of_numpy(value)
    if plain is None or isinstance(plain, bool):
        return plain
    if isinstance(plain, float):
        if not math.isfinite(plain):
            raise TaskError(f"{place} is {plain}: JSON has no such number; use None where a value is missing")
        return float(plain)
    if isinstance(plain, int):
        if not _LEAST <= plain <= _MOST:
            raise TaskError(f"{place} is an integer of {plain.bit_length()} bits: the record holds 64; use str(...)")
        return plain
    if isinstance(plain, str):
        if not _is_text(plain):
            raise TaskError(f"{place} is text with half of a surrogate pair: use .encode('utf-8', 'replace').decode()")
        return plain
    if not isinstance(plain, list | dict) and (type(plain) is not tuple):
        raise TaskError(f"{place} is {kind_of(plain)}: {_remedy(plain)}")
    if depth == 0:
        raise TaskError(
            f"{place[:200]}... is nested more than {MOST_LEVELS} levels deep: pass it as text, json.dumps(...)"
        )
    if isinstance(plain, dict):
        items = cast("dict[object, Any]", plain).items()
        return {_key(key, place): _convert(item, f"{place}[{key!r}]", depth - 1) for key, item in items}
    return [_convert(item, f"{place}[{i}]", depth - 1) for i, item in enumerate(cast("list[object]", plain))]


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise TaskError(f"{place} has the key {_shown(key)}, {kind_of(key)}: keys are text; use str(key)")
    if not _is_text(key):
        raise TaskError(f"{place} has a key with half of a surrogate pair: {key!r}")
    return str(key)


def _is_text(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def comes_from(value: object, library: str) -> bool:
    """Whether a value's class, or one it is made from, belongs to a library: without importing that."""
    return any(cls.__module__.partition(".")[0] == library for cls in type(value).__mro__)


def out_of_numpy(value: object) -> object:
    """numpy's numbers, texts and arrays as what they equal. Dates keep their own kind, and numbers wider than
    Python's stay as they are.
    """
    if not comes_from(value, "numpy") or not hasattr(value, "dtype"):
        return value
    kind = str(getattr(cast(Any, value).dtype, "kind", ""))
    return cast(Any, value).tolist() if kind in "biufUO" else value


def kind_of(value: object) -> str:
    """A value's type with its article, as it is known: ``a datetime``, ``a numpy.datetime64``, ``an int``."""
    cls = type(value)
    module = cls.__module__.partition(".")[0]
    name = (
        cls.__name__
        if module in ("builtins", "datetime", "decimal", "uuid", "pathlib", "__main__")
        else f"{module}.{cls.__name__}"
    )
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def _shown(value: object) -> str:
    return repr(value)[:60]


def _remedy(value: object) -> str:
    """What makes a value of this kind JSON."""
    name = type(value).__name__
    if name in ("NaTType", "NAType"):
        return "use None where a value is missing"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return "use .isoformat()"
    if isinstance(value, datetime.timedelta):
        return "use .total_seconds()"
    if isinstance(value, decimal.Decimal):
        return "use float(...), or str(...) to keep every digit"
    if isinstance(value, set | frozenset):
        return "use sorted(...), a list"
    if isinstance(value, bytes | bytearray | memoryview):
        return "use .decode(), or base64.b64encode(...).decode() for what is not text"
    if isinstance(value, uuid.UUID | PurePath | complex):
        return "use str(...)"
    if isinstance(value, tuple):
        return "use ._asdict()" if hasattr(cast(object, value), "_asdict") else "use list(...)"
    if isinstance(value, enum.Enum):
        return "use .value"
    if comes_from(value, "numpy"):
        number = str(getattr(getattr(value, "dtype", None), "kind", "")) == "f"
        return (
            "use .astype(str).tolist()"
            if type(value).__name__ == "ndarray"
            else "use float(...)"
            if number
            else "use str(...)"
        )
    if comes_from(value, "PIL"):
        return "pass the path of its file, or its bytes as base64 text"
    for method in ("model_dump", "to_dict", "tolist", "item", "isoformat"):
        if callable(getattr(value, method, None)) and not isinstance(value, type):
            return f"use .{method}({'mode=' + repr('json') if method == 'model_dump' else ''})"
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return "use dataclasses.asdict(...)"
    if isinstance(value, Mapping):
        return "use dict(...)"
    if hasattr(value, "__iter__"):
        return "use list(...)"
    return "a JSON value is text, a number, True, False, None, a list or a dict"
