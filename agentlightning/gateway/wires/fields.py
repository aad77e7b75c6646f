"""Reading a request's fields: what every wire checks in the same way. A problem is a CallError that names the field and
what it may be.

Validated by hand: this runs on every call, on histories of any length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.base import CallError
from agentlightning.nouns import Json, Tool

MAX_SAMPLES = 128
MAX_STOPS = 16
MAX_DEPTH = 64
"""Levels of nesting in tools and in what the record keeps of a request."""


def bad(message: str, param: str | None, code: str | None = None) -> CallError:
    return CallError(400, message, param=param, code=code)


def unsupported(name: str, value: Json, instead: str = "") -> CallError:
    """A known field that cannot be honoured. ``instead`` says what can."""
    return bad(
        f"{name}={shown(value)} is not supported{': ' if instead else ''}{instead}", name, "unsupported_parameter"
    )


def shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def mapping(value: Json) -> Mapping[str, Any]:
    """``value`` where it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects(value: Json) -> list[Mapping[str, Any]]:
    """The objects in ``value`` where it is a list, else none."""
    return (
        [cast("dict[str, Any]", each) for each in cast("list[Any]", value) if isinstance(each, dict)]
        if isinstance(value, list)
        else []
    )


def string(body: Mapping[str, Json], name: str) -> str | None:
    """A string of the request itself, None where there is none."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad(f"{name} must be a string, not {shown(value)}", name)


def settings(body: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """An object of settings, an empty one where there is none."""
    value = body.get(name)
    if value is None or isinstance(value, dict):
        return mapping(value)
    raise bad(f"{name} must be an object, not {shown(value)}", name)


def refuse_unless_neutral(
    body: Mapping[str, Json],
    neutral: Mapping[str, tuple[Json, ...]],
    instead: Mapping[str, str] | None = None,
    where: str = "",
) -> None:
    """Refuses, by name, fields that cannot be honoured. ``neutral`` has for each the values (besides null) that ask for
    nothing, ``instead`` for some what can be asked for; ``where`` stands before their names."""
    for name in neutral.keys() & body.keys():
        value = body[name]
        if value is not None and not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral[name]
        ):
            raise unsupported(where + name, value, (instead or {}).get(name, ""))


def boolean(body: Mapping[str, Json], name: str, *, param: str | None = None) -> bool:
    """False where there is none. ``param`` is the field's full path where ``body`` is not the request itself."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise bad(f"{param or name} must be true or false, not {shown(value)}", param or name)


def integer(
    body: Mapping[str, Json], name: str, low: int, high: int | None = None, *, param: str | None = None
) -> int | None:
    """A whole number, None where there is none. ``param`` is the field's full path where ``body`` is not the request
    itself."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise bad(f"{param or name} must be a whole number {limits}, not {shown(value)}", param or name)
    return value


def number(
    body: Mapping[str, Json], name: str, low: float, high: float, *, above: bool = False, param: str | None = None
) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
        or (above and value == low)
    ):
        limits = f"above {low} and at most {high}" if above else f"from {low} to {high}"
        raise bad(f"{param or name} must be a number {limits}, not {shown(value)}", param or name)
    return float(value)


def text(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    """A string or nothing; ``where`` is the path of what holds it."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad(f"{where}.{name} must be a string, not {shown(value)}", f"{where}.{name}")


def needed_text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if isinstance(value, str):
        return value
    raise bad(f"{where}.{name} must be a string, not {shown(value)}", f"{where}.{name}")


def stops(value: Json, name: str = "stop") -> tuple[str, ...]:
    if value is None:
        return ()
    given: list[Any] = (
        [value] if isinstance(value, str) else cast("list[Any]", value) if isinstance(value, list) else [None]
    )
    if len(given) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in given):
        raise bad(
            f"{name} must be a non-empty string or a list of at most {MAX_STOPS} of them, not {shown(value)}", name
        )
    return tuple(dict.fromkeys(given))


def arguments_text(value: Any, where: str) -> str:
    """A call's arguments as text, whether they came as text, as an object or not at all."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    check_depth(value, where)
    try:
        encoded = orjson.dumps(value)
    except orjson.JSONEncodeError:  # read exactly: it holds more than the parser would have given
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if _EXPONENT.search(encoded) and _rounded(value):
        raise Rounded(where)
    return encoded.decode()


# --------------------------------------------------------------------------- numbers as they were written


class Rounded(CallError):
    """An object may hold a whole number of more than 64 bits, which the parser of bodies rounds: the body has to be
    read `exactly`."""

    def __init__(self, where: str) -> None:
        super().__init__(
            400,
            f"{where} holds a number of more than 64 bits: send it as a string",
            param=where,
            code="number_too_large",
        )


class _Large(float):
    """A number that was written as such a float."""


_EXPONENT = re.compile(rb"[0-9]e")
_LARGE = 2.0**63


def exactly(body: bytes) -> Any:
    """The JSON in a body with all digits of its whole numbers. Slower than the parser of bodies."""

    def number(text: str) -> float:
        value = float(text)
        return _Large(value) if abs(value) >= _LARGE else value

    return json.loads(body, parse_float=number)


def _rounded(value: Any) -> bool:
    if isinstance(value, float):
        return type(value) is float and abs(value) >= _LARGE
    return any(map(_rounded, _inner(value)))


def tool_of(
    name: Any, description: Any, parameters: Any, where: str, *, schema: str = "parameters", strict: Any = None
) -> Tool:
    """One function that the model may call. ``schema`` is what the wire calls its JSON schema."""
    if not isinstance(name, str) or not name:
        raise bad(f"{where}.name must be a string", f"{where}.name")
    if description is not None and not isinstance(description, str):
        raise bad(f"{where}.description must be a string", f"{where}.description")
    if parameters is not None and not isinstance(parameters, dict):
        raise bad(f"{where}.{schema} must be a JSON schema", f"{where}.{schema}")
    if strict is not None and not isinstance(strict, bool):
        raise bad(f"{where}.strict must be true or false, not {shown(strict)}", f"{where}.strict")
    check_depth(parameters, f"{where}.{schema}")
    return Tool(name, description or "", cast("dict[str, Any]", parameters or {}), strict is True)


def tools_of(value: Json, read: Callable[[Any, str], Tool]) -> tuple[Tool, ...]:
    """The tools in a list, each as ``read`` makes it of what was given and its path: the same tuple for the same list,
    so that comparing a turn's tools with the last turn's costs nothing."""
    if not value:
        return ()
    if not isinstance(value, list):
        raise bad(f"tools must be a list, not {shown(value)}", "tools")
    try:
        return _read_tools(orjson.dumps(value), read)
    except orjson.JSONEncodeError:
        raise bad("tools is nested too deeply", "tools") from None


@lru_cache(maxsize=256)
def _read_tools(encoded: bytes, read: Callable[[Any, str], Tool]) -> tuple[Tool, ...]:
    return tuple([read(raw, f"tools[{i}]") for i, raw in enumerate(orjson.loads(encoded))])


def known_tool(name: Any, tools: tuple[Tool, ...], param: str) -> str:
    """The name of one of ``tools``."""
    return known_tools([name], tools, param)[0]


def known_tools(names: Sequence[Any], tools: tuple[Tool, ...], param: str) -> tuple[str, ...]:
    """Names of ``tools``, each once, in the order in which they are given."""
    known = {tool.name for tool in tools}
    for name in names:
        if not isinstance(name, str) or name not in known:
            listed = ", ".join(tool.name for tool in tools[:20]) or "none"
            raise bad(f"{param} names {shown(name)}, which is not among the tools: {listed}", param)
    return tuple(dict.fromkeys(cast("Sequence[str]", names)))


def check_depth(value: Any, where: str) -> None:
    """Refuses what is nested so deeply that a template or an encoder would run out of stack."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [item for outer in level for item in _inner(outer)]
        if not level:
            return
    raise bad(f"{where} is nested more than {MAX_DEPTH} levels deep", where)


def _inner(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()
