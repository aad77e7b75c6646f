"""Tracers as programs import, make and derive them."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any

import pytest

import agentlightning
from agentlightning import AgentOpsTracer, OtelTracer, Tracer, tracing
from agentlightning.errors import ConfigError

NAMES = ["Tracer", "AgentOpsTracer", "OtelTracer"]
PATHS = ["tracer", "tracer.agentops", "tracer.base", "tracer.otel"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", PATHS)
def test_a_tracer_is_the_same_class_at_the_root_and_at_each_path(name: str, path: str) -> None:
    space: dict[str, object] = {}
    exec(f"from agentlightning.{path} import {name}", space)
    assert space[name] is getattr(agentlightning, name)
    exec(f"import agentlightning; here = agentlightning.tracer.{name}", space)
    assert space["here"] is space[name]


class Own(AgentOpsTracer):
    """As programs write them: with state of its own, and without ``super().__init__()``."""

    def __init__(self, begun: list[str]) -> None:
        self.begun = begun

    def init(self, *args: Any, **kwargs: Any) -> None:
        super().init(*args, **kwargs)
        self.begun.append("init")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self.begun.append("teardown")
        super().teardown(*args, **kwargs)


@pytest.mark.parametrize(
    "tracer", [Tracer(), AgentOpsTracer(), OtelTracer(), Own([])], ids=lambda each: type(each).__name__
)
def test_a_tracer_has_the_calls_that_programs_make(tracer: Tracer) -> None:
    tracer.init()
    tracer.init_worker(0)
    tracer.init_worker(1, None)
    tracer.init_worker(2, store=None)

    async def run() -> str:
        async with tracer.trace_context() as first, tracer.trace_context("name", rollout_id="ro-1", attempt_id="at-1"):
            assert first is not None
            return "ran"

    assert asyncio.run(run()) == "ran"
    with tracer.trace_context("name"):
        pass
    tracer.teardown_worker(0)
    tracer.teardown()
    assert (tracer.get_langchain_handler() is None) == (find_spec("langchain_core") is None)
    with pytest.raises(ConfigError, match=r"^get_langchain_handler\(tags=\['write'\]\): a handler has no tags here"):
        tracer.get_langchain_handler(tags=["write"])


def test_a_class_of_ones_own_needs_no_constructor_of_ours() -> None:
    tracer = Own([])
    with tracer.lifespan() as same:
        assert same is tracer and tracer.begun == ["init"]
        assert tracer.trace_run(int.__add__, 1, 2) == 3

        async def add(a: int, b: int) -> int:
            return a + b

        assert asyncio.run(tracer.trace_run_async(add, 1, b=2)) == 3
    assert tracer.begun == ["init", "teardown"]


def test_what_a_traced_call_raises_gets_out_of_its_context() -> None:
    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Tracer().trace_run(fails)


@pytest.mark.parametrize("name", ["agentops_managed", "instrument_managed", "daemon"])
def test_who_instruments_makes_no_difference(name: str) -> None:
    for value in (True, False):
        assert AgentOpsTracer(**{name: value}).get_last_trace is not None


def test_an_argument_that_no_tracer_has_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no_such"):
        AgentOpsTracer(no_such=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Tracer"):
        OtelTracer(endpoint="http://elsewhere")  # type: ignore[call-arg]


def test_there_is_no_last_trace_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_newest", None)
    with pytest.raises(ConfigError, match="there is no last trace"):
        Tracer().last_trace()
