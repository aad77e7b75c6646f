"""The chunked head against the plain one, which holds all logits."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig, LlamaForCausalLM, PreTrainedModel

from agentlightning.errors import ModelError
from agentlightning.learning.forward import check_head
from agentlightning.learning.head import Head, Transform, Wanted, chunks_of
from tests.tiny import tiny_model

U, D, V = 9, 8, 31
CHUNKS = (1, 4, 100)
TRANSFORMS = (Transform(), Transform(scale=0.3), Transform(softcap=2.0), Transform(scale=3.0, softcap=1.5))


def head(transform: Transform, *, bias: bool) -> Head:
    torch.manual_seed(1)
    made = object.__new__(Head)
    made.module, made.transform = nn.Linear(D, V, bias=bias, dtype=torch.float64), transform
    return made


def wanted(chunk: int) -> Wanted:
    """Distributions with no, one and several tokens drawn from them, some under a cut support."""
    rows_E = torch.tensor([0, 0, 0, 2, 3, 4, 4, 8, 8, 8])
    targets_E = torch.tensor([3, 3, 5, 0, 30, 7, 8, 1, 2, 1])
    kept_entries_K = torch.tensor([1, 1, 1, 3, 7, 7, 8, 8])
    kept_ids_K = torch.tensor([3, 9, 30, 0, 1, 2, 2, 4])  # entry 3 was forced
    temperatures_U = torch.linspace(0.5, 1.5, U, dtype=torch.float64)
    return Wanted(temperatures_U, rows_E, targets_E, kept_entries_K, kept_ids_K, chunks_of(U, rows_E, kept_entries_K, chunk))


def plain(head: Head, hidden_UD: Tensor, want: Wanted) -> tuple[Tensor, Tensor]:
    raw_UV = head.module(hidden_UD) * head.transform.scale
    cap = head.transform.softcap
    logits_UV = raw_UV if cap is None else cap * torch.tanh(raw_UV / cap)
    logprobs_UV = (logits_UV / want.temperatures_U[:, None]).log_softmax(-1)
    log_kept: list[Tensor] = []
    for entry, row in enumerate(want.rows_E.tolist()):
        ids = want.kept_ids_K[want.kept_entries_K == entry]
        log_kept.append(logprobs_UV[row, ids].logsumexp(0) if len(ids) else torch.zeros((), dtype=torch.float64))
    return logprobs_UV[want.rows_E, want.targets_E], torch.stack(log_kept)


@pytest.mark.parametrize(("transform", "chunk", "bias"), list(itertools.product(TRANSFORMS, CHUNKS, (False, True))))
def test_logprobs_masses_and_gradients_are_those_of_the_full_logits(transform: Transform, chunk: int, bias: bool) -> None:
    tested, want = head(transform, bias=bias), wanted(chunk)
    inputs = [torch.randn(U, D, dtype=torch.float64, requires_grad=True), *tested.module.parameters()]
    mix = torch.randn(2, len(want.rows_E), dtype=torch.float64)
    for mine, theirs in zip(tested.logprobs(inputs[0], want), plain(tested, inputs[0], want), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)

    def gradients(outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((mix[0] * outputs[0]).sum() + (mix[1] * outputs[1]).sum(), inputs)

    for mine, theirs in zip(gradients(tested.logprobs(inputs[0], want)), gradients(plain(tested, inputs[0], want)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_a_forced_token_has_probability_one_and_no_gradient() -> None:
    tested, want = head(Transform(), bias=False), wanted(4)
    hidden_UD = torch.randn(U, D, dtype=torch.float64, requires_grad=True)
    logprobs_E, log_kept_E = tested.logprobs(hidden_UD, want)
    renormalised = logprobs_E[3] - log_kept_E[3]
    (grad_UD,) = torch.autograd.grad(renormalised, hidden_UD)
    assert float(renormalised.detach()) == pytest.approx(0, abs=1e-12)
    assert float(grad_UD.abs().max()) == pytest.approx(0, abs=1e-12)


def test_a_frozen_head_gets_no_gradient_and_passes_it_on() -> None:
    tested, want = head(Transform(), bias=True), wanted(4)
    tested.module.requires_grad_(False)
    hidden_UD = torch.randn(U, D, dtype=torch.float64, requires_grad=True)
    tested.logprobs(hidden_UD, want)[0].sum().backward()
    assert hidden_UD.grad is not None and tested.module.weight.grad is None


class Largest(TorchDispatchMode):
    """The largest last-axis-V tensor that any operation made, in rows."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.ndim == 2 and tensor.shape[1] == V and tensor.is_floating_point():
                self.rows = max(self.rows, tensor.shape[0])
        return out


def test_the_logits_of_more_than_a_chunk_are_never_held() -> None:
    count, chunk = 64, D + 2
    rows_E = torch.arange(count)
    none = torch.empty(0, dtype=torch.long)
    want = Wanted(torch.ones(count, dtype=torch.float64), rows_E, rows_E % V, none, none, chunks_of(count, rows_E, none, chunk))
    tested = head(Transform(softcap=3.0), bias=False)
    hidden_UD = torch.randn(count, D, dtype=torch.float64, requires_grad=True)
    with Largest() as largest:
        tested.logprobs(hidden_UD, want)[0].sum().backward()
    assert largest.rows == chunk


def small(config: Any, **more: Any) -> PreTrainedModel:
    shape = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    return cast("PreTrainedModel", AutoModelForCausalLM.from_config(config(**shape, **ids, num_key_value_heads=2, **more)).eval())


@pytest.mark.parametrize(
    ("model", "transform"),
    [
        (small(Gemma2Config, head_dim=8, final_logit_softcapping=0.5), Transform(softcap=0.5)),
        (small(GraniteConfig, logits_scaling=4.0), Transform(scale=0.25)),
        (small(CohereConfig, logit_scale=0.5), Transform(scale=0.5)),
        (tiny_model(), Transform()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_model_does_to_its_logits_is_found_and_checked(model: PreTrainedModel, transform: Transform) -> None:
    found = Head(model)
    assert found.transform == transform
    check_head(model, found)


class Doubled(LlamaForCausalLM):
    """A model that does something to its logits that its configuration does not tell."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output


def test_a_model_whose_logits_are_not_understood_is_refused_by_name() -> None:
    model = Doubled(tiny_model().config)
    with pytest.raises(ModelError, match="Doubled: logits from the last hidden state differ"):
        check_head(model, Head(model))
