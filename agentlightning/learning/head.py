"""Head: logprobs of the trained tokens from the model's last hidden states, without ever holding the logits of a whole
row.

A row of 4,096 tokens over a vocabulary of 150,000 is 2.5 GB of logits, and its gradient as much again. Here the logits
of ``chunk`` positions exist at a time; the backward pass computes them anew. Only positions that predict a trained
token are computed at all, each once, however many samples were drawn there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentlightning.engines.local.sampling import id_sets
from agentlightning.errors import ModelError

_SETS_AT_ONCE = 64
"""Entries whose sets of ids are held as one bool and one float per id at a time."""


@dataclass(frozen=True, slots=True)
class Transform:
    """What a model does to its raw logits: ``softcap * tanh(scale * raw / softcap)``, without a softcap ``scale *
    raw``."""

    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, logits_UV: Tensor) -> Tensor:
        """In place."""
        if self.scale != 1.0:
            logits_UV.mul_(self.scale)
        return logits_UV if self.softcap is None else logits_UV.div_(self.softcap).tanh_().mul_(self.softcap)

    def backward_(self, grad_UV: Tensor, logits_UV: Tensor) -> Tensor:
        """The gradient wrt the raw logits from that wrt the transformed ones, in place. ``logits_UV`` are
        transformed."""
        if self.softcap is not None:
            grad_UV.mul_(1 - (logits_UV / self.softcap).square_())
        return grad_UV if self.scale == 1.0 else grad_UV.mul_(self.scale)


def transform_of(model: PreTrainedModel) -> Transform:
    """The transform that the model's configuration names (Gemma's softcap; the scales of Granite, Cohere and
    Falcon-H1)."""
    config = cast("Any", model.config).get_text_config()

    def value(name: str) -> float | None:
        found = getattr(config, name, None)
        return float(found) if isinstance(found, int | float) else None

    scale = 1.0
    if (divisor := value("logits_scaling")) is not None:
        scale = 1.0 / divisor
    for name in ("logit_scale", "lm_head_multiplier"):
        scale *= value(name) or 1.0
    return Transform(scale, value("final_logit_softcapping"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the head is asked for, beside the hidden states of U positions. Tensors on the model's device.

    Entry e wants token ``targets_E[e]`` under distribution ``rows_E[e]`` (ascending) at ``temperatures_U``; where
    ``kept_entries_K`` names it, also the mass of its ``kept_ids_K``; where ``set_entries_G`` does, that of set
    ``sets_G`` of ``sets_SW`` (sets of ids as bits of int32 words). No entry is in both. ``chunks`` cuts U, E, K and G
    into pieces of at most ``chunk`` distributions.
    """

    temperatures_U: Tensor
    rows_E: Tensor
    targets_E: Tensor
    kept_entries_K: Tensor
    kept_ids_K: Tensor
    set_entries_G: Tensor
    sets_G: Tensor
    sets_SW: Tensor
    chunks: tuple[Chunk, ...]

    @property
    def cut_E(self) -> Tensor:
        """Which entries were drawn from a cut support."""
        cut_E = torch.zeros_like(self.rows_E, dtype=torch.bool)
        cut_E[self.kept_entries_K] = True
        cut_E[self.set_entries_G] = True
        return cut_E


Chunk = tuple[slice, slice, slice, slice]
"""Slices of distributions, of their entries, of the entries' kept ids and of the entries with a set."""


def chunks_of(
    distributions: int, rows_E: Tensor, kept_entries_K: Tensor, set_entries_G: Tensor, chunk: int
) -> tuple[Chunk, ...]:
    """Pieces of at most ``chunk`` distributions. CPU tensors, all ascending."""
    edges_U = torch.arange(0, distributions + chunk, chunk).clamp(max=distributions)
    edges_E = torch.searchsorted(rows_E, edges_U)
    edges_K = torch.searchsorted(kept_entries_K, edges_E)
    edges_G = torch.searchsorted(set_entries_G, edges_E)
    edges = [cast("list[int]", cast("Any", edge).tolist()) for edge in (edges_U, edges_E, edges_K, edges_G)]
    return tuple(cast("Chunk", tuple(slice(edge[i], edge[i + 1]) for edge in edges)) for i in range(len(edges[0]) - 1))


class Head:
    """The output embedding of a model and what it does to the logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        module = cast("nn.Module | None", model.get_output_embeddings())
        if not isinstance(module, nn.Linear):
            raise ModelError(
                f"{type(model).__name__} has no linear output embedding ({type(module).__name__}): its logprobs cannot "
                "be computed"
            )
        self.module = module
        self.transform = transform_of(model)

    def logits(self, hidden_UD: Tensor) -> Tensor:
        """The model's logits, at least float32. For checks: this holds all of them."""
        return self.transform.apply_(_upcast(nn.functional.linear(hidden_UD, self.module.weight, self.module.bias)))

    def logprobs(self, hidden_UD: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor]:
        """(logprob under the full softmax, log mass of the kept support) of each entry, at least float32. Both carry
        gradients."""
        logprobs_E, log_kept_E, _ = self._apply(hidden_UD, wanted, entropy=False)
        return logprobs_E, log_kept_E

    def logprobs_and_entropy(self, hidden_UD: Tensor, wanted: Wanted) -> tuple[Tensor, Tensor, Tensor]:
        """Those, and the entropy in nats of what each entry was drawn from: at its temperature, over its support."""
        return self._apply(hidden_UD, wanted, entropy=True)

    def _apply(self, hidden_UD: Tensor, wanted: Wanted, *, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
        function = cast("Any", _ChunkedLogprobs)
        return cast(
            "tuple[Tensor, Tensor, Tensor]",
            function.apply(hidden_UD, self.module.weight, self.module.bias, self.transform, wanted, entropy),
        )


def _upcast(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _ChunkedLogprobs(torch.autograd.Function):
    """logprobs_E and log_kept_E from hidden states and the output embedding, chunk by chunk, with the logits computed
    anew in backward.

    With z the logits over the temperature, p their softmax and q their softmax over the kept ids: d logprob / dz =
    onehot - p, d log_kept / dz = q - p and, with H the entropy of q, dH / dz = -q (log q + H). Where nothing was cut q
    is p. Without ``entropy`` the third output is empty.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_UD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        transform: Transform,
        wanted: Wanted,
        entropy: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(hidden_UD.dtype, torch.float32)
        logprobs_E = torch.empty(wanted.rows_E.shape, dtype=dtype, device=hidden_UD.device)
        log_kept_E = torch.zeros_like(logprobs_E)
        entropy_E = torch.zeros_like(logprobs_E) if entropy else torch.empty(0, dtype=dtype, device=hidden_UD.device)
        log_z_U = torch.empty(hidden_UD.shape[:1], dtype=dtype, device=hidden_UD.device)
        for chunk_U, chunk_E, chunk_K, chunk_G in wanted.chunks:
            _, scaled_UV = _chunk_logits(
                hidden_UD[chunk_U], weight_VD, bias_V, transform, wanted.temperatures_U[chunk_U]
            )
            rows_E = wanted.rows_E[chunk_E] - chunk_U.start
            log_z_U[chunk_U] = scaled_UV.logsumexp(-1)
            logprobs_E[chunk_E] = scaled_UV[rows_E, wanted.targets_E[chunk_E]] - log_z_U[wanted.rows_E[chunk_E]]
            if entropy:
                entropy_E[chunk_E] = _entropy((scaled_UV - log_z_U[chunk_U, None]).exp_())[rows_E]
            if chunk_K.stop > chunk_K.start:
                entries_K = wanted.kept_entries_K[chunk_K]
                rows_K = wanted.rows_E[entries_K]
                full_K = scaled_UV[rows_K - chunk_U.start, wanted.kept_ids_K[chunk_K]] - log_z_U[rows_K]
                log_kept_E[chunk_E] = _log_sums(full_K, entries_K - chunk_E.start, chunk_E.stop - chunk_E.start)
                if entropy:
                    entropy_E[entries_K] = 0
                    entropy_E.index_add_(0, entries_K, _entr((full_K - log_kept_E[entries_K]).exp_()))
            for piece_G in _pieces(chunk_G):
                entries_G = wanted.set_entries_G[piece_G]
                rows_G = wanted.rows_E[entries_G]
                within_GV = _within(scaled_UV, rows_G - chunk_U.start, wanted.sets_SW[wanted.sets_G[piece_G]])
                log_kept_E[entries_G] = within_GV.logsumexp(-1) - log_z_U[rows_G]
                if entropy:
                    entropy_E[entries_G] = _entropy(within_GV.softmax(-1))
        ctx.save_for_backward(hidden_UD, weight_VD, bias_V, log_z_U, log_kept_E, entropy_E)
        ctx.transform, ctx.wanted, ctx.entropy = transform, wanted, entropy
        return logprobs_E, log_kept_E, entropy_E

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_UD, weight_VD, bias_V, log_z_U, log_kept_E, entropy_E = cast(
            "tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]", ctx.saved_tensors
        )
        transform, wanted = cast("Transform", ctx.transform), cast("Wanted", ctx.wanted)
        grad_logprobs_E, grad_log_kept_E, grad_entropy_E = grads
        entropy = cast("bool", ctx.entropy)
        needs_hidden, needs_weight, needs_bias = cast("tuple[bool, ...]", ctx.needs_input_grad)[:3]
        grad_hidden_UD = torch.empty_like(hidden_UD) if needs_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=log_z_U.dtype) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=log_z_U.dtype) if bias_V is not None and needs_bias else None
        # Where nothing was cut the mass is 1 whatever the weights.
        softmax_E = grad_logprobs_E + torch.where(wanted.cut_E, grad_log_kept_E, 0)
        for chunk_U, chunk_E, chunk_K, chunk_G in wanted.chunks:
            temperatures_U = wanted.temperatures_U[chunk_U]
            logits_UV, scaled_UV = _chunk_logits(hidden_UD[chunk_U], weight_VD, bias_V, transform, temperatures_U)
            rows_E = wanted.rows_E[chunk_E] - chunk_U.start
            full_UV = scaled_UV.sub_(log_z_U[chunk_U, None])
            kept = None
            if chunk_K.stop > chunk_K.start:
                entries_K = wanted.kept_entries_K[chunk_K]
                rows_K = wanted.rows_E[entries_K] - chunk_U.start
                ids_K = wanted.kept_ids_K[chunk_K]
                probs_K = (full_UV[rows_K, ids_K] - log_kept_E[entries_K]).exp_()
                grad_K = grad_log_kept_E[entries_K] * probs_K
                if entropy:
                    grad_K += _entropy_gradient(probs_K, entropy_E[entries_K], grad_entropy_E[entries_K])
                kept = (rows_K, ids_K, grad_K)
            probs_UV = full_UV.exp_() if chunk_G.start == chunk_G.stop else full_UV.exp()
            softmax_U = torch.zeros_like(log_z_U[chunk_U]).index_add_(0, rows_E, softmax_E[chunk_E])
            if entropy:
                uncut_E = torch.where(wanted.cut_E[chunk_E], 0, grad_entropy_E[chunk_E])
                uncut_U = torch.zeros_like(softmax_U).index_add_(0, rows_E, uncut_E)
                grad_UV = _entropy_gradient(probs_UV, _entropy(probs_UV)[:, None], uncut_U[:, None])
                grad_UV.addcmul_(probs_UV, softmax_U[:, None], value=-1)
            else:
                grad_UV = probs_UV.mul_(-softmax_U[:, None])
            grad_UV.index_put_((rows_E, wanted.targets_E[chunk_E]), grad_logprobs_E[chunk_E], accumulate=True)
            if kept is not None:
                grad_UV.index_put_(kept[:2], kept[2], accumulate=True)
            for piece_G in _pieces(chunk_G):
                entries_G = wanted.set_entries_G[piece_G]
                rows_G = wanted.rows_E[entries_G] - chunk_U.start
                within_GV = (
                    _within(full_UV, rows_G, wanted.sets_SW[wanted.sets_G[piece_G]])
                    .sub_(log_kept_E[entries_G, None])
                    .exp_()
                )
                if entropy:
                    grad_H_GV = _entropy_gradient(
                        within_GV, entropy_E[entries_G, None], grad_entropy_E[entries_G, None]
                    )
                    grad_UV.index_add_(0, rows_G, grad_H_GV)
                grad_UV.index_add_(0, rows_G, within_GV.mul_(grad_log_kept_E[entries_G, None]))
            grad_UV = transform.backward_(grad_UV.div_(temperatures_U[:, None]), logits_UV).to(weight_VD.dtype)
            if grad_hidden_UD is not None:
                torch.mm(grad_UV, weight_VD, out=grad_hidden_UD[chunk_U])
            if grad_weight_VD is not None:
                _add_product(grad_weight_VD, grad_UV, hidden_UD[chunk_U])
            if grad_bias_V is not None:
                grad_bias_V += grad_UV.sum(0)
        return (
            grad_hidden_UD,
            None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype),
            None if grad_bias_V is None or bias_V is None else grad_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
        )


_entr = cast("Callable[[Tensor], Tensor]", cast("Any", torch.special).entr)
"""-p log p of each probability, 0 where it is 0."""


def _entropy(probs_UV: Tensor) -> Tensor:
    return _entr(probs_UV).sum(-1)


def _entropy_gradient(probs: Tensor, entropy: Tensor, grad: Tensor) -> Tensor:
    """The gradient wrt the logits of probabilities: grad * -p (log p + H), which is 0 where p is."""
    return (_entr(probs) - probs * entropy).mul_(grad)


def _chunk_logits(
    hidden_UD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, transform: Transform, temperatures_U: Tensor
) -> tuple[Tensor, Tensor]:
    """(logits, logits over the temperature), at least float32. The same tensor where the transform's backward needs no
    logits."""
    logits_UV = transform.apply_(_upcast(nn.functional.linear(hidden_UD, weight_VD, bias_V)))
    if transform.softcap is None:
        return logits_UV, logits_UV.div_(temperatures_U[:, None])
    return logits_UV, logits_UV / temperatures_U[:, None]


def _log_sums(values_K: Tensor, places_K: Tensor, count: int) -> Tensor:
    """The log of the summed exponentials of each place's values, 0 where it has none: [count]. Masses too small for exp
    are no zero."""
    most_E = torch.full((count,), -torch.inf, dtype=values_K.dtype, device=values_K.device).scatter_reduce_(
        0, places_K, values_K, "amax"
    )
    sums_E = torch.zeros_like(most_E).index_add_(0, places_K, (values_K - most_E[places_K]).exp_())
    return torch.where(sums_E > 0, sums_E.log_() + most_E, 0)


def _pieces(chunk: slice) -> list[slice]:
    return [
        slice(start, min(start + _SETS_AT_ONCE, chunk.stop)) for start in range(chunk.start, chunk.stop, _SETS_AT_ONCE)
    ]


def _within(logits_UV: Tensor, rows_G: Tensor, words_GW: Tensor) -> Tensor:
    """The rows with -inf for each id that is not in the row's set: [G, V]."""
    return logits_UV[rows_G].masked_fill_(~id_sets(words_GW, logits_UV.shape[1]), -torch.inf)


def _add_product(grad_VD: Tensor, grad_UV: Tensor, hidden_UD: Tensor) -> None:
    if grad_VD.dtype == grad_UV.dtype:
        grad_VD.addmm_(grad_UV.T, hidden_UD)
    else:
        grad_VD += grad_UV.T @ hidden_UD
