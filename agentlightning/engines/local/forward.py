"""The model's own forward over rows of differing lengths, and the proof at start that it means the same as the plain
one.

Everything that depends on how transformers spells things (cache argument, mask kinds, layer types) is here. It may not
change the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from agentlightning.engines.local.cache import Ids, LayerShape, ShapeProbe, SlotCache
from agentlightning.engines.local.graphs import DecodeGraphs
from agentlightning.errors import ModelError
from agentlightning.spellings import absent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.2
"""Relative difference of logits: bfloat16 differs this much from itself across layouts, a model that ignores positions
far more."""

_FORWARD_ERRORS = (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError, NotImplementedError)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


class SlotForward:
    """Forwards tokens of chosen rows of a SlotCache. Use it on one thread at a time."""

    def __init__(self, model: PreTrainedModel, *, graphs: bool = False) -> None:
        """``graphs``: replay decode steps as CUDA graphs. Raises ModelError for an architecture that does not attend to
        keys and values under a mask."""
        self.model = model
        self.device = next(model.parameters()).device
        self.dtype = model.dtype
        config = cast(Any, model.config).get_text_config()
        self.vocabulary = cast(int, cast(Any, model).get_input_embeddings().weight.shape[0])
        self._window = cast("int | None", getattr(config, "sliding_window", None))
        self._kinds = self._layer_kinds(config)
        self._additive = self._attention_implementation(config) == "eager"
        base = cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model
        names = inspect.signature(base.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._keeps_logits = "logits_to_keep" in names
        self._parameters = list(model.parameters())
        if model.training:
            model.eval()
        graphs = graphs and self.device.type == "cuda"
        self._graphs = DecodeGraphs(self._forward, self.device) if graphs else None
        self._known_places = self._places()
        self.cache = SlotCache(self._shapes(), self.dtype, self.device, spare_rows=1 if graphs else 0)

    def _shapes(self) -> dict[int, LayerShape]:
        """What each layer keeps of a token."""
        probe = ShapeProbe()
        try:
            with torch.no_grad():
                cast(Any, self.model)(input_ids=self.tensor([[1, 2]]), use_cache=True, **{self._cache_name: probe})
        except _FORWARD_ERRORS as error:
            raise self._refusal(f"its forward fails with a cache that is not its own ({_one_line(error)})") from error
        if not probe.shapes:
            raise self._refusal("it does not use the cache it is given")
        return probe.shapes

    def _layer_kinds(self, config: Any) -> set[str]:
        if getattr(self.model, "_is_stateful", False):
            raise self._refusal(f"it is recurrent: {absent.why('recurrent')}")
        types = cast("list[str] | None", getattr(config, "layer_types", None))
        kinds = set(types) if types else {"sliding_attention" if self._window else "full_attention"}
        if unknown := kinds - {"full_attention", "sliding_attention"}:
            raise self._refusal(
                f"its layers of type {', '.join(sorted(unknown))} do not attend under a mask: {absent.why('hybrid')}"
            )
        if "sliding_attention" in kinds and not self._window:
            raise self._refusal("its sliding layers name no window")
        return kinds

    def _attention_implementation(self, config: Any) -> str:
        name = cast(str, config._attn_implementation)
        if name not in ("sdpa", "eager"):
            raise self._refusal(
                f'it was loaded with attn_implementation="{name}", which takes no mask of its own: load it with "sdpa"'
            )
        return name

    def _refusal(self, why: str) -> ModelError:
        return ModelError(f"{type(self.model).__name__} cannot be sampled by the local engine: {why}")

    def stamp(self) -> int:
        """A number that grows with every in-place change of a weight that torch knows of."""
        return sum(parameter._version for parameter in self._parameters)

    def renew(self) -> None:
        """Call after other work had the model: it may have left it in training mode, or exchanged its parameters."""
        self._parameters = list(self.model.parameters())
        if self.model.training:
            self.model.eval()
        if self._graphs and (places := self._places()) != self._known_places:
            self._known_places = places
            self._graphs.drop()

    def _places(self) -> list[int]:
        """Where in memory the weights lie."""
        return [tensor.data_ptr() for tensor in (*self._parameters, *self.model.buffers())]

    def tensor(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.long).to(self.device, non_blocking=True)

    def decode(self, ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """One token for each of the first ``len(ids)`` rows, at its position. Logits [B, V] of the next."""
        view = max(positions) + 1
        if self._graphs and (logits_BV := self._graphs.decode(self.cache, ids, positions, view)) is not None:
            return logits_BV
        rows_B1 = torch.arange(len(ids), device=self.device)[:, None]
        return self._forward(
            slice(0, len(ids)), rows_B1, self.tensor(ids)[:, None], self.tensor(positions)[:, None], view
        )

    def prefill(self, rows: Sequence[int], sequences: Sequence[Ids], width: int) -> torch.Tensor:
        """Forwards the last ``width`` tokens of each row's sequence, whose earlier ones the rows hold. Logits [B, V]
        after its last token.

        A longer past than needed is computed again, which changes nothing. A sequence shorter than ``width`` is filled
        up on its left with tokens that stand, as far as positions go, after its end, where nothing looks before they
        are overwritten.
        """
        ids_BT = np.zeros((len(rows), width), dtype=np.int64)
        positions_BT = np.empty((len(rows), width), dtype=np.int64)
        for b, sequence in enumerate(sequences):
            n, real = len(sequence), min(len(sequence), width)
            ids_BT[b, width - real :] = sequence[n - real :]
            positions_BT[b, : width - real] = np.arange(n, n + width - real)
            positions_BT[b, width - real :] = np.arange(n - real, n)
        index_B = self.tensor(rows)
        view = max(width, *(len(s) for s in sequences))
        return self._forward(index_B, index_B[:, None], self.tensor(ids_BT), self.tensor(positions_BT), view)

    @torch.no_grad()
    def _forward(
        self,
        rows: slice | torch.Tensor,
        rows_B1: torch.Tensor,
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        view: int,
    ) -> torch.Tensor:
        self.cache.aim(rows, rows_B1, positions_BT, view)
        kwargs: dict[str, Any] = {
            self._cache_name: self.cache,
            "attention_mask": self._mask(positions_BT, view),
            "position_ids": positions_BT,
            "use_cache": True,
        }
        if self._keeps_logits:
            kwargs["logits_to_keep"] = 1
        return cast(torch.Tensor, cast(Any, self.model)(input_ids=ids_BT, **kwargs).logits)[:, -1]

    def _mask(self, positions_BT: torch.Tensor, view: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Who attends to whom: [B, 1, T, view], or one for each kind of layer where they differ."""
        distance_BTS = positions_BT[:, :, None] - torch.arange(view, device=self.device)
        masks: dict[str, torch.Tensor] = {}
        for kind in self._kinds:
            allowed = distance_BTS >= 0
            if kind == "sliding_attention":
                allowed &= distance_BTS < cast(int, self._window)
            if self._additive:
                allowed = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device).masked_fill_(
                    ~allowed, torch.finfo(self.dtype).min
                )
            masks[kind] = allowed[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    @torch.no_grad()
    def check(self) -> None:
        """Compares a ragged prefill in pieces and a joint decode step with the model's plain forward. Raises ModelError
        by name.

        Leaves the cache without rows.
        """
        a, b = ((np.arange(n, dtype=np.int32) * 7 + n) % self.vocabulary for n in (13, 6))
        self.cache.resize(2, 16)
        try:
            self.prefill([1, 0], [b[:5], a[:8]], 8)
            self.prefill([0], [a[:12]], 4)
            slots_BV = self.decode([int(a[12]), int(b[5])], [12, 5]).float()
            plain_BV = torch.cat([self._plain(s) for s in (a, b)]).float()
        except _FORWARD_ERRORS as error:
            raise self._refusal(f"its forward fails with a cache of rows and a mask ({_one_line(error)})") from error
        if not bool(torch.isfinite(plain_BV).all()):
            raise ModelError(f"{type(self.model).__name__} gives logits that are not finite: its weights are damaged")
        spread = float((plain_BV - plain_BV.mean(dim=-1, keepdim=True)).square().sum())
        difference = (float((slots_BV - plain_BV).square().sum()) / max(spread, 1e-30)) ** 0.5
        if difference > _TOLERANCE.get(self.dtype, _HALF_TOLERANCE):
            raise self._refusal(
                f"with several rows its logits differ from its plain forward's by {difference:.2g} of their spread"
            )
        self.cache.free()

    def _plain(self, sequence: Ids) -> torch.Tensor:
        return cast(Any, self.model)(input_ids=self.tensor(sequence)[None], use_cache=False).logits[:, -1]
