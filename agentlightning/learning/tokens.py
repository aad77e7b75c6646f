"""Tokens: the trained tokens of a step on the learner's device, their columns, and the policy that was first seen of
them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentlightning.learning.objective import OWN_COLUMNS
from agentlightning.learning.objectives.ratios import k3, truncated_importance
from agentlightning.learning.packing import Trained
from agentlightning.records.batch import Parity


class Tokens:
    """``_N`` runs over all trained tokens of a batch, ``_E`` over those of a block.

    ``columns_N`` are the batch's and the learner's own (learning/objective.py), those of ``reads`` among them. With
    ``importance_cap`` the old logprobs are those that are seen first, and the importance is truncated there; with None
    they are the sampler's. Of targets that users gave, nobody sampled them: old and behaviour are what is seen first,
    before anything is learned, so that their ratio begins at 1 and their importance is 1; they are in neither parity
    nor entropy. Raises ValueError where the batch lacks a column, or has one that the learner fills.
    """

    def __init__(
        self,
        trained: Trained,
        device: torch.device,
        dtype: torch.dtype,
        *,
        reads: Sequence[str],
        importance_cap: float | None,
    ) -> None:
        self.count = len(trained.targets_E)
        self.device = device
        self.dtype = dtype
        self._given_N = trained.target_E.to(device) if trained.target_E.any() else None
        self.target_count = int(trained.target_E.sum())
        self.targets_N = trained.targets_E.to(device)
        self.sets_SW = trained.sets_SW.to(device)
        self._importance_cap = importance_cap
        self._recorded_N = trained.logprobs_E.to(device, dtype)
        behaviour_N = trained.behaviour_E.to(device, dtype)
        self._full_N = torch.full_like(behaviour_N, math.nan)
        self._first_N = torch.full_like(behaviour_N, math.nan)
        self._seen_N = torch.zeros(self.count, dtype=torch.bool, device=device)
        if own := trained.columns_E.keys() & OWN_COLUMNS:
            raise ValueError(f"the batch has columns that the learner fills itself: {', '.join(sorted(own))}")
        self.columns_N = {
            **{name: values_N.to(device, dtype) for name, values_N in trained.columns_E.items()},
            "unit": trained.units_E.to(device),
            "behaviour": behaviour_N,
            "old": behaviour_N if importance_cap is None else self._first_N,
            "importance": torch.ones_like(behaviour_N),
        }
        for name in reads:
            if name not in self.columns_N:
                if self.count:
                    raise ValueError(f"the objective reads the column {name!r}, and the batch has none")
                self.columns_N[name] = behaviour_N

    def columns(self, entries_E: Tensor) -> dict[str, Tensor]:
        """The columns of some tokens."""
        return {name: values_N[entries_E] for name, values_N in self.columns_N.items()}

    def see(self, entries_E: Tensor, full_E: Tensor, logprobs_E: Tensor) -> None:
        """Notes the first logprobs of tokens, under the full softmax and renormalised over what was kept; later ones
        are another policy's and change nothing."""
        new_E = ~self._seen_N[entries_E]
        self._full_N[entries_E] = torch.where(new_E, full_E, self._full_N[entries_E])
        self._first_N[entries_E] = first_E = torch.where(new_E, logprobs_E, self._first_N[entries_E])
        self._seen_N[entries_E] = True
        if self._given_N is not None:
            behaviour_N = self.columns_N["behaviour"]  # "old" too, where it is not what was seen first anyhow
            behaviour_N[entries_E] = torch.where(self._given_N[entries_E], first_E, behaviour_N[entries_E])
        if self._importance_cap is not None:
            behaviour_E = self.columns_N["behaviour"][entries_E]
            self.columns_N["importance"][entries_E] = truncated_importance(first_E, behaviour_E, self._importance_cap)

    def parity(self) -> Parity | None:
        """How far what was seen first is from what the sampler recorded; None without sampled tokens."""
        if not self.sampled_count:
            return None
        full_S, recorded_S, first_S, behaviour_S = map(
            self._sampled, (self._full_N, self._recorded_N, self._first_N, self.columns_N["behaviour"])
        )
        delta_S = (full_S - recorded_S).abs()
        kl = k3(first_S, behaviour_S).mean()
        return Parity(float(delta_S.max()), float(delta_S.mean()), float(kl), self.sampled_count)

    def entropy(self) -> float:
        """The mean negative logprob of what was seen first."""
        return float(-self._sampled(self._first_N).mean()) if self.sampled_count else 0.0

    @property
    def sampled_count(self) -> int:
        return self.count - self.target_count

    def _sampled(self, values_N: Tensor) -> Tensor:
        """Those of tokens that were sampled."""
        return values_N if self._given_N is None else values_N[~self._given_N]
