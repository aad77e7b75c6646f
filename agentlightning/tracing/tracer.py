"""Tracer: what a program asks of the recording of its agents' calls, and may hang around each attempt.

The endpoint records every call with or without one. A subclass may set up what its agents count on (``init`` to
``teardown``) and be entered around each attempt (``trace_context``). It holds no state: a subclass need not call
``super().__init__()``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentlightning.agent.telling import ask, endpoint
from agentlightning.errors import ConfigError

if TYPE_CHECKING:
    from agentlightning.tracing import DrawnTrace
    from agentlightning.tracing.spans import Span

T = TypeVar("T")


class TraceContext:
    """What ``trace_context`` gives: entered with ``with`` or ``async with``, around the calls of one attempt. There is
    nothing to begin, for the endpoint records them."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Nothing to end."""

    def get_last_trace(self) -> list[Span]:
        return self.tracer.get_last_trace()


class Tracer:
    """See the module. ``Trainer(tracer=...)`` takes one; without it agents are given this one."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Called once in each process that runs agents, before the first."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Called once in each of those processes, after the last."""

    def init_worker(self, worker_id: int, store: Any = None) -> None:
        """Called after ``init``."""

    def teardown_worker(self, worker_id: int) -> None:
        """Called before ``teardown``."""

    def trace_context(self, name: str | None = None, **ids: Any) -> Any:
        """Entered around each attempt, with ``with`` or ``async with``; ``ids`` are ``rollout_id`` and
        ``attempt_id``."""
        del name, ids
        return TraceContext(self)

    @contextmanager
    def lifespan(self, store: Any = None) -> Generator[Tracer]:
        """From ``init`` to ``teardown``."""
        self.init()
        self.init_worker(0, store)
        try:
            yield self
        finally:
            self.teardown_worker(0)
            self.teardown()

    def trace_run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls a plain function within ``trace_context``, where that is one of plain ``with``."""
        with self.trace_context():
            return function(*args, **kwargs)

    async def trace_run_async(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Awaits a coroutine function within ``trace_context``."""
        async with self.trace_context():
            return await function(*args, **kwargs)

    def get_last_trace(self) -> list[Span]:
        """Spans of every call of the attempt that is running, with its agent, its tokens and its rewards, as it is
        recorded by now; outside any attempt, of the one that ended last in this program. [] where there is none. Blocks
        meanwhile, also in a coroutine.

        Raises AgentLightningError where the endpoint does not answer, StoreError where the record cannot be read.
        """
        from agentlightning.tracing import last_trace
        from agentlightning.tracing.spans import Span, spans_of

        root = endpoint()
        if root is not None:
            return [Span.model_validate(each) for each in ask(root, "spans", "the attempt's trace")["spans"]]
        try:
            last = last_trace()
        except ConfigError:  # nothing has ended yet
            return []
        return spans_of(last.trace)

    def last_trace(self) -> DrawnTrace:
        """The recorded trace of the attempt that ended last in this program, which draws itself: ``visualize``. Raises
        ConfigError where there is none."""
        from agentlightning.tracing import last_trace

        return last_trace()

    def get_langchain_handler(self, tags: list[str] | None = None) -> Any:
        """A callback handler for LangChain that tells which node of a graph made which call; None where LangChain is
        not installed. Raises ConfigError for ``tags``, which belong into the config of what is invoked."""
        from agentlightning.tracing.langchain import get_langchain_handler

        return get_langchain_handler(tags)
