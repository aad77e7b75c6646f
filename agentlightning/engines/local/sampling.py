"""Drawing one token for each row of logits, and seeing stop strings: pure functions of tensors and text.

It holds what makes a sample reproducible: a row's token depends on its logits, its parameters and one uniform number of
its own, never on the other rows. Knows nothing of slots, queues or policies.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from agentlightning.engines.grammar import Words
from agentlightning.nouns import SamplingParams

_BLOCK = 256
_FIRST_CANDIDATES = 1024
"""How many of the likeliest tokens are ranked before the whole vocabulary is: top_p seldom reaches further."""

_LONGEST_CHARACTER = 4
"""Tokens that one character can be spread over: more without a whole one are bytes that are no text."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token. ``logprob`` is under the full softmax at the temperature used (temperature 0: at temperature 1).

    ``log_kept`` is the log of the mass of the ids that could have been drawn, None where the whole vocabulary could.
    ``kept`` are these ids, ascending, where top_p or top_k cut them; where only a grammar did, it is None, and
    ``log_kept`` equals ``logprob`` if and only if there was a single one.
    """

    token_id: int
    logprob: float
    log_kept: float | None = None
    kept: array[int] | None = None


def draw(
    logits_BV: torch.Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    allowed: Mapping[int, Words] | None = None,
) -> list[Drawn]:
    """Draws one token per row. ``uniforms`` holds one number in [0, 1) per row, at most 52 bits of it; greedy rows
    ignore theirs. ``allowed`` has the ids that a grammar leaves to a row, at least one of them, by the row's number.

    Logprobs are computed in float32, whatever the logits are in. A grammar cuts first, then top_k, and top_p then takes
    the fewest of the likeliest tokens whose renormalised mass reaches it. One transfer from the device, two where a
    support is cut.
    """
    device = logits_BV.device
    logits_BV = logits_BV.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        temperatures = [p.temperature or 1.0 for p in params]
        logits_BV = logits_BV / torch.tensor(temperatures, device=device)[:, None]
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    # What is drawn from: the logprobs, renormalised over what the grammars leave.
    open_BV, grammar = (_constrained(logprobs_BV, allowed)) if allowed else (logprobs_BV, None)

    greedy = [b for b, p in enumerate(params) if p.temperature == 0]
    cut = [b for b, p in enumerate(params) if p.cuts_tail]
    whole = [b for b, p in enumerate(params) if p.temperature > 0 and not p.cuts_tail]
    ids_B = torch.empty(len(params), dtype=torch.long, device=device)
    if greedy:
        rows = _rows(greedy, len(params), device)
        ids_B[rows] = open_BV[rows].argmax(dim=-1)
    if whole:
        rows = _rows(whole, len(params), device)
        uniform_B = torch.tensor([uniforms[b] for b in whole], dtype=torch.float64, device=device)
        ids_B[rows] = invert_cdf(open_BV[rows].exp(), uniform_B)
    kept: list[array[int]] = []
    log_kept: list[float] = []
    if cut:
        rows = _rows(cut, len(params), device)
        kept_ids_BK, counts_B = kept_support(
            open_BV[rows], [params[b].top_k for b in cut], [params[b].top_p for b in cut]
        )
        kept_logprobs_BK = logprobs_BV[rows].gather(1, kept_ids_BK)
        outside_BK = torch.arange(kept_ids_BK.shape[1], device=device) >= counts_B[:, None]
        kept_logprobs_BK = kept_logprobs_BK.masked_fill(outside_BK, -torch.inf)
        uniform_B = torch.tensor([uniforms[b] for b in cut], dtype=torch.float64, device=device)
        log_kept_B = kept_logprobs_BK.logsumexp(dim=-1)
        place_B1 = invert_cdf((kept_logprobs_BK - log_kept_B[:, None]).exp(), uniform_B)[:, None]
        ids_B[rows] = kept_ids_BK.gather(1, place_B1)[:, 0]
        kept_cpu, counts = kept_ids_BK.to("cpu", torch.int32).numpy(), [int(n) for n in _floats(counts_B)]
        kept = [array("i", kept_cpu[i, : counts[i]].tobytes()) for i in range(len(cut))]
        log_kept = _floats(log_kept_B)

    chosen_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
    columns = [ids_B.double(), chosen_B.double()]
    if grammar is not None:
        columns.append(grammar.log_mass(chosen_B).double())
    told = _floats(torch.cat(columns))
    drawn = [
        Drawn(int(i), logprob)
        for i, logprob in zip(told[: len(params)], told[len(params) : 2 * len(params)], strict=True)
    ]
    if grammar is not None:
        for place, b in enumerate(grammar.rows):
            if params[b].temperature > 0:
                drawn[b] = Drawn(drawn[b].token_id, drawn[b].logprob, told[2 * len(params) + place])
    for place, b in enumerate(cut):
        drawn[b] = Drawn(drawn[b].token_id, drawn[b].logprob, log_kept[place], kept[place])
    return drawn


@dataclass(frozen=True, slots=True)
class _Constrained:
    """Rows under a grammar: how many ids it leaves each, and the log of their mass."""

    rows: list[int]
    index_G: torch.Tensor
    counts_G: torch.Tensor
    log_mass_G: torch.Tensor

    def log_mass(self, chosen_B: torch.Tensor) -> torch.Tensor:
        """[G]. Of a single id it is that id's logprob, of several more than that of the one that was drawn, to the last
        bit: so the two can be told apart."""
        chosen_G = chosen_B[self.index_G]
        above_G = torch.nextafter(chosen_G, torch.full_like(chosen_G, torch.inf))
        return torch.where(self.counts_G == 1, chosen_G, torch.maximum(self.log_mass_G, above_G))


def _constrained(logprobs_BV: torch.Tensor, allowed: Mapping[int, Words]) -> tuple[torch.Tensor, _Constrained]:
    """The logprobs with those of constrained rows renormalised, and -inf where an id is not allowed."""
    rows = sorted(allowed)
    index_G = torch.tensor(rows, device=logprobs_BV.device)
    words_GW = torch.as_tensor(np.stack([allowed[b] for b in rows])).to(logprobs_BV.device, non_blocking=True)
    allowed_GV = id_sets(words_GW, logprobs_BV.shape[1])
    open_GV = logprobs_BV[index_G].masked_fill_(~allowed_GV, -torch.inf)
    log_mass_G = open_GV.logsumexp(dim=-1)
    open_BV = logprobs_BV.clone() if len(rows) < len(logprobs_BV) else torch.empty_like(logprobs_BV)
    open_BV[index_G] = open_GV.sub_(log_mass_G[:, None])
    return open_BV, _Constrained(rows, index_G, allowed_GV.sum(dim=-1), log_mass_G)


def id_sets(words_GW: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Sets of ids from bits of int32 words to bools: [G, vocabulary]."""
    bytes_GN = words_GW.contiguous().view(torch.uint8)
    bits_GN8 = (bytes_GN[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=words_GW.device)) & 1
    sets_GV = bits_GN8.flatten(1).bool()
    missing = vocabulary - sets_GV.shape[1]
    return torch.nn.functional.pad(sets_GV, (0, missing)) if missing > 0 else sets_GV[:, :vocabulary]


def _floats(values_N: torch.Tensor) -> list[float]:
    return cast("list[float]", cast(Any, values_N).tolist())


def _rows(chosen: list[int], count: int, device: torch.device) -> torch.Tensor | slice:
    return slice(None) if len(chosen) == count else torch.tensor(chosen, device=device)


def invert_cdf(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """The index of each row at which its cumulated probability first exceeds ``uniform_B`` times the row's sum: [B],
    int64.

    Never an index of probability zero. Sums blocks in float32 and cumulates in float64: cumulating a whole vocabulary
    in float64 costs several times as much, and in float32 its error would show in the frequencies.
    """
    batch, size = probs_BV.shape
    if size % _BLOCK:
        probs_BV = torch.nn.functional.pad(probs_BV, (0, -size % _BLOCK))
    blocks_BNK = probs_BV.view(batch, -1, _BLOCK)
    ends_BN = blocks_BNK.sum(dim=-1).double().cumsum(dim=-1)
    target_B1 = uniform_B[:, None] * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, target_B1, right=True).clamp_max(ends_BN.shape[1] - 1)
    end_B1 = ends_BN.gather(1, block_B1)
    start_B1 = torch.where(block_B1 > 0, ends_BN.gather(1, (block_B1 - 1).clamp_min(0)), 0.0)
    inside_BK = blocks_BNK.gather(1, block_B1[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(dim=-1)
    share_B1 = ((target_B1 - start_B1) / (end_B1 - start_B1)).clamp(0.0, 1.0 - 2.0**-52)
    offset_B1 = torch.searchsorted(inside_BK, share_B1 * inside_BK[:, -1:], right=True)
    return (block_B1 * _BLOCK + offset_B1)[:, 0].clamp_max(size - 1)


def kept_support(
    logprobs_BV: torch.Tensor, top_k: Sequence[int], top_p: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids that may be drawn: [B, K] ascending, of which the first ``counts[b]`` of a row count, and ``counts`` [B].

    ``top_k`` 0 and ``top_p`` 1 cut nothing. The likeliest token is always kept.
    """
    device, vocabulary = logprobs_BV.device, logprobs_BV.shape[1]
    top_k_B1 = torch.tensor([k if 0 < k < vocabulary else vocabulary for k in top_k], device=device)[:, None]
    top_p_B1 = torch.tensor(top_p, dtype=torch.float64, device=device)[:, None]
    wanted = max(k or _FIRST_CANDIDATES for k in top_k)
    ranked_BK, ids_BK = logprobs_BV.topk(min(vocabulary, max(wanted, 1)), dim=-1)
    keep_BK = _nucleus(ranked_BK, top_k_B1, top_p_B1)
    if ids_BK.shape[1] < vocabulary and bool((keep_BK[:, -1:] & (top_k_B1 > ids_BK.shape[1])).any()):
        ranked_BK, ids_BK = logprobs_BV.sort(dim=-1, descending=True)
        keep_BK = _nucleus(ranked_BK, top_k_B1, top_p_B1)
    counts_B = keep_BK.sum(dim=-1)
    longest = int(counts_B.max())
    ids_BK = torch.where(keep_BK, ids_BK, vocabulary).sort(dim=-1).values[:, :longest]
    return ids_BK.clamp_max(vocabulary - 1), counts_B


def _nucleus(ranked_BK: torch.Tensor, top_k_B1: torch.Tensor, top_p_B1: torch.Tensor) -> torch.Tensor:
    """Which of the descending logprobs are kept: [B, K] bool. Where top_k reaches past K the mass is the vocabulary's,
    which is 1."""
    count = ranked_BK.shape[1]
    within_BK = torch.arange(count, device=ranked_BK.device) < top_k_B1
    probs_BK = ranked_BK.double().exp() * within_BK
    before_BK = probs_BK.cumsum(dim=-1) - probs_BK
    mass_B1 = torch.where(top_k_B1 <= count, probs_BK.sum(dim=-1, keepdim=True), 1.0)
    keep_BK = within_BK & ((before_BK < top_p_B1 * mass_B1) | (top_p_B1 >= 1.0)) & (ranked_BK > -torch.inf)
    keep_BK[:, 0] = True
    return keep_BK


class StopStrings:
    """Watches one sample's text for stop strings, across token borders and half characters."""

    def __init__(self, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._stop = [s for s in stop if s]
        self._reach = max((len(s) for s in self._stop), default=1) - 1
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0
        self._read = 0
        self._tail = ""

    def push(self, token_id: int) -> str | None:
        """Adds a token; the stop string that its text completed, if any: the one that begins first, of those the
        longest."""
        # A tokenizer may drop the space before the first id it decodes, so new text is what decoding from an earlier id
        # adds.
        self._ids.append(token_id)
        before = self._decode(self._ids[self._shown : self._read])
        after = self._decode(self._ids[self._shown :])
        unfinished = len(after) <= len(before) or after.endswith("\ufffd")
        if unfinished and len(self._ids) - self._read < _LONGEST_CHARACTER:
            return None
        self._shown, self._read = self._read, len(self._ids)
        text = self._tail + after[len(before) :]
        self._tail = text[-self._reach :] if self._reach else ""
        found = [(text.index(s), -len(s), s) for s in self._stop if s in text]
        return min(found)[2] if found else None
