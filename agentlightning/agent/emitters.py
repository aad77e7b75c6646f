"""Emitters: what code inside an agent tells of its attempt: messages, objects, notes, exceptions and operations. Each
is stored as a span of the attempt and counts for nothing that is trained; rewards.py has what does.

The names of spans and attributes are those that programs of this package's name look for.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import secrets
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Self, TypeVar, cast, overload

from agentlightning.agent.rewards import REWARD, emit_reward
from agentlightning.agent.telling import endpoint, tell
from agentlightning.errors import AgentLightningError, ConfigError, TaskError
from agentlightning.nouns import Json, SpanRecord, SpanStatus
from agentlightning.records.json_values import exact_json, is_json

logger = logging.getLogger("agentlightning")

MESSAGE = "agentlightning.message"
OBJECT = "agentlightning.object"
ANNOTATION = "agentlightning.annotation"
EXCEPTION = "agentlightning.exception"
OPERATION = "agentlightning.operation"
"""Names of spans. The attributes that say what it is about begin with the same."""

LONGEST_REPR = 10_000
"""Characters of what is no JSON that are kept."""

_F = TypeVar("_F", bound=Callable[..., Any])

_within: ContextVar[str | None] = ContextVar("agentlightning_operation", default=None)
"""The id of the operation that this context is in."""


# --------------------------------------------------------------------------- moments


def emit_message(message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> SpanRecord:
    """Tells a text. Returns the span; with ``propagate`` False it is only made, and told to nobody.

    Raises ConfigError for what is no text, for attributes that are no JSON, and outside any attempt;
    AgentLightningError where the attempt does not take it.
    """
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are not type-checked
        raise ConfigError(f"emit_message({message!r:.60}): expected a text; emit_object takes anything")
    return _moment("emit_message", MESSAGE, {f"{MESSAGE}.body": _encodable(message)}, attributes, propagate)


def emit_object(object: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> SpanRecord:
    """Tells a value: as JSON where it is that, a dataclass or a pydantic model, else as its ``repr``. See
    ``emit_message``."""
    kind = type(object).__qualname__
    told: dict[str, Any] = {f"{OBJECT}.type": kind}
    if is_json(object) and not isinstance(object, list | dict):
        told[f"{OBJECT}.literal"] = object
    else:
        told[f"{OBJECT}.json"] = _as_text(object)
    return _moment("emit_object", OBJECT, told, attributes, propagate)


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> SpanRecord:
    """Tells notes by name. Names within names are joined by dots. See ``emit_message``."""
    if not isinstance(annotation, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are not type-checked
        raise ConfigError(f"emit_annotation({annotation!r:.60}): expected notes by name, a dict")
    return _moment("emit_annotation", ANNOTATION, _flat(annotation), None, propagate)


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> SpanRecord:
    """Tells an exception that the agent has handled, with its traceback. One that leaves the agent fails its attempt
    and needs no telling. See ``emit_message``."""
    if not isinstance(exception, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are not type-checked
        raise ConfigError(f"emit_exception({exception!r:.60}): expected an exception")
    return _moment("emit_exception", EXCEPTION, _told_of(exception), attributes, propagate, status=SpanStatus.ERROR)


def _moment(
    emitter: str,
    name: str,
    own: Mapping[str, Any],
    attributes: Mapping[str, Any] | None,
    propagate: bool,
    status: SpanStatus = SpanStatus.OK,
) -> SpanRecord:
    now = time.time()
    told = _checked({**(attributes or {}), **own}, emitter)
    span = SpanRecord(secrets.token_hex(8), _within.get(), name, told, status, now, now)
    if propagate:
        root = endpoint()
        if root is None:
            raise ConfigError(
                f"{emitter} was called outside any attempt: it works inside an agent that a run calls (child processes "
                "need isolation='process')"
            )
        _send(root, span, f"what {emitter} told")
    return span


# --------------------------------------------------------------------------- operations


class Operation:
    """Something that takes time, as ``operation`` makes one: a context manager (``with`` or ``async with``) and a
    decorator. What is emitted within it belongs to it, and so do operations within it.

    Its span is stored when it ends, with the exception where one leaves it. Outside any attempt nothing is stored.
    """

    def __init__(self, name: str, attributes: Mapping[str, Any], propagate: bool) -> None:
        self.name = name
        self.span_id = secrets.token_hex(8)
        self._propagate = propagate
        self._attributes: dict[str, Any] = {**attributes, f"{OPERATION}.name": name}
        self._began = 0.0
        self._outer: Token[str | None] | None = None

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Notes what it works on."""
        self.note("input", kwargs if not args else {"args": list(args), **kwargs})

    def set_output(self, output: Any) -> None:
        """Notes what came of it."""
        self.note("output", output)

    def note(self, what: str, value: Any) -> None:
        """Keeps a value, as the text of its JSON, under ``agentlightning.operation.WHAT``."""
        self._attributes[f"{OPERATION}.{what}"] = _as_text(value)

    def __enter__(self) -> Self:
        if self._outer is not None:
            raise ConfigError(f"operation {self.name!r} is entered already: make one for each use")
        self._began = time.time()
        self._outer = _within.set(self.span_id)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._outer is not None
        _within.reset(self._outer)
        self._outer = None
        root = endpoint() if self._propagate else None
        if root is None:
            return
        told = _told_of(error) if error is not None else {}
        status = SpanStatus.ERROR if error is not None else SpanStatus.OK
        span = SpanRecord(
            self.span_id, _within.get(), OPERATION, _checked({**self._attributes, **told}, "operation"), status,
            self._began, time.time(),
        )  # fmt: skip
        try:
            _send(root, span, f"operation {self.name!r}")
        except AgentLightningError:
            if error is None:  # else what the agent raised is what counts
                raise
            logger.warning("operation %r failed, and its end could not be told", self.name)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: _F) -> _F:
        """The function, each of whose calls is such an operation."""
        return _operating(function, self.name or function.__name__, self._attributes, self._propagate)


@overload
def operation(function: _F, /) -> _F: ...
@overload
def operation(name: str | None = None, /, *, propagate: bool = True, **attributes: Any) -> Operation: ...
def operation(function: Callable[..., Any] | str | None = None, /, *, propagate: bool = True, **attributes: Any) -> Any:
    """``@operation``, ``@operation(category="search")`` on a plain or async function, or ``with
    operation(name="search", ...) as op:`` with ``op.set_input(...)`` and ``op.set_output(...)``.

    A decorated function's arguments and result are noted. ``attributes`` are kept with it; with ``propagate`` False
    nothing is stored. Raises ConfigError for attributes that are no JSON.
    """
    name = attributes.pop("name", None) or (function if isinstance(function, str) else "")
    if not isinstance(name, str):
        raise ConfigError(f"operation(name={name!r:.60}): expected a text")
    _checked(attributes, "operation")
    if callable(function):
        return _operating(function, name or getattr(function, "__name__", "operation"), attributes, propagate)
    return Operation(name, attributes, propagate)


def _operating(function: _F, name: str, attributes: Mapping[str, Any], propagate: bool) -> _F:
    signature = inspect.signature(function)

    def begun(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation:
        made = Operation(name, attributes, propagate)
        if endpoint() is not None:
            try:
                made.note("input", dict(signature.bind(*args, **kwargs).arguments))
            except TypeError:  # the call itself will say what is wrong with it
                made.set_input(*args, **kwargs)
        return made

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            with begun(args, kwargs) as made:
                value = await function(*args, **kwargs)
                made.set_output(value)
                return value

        return cast(_F, waited)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with begun(args, kwargs) as made:
            value = function(*args, **kwargs)
            made.set_output(value)
            return value

    return cast(_F, called)


# --------------------------------------------------------------------------- rewards of functions and in spans


@overload
def reward(function: _F, /) -> _F: ...
@overload
def reward(*, primary_key: str | None = None, attributes: Mapping[str, Any] | None = None) -> Callable[[_F], _F]: ...
def reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """``@reward`` on a plain or async function: what it returns is emitted as ``emit_reward`` does, then returned.
    Outside any attempt it is only returned, so that the function can be tried by itself."""
    if function is None:
        return functools.partial(_rewarding, primary_key=primary_key, attributes=attributes)
    return _rewarding(function, primary_key=primary_key, attributes=attributes)


def _rewarding(function: _F, *, primary_key: str | None, attributes: Mapping[str, Any] | None) -> _F:
    def emitted(value: Any) -> Any:
        if endpoint() is not None:
            emit_reward(value, primary_key=primary_key, attributes=attributes)
        return value

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            return emitted(await function(*args, **kwargs))

        return cast(_F, waited)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return emitted(function(*args, **kwargs))

    return cast(_F, called)


def get_reward_value(span: Any) -> float | None:
    """The reward that a span tells: of several by name the first, which is the primary one. None where it is of
    something else."""
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    for key in (f"{REWARD}.0.value", "reward"):
        value = attributes.get(key)
        if isinstance(value, int | float):
            return float(value)
    return None


def is_reward_span(span: Any) -> bool:
    return get_reward_value(span) is not None


def find_reward_spans(spans: Iterable[Any]) -> list[Any]:
    """Those that tell a reward, in their order."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[Any]) -> float | None:
    """The reward that spans come to: the last one named ``reward`` for the whole rollout; where there is none, the last
    one for a part of it, else the last of any name. One that came after the end is none. None where none is told."""
    told = [(span.attributes, value) for span in spans if (value := get_reward_value(span)) is not None]
    in_time = [one for one in told if not one[0].get(f"{REWARD}.late")]
    named = [one for one in in_time if "reward" in one[0]]
    whole = [one for one in named if not any(f"{REWARD}.{part}" in one[0] for part in ("call_id", "agent"))]
    return next((value for _, value in reversed(whole or named or in_time)), None)


# --------------------------------------------------------------------------- values


def _send(root: str, span: SpanRecord, what: str) -> None:
    now = time.time()
    body = {
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "attributes": span.attributes,
        "status": span.status,
        "started_ago": max(0.0, now - span.started_at),
        "ended_ago": max(0.0, now - span.ended_at),
    }
    tell(root, "spans", [body], what, AgentLightningError)


def _told_of(error: BaseException) -> dict[str, Json]:
    """In OpenTelemetry's words."""
    kind = type(error)
    try:
        said = str(error)
    except Exception as second:  # noqa: BLE001  # user classes may fail to print themselves
        said = f"(its text cannot be shown: {type(second).__name__})"
    return {
        "exception.type": kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": _encodable(said),
        "exception.stacktrace": _encodable("".join(traceback.format_exception(error))[-16_384:]),
    }


def _checked(attributes: Mapping[str, Any], emitter: str) -> dict[str, Json]:
    """Attributes as JSON. Raises ConfigError, which names the one that is none."""
    try:
        return exact_json(dict(attributes), f"{emitter}: attributes")
    except TaskError as error:
        raise ConfigError(str(error)) from None


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(cast("Mapping[str, Any]", value), f"{before}{name}."))
        else:
            flat[f"{before}{name}"] = value
    return flat


def _as_text(value: Any) -> str:
    """A value as the text of its JSON; what is none is its ``repr``."""

    def other(item: Any) -> Any:
        dump = getattr(item, "model_dump", None)
        if callable(dump) and not isinstance(item, type):
            return dump(mode="json")
        if hasattr(item, "__dataclass_fields__") and not isinstance(item, type):
            return {name: getattr(item, name) for name in item.__dataclass_fields__}
        return _shown(item)

    try:
        return json.dumps(value, default=other, ensure_ascii=True)
    except Exception:  # noqa: BLE001  # users' values may refuse in any way: what can be shown of it is kept
        return json.dumps(_shown(value))


def _shown(value: Any) -> str:
    try:
        return _encodable(repr(value)[:LONGEST_REPR])
    except Exception as error:  # noqa: BLE001  # user classes may fail to print themselves
        return f"(its text cannot be shown: {type(error).__name__})"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
