"""Which architectures the local engine samples, and which it refuses by name. Tiny random models of each kind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from agentlightning.errors import ModelError
from tests.engines.conftest import MakeEngine, request, worst_difference

SMALL: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}

SAMPLED: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=272, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2-sliding": lambda: transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL),
    "mistral-sliding": lambda: transformers.MistralConfig(**SMALL, sliding_window=8),
    "gemma2-eager-softcap": lambda: transformers.Gemma2Config(**SMALL, sliding_window=8, attn_implementation="eager"),
    "gemma3-mixed": lambda: transformers.Gemma3TextConfig(
        **SMALL, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": lambda: transformers.Phi3Config(**SMALL, sliding_window=None),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=4),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}),
}


def build(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).float().eval()


@pytest.mark.parametrize("name", SAMPLED)
async def test_rows_of_this_architecture_get_its_plain_logprobs(name: str, make_engine: MakeEngine) -> None:
    model = build(SAMPLED[name]())
    engine = await make_engine(of=model)
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 260) for _ in range(n)] for n in (3, 12, 30, 31)]
    samples = await asyncio.gather(*(engine.sample(request(p, max_tokens=12, seed=i)) for i, p in enumerate(prompts)))
    assert max(worst_difference(model, p, s) for p, s in zip(prompts, samples, strict=True)) < 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SAMPLED)
async def test_on_cuda_captured_steps_give_its_plain_logprobs(name: str, make_engine: MakeEngine) -> None:
    model = build(SAMPLED[name]())
    engine = await make_engine(of=build(SAMPLED[name]()).to("cuda"))
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 260) for _ in range(n)] for n in (3, 12, 30, 31)]
    samples = await asyncio.gather(*(engine.sample(request(p, max_tokens=40, seed=i)) for i, p in enumerate(prompts)))
    assert max(worst_difference(model, p, s) for p, s in zip(prompts, samples, strict=True)) < 1e-3


@pytest.mark.parametrize(
    "config",
    [
        transformers.MambaConfig(vocab_size=272, hidden_size=32, num_hidden_layers=2, state_size=4),
        transformers.RwkvConfig(vocab_size=272, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
        transformers.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]),
    ],
    ids=lambda c: type(c).__name__,
)
async def test_an_architecture_without_masked_keys_and_values_is_refused_by_name(
    config: Any, make_engine: MakeEngine
) -> None:
    model = build(config)
    with pytest.raises(
        ModelError,
        match=f"{type(model).__name__} cannot be sampled by the local engine: .*take one with attention in every layer",
    ):
        await make_engine(of=model)


async def test_a_forward_that_ignores_positions_is_found_out_at_start(
    model: Any, make_engine: MakeEngine, monkeypatch: Any
) -> None:
    original = type(model.model).forward

    def forward(self: Any, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return original(self, *args, position_ids=None if position_ids is None else position_ids * 0, **kwargs)

    monkeypatch.setattr(type(model.model), "forward", forward)
    with pytest.raises(
        ModelError, match=r"LlamaForCausalLM cannot be sampled by the local engine: with several rows its logits differ"
    ):
        await make_engine(of=model)


async def test_an_attention_that_takes_no_mask_is_refused_by_name(model: Any, make_engine: MakeEngine) -> None:
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match=r'attn_implementation="flash_attention_2".*load it with "sdpa"'):
        await make_engine(of=model)
