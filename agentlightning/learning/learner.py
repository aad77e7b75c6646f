"""Learner: turns a batch into the next version of the weights.

It changes the weights in place, between two requests of the engine that shares them, and holds what that needs: the
optimizer's state and, where the weights are bfloat16, a float32 master of each. It does not sample, does not know
rewards, and neither saves nor loads (checkpoints.py does).
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentlightning.engines.grammar import Grammars, Words, replay
from agentlightning.engines.local.threads import Threads
from agentlightning.errors import ConfigError, GrammarError, ModelError, RunFailed
from agentlightning.learning import losses
from agentlightning.learning.attention import tree_attention
from agentlightning.learning.forward import (
    check_head,
    cost_of,
    gradient_checkpointing,
    hidden_states,
    max_tree_depth,
    why_not_tree,
)
from agentlightning.learning.head import Head, Wanted, chunks_of
from agentlightning.learning.loss_config import LossConfig
from agentlightning.learning.memory import PeakMemory, keep_freed_memory
from agentlightning.learning.packing import Block, Packed, PackedGroup, Trained, pack
from agentlightning.records.batch import Batch, LearnerStats, Parity, TrainNode
from agentlightning.settings.fields import LearnerConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The loss of a batch and its gradient, by parameter name."""

    loss: float
    by_name: Mapping[str, Tensor]


class Learner:
    """Trains the parameters of ``model`` that require a gradient, in place.

    All methods block and belong to one thread at a time; the caller may be in torch's inference mode. Between steps no
    parameter requires a gradient, the model is in evaluation mode, and no gradient or activation is held.
    ``total_steps`` is what the learning-rate schedule runs over; ``seed`` fixes how groups are divided into
    minibatches; ``threads`` says before each block with how many threads to compute it, None leaves that alone.
    ``grammars`` replays the grammars that samples followed.

    Raises ModelError when the model cannot be trained as asked (by name), ConfigError when the settings contradict each
    other.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        loss: LossConfig,
        *,
        seed: int,
        total_steps: int,
        threads: Threads | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.loss = loss
        self.steps = 0
        """Steps done, empty batches counted in."""
        self._seed = seed
        self._total_steps = total_steps
        self._threads = threads
        self._grammars = grammars
        self._adapt()
        if config.memory_tuning and model.device.type == "cpu":
            keep_freed_memory()
        model.eval()
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._parameters = [parameter for _, parameter in model.named_parameters() if parameter.requires_grad]
        self._check_parameters()
        model.requires_grad_(False)
        self._head = Head(model)
        check_head(model, self._head)
        self._layout: Literal["auto", "tree", "flat"] = self._choose_layout()
        self._cost = cost_of(model)
        self._max_tree_depth = max_tree_depth(model)
        reduced = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
        self._recompute = reduced if config.old_logprobs == "auto" else config.old_logprobs == "recompute"
        if config.gradient_checkpointing:
            with gradient_checkpointing(model):
                pass
        # Weights in float32 are their own masters.
        self._masters = [p.detach().float() if p.dtype == torch.bfloat16 else p for p in self._parameters]
        self._optimizer = _optimizer(self._masters, config)

    # ------------------------------------------------------------------ construction

    def _check_parameters(self) -> None:
        name = type(self.model).__name__
        if not self._parameters:
            raise ModelError(f"{name}: no parameter requires a gradient, so there is nothing to train")
        for parameter_name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float64):
                raise ModelError(
                    f"{name}: {parameter_name} is {parameter.dtype}; load the model in float32 or bfloat16 to train it"
                )
            if parameter.is_meta or parameter.device != self.model.device:
                raise ModelError(
                    f"{name}: {parameter_name} is on {parameter.device} and the model on {self.model.device}; train on "
                    "one device"
                )

    def _choose_layout(self) -> Literal["auto", "tree", "flat"]:
        if self.config.layout == "flat":
            return "flat"
        reason = why_not_tree(self.model)
        if reason is None:
            return self.config.layout
        if self.config.layout == "tree":
            raise ModelError(
                f"learner.layout='tree' does not work with {type(self.model).__name__}: {reason}; use layout='flat'"
            )
        _log.warning("%s is trained with layout 'flat': %s", type(self.model).__name__, reason)
        return "flat"

    # ------------------------------------------------------------------ a step

    @torch.inference_mode(False)
    def step(self, batch: Batch) -> LearnerStats:
        """Trains on a batch: ``epochs`` passes of ``minibatches`` optimizer steps.

        A batch in which nothing is trained takes no optimizer step, nor does one whose weights are all zero. Raises
        RunFailed when the loss or its gradient is not finite, before any weight changes by it, and when a path is
        longer than ``max_row_tokens``.
        """
        started = time.perf_counter()
        self._adapt()
        peak = _Peak(self.model.device)
        packed = self._pack(batch)
        tally = _Tally(packed.trained, self.model.device, self._dtype)
        lr = self._lr()
        updates: list[tuple[float, float]] = []
        try:
            with self._training():
                for epoch in range(self.config.epochs):
                    minibatches = self._divide(packed.groups, epoch)
                    if epoch == 0:
                        # What the first optimizer step will have changed is measured before it.
                        for minibatch in minibatches[1:]:
                            self._measure(minibatch, tally)
                    updates += [self._update(minibatch, tally, lr) for minibatch in minibatches]
        finally:
            self._drop_gradients()
        self.steps += 1
        return self._stats(packed, tally, updates, lr, peak.read(), time.perf_counter() - started)

    @torch.inference_mode(False)
    def gradient(self, batch: Batch) -> Gradient:
        """The loss of the whole batch and its gradient, unclipped, without a step."""
        self._adapt()
        packed = self._pack(batch)
        tally = _Tally(packed.trained, self.model.device, self._dtype)
        try:
            with self._training():
                loss = self._accumulate(packed.groups, tally)
                grads = [torch.zeros_like(m) if m.grad is None else m.grad.clone() for m in self._masters]
                return Gradient(loss, dict(zip(self._names, grads, strict=True)))
        finally:
            self._drop_gradients()

    def release(self) -> None:
        """Lets go of gradients and gives CUDA's cached memory back. A step lets go of gradients itself; sampling uses
        the cache that it leaves."""
        self._drop_gradients()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _drop_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._parameters:
            parameter.grad = None

    def _adapt(self) -> None:
        if self._threads is not None:
            self._threads.adapt()

    def _pack(self, batch: Batch) -> Packed:
        return pack(
            batch,
            layout=self._layout,
            max_row_tokens=self.config.max_row_tokens,
            cost=self._cost,
            max_tree_depth=self._max_tree_depth,
            supports=None if self._grammars is None else self._supports,
        )

    def _supports(self, node: TrainNode) -> Words:
        assert self._grammars is not None and node.constraint is not None
        constraint = node.constraint
        try:
            return replay(
                self._grammars.matcher(constraint.grammar, constraint.stop_token_ids), constraint.before, node.token_ids
            )
        except GrammarError as error:
            raise RunFailed(
                f"step {self.steps + 1}: a recorded sample cannot be replayed under its grammar: {error}"
            ) from error

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.model.dtype, torch.float32)

    @contextmanager
    def _training(self) -> Generator[None]:
        """Parameters require gradients in here. The model stays in evaluation mode: dropout would make the new logprobs
        another policy's."""
        self.model.eval()
        checkpointing = (
            gradient_checkpointing(self.model) if self.config.gradient_checkpointing else contextlib.nullcontext()
        )
        with torch.enable_grad(), checkpointing:
            for parameter in self._parameters:
                parameter.requires_grad_(True)
            try:
                yield
            finally:
                for parameter in self._parameters:
                    parameter.requires_grad_(False)

    def _divide(self, groups: Sequence[PackedGroup], epoch: int) -> list[Sequence[PackedGroup]]:
        """Groups into at most ``minibatches`` parts of like size, in an order fixed by seed, step and epoch."""
        count = min(self.config.minibatches, len(groups))
        if count <= 1:
            return [groups] if groups else []
        order = list(groups)
        random.Random(f"{self._seed}-{self.steps}-{epoch}").shuffle(order)
        return [order[i * len(order) // count : (i + 1) * len(order) // count] for i in range(count)]

    # ------------------------------------------------------------------ loss and gradient

    def _update(self, groups: Sequence[PackedGroup], tally: _Tally, lr: float) -> tuple[float, float]:
        """One optimizer step. Returns the loss and the norm of its gradient before clipping."""
        loss = self._accumulate(groups, tally)
        if not any(master.grad is not None for master in self._masters):
            return loss, 0.0
        grads = [master.grad for master in self._masters if master.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        norm_value = float(norm)
        if not math.isfinite(norm_value):
            raise RunFailed(
                f"step {self.steps + 1}: the gradient is not finite (norm {norm_value}) while the loss is {loss:.4g}; "
                "the weights were left as they "
                "were; a smaller learner.lr or sampling.temperature nearer 1 are the usual cures"
            )
        nn.utils.clip_grads_with_norm_(self._masters, self.config.max_grad_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        cast("Any", self._optimizer).step()
        self._optimizer.zero_grad(set_to_none=True)
        self.publish_masters()
        return loss, norm_value

    def publish_masters(self) -> None:
        """Casts the float32 masters into the weights that sample. Weights in float32 are their own masters."""
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)

    def _accumulate(self, groups: Sequence[PackedGroup], tally: _Tally) -> float:
        """Forward and backward of a minibatch, block by block. Leaves the gradient in the masters and returns the loss.

        What a token counts is settled over the whole minibatch first, so the cut into blocks does not show (invariant
        7).
        """
        if not groups:
            return 0.0
        entries_E = torch.cat([torch.arange(group.start, group.stop) for group in groups])
        scale_N = torch.zeros(tally.count, dtype=torch.float64)
        scale_N[entries_E] = losses.coefficients(tally.trained.units_E[entries_E], self.loss)
        scale_N = scale_N.to(tally.device, tally.dtype)
        total = torch.zeros((), dtype=torch.float64, device=tally.device)
        for group in groups:
            for block in group.blocks:
                self._adapt()
                entries_E = block.entries_E.to(tally.device)
                weights_E = tally.weights_N[entries_E]
                # Without a weight there is no gradient; the forward still measures.
                learns = bool((tally.trained.weights_E[block.entries_E] != 0).any())
                with tree_attention(self.model, block), torch.set_grad_enabled(learns):
                    logprobs_E, old_E = self._logprobs(block, tally)
                    loss_E = losses.clipped_policy_loss(
                        logprobs_E, old_E, weights_E, self.loss.clip_low, self.loss.clip_high
                    )
                    if self._recompute:
                        loss_E = loss_E * losses.truncated_importance(
                            old_E, tally.behaviour_N[entries_E], self.config.importance_cap
                        )
                    loss = (loss_E * scale_N[entries_E]).sum()
                    if learns:
                        cast("Any", loss).backward()
                        self._collect()
                tally.clipping(logprobs_E.detach(), old_E, weights_E, self.loss)
                total += loss.detach().double()
        value = float(total)
        if not math.isfinite(value):
            raise RunFailed(
                f"step {self.steps + 1}: the loss is {value}; the weights were left as they were. Usual causes: "
                "weights that a former step made "
                "infinite (a smaller learner.lr), or a sampler whose logprobs are not those of this model"
            )
        return value

    def _collect(self) -> None:
        """Adds what backward left in bfloat16 weights to their float32 masters, so that small rows are not rounded
        away."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if parameter is master or parameter.grad is None:
                continue
            grad = parameter.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            parameter.grad = None

    def _logprobs(self, block: Block, tally: _Tally) -> tuple[Tensor, Tensor]:
        """(new, old) logprobs of a block's entries, renormalised over what was kept; new carries a gradient.

        The first time a token is seen, before the first optimizer step, parity is measured and, with ``recompute``, the
        new logprob becomes the old one.
        """
        device = self.model.device
        entries_E = block.entries_E.to(device)
        hidden_ND = hidden_states(self.model, block)
        wanted = Wanted(
            temperatures_U=block.temperatures_U.to(device, tally.dtype),
            rows_E=block.rows_E.to(device),
            targets_E=tally.targets_N[entries_E],
            kept_entries_K=block.kept_entries_K.to(device),
            kept_ids_K=block.kept_ids_K.to(device),
            set_entries_G=block.set_entries_G.to(device),
            sets_G=block.sets_G.to(device),
            sets_SW=tally.sets_SW,
            chunks=chunks_of(
                len(block.places_U), block.rows_E, block.kept_entries_K, block.set_entries_G, self.config.head_chunk
            ),
        )
        full_E, log_kept_E = self._head.logprobs(hidden_ND[block.places_U.to(device)], wanted)
        logprobs_E = full_E - log_kept_E
        tally.see(entries_E, full_E.detach(), logprobs_E.detach(), recompute=self._recompute)
        return logprobs_E, tally.old_N[entries_E]

    def _measure(self, groups: Sequence[PackedGroup], tally: _Tally) -> None:
        """A forward without gradient over groups whose turn comes after weights have changed."""
        with torch.no_grad():
            for group in groups:
                for block in group.blocks:
                    self._adapt()
                    with tree_attention(self.model, block):
                        self._logprobs(block, tally)

    # ------------------------------------------------------------------ schedule, stats, state

    def _lr(self) -> float:
        """The learning rate of the step to come."""
        config, step = self.config, self.steps
        if step < config.warmup_steps:
            return config.lr * (step + 1) / config.warmup_steps
        left = 1 - (step - config.warmup_steps) / max(1, self._total_steps - config.warmup_steps)
        if config.schedule == "constant":
            return config.lr
        left = min(1.0, max(0.0, left))
        return config.lr * (left if config.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left)))

    def _stats(
        self,
        packed: Packed,
        tally: _Tally,
        updates: Sequence[tuple[float, float]],
        lr: float,
        peak_memory: int,
        seconds: float,
    ) -> LearnerStats:
        blocks = [block for group in packed.groups for block in group.blocks]
        trees = sum(group.layout == "tree" for group in packed.groups)
        return LearnerStats(
            loss=_mean([loss for loss, _ in updates]),
            grad_norm=_mean([norm for _, norm in updates]),
            lr=lr,
            trained_tokens=tally.count,
            forward_tokens=sum(block.tokens for block in blocks),
            flat_tokens=sum(group.flat_tokens for group in packed.groups),
            rows=sum(len(block.token_ids_BT) for block in blocks),
            tree_groups=trees,
            flat_groups=len(packed.groups) - trees,
            parity=tally.parity(),
            ratio_mean=tally.ratio_mean(),
            clip_fraction=tally.clip_fraction(),
            entropy=tally.entropy(),
            peak_memory=peak_memory,
            seconds=seconds,
        )

    def state(self) -> dict[str, Any]:
        """What a resumed learner needs beside the weights: step count, optimizer state, and the masters of bfloat16
        weights, by name. Not copied."""
        masters = {n: m for n, m, p in zip(self._names, self._masters, self._parameters, strict=True) if m is not p}
        return {
            "steps": self.steps,
            "names": list(self._names),
            "optimizer": self._optimizer.state_dict(),
            "masters": masters,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave. The weights themselves are loaded by the caller. Raises ConfigError where it
        belongs to other parameters."""
        masters = cast("Mapping[str, Tensor]", state["masters"])
        own = {n: m for n, m, p in zip(self._names, self._masters, self._parameters, strict=True) if m is not p}
        if state["names"] != self._names or masters.keys() != own.keys():
            raise ConfigError(
                "the checkpoint's training state belongs to a model with other trained parameters or another dtype"
            )
        self._optimizer.load_state_dict(cast("dict[str, Any]", state["optimizer"]))
        for name, master in own.items():
            master.copy_(masters[name])
        self.publish_masters()
        self.steps = int(state["steps"])


def _optimizer(parameters: Sequence[Tensor], config: LearnerConfig) -> torch.optim.AdamW:
    """AdamW; biases and norms do not decay."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class _Peak:
    """The most memory held since it was made: of the device on CUDA, else of the process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = PeakMemory() if device.type != "cuda" else None
        if self._process is None:
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._process is None else self._process.read()


class _Tally:
    """The trained tokens of a step on the device, and what was measured of them. ``_N`` runs over all trained tokens of
    the batch."""

    def __init__(self, trained: Trained, device: torch.device, dtype: torch.dtype) -> None:
        self.trained = trained
        self.count = len(trained.targets_E)
        self.device = device
        self.dtype = dtype
        self.targets_N = trained.targets_E.to(device)
        self.sets_SW = trained.sets_SW.to(device)
        self.weights_N = trained.weights_E.to(device, dtype)
        self.behaviour_N = trained.behaviour_E.to(device, dtype)
        self.old_N = self.behaviour_N
        self._recorded_N = trained.logprobs_E.to(device, dtype)
        self._full_N = torch.full_like(self.behaviour_N, math.nan)
        self._first_N = torch.full_like(self.behaviour_N, math.nan)
        self._seen_N = torch.zeros(self.count, dtype=torch.bool, device=device)
        self._ratios = torch.zeros((), dtype=torch.float64, device=device)
        self._clipped = torch.zeros((), dtype=torch.float64, device=device)
        self._tokens = 0

    def see(self, entries_E: Tensor, full_E: Tensor, logprobs_E: Tensor, *, recompute: bool) -> None:
        """Notes the first logprobs of tokens; later ones are another policy's and change nothing."""
        new_E = ~self._seen_N[entries_E]
        self._full_N[entries_E] = torch.where(new_E, full_E, self._full_N[entries_E])
        self._first_N[entries_E] = torch.where(new_E, logprobs_E, self._first_N[entries_E])
        self._seen_N[entries_E] = True
        if recompute:
            self.old_N = self._first_N

    def clipping(self, logprobs_E: Tensor, old_E: Tensor, weights_E: Tensor, loss: LossConfig) -> None:
        self._ratios += losses.log_ratio(logprobs_E, old_E).exp().double().sum()
        self._clipped += losses.clipped(logprobs_E, old_E, weights_E, loss.clip_low, loss.clip_high).double().sum()
        self._tokens += len(logprobs_E)

    def parity(self) -> Parity | None:
        if not self.count:
            return None
        delta_N = (self._full_N - self._recorded_N).abs()
        k3 = losses.k3(self._first_N, self.behaviour_N).mean()
        return Parity(float(delta_N.max()), float(delta_N.mean()), float(k3), self.count)

    def entropy(self) -> float:
        return float(-self._first_N.mean()) if self.count else 0.0

    def ratio_mean(self) -> float:
        return float(self._ratios) / self._tokens if self._tokens else 1.0

    def clip_fraction(self) -> float:
        return float(self._clipped) / self._tokens if self._tokens else 0.0
