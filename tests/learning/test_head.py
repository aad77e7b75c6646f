"""The chunked head against the plain one, which holds all logits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from agentlightning.errors import ModelError
from agentlightning.learning.forward import check_head
from agentlightning.learning.head import Head, Transform, Wanted, chunks_of
from tests.tiny import tiny_model

U, D, V = 9, 8, 31
CHUNKS = (1, 4, 100)
ALLOWED = ([5, 17, 30], [0, 1, 5, 8, 29])
SETS_SW = torch.tensor([[sum(1 << i for i in ids)] for ids in ALLOWED], dtype=torch.int32)
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
    set_entries_G = torch.tensor([2, 4, 9])
    sets_G = torch.tensor([1, 0, 1])
    temperatures_U = torch.linspace(0.5, 1.5, U, dtype=torch.float64)
    chunks = chunks_of(U, rows_E, kept_entries_K, set_entries_G, chunk)
    return Wanted(temperatures_U, rows_E, targets_E, kept_entries_K, kept_ids_K, set_entries_G, sets_G, SETS_SW, chunks)


def plain(head: Head, hidden_UD: Tensor, want: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    raw_UV = head.module(hidden_UD) * head.transform.scale
    cap = head.transform.softcap
    logits_UV = raw_UV if cap is None else cap * torch.tanh(raw_UV / cap)
    logprobs_UV = (logits_UV / want.temperatures_U[:, None]).log_softmax(-1)
    log_kept: list[Tensor] = []
    entropies: list[Tensor] = []
    for entry, row in enumerate(want.rows_E.tolist()):
        ids = want.kept_ids_K[want.kept_entries_K == entry]
        if (place := (want.set_entries_G == entry).nonzero().flatten()).numel():
            ids = torch.tensor(ALLOWED[int(want.sets_G[place])])
        log_kept.append(logprobs_UV[row, ids].logsumexp(0) if len(ids) else torch.zeros((), dtype=torch.float64))
        support = logprobs_UV[row, ids] if len(ids) else logprobs_UV[row]
        entropies.append(torch.distributions.Categorical(logits=support).entropy())
    return logprobs_UV[want.rows_E, want.targets_E], torch.stack(log_kept), torch.stack(entropies)


@pytest.mark.parametrize(("transform", "chunk", "bias"), list(itertools.product(TRANSFORMS, CHUNKS, (False, True))))
def test_logprobs_masses_entropies_and_gradients_are_those_of_the_full_logits(
    transform: Transform, chunk: int, bias: bool
) -> None:
    tested, want = head(transform, bias=bias), wanted(chunk)
    inputs = [torch.randn(U, D, dtype=torch.float64, requires_grad=True), *tested.module.parameters()]
    mix = torch.randn(3, len(want.rows_E), dtype=torch.float64)
    outputs, expected = tested.logprobs_and_entropy(inputs[0], want), plain(tested, inputs[0], want)
    for mine, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(tested.logprobs(inputs[0], want), outputs[:2], strict=True))

    def gradients(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mixed = [(row * output).sum() for row, output in zip(mix, outputs, strict=False)]
        return torch.autograd.grad(torch.stack(mixed).sum(), inputs)

    for mine, theirs in (
        *zip(gradients(outputs), gradients(expected), strict=True),
        *zip(gradients(tested.logprobs(inputs[0], want)), gradients(plain(tested, inputs[0], want)[:2]), strict=True),
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_a_forced_token_has_probability_one_and_no_gradient() -> None:
    tested, want = head(Transform(), bias=False), wanted(4)
    hidden_UD = torch.randn(U, D, dtype=torch.float64, requires_grad=True)
    logprobs_E, log_kept_E = tested.logprobs(hidden_UD, want)
    renormalised = logprobs_E[3] - log_kept_E[3]
    (grad_UD,) = torch.autograd.grad(renormalised, hidden_UD)
    assert float(renormalised.detach()) == pytest.approx(0, abs=1e-12)
    assert float(grad_UD.abs().max()) == pytest.approx(0, abs=1e-12)


def test_supports_far_too_unlikely_for_a_float_keep_their_renormalised_logprobs_and_gradients() -> None:
    """A grammar may force what the model would never say: the mass of the support is zero in float32, its log is
    not."""
    ids = torch.tensor([[3, 9], [5, 8]])
    tested = object.__new__(Head)
    tested.module, tested.transform = nn.Linear(D, V, bias=False), Transform()
    with torch.no_grad():
        tested.module.weight.mul_(0.01)
        tested.module.weight[0] += 30.0
    rows_E = torch.arange(2)
    sets = torch.tensor([[1 << 5 | 1 << 8]], dtype=torch.int32)
    kept = Wanted(
        torch.ones(2), rows_E, ids[:, 0], torch.tensor([0, 0]), ids[0], torch.tensor([1]), torch.tensor([0]), sets, ()
    )
    kept = replace(kept, chunks=chunks_of(2, rows_E, kept.kept_entries_K, kept.set_entries_G, 1))
    hidden_UD = torch.ones(2, D, requires_grad=True)
    logprobs_E, log_kept_E = tested.logprobs(hidden_UD, kept)
    assert float(log_kept_E.detach().max()) < -200
    new_E = logprobs_E - log_kept_E
    (grad_UD,) = torch.autograd.grad(new_E.sum(), hidden_UD)
    plain_UD = torch.ones(2, D, requires_grad=True)
    logits_UV = tested.module(plain_UD)
    plain_E = torch.stack([logits_UV[u, ids[u]].log_softmax(0)[0] for u in range(2)])
    torch.testing.assert_close(new_E, plain_E, rtol=0, atol=1e-4)
    torch.testing.assert_close(grad_UD, torch.autograd.grad(plain_E.sum(), plain_UD)[0], rtol=1e-3, atol=1e-5)


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
    want = Wanted(
        torch.ones(count, dtype=torch.float64),
        rows_E,
        rows_E % V,
        none,
        none,
        none,
        none,
        none,
        chunks_of(count, rows_E, none, none, chunk),
    )
    tested = head(Transform(softcap=3.0), bias=False)
    hidden_UD = torch.randn(count, D, dtype=torch.float64, requires_grad=True)
    with Largest() as largest:
        tested.logprobs(hidden_UD, want)[0].sum().backward()
    assert largest.rows == chunk


def small(config: Any, **more: Any) -> PreTrainedModel:
    shape = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    return cast(
        "PreTrainedModel",
        AutoModelForCausalLM.from_config(config(**shape, **ids, num_key_value_heads=2, **more)).eval(),
    )


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
