"""A tiny model per test (they change weights), engines that are closed whatever happens, and the plain forward to
compare with."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.engines.local.forward import SlotForward
from agentlightning.nouns import SamplingParams
from agentlightning.settings.fields import EngineConfig
from tests.tiny import tiny_model, tiny_tokenizer

MakeEngine = Callable[..., Awaitable[LocalEngine]]


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_model()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture
async def make_engine(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> AsyncIterator[MakeEngine]:
    """``await make_engine(**fields of EngineConfig, deterministic=..., of=another model)``: a started engine."""
    engines: list[LocalEngine] = []

    async def make(of: Any = None, deterministic: bool = False, version: int = 0, **config: Any) -> LocalEngine:
        engine = LocalEngine(
            of or model, tokenizer, EngineConfig(**config), deterministic=deterministic, version=version
        )
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.close()


class Gate:
    """Holds an engine's thread before its next forward while it is shut, so that a test need not be faster than the
    engine."""

    def __init__(self) -> None:
        self._opened, self._reached = threading.Event(), threading.Event()
        self._opened.set()
        self._once = False

    def pass_through(self) -> None:
        if not self._opened.is_set():
            self._reached.set()
            assert self._opened.wait(60), "the test left the gate shut"
            if self._once:
                self._once = False
                self.shut()

    def shut(self) -> None:
        self._reached.clear()
        self._opened.clear()

    async def reached(self) -> None:
        """Until the engine stands before a forward."""
        assert await asyncio.to_thread(self._reached.wait, 60), "the engine computes nothing"

    def let_one_pass(self) -> None:
        """Opens for the forward that stands here. The next one is held again."""
        self._once = True
        self._reached.clear()
        self._opened.set()

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    for name in ("prefill", "decode"):
        original = getattr(SlotForward, name)
        monkeypatch.setattr(
            SlotForward, name, lambda *args, original=original: (gate.pass_through(), original(*args))[1]
        )
    yield gate
    gate.open()


def request(prompt: Sequence[int], name: str = "r", **params: Any) -> SampleRequest:
    return SampleRequest(name, array("i", prompt), SamplingParams(**params))


def ids_of(sample: Sample) -> list[int]:
    return [token for segment in sample.segments for token in segment.token_ids]


def logprobs_of(sample: Sample) -> list[float]:
    return [logprob for segment in sample.segments for logprob in segment.logprobs]


@torch.no_grad()
def plain_logprobs(model: Any, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Of the sampled tokens under the model's own forward over the whole sequence: [len(sampled)]."""
    ids = torch.tensor([[*prompt, *sampled]])
    logprobs_TV = torch.log_softmax(
        model(input_ids=ids, use_cache=False).logits[0].float() / (temperature or 1.0), dim=-1
    )
    return logprobs_TV[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]


def worst_difference(model: Any, prompt: Sequence[int], sample: Sample, temperature: float = 1.0) -> float:
    want = plain_logprobs(model, prompt, ids_of(sample), temperature)
    return float((want - torch.tensor(logprobs_of(sample))).abs().max())
