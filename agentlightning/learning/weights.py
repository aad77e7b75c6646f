"""Weights: the parameters that are trained, their float32 masters where they are bfloat16, and the optimizer over them.

It knows gradients and optimizer steps; what the gradient is of, it does not know.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from agentlightning.errors import ConfigError, ModelError
from agentlightning.settings.fields import LearnerConfig


class TrainedWeights:
    """The parameters of ``modules`` that require a gradient, by name.

    Outside of ``training`` none requires a gradient. Raises ModelError where the first module has none, or one that
    cannot be trained.
    """

    def __init__(self, modules: Sequence[tuple[str, nn.Module]], config: LearnerConfig) -> None:
        named = [
            (prefix + name, parameter)
            for prefix, module in modules
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        _check(modules[0][1], named)
        for _, module in modules:
            module.requires_grad_(False)
        # Weights in float32 are their own masters.
        self.masters = [p.detach().float() if p.dtype == torch.bfloat16 else p for p in self.parameters]
        self.optimizer = _optimizer(self.masters, config)

    @contextmanager
    def training(self) -> Generator[None]:
        """The parameters require gradients in here. What is left of gradients afterwards is dropped."""
        try:
            for parameter in self.parameters:
                parameter.requires_grad_(True)
            yield
        finally:
            for parameter in self.parameters:
                parameter.requires_grad_(False)
            self.drop_gradients()

    def collect(self) -> None:
        """Adds what backward left in bfloat16 weights to their float32 masters, so that small rows are not rounded
        away."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter is master or parameter.grad is None:
                continue
            grad = parameter.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """A copy of the gradient, by name; zeros where nothing went backward."""
        grads = [torch.zeros_like(m) if m.grad is None else m.grad.clone() for m in self.masters]
        return dict(zip(self.names, grads, strict=True))

    def norm(self) -> Tensor | None:
        """The norm of the whole gradient; None where nothing went backward."""
        grads = [master.grad for master in self.masters if master.grad is not None]
        return nn.utils.get_total_norm(grads) if grads else None

    def update(self, lr: float, norm: Tensor, max_norm: float) -> None:
        """One optimizer step on the gradient, whose norm is ``norm``, clipped to ``max_norm``."""
        nn.utils.clip_grads_with_norm_(self.masters, max_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        cast("Any", self.optimizer).step()
        self.optimizer.zero_grad(set_to_none=True)
        self.publish()

    def publish(self) -> None:
        """Casts the float32 masters into the weights that sample."""
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """Names, optimizer state, and the masters of bfloat16 weights, by name. Not copied."""
        return {"names": list(self.names), "optimizer": self.optimizer.state_dict(), "masters": self._own_masters()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave. Raises ConfigError where it belongs to other parameters."""
        masters, own = cast("Mapping[str, Tensor]", state["masters"]), self._own_masters()
        if state["names"] != self.names or masters.keys() != own.keys():
            raise ConfigError(
                "the checkpoint's training state belongs to a model with other trained parameters or another dtype"
            )
        self.optimizer.load_state_dict(cast("dict[str, Any]", state["optimizer"]))
        for name, master in own.items():
            master.copy_(masters[name])
        self.publish()

    def _own_masters(self) -> dict[str, Tensor]:
        return {n: m for n, m, p in zip(self.names, self.masters, self.parameters, strict=True) if m is not p}


def _check(model: nn.Module, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    name = type(model).__name__
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"{name}: no parameter requires a gradient, so there is nothing to train")
    device = next(model.parameters()).device
    for parameter_name, parameter in named:
        if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float64):
            raise ModelError(
                f"{name}: {parameter_name} is {parameter.dtype}; load the model in float32 or bfloat16 to train it"
            )
        if parameter.is_meta or parameter.device != device:
            raise ModelError(
                f"{name}: {parameter_name} is on {parameter.device} and the model on {device}; train on one device"
            )


def _optimizer(parameters: Sequence[Tensor], config: LearnerConfig) -> torch.optim.AdamW:
    """AdamW; biases and norms do not decay."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
