"""Every call form that programs of the trainer's surface use, one test each: it means what they mean, or is refused with
one sentence."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentlightning
from agentlightning import Trainer
from agentlightning.logs import NAME
from tests.compat import forms
from tests.tiny import letter_tasks

IMPORTS = """\
from agentlightning import rollout, llm_rollout, prompt_rollout, LitAgent, Trainer, LLM, ProxyLLM, PromptTemplate, Dataset
from agentlightning import NamedResources, Rollout, Attempt, Span, Triplet, RolloutConfig, VERL, emit_reward
from agentlightning import emit_annotation, emit_message, emit_object, emit_exception, reward, configure_logger
from agentlightning import AgentOpsTracer, OtelTracer, Tracer, Hook, setup_logging, operation, find_final_reward
from agentlightning.algorithm import VERL, Algorithm
from agentlightning.algorithm.verl import VERL
from agentlightning.tracer import AgentOpsTracer, OtelTracer, Tracer, BaseTracer
from agentlightning.tracer.agentops import AgentOpsTracer
from agentlightning.tracer.base import BaseTracer
from agentlightning.tracer.otel import OtelTracer
from agentlightning.tracer.triplet import TripletExporter
from agentlightning.adapter import TracerTraceToTriplet, TraceToMessages, TripletExporter, LlmProxyTraceToTriplet
from agentlightning.adapter.triplet import TracerTraceToTriplet
from agentlightning.adapter.messages import TraceToMessages
from agentlightning.types import LLM, PromptTemplate, NamedResources, Dataset, Triplet, Rollout, Attempt, RolloutConfig
from agentlightning.types import RolloutRawResult, Hook, Span, ProxyLLM, TaskInput, RolloutMode, AttemptedRollout
from agentlightning.litagent import LitAgent, rollout, llm_rollout, prompt_rollout
from agentlightning.litagent.decorator import rollout
from agentlightning.emitter import emit_reward, emit_message, emit_object, emit_annotation, emit_exception, reward
from agentlightning.emitter.reward import emit_reward, reward, find_final_reward
from agentlightning.reward import reward, find_final_reward
from agentlightning.trainer import Trainer
from agentlightning.semconv import LightningSpanAttributes
from agentlightning.logging import configure_logger, setup_logging
import agentlightning.tracer.agentops
import agentlightning.verl
import agentlightning as agl; agl.tracer.AgentOpsTracer, agl.adapter.TraceToMessages, agl.types.Triplet
"""

PATHS = """\
algorithm algorithm.apo algorithm.verl adapter tracer tracer.agentops tracer.triplet emitter reward runner types litagent
store store.memory store.client_server trainer trainer.init_utils client server semconv env_var llm_proxy verl
verl.daemon verl.trainer instrumentation execution contrib utils emitter.utils types.nothing tracer.nothing
"""


@pytest.mark.parametrize("line", IMPORTS.splitlines())
def test_what_programs_import_is_there(line: str) -> None:
    exec(line, {})


@pytest.mark.parametrize("path", PATHS.split())
def test_no_path_that_programs_know_ends_in_no_module_named(path: str) -> None:
    """Each is there, or is an ImportError with a sentence from the one finder."""
    try:
        exec(f"import agentlightning.{path}", {})
    except ImportError as error:
        assert re.match(r"agentlightning(\.\w+)* \(0\.3\.\d+\) has no \w+: \S.{10,}$", str(error)), error
        assert not isinstance(error, ModuleNotFoundError)


@pytest.fixture(scope="module")
def run(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What came of each form in one attempt, with the loggers put back as they were."""
    before = {name: (logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in (NAME, "mine")}
    forms.kept.clear()
    trainer = Trainer(
        model=letters, output_dir=tmp_path_factory.mktemp("runs"), n_runners=1, threads=1, progress=False,
        sampling={"max_tokens": 1},
    )  # fmt: skip
    report = trainer.dev(forms.Forms(), letter_tasks(1), n=1)
    assert [line.outcome for line in report.attempts] == ["succeeded"] * 2, report
    yield forms.kept
    for name, (level, handlers) in before.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.parametrize("name", forms.FORMS)
def test_a_form_means_what_programs_mean_by_it(run: dict[str, str], name: str) -> None:
    assert run[name] == "", forms.FORMS[name]


def test_hooks_derive_from_their_base(letters: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    class Mine(agentlightning.Hook):
        async def on_rollout_end(self, *, agent: object, runner: object, rollout: object, spans: list[object]) -> None:
            heard.append(f"{len(spans)} spans")

    trainer = Trainer(
        model=letters, output_dir=tmp_path, n_runners=1, threads=1, progress=False, hooks=[Mine()], sampling={"max_tokens": 1}
    )  # fmt: skip
    report = trainer.dev(forms.Forms(), letter_tasks(1), n=1)
    assert [line.outcome for line in report.attempts] == ["succeeded"] * 2
    assert len(heard) == 2 and not heard[0].startswith("0")
