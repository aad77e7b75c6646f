"""Learner: turns a batch into the next version of the weights.

It changes the weights in place, between two requests of the engine that shares them. What the loss is, an objective
says (objective.py); what the model says of a block's tokens, outputs.py computes; the optimizer is in weights.py. It
does not sample, does not know rewards, and neither saves nor loads (checkpoints.py does).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentlightning.engines.grammar import Grammars, Words, replay
from agentlightning.engines.local.threads import Threads
from agentlightning.errors import GrammarError, ModelError, RunFailed
from agentlightning.learning.attention import tree_attention
from agentlightning.learning.forward import cost_of, gradient_checkpointing, max_tree_depth, why_not_tree
from agentlightning.learning.memory import PeakMemory, keep_freed_memory
from agentlightning.learning.objective import LATE_COLUMNS, ObjectiveSettings, TokenSum, Totals, Whole, check_columns
from agentlightning.learning.objectives import objective_of
from agentlightning.learning.outputs import Outputs
from agentlightning.learning.packing import Block, Packed, PackedGroup, pack
from agentlightning.learning.tokens import Tokens
from agentlightning.learning.weights import TrainedWeights
from agentlightning.records.batch import Batch, LearnerStats, TrainNode
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
    ``objective`` names what is minimised; ``columns`` are those that its batches carry. ``total_steps`` is what the
    learning-rate schedule runs over; ``seed`` fixes how groups are divided into minibatches; ``threads`` says before
    each block with how many threads to compute it, None leaves that alone. ``grammars`` replays the grammars that
    samples followed.

    Raises ModelError when the model cannot be trained as asked (by name), ConfigError when the settings contradict each
    other or the objective reads a column that nobody fills.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        objective: ObjectiveSettings,
        *,
        seed: int,
        total_steps: int,
        columns: Collection[str] = ("advantage",),
        threads: Threads | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.steps = 0
        """Steps done, empty batches counted in."""
        self._objective = objective_of(objective)
        check_columns(self._objective, type(objective).__name__, columns)
        self._seed = seed
        self._total_steps = total_steps
        self._threads = threads
        self._grammars = grammars
        self._adapt()
        if config.memory_tuning and model.device.type == "cpu":
            keep_freed_memory()
        model.eval()
        self._outputs = Outputs(model, self._objective.outputs, config.head_chunk)
        value_head = self._outputs.value_head
        heads = [] if value_head is None else [("value_head.", value_head)]
        self.weights = TrainedWeights([("", model), *heads], config)
        self._pack = functools.partial(
            pack,
            layout=_layout(model, config.layout),
            max_row_tokens=config.max_row_tokens,
            cost=cost_of(model),
            max_tree_depth=max_tree_depth(model),
            supports=None if grammars is None else self._supports,
        )
        if config.gradient_checkpointing:
            with gradient_checkpointing(model):
                pass

    # ------------------------------------------------------------------ a step

    @torch.inference_mode(False)
    def step(self, batch: Batch) -> LearnerStats:
        """Trains on a batch: ``epochs`` passes of ``minibatches`` optimizer steps.

        A batch in which nothing is trained takes no optimizer step, nor does one from which no gradient comes (all
        weights zero). Raises RunFailed when the loss or its gradient is not finite, before any weight changes by it,
        and when a path is longer than ``max_row_tokens``.
        """
        started = time.perf_counter()
        self._adapt()
        peak = _Peak(self.model.device)
        packed = self._pack(batch)
        tokens = self._tokens(packed)
        totals = Totals()
        lr = self._lr()
        updates: list[tuple[float, float]] = []
        with self._training():
            for epoch in range(self.config.epochs):
                minibatches = self._divide(packed.groups, epoch)
                if epoch == 0:
                    # What the first optimizer step will have changed is measured before it.
                    for minibatch in minibatches[1:]:
                        self._measure(minibatch, tokens)
                updates += [self._update(minibatch, tokens, totals, lr) for minibatch in minibatches]
        self.steps += 1
        blocks = [block for group in packed.groups for block in group.blocks]
        trees = sum(group.layout == "tree" for group in packed.groups)
        return LearnerStats(
            loss=_mean([loss for loss, _ in updates]),
            grad_norm=_mean([norm for _, norm in updates]),
            lr=lr,
            trained_tokens=tokens.sampled_count,
            forward_tokens=sum(block.tokens for block in blocks),
            flat_tokens=sum(group.flat_tokens for group in packed.groups),
            rows=sum(len(block.token_ids_BT) for block in blocks),
            tree_groups=trees,
            flat_groups=len(packed.groups) - trees,
            parity=tokens.parity(),
            statistics={"entropy": tokens.entropy(), **totals.values()},
            peak_memory=peak.read(),
            seconds=time.perf_counter() - started,
            target_tokens=tokens.target_count,
        )

    @torch.inference_mode(False)
    def gradient(self, batch: Batch) -> Gradient:
        """The loss of the whole batch and its gradient, unclipped, without a step."""
        self._adapt()
        packed = self._pack(batch)
        with self._training():
            loss = self._accumulate(packed.groups, self._tokens(packed), Totals())
            return Gradient(loss, self.weights.gradients())

    def release(self) -> None:
        """Lets go of gradients and gives CUDA's cached memory back. A step lets go of gradients itself; sampling uses
        the cache that it leaves."""
        self.weights.drop_gradients()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _adapt(self) -> None:
        if self._threads is not None:
            self._threads.adapt()

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

    def _tokens(self, packed: Packed) -> Tokens:
        reduced = any(parameter.dtype == torch.bfloat16 for parameter in self.model.parameters())
        old = self.config.old_logprobs
        recompute = reduced if old == "auto" else old == "recompute"
        return Tokens(
            packed.trained,
            self.model.device,
            torch.promote_types(self.model.dtype, torch.float32),
            reads=self._objective.columns,
            importance_cap=self.config.importance_cap if recompute else None,
        )

    @contextmanager
    def _training(self) -> Generator[None]:
        """Parameters require gradients in here. The model stays in evaluation mode: dropout would make the new logprobs
        another policy's."""
        self.model.eval()
        checkpointing = (
            gradient_checkpointing(self.model) if self.config.gradient_checkpointing else contextlib.nullcontext()
        )
        with torch.enable_grad(), checkpointing, self.weights.training():
            yield

    def _divide(self, groups: Sequence[PackedGroup], epoch: int) -> list[Sequence[PackedGroup]]:
        """Groups into at most ``minibatches`` parts of like size, in an order fixed by seed, step and epoch. An empty
        batch is one part, so that its statistics have their names."""
        count = min(self.config.minibatches, len(groups))
        if count <= 1:
            return [groups]
        order = list(groups)
        random.Random(f"{self._seed}-{self.steps}-{epoch}").shuffle(order)
        return [order[i * len(order) // count : (i + 1) * len(order) // count] for i in range(count)]

    # ------------------------------------------------------------------ loss and gradient

    def _update(self, groups: Sequence[PackedGroup], tokens: Tokens, totals: Totals, lr: float) -> tuple[float, float]:
        """One optimizer step. Returns the loss and the norm of its gradient before clipping."""
        loss = self._accumulate(groups, tokens, totals)
        norm = self.weights.norm()
        if norm is None:
            return loss, 0.0
        norm_value = float(norm)
        if not math.isfinite(norm_value):
            raise RunFailed(
                f"step {self.steps + 1}: the gradient is not finite (norm {norm_value}) while the loss is {loss:.4g}; "
                "the weights were left as they were; a smaller learner.lr or sampling.temperature nearer 1 are the "
                "usual cures"
            )
        self.weights.update(lr, norm, self.config.max_grad_norm)
        return loss, norm_value

    def _accumulate(self, groups: Sequence[PackedGroup], tokens: Tokens, totals: Totals) -> float:
        """Forward and backward of a minibatch, block by block. Leaves the gradient in the weights and returns the loss.

        What a token counts belongs to the minibatch, so the cut into blocks does not show (invariant 7).
        """
        entries = [torch.arange(group.start, group.stop) for group in groups]
        entries_M = torch.cat([torch.arange(0), *entries]).to(tokens.device)
        blocks = [block for group in groups for block in group.blocks]
        if not blocks:
            none = {name: torch.zeros(0, dtype=tokens.dtype, device=tokens.device) for name in self._objective.outputs}
            totals.add(self._objective.loss(tokens.columns(entries_M), none)[1])
            return 0.0
        if isinstance(self._objective, TokenSum):
            value = float(self._token_sum(self._objective, blocks, entries_M, tokens, totals))
        else:
            value = float(self._whole(self._objective, blocks, entries_M, tokens, totals))
        if not math.isfinite(value):
            raise RunFailed(
                f"step {self.steps + 1}: the loss is {value}; the weights were left as they were. Usual causes: "
                "weights that a former step made infinite (a smaller learner.lr), or a sampler whose logprobs are not "
                "those of this model"
            )
        return value

    def _token_sum(
        self, objective: TokenSum, blocks: Sequence[Block], entries_M: Tensor, tokens: Tokens, totals: Totals
    ) -> Tensor:
        """One forward and backward of each block. ``entries_M`` are the minibatch's tokens."""
        known_M = {name: column_M for name, column_M in tokens.columns(entries_M).items() if name not in LATE_COLUMNS}
        scale_N = torch.zeros(tokens.count, dtype=tokens.dtype, device=tokens.device)
        scale_N[entries_M] = objective.coefficients(known_M).to(tokens.dtype)
        learns_N = (scale_N != 0).cpu()  # read from the device once, not for each block
        total = torch.zeros((), dtype=torch.float64, device=tokens.device)
        for block in blocks:
            entries_E = block.entries_E.to(tokens.device)
            scale_E = scale_N[entries_E]
            learns = bool(learns_N[block.entries_E].any())
            with self._forward(block, tokens, learns) as outputs_E:
                losses_E, statistics = objective.losses(tokens.columns(entries_E), outputs_E)
                loss = (losses_E * scale_E).sum()
                if learns:
                    cast("Any", loss).backward()
                    self.weights.collect()
            totals.add(statistics)
            total += loss.detach().double()
        return total

    def _whole(
        self, objective: Whole, blocks: Sequence[Block], entries_M: Tensor, tokens: Tokens, totals: Totals
    ) -> Tensor:
        """All outputs without a gradient, then that of the loss with respect to them backward through each block."""
        outputs_N = {name: torch.zeros_like(tokens.columns_N["behaviour"]) for name in objective.outputs}
        for block in blocks:
            with self._forward(block, tokens, learns=False) as outputs_E:
                for name, output_N in outputs_N.items():
                    output_N[block.entries_E.to(tokens.device)] = outputs_E[name]
        outputs_M = {name: output_N[entries_M].requires_grad_() for name, output_N in outputs_N.items()}
        loss, statistics = objective.loss(tokens.columns(entries_M), outputs_M)
        totals.add(statistics)
        if loss.requires_grad:
            leaves = list(outputs_M.values())
            for output_N, grad_M in zip(
                outputs_N.values(), torch.autograd.grad(loss, leaves, materialize_grads=True), strict=True
            ):
                output_N[entries_M] = grad_M
            self._backward(blocks, outputs_N, tokens)
        return loss.detach().double()

    def _backward(self, blocks: Sequence[Block], grads_N: Mapping[str, Tensor], tokens: Tokens) -> None:
        learns_N = torch.stack([grad_N != 0 for grad_N in grads_N.values()]).any(0).cpu()
        for block in blocks:
            if not learns_N[block.entries_E].any():
                continue
            entries_E = block.entries_E.to(tokens.device)
            grads_E = {name: grad_N[entries_E] for name, grad_N in grads_N.items()}
            with self._forward(block, tokens, learns=True) as outputs_E:
                torch.autograd.backward([outputs_E[name] for name in grads_E], list(grads_E.values()))
                self.weights.collect()

    @contextmanager
    def _forward(self, block: Block, tokens: Tokens, learns: bool) -> Generator[dict[str, Tensor]]:
        """A block's outputs, with a gradient where it ``learns``, for as long as they are used. The first logprobs of a
        token are noted."""
        self._adapt()
        with tree_attention(self.model, block), torch.set_grad_enabled(learns):
            outputs = self._outputs.of(block, tokens)
            tokens.see(block.entries_E.to(tokens.device), outputs.full_E.detach(), outputs.by_name["logprob"].detach())
            yield outputs.by_name

    def _measure(self, groups: Sequence[PackedGroup], tokens: Tokens) -> None:
        """A forward without gradient over groups whose turn comes after weights have changed."""
        for block in (block for group in groups for block in group.blocks):
            with self._forward(block, tokens, learns=False):
                pass

    # ------------------------------------------------------------------ schedule and state

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

    def state(self) -> dict[str, Any]:
        """What a resumed learner needs beside the model's weights: step count, optimizer state, the masters of bfloat16
        weights, by name, and the head for values where there is one. Not copied."""
        head = self._outputs.value_head
        values = {} if head is None else {"value_head": head.state_dict()}
        return {"steps": self.steps, **self.weights.state(), **values}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave. The weights themselves are loaded by the caller. Raises ConfigError where it
        belongs to other parameters."""
        self.weights.load_state(state)
        if self._outputs.value_head is not None:
            self._outputs.value_head.load_state_dict(state["value_head"])
        self.steps = int(state["steps"])


def _layout(model: PreTrainedModel, wanted: Literal["auto", "tree", "flat"]) -> Literal["auto", "tree", "flat"]:
    """The layout that is used. Raises ModelError where the model cannot take the one that was asked for."""
    if wanted == "flat":
        return "flat"
    reason = why_not_tree(model)
    if reason is None:
        return wanted
    name = type(model).__name__
    if wanted == "tree":
        raise ModelError(f"learner.layout='tree' does not work with {name}: {reason}; use layout='flat'")
    _log.warning("%s is trained with layout 'flat': %s", name, reason)
    return "flat"


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
