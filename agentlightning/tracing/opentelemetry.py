"""OpenTelemetry in an agent's process: what frameworks say of their agents in spans.

Each tracer provider that the program makes gets a span processor. As long as it has set none, spans would be nothing:
then small ones of our own stand in, which keep agents' names and replies' ids and are exported nowhere. They make way
for the program's provider at any time, and need OpenTelemetry's API alone, as frameworks do.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

from agentlightning.tracing.names import current, is_kept, never_raising

SDK = "opentelemetry.sdk.trace"
API = "opentelemetry.trace"


def listen_to_providers(sdk: Any) -> None:
    """Adds a processor to the provider that is set, and to each that is made from now on. ``sdk`` is the SDK's trace
    module, just imported or there already."""
    if hasattr(sdk.TracerProvider, "_agentlightning"):
        return
    real = sdk.TracerProvider.__init__
    ours = _processor(sdk)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.add_span_processor(ours)

    sdk.TracerProvider.__init__ = init
    sdk.TracerProvider._agentlightning = True
    api: Any = sys.modules.get(API)
    provider: Any = api.get_tracer_provider() if api is not None else None
    if isinstance(provider, sdk.TracerProvider):
        provider.add_span_processor(ours)


def _processor(sdk: Any) -> Any:
    class AgentNames(sdk.SpanProcessor):
        """Tells an attempt's `CallNames` of its spans."""

        @never_raising
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            names = current()
            if names is not None:
                parent = span.parent
                names.begin(_key(span.context), None if parent is None else _key(parent), lambda: span.attributes or {})

        @never_raising
        def on_end(self, span: Any) -> None:
            names = current()
            if names is not None:
                names.end(_key(span.context), span.attributes or {})

    return AgentNames()


def stand_in(api: Any) -> None:
    """Has spans of our own stand in where the program has set no provider. ``api`` is OpenTelemetry's trace module."""
    proxy = api.ProxyTracer
    if hasattr(proxy, "_agentlightning"):
        return
    real, ours = proxy._tracer, _tracer(api)

    def tracer(self: Any) -> Any:
        chosen = real.fget(self)
        return ours if isinstance(chosen, api.NoOpTracer) and current() is not None else chosen

    proxy._tracer = property(tracer)
    proxy._agentlightning = True


def _tracer(api: Any) -> Any:
    class Span(api.NonRecordingSpan):
        """Keeps what `CallNames` reads."""

        def __init__(self, parent: Any) -> None:
            trace_id = parent.trace_id if parent.is_valid else _random.getrandbits(128)
            super().__init__(api.SpanContext(trace_id, _random.getrandbits(64) or 1, is_remote=False))  # pyright: ignore[reportUnknownMemberType]
            self._kept: dict[str, object] = {}
            self._names = current()
            if self._names is not None:
                self._names.begin(
                    _key(self.get_span_context()), _key(parent) if parent.is_valid else None, lambda: self._kept
                )

        def is_recording(self) -> bool:
            return True  # some set no attributes otherwise

        def set_attribute(self, key: str, value: Any) -> None:
            if is_kept(key):
                self._kept[key] = value

        def set_attributes(self, attributes: Mapping[str, Any]) -> None:
            for key, value in attributes.items():
                self.set_attribute(key, value)

        def end(self, end_time: int | None = None) -> None:
            if self._names is not None:
                self._names.end(_key(self.get_span_context()), self._kept)

    class Tracer(api.Tracer):
        def start_span(
            self, name: str, context: Any = None, kind: Any = None, attributes: Any = None, *_: Any, **more: Any
        ) -> Any:
            span = Span(api.get_current_span(context).get_span_context())
            span.set_attributes(attributes or {})
            return span

        @contextmanager
        def start_as_current_span(
            self,
            name: str,
            context: Any = None,
            kind: Any = None,
            attributes: Any = None,
            links: Any = None,
            start_time: int | None = None,
            record_exception: bool = True,
            set_status_on_exception: bool = True,
            end_on_exit: bool = True,
        ) -> Any:
            span = self.start_span(name, context, kind, attributes)
            with api.use_span(span, end_on_exit, record_exception, set_status_on_exception):
                yield span

    return Tracer()


_random = random.Random()
"""Of our own: what an agent draws follows from its rollout's seed, and no number of it may go missing."""


def current_span() -> Any:
    """The key of the span that this context is in; None without one."""
    api: Any = sys.modules.get(API)
    context = api.get_current_span().get_span_context() if api is not None else None
    return _key(context) if context is not None and context.is_valid else None


def _key(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id
