"""Which agent made a call, as the agent's own process tells it: a reply's id, which is the recorded call's, and a name.

Frameworks name their agents in spans and callbacks. What listens to those (opentelemetry.py, langchain.py and the
others beside this file) tells an attempt's `CallNames`, and that tells the runner at once, so that a process that is
killed has told what it knew. It holds names and ids alone, a bounded number of each, and never raises.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from agentlightning.text import clean_name

logger = logging.getLogger("agentlightning")

F = TypeVar("F", bound=Callable[..., Any])

TellName = Callable[[str, str, str], None]
"""Is told a reply's id, the name of the agent that asked for it, and which attribute or callback gave the name."""

MOST = 10_000
"""Calls of one attempt that are named, and spans of it whose names are kept."""

LONGEST_ID = 200
"""Characters of a reply's id."""

RESPONSE_ID = "gen_ai.response.id"

CALL_ID = "X-Call-Id"
"""The header in which the gateway says a reply's id."""

_RECIPIENT = "recipient_agent_type"
_KEYS = ("agent.name", "gen_ai.agent.name", _RECIPIENT, "lc_agent_name", "langgraph_node")
_EXECUTOR = "executor.id"
_MESSAGING = "messaging.operation"
_AGENTOPS = ("agentops.span.kind", "operation.name")

_KEPT = frozenset((*_KEYS, _EXECUTOR, _MESSAGING, *_AGENTOPS, RESPONSE_ID))

_OF_A_TEAM = re.compile("_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What AutoGen's teams put after the names of their agents: drawn anew for each team."""

Named = tuple[str, str]
"""A name, and the attribute that gave it."""


def is_kept(key: str) -> bool:
    """Whether an attribute of a span is read at all."""
    return key in _KEPT


def name_in(attributes: Mapping[str, object]) -> Named | None:
    """The agent that a span's attributes name. AgentOps' ``operation.name`` is one on spans of kind agent alone, and
    AutoGen's recipient one on those that handle a message, not on those that send it."""
    executor = _text(attributes, _EXECUTOR)
    if executor is not None:
        return executor, _EXECUTOR
    for key in _KEYS:
        if key == _RECIPIENT and attributes.get(_MESSAGING) in ("create", "send", "publish"):
            continue
        if (name := _text(attributes, key)) is not None:
            return _OF_A_TEAM.sub("", name) if key == _RECIPIENT else name, key
    kind, operation = _AGENTOPS
    if attributes.get(kind) == "agent" and (name := _text(attributes, operation)) is not None:
        return name, operation
    return None


def _text(attributes: Mapping[str, object], key: str) -> str | None:
    value = attributes.get(key)
    return clean_name(value[:1000]) if isinstance(value, str) else None


_failed: set[str] = set()


def never_raising(function: F) -> F:
    """What is called from inside other people's code: where it fails, one line says so, once, and None is returned."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the agent's own work goes on
            where = f"{function.__module__}.{function.__qualname__}"
            if where not in _failed:
                _failed.add(where)
                logger.warning("an agent's name was not read (%s: %s: %s)", where, type(error).__name__, error)
            return None

    return call  # pyright: ignore[reportReturnType]


@dataclass(slots=True)
class _Span:
    parent: Hashable
    attributes: Callable[[], Mapping[str, object]] | None
    name: Named | None = None

    def named(self) -> Named | None:
        return name_in(self.attributes()) if self.attributes is not None else self.name


class CallNames:
    """What one attempt knows of its calls' agents. Its methods may be called from any thread; after ``close``, and in a
    process that the agent forked, they do nothing."""

    def __init__(self, tell: TellName) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._spans: OrderedDict[Hashable, _Span] = OrderedDict()
        self._waiting: dict[str, Hashable] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._open = True

    def add(self, reply_id: object, named: Named | None) -> None:
        """Tells whose reply this is, the first time that it is known."""
        if named is None or not isinstance(reply_id, str) or not 0 < len(reply_id) <= LONGEST_ID:
            return
        name = clean_name(named[0][:1000])
        with self._lock:
            if name is None or reply_id in self._told or len(self._told) >= MOST or not self._listens:
                return
            self._told.add(reply_id)
            self._waiting.pop(reply_id, None)
            self._tell(reply_id, name, named[1])

    @never_raising
    def begin(self, span: Hashable, parent: Hashable, attributes: Callable[[], Mapping[str, object]]) -> None:
        """A span has begun; ``attributes`` reads those that it has by then."""
        with self._lock:
            if self._listens:
                self._spans[span] = _Span(parent, attributes)
                if len(self._spans) > MOST:
                    self._spans.popitem(last=False)

    @never_raising
    def end(self, span: Hashable, attributes: Mapping[str, object]) -> None:
        """It has ended with these. One with a reply's id names its call, by its own name or an ancestor's."""
        with self._lock:
            if (known := self._spans.get(span)) is not None:
                known.name, known.attributes = name_in(attributes), None  # what else is in them may be large
            reply_id = attributes.get(RESPONSE_ID)
            if isinstance(reply_id, str):
                self.add_by_span(reply_id, span)

    def add_by_span(self, reply_id: str, span: Hashable) -> None:
        """The reply was asked for within this span."""
        with self._lock:
            named = self.find(span)
            self.add(reply_id, named)
            if named is None and len(self._waiting) < MOST:
                self._waiting[reply_id] = span

    def find(self, span: Hashable) -> Named | None:
        """The agent of a span: its own or its nearest ancestor's name. An executor above comes before the agent that it
        runs, whose name may be drawn at random."""
        found: Named | None = None
        with self._lock:
            for _ in range(MOST):
                known = self._spans.get(span)
                if known is None:
                    break
                named = known.named()
                if named is not None and (found is None or named[1] == _EXECUTOR):
                    found = named
                if found is not None and found[1] not in ("gen_ai.agent.name", "agent.name"):
                    break
                span = known.parent
        return found

    @never_raising
    def close(self) -> None:
        """The agent has returned: what was not known yet is told if it is now, and nothing after that."""
        with self._lock:
            for reply_id, span in list(self._waiting.items()):
                self.add(reply_id, self.find(span))
            self._open = False
            self._spans.clear()
            self._waiting.clear()

    @property
    def _listens(self) -> bool:
        return self._open and os.getpid() == self._process


_of_context: ContextVar[CallNames | None] = ContextVar("agentlightning_call_names", default=None)
_of_process: CallNames | None = None


def listen_here(names: CallNames) -> None:
    """This context, and those that are copied from it, are an attempt of which ``names`` is told."""
    _of_context.set(names)


def listen_everywhere(names: CallNames) -> None:
    """The whole process is one attempt."""
    global _of_process  # one attempt's process: there is nobody else here
    _of_process = names


def current() -> CallNames | None:
    """Who is told of what happens here; None outside any attempt."""
    return _of_context.get() or _of_process
