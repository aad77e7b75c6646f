"""Drawing tokens and seeing stop strings, against the plainest possible implementations."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.engines.local import sampling as local_sampling
from agentlightning.engines.local.sampling import StopStrings, draw, invert_cdf
from agentlightning.nouns import SamplingParams
from tests.tiny import MERGES, tiny_tokenizer


def random_logits(rows: int, size: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * spread


def kept_by_definition(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """top_k first, then the fewest of the likeliest whose renormalised mass reaches top_p."""
    probs = torch.softmax(logits.double() / params.temperature, dim=-1).tolist()
    ranked = sorted(range(len(probs)), key=lambda i: -probs[i])
    ranked = ranked[: params.top_k] if params.top_k else ranked
    mass = sum(probs[i] for i in ranked)
    kept: set[int] = set()
    reached = 0.0
    for i in ranked:
        if reached >= params.top_p * mass and params.top_p < 1.0:
            break
        kept.add(i)
        reached += probs[i]
    return kept


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """In standard deviations above its mean, over the categories that 5 draws or more are expected in."""
    expected = probs.double() * counts.sum()
    likely = expected >= 5
    rest = expected[~likely].sum()
    value = float(((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum())
    freedom = int(likely.sum()) - 1 + (1 if rest > 0 else 0)
    if rest > 0:
        value += float((counts[~likely].sum() - rest) ** 2 / max(rest, 1.0))
    return (value - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_p=0.8),
        SamplingParams(top_k=12, temperature=1.5),
    ],
)
def test_tokens_are_drawn_as_often_as_their_probability_says(params: SamplingParams) -> None:
    logits = random_logits(1, 600)
    rng = random.Random(7)
    counts = torch.zeros(600, dtype=torch.double)
    for _ in range(20):
        drawn = draw(logits.expand(1000, -1), [params] * 1000, [rng.random() for _ in range(1000)])
        counts += torch.bincount(torch.tensor([d.token_id for d in drawn]), minlength=600)
    probs = torch.softmax(logits[0].double() / params.temperature, dim=-1)
    if params.cuts_support:
        kept = torch.tensor(sorted(kept_by_definition(logits[0], params)))
        outside = torch.ones(600, dtype=torch.bool)
        outside[kept] = False
        probs = probs.masked_fill(outside, 0.0) / probs[kept].sum()
        assert counts[outside].sum() == 0
    assert chi_square(counts, probs) < 4


@pytest.mark.parametrize("size", [3, 256, 1000, 49152])
def test_a_uniform_number_picks_the_token_at_which_the_cumulated_probability_passes_it(size: int) -> None:
    probs = torch.softmax(random_logits(1, size, seed=size)[0], dim=-1)
    uniforms = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    chosen = invert_cdf(probs.expand(500, -1), uniforms)
    ends = probs.double().cumsum(0)
    ends = ends / ends[-1]
    starts = ends - probs.double() / probs.double().sum()
    assert (starts[chosen] - 1e-6 <= uniforms).all()
    assert (uniforms <= ends[chosen] + 1e-6).all()


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 255, 256, 257, 1000]),
    uniform=st.sampled_from([0.0, 2.0**-52, 0.5, 1 - 2.0**-52]),
    impossible=st.floats(0, 0.99),
)
@settings(max_examples=150, deadline=None)
def test_a_token_of_probability_zero_is_never_drawn(seed: int, size: int, uniform: float, impossible: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(1, size, generator=generator)
    probs[torch.rand(1, size, generator=generator) < impossible] = 0.0
    if probs.sum() == 0:
        probs[0, seed % size] = 1e-30
    chosen = int(invert_cdf(probs, torch.tensor([uniform], dtype=torch.float64)))
    assert 0 <= chosen < size
    assert probs[0, chosen] > 0


@given(
    seed=st.integers(0, 10_000),
    top_k=st.sampled_from([0, 1, 2, 7, 50, 400]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.05, 1e-6]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_kept_support_is_that_of_the_definition(
    seed: int, top_k: int, top_p: float, temperature: float, spread: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = random_logits(3, 300, seed, spread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_sampling, "_FIRST_CANDIDATES", 64)
        drawn = draw(logits, [params] * 3, [0.1, 0.5, 0.999])
    for row, one in enumerate(drawn):
        logprobs = torch.log_softmax(logits[row].double() / temperature, dim=-1)
        assert one.logprob == pytest.approx(float(logprobs[one.token_id]), abs=1e-5)
        if not params.cuts_support:
            assert one.kept is None
            assert one.log_kept is None
            continue
        assert one.kept is not None
        assert one.log_kept is not None
        assert list(one.kept) == sorted(set(one.kept))
        assert one.token_id in one.kept
        assert one.log_kept == pytest.approx(float(logprobs[list(one.kept)].logsumexp(0)), abs=1e-5)
        want = kept_by_definition(logits[row], params)
        # Where the mass reaches top_p to the last bit of a float, one token more or less is right too.
        assert abs(len(want) - len(one.kept)) <= 1
        assert want >= set(one.kept) or want <= set(one.kept)


def test_a_forced_token_shows_as_a_support_of_one() -> None:
    (one,) = draw(random_logits(1, 100), [SamplingParams(top_k=1)], [0.7])
    assert one.kept is not None
    assert list(one.kept) == [one.token_id]
    assert one.log_kept == pytest.approx(one.logprob)


def test_greedy_takes_the_likeliest_and_scores_it_at_temperature_one() -> None:
    logits = random_logits(4, 500)
    for row, one in enumerate(draw(logits, [SamplingParams(temperature=0, top_p=0.5, top_k=3)] * 4, [0.9] * 4)):
        assert one.token_id == int(logits[row].argmax())
        assert one.logprob == pytest.approx(float(torch.log_softmax(logits[row], -1).max()), abs=1e-6)
        assert one.kept is None


def test_logprobs_of_half_precision_logits_are_computed_in_float32() -> None:
    logits = random_logits(2, 500).bfloat16()
    for row, one in enumerate(draw(logits, [SamplingParams(temperature=0.5)] * 2, [0.2, 0.8])):
        want = torch.log_softmax(logits[row].double() / 0.5, dim=-1)[one.token_id]
        assert one.logprob == pytest.approx(float(want), abs=1e-5)


def test_a_rows_token_does_not_depend_on_the_other_rows() -> None:
    logits = random_logits(6, 700)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0.3),
        SamplingParams(top_k=5, top_p=0.7),
        SamplingParams(),
    ]
    uniforms = [0.13, 0.5, 0.77, 0.31, 0.9, 0.999]
    together = draw(logits, params, uniforms)
    for b in range(6):
        (alone,) = draw(logits[b : b + 1], [params[b]], [uniforms[b]])
        assert (alone.token_id, alone.kept) == (together[b].token_id, together[b].kept)
        assert alone.logprob == pytest.approx(together[b].logprob, abs=1e-6)


# --------------------------------------------------------------------------- stop strings

TOKENIZER = tiny_tokenizer(MERGES)


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def first_stop(ids: list[int], stop: list[str]) -> tuple[int, str | None]:
    """By definition: after which token the whole text first holds a stop string, and the one that begins first."""
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        found = [(text.index(s), -len(s), s) for s in stop if s in text]
        if found and not text.endswith("\ufffd"):
            return count, min(found)[2]
    return len(ids), None


def watched(ids: list[int], stop: list[str]) -> tuple[int, str | None]:
    stops = StopStrings(stop, decode)
    for count, token in enumerate(ids, 1):
        if (found := stops.push(token)) is not None:
            return count, found
    return len(ids), None


@given(
    text=st.text(alphabet="the in\nlloan>é中", max_size=40),
    stop=st.lists(st.text(alphabet="the in\nlloan>é中", min_size=1, max_size=5), min_size=1, max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_a_stop_string_is_seen_at_the_token_that_completes_it(text: str, stop: list[str]) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert watched(ids, stop) == first_stop(ids, stop)


def test_a_stop_string_is_seen_across_token_borders_and_half_characters() -> None:
    ids = TOKENIZER.encode("say é</calc> more", add_special_tokens=False)
    count, found = watched(ids, ["é</calc>"])
    assert found == "é</calc>"
    assert decode(ids[:count]).endswith("é</calc>")


def test_the_text_of_a_control_token_can_be_a_stop_string() -> None:
    ids = [*TOKENIZER.encode("hello", add_special_tokens=False), 2]
    assert watched(ids, ["<|im_end|>"]) == (len(ids), "<|im_end|>")
