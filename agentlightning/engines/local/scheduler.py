"""Which request computes what next: admission under a budget, shared prefixes, prefill in pieces, one decode step for
all.

Synchronous, and owned by the engine's compute thread. Results leave through each job's `Sink`; it knows nothing of
event loops, and it may not change weights.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import numpy as np
import torch

from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.engines.grammar import Matcher, Words
from agentlightning.engines.local.cache import Ids, PrefixStore, common_prefix
from agentlightning.engines.local.forward import SlotForward
from agentlightning.engines.local.sampling import Drawn, StopStrings, draw
from agentlightning.errors import EngineError, GrammarError
from agentlightning.nouns import FinishReason, KeptIds, Segment

_TOKEN_BLOCK = 64
"""Rows grow by multiples of this many tokens."""
_ROOMY_TOKENS = 512
_LEAST_SHARED = 8
"""A shorter common prefix is computed again: copying it would cost as much."""
_UNIFORM_BITS = 52


class Sink(Protocol):
    """Where a job's outcome goes. Called on the compute thread."""

    def tokens(self, ids: array[int]) -> None: ...
    def done(self, sample: Sample) -> None: ...
    def failed(self, error: EngineError) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the engine. ``withdrawn`` may be set from any thread, and is obeyed at the next
    step."""

    request: SampleRequest
    sink: Sink
    submitted: float
    matcher: Matcher | None = None
    """Where the sample follows a grammar."""
    withdrawn: bool = False


@dataclass(slots=True, eq=False)
class _Row:
    """A job that has been admitted. ``ids[:length]`` are its tokens so far; the keys and values of ``ids[:computed]``
    are in its row."""

    job: Job
    number: int
    index: int
    ids: Ids
    length: int
    prompt: int
    admitted: float
    random: random.Random
    stops: StopStrings | None
    computed: int = 0
    reused: int = 0
    donor: _Row | None = None
    share: int = 0
    first_token: float = 0.0
    fault: GrammarError | None = None
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    log_kept: array[float] = field(default_factory=lambda: array("f"))
    kept_ids: array[int] = field(default_factory=lambda: array("i"))
    kept_offsets: array[int] = field(default_factory=lambda: array("i", [0]))

    @property
    def pending(self) -> int:
        return self.length - self.computed

    @property
    def held(self) -> Ids:
        return self.ids[: self.length]

    def uniform(self) -> float:
        return self.random.getrandbits(_UNIFORM_BITS) / 2**_UNIFORM_BITS


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has in hand. ``row_tokens`` and ``prefix_tokens`` are what the memory for keys and values is made
    out for."""

    live: int
    waiting: int
    row_tokens: int
    prefix_tokens: int
    sampled: int = 0
    """Tokens drawn since the engine was started."""


class Scheduler:
    """Rows [0, decoding) decode together; those after them still compute their prompts."""

    def __init__(
        self,
        forward: SlotForward,
        decode_text: Callable[[Sequence[int]], str],
        *,
        slots: int,
        budget_tokens: int,
        context_length: int,
        prefill_tokens: int,
        prefix_cache: bool,
        fixed_shapes: bool = False,
        roomy: bool = False,
        version: int = 0,
    ) -> None:
        """``budget_tokens`` bounds rows and kept prefixes together, and holds at least one row of ``context_length``.

        ``prefill_tokens`` (padding counted) is what one forward over prompts may take before the others' next decode
        step. ``fixed_shapes``: memory is made out anew for each request, so that nothing about a sample depends on what
        came before. ``roomy``: memory is made out for many rows at once, and prompts of unlike lengths are computed
        together, as suits a device where each launch costs more than what it launches.
        """
        self._forward = forward
        self._cache = forward.cache
        self._decode_text = decode_text
        self._slots = slots
        self._budget = budget_tokens
        self._context = context_length
        self._prefill_tokens = prefill_tokens
        self._keep_prefixes = prefix_cache
        self._fixed_shapes = fixed_shapes
        self._roomy = roomy
        self._ratio = 8 if roomy else 2
        self._prefixes = PrefixStore()
        self._rows: list[_Row] = []
        self._decoding = 0
        self._admitted = 0
        self._sampled = 0
        self._stamp = forward.stamp()
        self.waiting: deque[Job] = deque()
        self.version = version

    @property
    def live(self) -> int:
        return len(self._rows)

    @property
    def load(self) -> Load:
        return Load(
            len(self._rows),
            len(self.waiting),
            self._cache.rows * self._cache.tokens,
            self._prefixes.tokens,
            self._sampled,
        )

    # ------------------------------------------------------------------ what the engine asks for

    def step(self, *, admit: bool) -> None:
        """One round: drop what was withdrawn, admit, one forward over prompts, one decode step."""
        self._watch_weights()
        try:
            for row in [r for r in self._rows if r.job.withdrawn]:
                self._remove(row, keep=True)
            for job in [j for j in self.waiting if j.withdrawn]:
                self.waiting.remove(job)
            if admit:
                self._admit()
            self._settle()
            self._prefill()
            self._decode()
        except (RuntimeError, MemoryError) as error:  # outside a forward: memory for rows or prefixes
            self._fail(list(self._rows), error)

    def renew(self) -> bool:
        """Call after other work had the model. True if it changed weights."""
        self._forward.renew()
        return self._forward.stamp() != self._stamp

    def invalidate(self, version: int) -> None:
        """The weights are other ones now, known as ``version``: no key or value computed before is used again."""
        self._prefixes.clear()
        self._stamp = self._forward.stamp()
        self.version = version

    def free(self) -> None:
        """Gives all memory for keys and values back. Only while nothing is live."""
        self._prefixes.clear()
        self._cache.free()

    def fail_all(self, message: str) -> None:
        """Ends every request, live or waiting."""
        for job in [*(row.job for row in self._rows), *self.waiting]:
            if not job.withdrawn:
                job.sink.failed(EngineError(f"request {job.request.id!r}: {message}"))
        self._rows.clear()
        self._decoding = 0
        self.waiting.clear()

    def _watch_weights(self) -> None:
        """Weights may only change through the engine, which invalidates what they computed. A change behind its back
        costs all that is live."""
        if self._forward.stamp() == self._stamp:
            return
        waiting, self.waiting = self.waiting, deque()
        self.fail_all("the weights were changed outside LocalEngine.update while it was sampling")
        self.waiting = waiting
        self.invalidate(self.version + 1)

    # ------------------------------------------------------------------ admission and memory

    def _admit(self) -> None:
        while self.waiting:
            job = self.waiting[0]
            prompt = np.array(job.request.prompt_ids, dtype=np.int32)
            need = min(len(prompt) + job.request.params.max_tokens, self._context)
            longest = max(need, *(len(r.ids) for r in self._rows)) if self._rows else need
            if len(self._rows) >= self._slots or (len(self._rows) + 1) * self._round(longest) > self._budget:
                return
            self.waiting.popleft()
            self._add(job, prompt, need)

    def _add(self, job: Job, prompt: Ids, need: int) -> None:
        params = job.request.params
        ids = np.empty(need, dtype=np.int32)
        ids[: len(prompt)] = prompt
        row = _Row(
            job=job,
            number=self._admitted,
            index=len(self._rows),
            ids=ids,
            length=len(prompt),
            prompt=len(prompt),
            admitted=time.monotonic(),
            random=random.Random(params.seed),
            stops=StopStrings(params.stop, self._decode_text) if params.stop else None,
        )
        self._admitted += 1
        self._rows.append(row)
        if self._fixed_shapes:
            self._cache.resize(0, 0)
            self._resize(1, self._round(need))
        else:
            self._fit()
        self._match(row)

    def _round(self, tokens: int) -> int:
        return min(-(-tokens // _TOKEN_BLOCK) * _TOKEN_BLOCK, self._context)

    def _fit(self) -> None:
        """Makes the rows large enough for the tokens they have and the next one."""
        rows, tokens = len(self._rows), max((r.length for r in self._rows), default=0)
        if rows <= self._cache.rows and tokens <= self._cache.tokens:
            return
        more_rows = self._cache.rows if rows <= self._cache.rows else min(self._slots, max(rows, 2 * self._cache.rows))
        more_tokens = (
            self._cache.tokens
            if tokens <= self._cache.tokens
            else self._round(max(tokens, self._cache.tokens * 3 // 2))
        )
        if self._roomy and 2 * self._slots * self._round(max(more_tokens, _ROOMY_TOKENS)) <= self._budget:
            more_rows, more_tokens = self._slots, self._round(max(more_tokens, _ROOMY_TOKENS))
        if more_rows * more_tokens > self._budget:
            more_rows, more_tokens = rows, self._round(tokens)
        self._resize(more_rows, more_tokens)

    def _resize(self, rows: int, tokens: int) -> None:
        self._prefixes.shrink(self._budget - rows * tokens)
        self._cache.resize(rows, tokens)

    def _store(self, row: _Row) -> None:
        """Keeps a row's keys and values for a prompt that begins like it, if the budget has room beside the rows."""
        n = row.computed
        if not self._keep_prefixes or n < _LEAST_SHARED:
            return
        if n > self._budget - self._cache.rows * self._cache.tokens:
            rows, tokens = len(self._rows), self._round(max(r.length for r in self._rows))
            if n > self._budget - rows * tokens:
                return
            self._resize(rows, tokens)
        self._prefixes.put(row.ids[:n].copy(), self._cache.save(row.index, n))
        self._prefixes.shrink(self._budget - self._cache.rows * self._cache.tokens)

    # ------------------------------------------------------------------ shared prefixes

    def _match(self, row: _Row) -> None:
        """Looks for the longest computed beginning of the row's prompt: of a finished sequence now, or of an earlier
        row as soon as that has it."""
        if not self._keep_prefixes:
            return
        # The last token is always forwarded: it gives the logits of the first sampled one
        ids = row.ids[: row.prompt - 1]
        key, kept = self._prefixes.match(ids)
        donor, shared = None, 0
        for other in self._rows:
            if other.number >= row.number or shared >= min(other.length, len(ids)) or other.ids[shared] != ids[shared]:
                continue
            if (n := common_prefix(other.held, ids)) > shared:
                donor, shared = other, n
        if donor is not None and shared >= max(
            _LEAST_SHARED, kept + _LEAST_SHARED if donor.computed < shared else kept
        ):
            row.donor, row.share = donor, shared
        elif kept >= _LEAST_SHARED:
            self._cache.load(row.index, self._prefixes.take(key), kept)
            row.computed = row.reused = kept

    def _settle(self) -> None:
        """Copies shared prefixes that are there by now, and lets rows with one token left to compute decode."""
        ready = [(r.donor.index, r.share, r) for r in self._rows if r.donor is not None and r.donor.computed >= r.share]
        ready.sort(key=lambda entry: entry[:2])
        for (donor, length), group in groupby(ready, key=lambda entry: entry[:2]):
            rows = [row for _, _, row in group]
            self._cache.share(donor, [r.index for r in rows], length)
            for row in rows:
                row.donor, row.computed, row.reused = None, length, length
        for row in self._rows[self._decoding :]:
            if row.pending == 1 and row.donor is None:
                self._promote(row)

    def _promote(self, row: _Row) -> None:
        other = self._rows[self._decoding]
        if other is not row and other.computed:
            self._cache.swap(row.index, other.index, max(row.computed, other.computed))
        elif other is not row:
            self._cache.move(row.index, other.index, row.computed)
        if other is not row:
            self._rows[row.index], self._rows[other.index] = other, row
            row.index, other.index = other.index, row.index
        self._decoding += 1

    def _remove(self, row: _Row, *, keep: bool) -> None:
        """Takes a row out and closes the gap. ``keep``: what it computed may serve others."""
        if keep:
            self._store(row)
        hole = row.index
        if hole < self._decoding:
            self._decoding -= 1
            hole = self._fill(hole, self._decoding)
        self._fill(hole, len(self._rows) - 1)
        self._rows.pop()
        for other in self._rows:
            if other.donor is row:
                other.donor = None
                self._match(other)

    def _fill(self, hole: int, source: int) -> int:
        if hole != source:
            moved = self._rows[source]
            self._cache.move(source, hole, moved.computed)
            self._rows[hole], moved.index = moved, hole
        return source

    # ------------------------------------------------------------------ forwards

    def _prefill(self) -> None:
        """One forward over prompts: the oldest that can go on, and those of about its length, cut where they are longer
        than a piece."""
        ready = sorted((r for r in self._rows[self._decoding :] if r.donor is None), key=lambda r: r.number)
        if not ready:
            return
        first, ratio = ready[0].pending, self._ratio
        alike = [r for r in ready if r.pending <= first * ratio and first <= r.pending * ratio]
        width, group = 0, list[_Row]()
        for row in alike:
            wider = max(width, min(row.pending, self._prefill_tokens))
            if group and wider * (len(group) + 1) > self._prefill_tokens:
                break
            width, group = wider, [*group, row]
        ends = [r.computed + min(r.pending, width) for r in group]
        try:
            logits_BV = self._forward.prefill(
                [r.index for r in group], [r.ids[:end] for r, end in zip(group, ends, strict=True)], width
            )
            whole = [b for b, (r, end) in enumerate(zip(group, ends, strict=True)) if end == r.length]
            rows = [group[b] for b in whole]
            drawn = self._draw(logits_BV if len(rows) == len(group) else logits_BV[whole], rows) if rows else []
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            self._fail(group, error)
            return
        for row, end in zip(group, ends, strict=True):
            row.computed = end
        for row in rows:
            self._promote(row)
        self._accept(rows, drawn)

    def _decode(self) -> None:
        rows = self._rows[: self._decoding]
        if not rows:
            return
        try:
            self._fit()
            logits_BV = self._forward.decode([int(r.ids[r.computed]) for r in rows], [r.computed for r in rows])
            drawn = self._draw(logits_BV, rows)
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            self._fail(rows, error)
            return
        for row in rows:
            row.computed += 1
        self._accept(rows, drawn)

    def _draw(self, logits_BV: torch.Tensor, rows: Sequence[_Row]) -> list[Drawn]:
        # On CUDA the forward may still be computing: what the grammars allow is found out meanwhile.
        allowed: dict[int, Words] = {}
        for b, row in enumerate(rows):
            if row.job.matcher is not None:
                try:
                    allowed[b] = row.job.matcher.allowed()
                except GrammarError as error:
                    row.fault = error
        return draw(logits_BV, [r.job.request.params for r in rows], [r.uniform() for r in rows], allowed)

    def _accept(self, rows: Sequence[_Row], drawn: Sequence[Drawn]) -> None:
        now = time.monotonic()
        for row, one in zip(rows, drawn, strict=True):
            if row.fault is not None:
                self._fail([row], row.fault)
                continue
            if not -np.inf < one.logprob <= 1e-3:
                self._fail(
                    [row],
                    ValueError(f"the model's logits are not finite (logprob {one.logprob}): its weights have diverged"),
                )
                continue
            row.first_token = row.first_token or now
            row.ids[row.length] = one.token_id
            row.length += 1
            row.logprobs.append(one.logprob)
            self._sampled += 1
            if (meter := row.job.request.meter) is not None:
                meter.tokens += 1
            if one.log_kept is not None:
                row.log_kept.append(one.log_kept)
            if one.kept is not None:
                row.kept_ids.extend(one.kept)
                row.kept_offsets.append(len(row.kept_ids))
            row.job.sink.tokens(array("i", [one.token_id]))
            self._end_if_over(row, one.token_id, now)

    def _end_if_over(self, row: _Row, token_id: int, now: float) -> None:
        params, matcher = row.job.request.params, row.job.matcher
        stop_string = row.stops.push(token_id) if row.stops else None
        if (
            stop_string is not None
            or token_id in params.stop_token_ids
            or (matcher is not None and token_id == matcher.end_id)
        ):
            finish = FinishReason.STOP
        elif row.length == len(row.ids):
            finish = FinishReason.LENGTH
        else:
            if matcher is not None:
                self._advance(row, matcher, token_id)
            return
        segment = Segment(
            token_ids=array("i", row.ids[row.prompt : row.length].tobytes()),
            logprobs=row.logprobs,
            version=self.version,
            log_kept=row.log_kept if params.cuts_support else None,
            kept=KeptIds(row.kept_ids, row.kept_offsets) if params.cuts_tail else None,
        )
        submitted = row.job.submitted
        row.job.sink.done(
            Sample(
                segments=(segment,),
                finish=finish,
                stop_string=stop_string,
                reused_tokens=row.reused,
                queue_s=row.admitted - submitted,
                first_token_s=row.first_token - submitted,
                total_s=now - submitted,
            )
        )
        self._remove(row, keep=True)

    def _advance(self, row: _Row, matcher: Matcher, token_id: int) -> None:
        try:
            matcher.accept(token_id)
        except GrammarError as error:
            self._fail([row], error)

    def _fail(self, rows: Sequence[_Row], error: Exception) -> None:
        """Ends the rows of a forward that failed. Others go on; what is scarce is given back first."""
        line = (str(error).strip().splitlines() or [""])[0]
        for row in rows:
            if not row.job.withdrawn:
                message = f"sampling request {row.job.request.id!r} failed: {type(error).__name__}: {line[:300]}"
                row.job.sink.failed(EngineError(message))
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in line:
            self._prefixes.clear()
            if self._forward.device.type == "cuda":
                torch.cuda.empty_cache()
        if len(rows) == len(self._rows):
            # A resize may have failed halfway: begin again with no memory at all.
            self._rows.clear()
            self._decoding = 0
            self._cache.free()
            return
        for row in rows:
            self._remove(row, keep=False)
