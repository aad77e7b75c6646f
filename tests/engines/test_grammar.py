"""Sampling under a grammar: what may be drawn, with which logprobs, and that nothing else in the engine notices."""

from __future__ import annotations

import asyncio
import json
import random
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from agentlightning.engines.base import ConstrainedEngine, Sample
from agentlightning.engines.grammar import Grammars, Words, replay
from agentlightning.engines.local.sampling import draw
from agentlightning.errors import EngineError, GrammarError
from agentlightning.nouns import FinishReason, SamplingParams
from tests.engines.conftest import MakeEngine, ids_of, request, worst_difference
from tests.engines.test_local_sampling import chi_square, kept_by_definition, random_logits
from tests.tiny import MERGES, letters_tokenizer, tiny_tokenizer

END = 2
SIZE = 272
PERSON = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON_GRAMMAR = f"start: %json {json.dumps(PERSON)}"
YES_NO = 'start: "yes" | "no" | /[ab]{3,9}/'


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tiny_tokenizer(), SIZE)


def members(words: Words) -> list[int]:
    return [i for i in range(32 * len(words)) if int(words[i >> 5]) >> (i & 31) & 1]


def words_of(ids: set[int], size: int) -> Words:
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def text_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.decode([i for i in ids if i != END], skip_special_tokens=False, clean_up_tokenization_spaces=False)


# --------------------------------------------------------------------------- what a grammar allows


def test_a_grammar_allows_what_can_still_become_a_word_of_it(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast
) -> None:
    matcher = grammars.matcher(YES_NO, (END,))

    def letters() -> set[str]:
        return {tokenizer.decode([i]) if i != END else "END" for i in members(matcher.allowed())}

    def go(text: str) -> None:
        for token_id in tokenizer.encode(text, add_special_tokens=False):
            matcher.accept(token_id)

    assert letters() == {"y", "n", "a", "b"}
    go("ab")
    assert letters() == {"a", "b"}, "three at least"
    go("a")
    assert letters() == {"a", "b", "END"}
    go("abbaab")
    assert letters() == {"END"}, "nine at most"


def test_only_the_first_stop_token_ends_a_sample(grammars: Grammars, tokenizer: PreTrainedTokenizerFast) -> None:
    matcher = grammars.matcher('start: "a"', (0, END))
    matcher.accept(*tokenizer.encode("a", add_special_tokens=False))
    assert members(matcher.allowed()) == [0]
    assert matcher.end_id == 0
    assert grammars.matcher('start: "a"', ()).end_id == END, "without stop tokens the tokenizer's own"


def test_a_token_that_is_not_allowed_is_refused(grammars: Grammars, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(GrammarError):
        grammars.matcher(YES_NO, (END,)).accept(tokenizer.encode("z", add_special_tokens=False)[0])


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ('start: %json {"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('start: %json {"not": {"type": "string"}}', "not"),
        ('start: %json {"$ref": "https://example.com/schema"}', "example.com"),
        ('start: %json {"type": "string", "pattern": "(?=a)b"}', "look"),
        ("start: nothing", "nothing"),
        ("start: <[99999]>", "99999"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(grammars: Grammars, grammar: str, says: str) -> None:
    for _ in range(2):  # also when it is known already
        with pytest.raises(GrammarError, match=says) as caught:
            grammars.check(grammar)
        assert "\n" not in str(caught.value)


def test_a_tokenizer_that_cannot_be_constrained_is_refused_by_name() -> None:
    with pytest.raises(GrammarError, match="cannot be kept to a grammar"):
        Grammars(letters_tokenizer(), 40).check(YES_NO)


KEYWORDS = st.sampled_from([
    "type", "properties", "items", "required", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "pattern",
    "format", "minLength", "maximum",
    "maxLength", "minItems", "additionalProperties", "patternProperties", "multipleOf", "not", "a", "\ud800",
    "x-guidance", "prefixItems",
])  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["object", "string", "array", "\ud800", "#", "#/$defs/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=12,
)


@given(schema=VALUES)
@settings(max_examples=200, deadline=None)
def test_any_schema_is_kept_to_or_refused(grammars: Grammars, schema: Any) -> None:
    """Whatever a client sends: nothing but a GrammarError of one line comes of it, and a schema that is taken has a
    first token."""
    grammar = f"start: %json {json.dumps(schema)}"
    try:
        grammars.check(grammar)
    except GrammarError as error:
        assert str(error) and "\n" not in str(error)
        return
    try:
        assert grammars.matcher(grammar, (END,)).allowed().any()
    except GrammarError as error:
        assert str(error)


def test_few_grammars_are_kept_compiled(grammars: Grammars) -> None:
    for i in range(70):
        grammars.check(f'start: "{i}"')
    assert not grammars.knows('start: "0"')
    assert grammars.knows('start: "69"')


def test_a_replay_gives_the_same_sets_and_refuses_another_sample(
    grammars: Grammars, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = array("i", [*tokenizer.encode('{"name": "Ada", "age":7}', add_special_tokens=False), END])
    matcher = grammars.matcher(JSON_GRAMMAR, (END,))
    seen: list[list[int]] = []
    for token_id in ids:
        seen.append(members(matcher.allowed()))
        if token_id != END:
            matcher.accept(token_id)
    whole = replay(grammars.matcher(JSON_GRAMMAR, (END,)), array("i"), ids)
    assert [members(words) for words in whole] == seen
    rest = replay(grammars.matcher(JSON_GRAMMAR, (END,)), ids[:9], ids[9:])
    assert (rest == whole[9:]).all()
    with pytest.raises(GrammarError, match="does not allow the token"):
        replay(grammars.matcher(YES_NO, (END,)), array("i"), ids[3:])


# --------------------------------------------------------------------------- drawing


@given(
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.004, 0.1, 0.9]),
    top_k=st.sampled_from([0, 1, 5, 400]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    offset=st.sampled_from([0.0, 200.0]),
)
@settings(max_examples=150, deadline=None)
def test_a_constrained_draw_is_one_from_the_allowed_ids_alone(
    seed: int, share: float, top_k: int, top_p: float, temperature: float, offset: float
) -> None:
    """``offset``: how much likelier the ids are that are not allowed, up to where the allowed ones have no float32
    probability at all."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, grammar="some")
    rng = random.Random(seed)
    allowed = {i for i in range(300) if rng.random() < share} or {rng.randrange(300)}
    logits = random_logits(3, 300, seed)
    outside = torch.tensor([i not in allowed for i in range(300)])
    logits[1, outside] += offset
    free = SamplingParams(temperature=0.7)
    drawn = draw(logits, [free, params, free], [0.3, rng.random(), 0.3], {1: words_of(allowed, 300)})
    unconstrained = draw(logits, [free, free, free], [0.3, 0.3, 0.3])
    assert [drawn[0], drawn[2]] == [unconstrained[0], unconstrained[2]], "rows without a grammar are drawn as ever"
    one = drawn[1]
    logprobs = torch.log_softmax(logits[1].double() / (temperature or 1.0), dim=-1)
    assert one.token_id in allowed
    assert one.logprob == pytest.approx(float(logprobs[one.token_id]), rel=1e-5, abs=1e-4)
    if temperature == 0:
        assert one.token_id == max(sorted(allowed), key=lambda i: float(logits[1, i]))
        assert one.kept is None and one.log_kept is None
        return
    assert one.log_kept is not None
    inside = sorted(allowed)
    kept = {inside[i] for i in kept_by_definition(logits[1, inside], params)}
    if not params.cuts_tail:
        assert one.kept is None
        assert (np.float32(one.log_kept) == np.float32(one.logprob)) == (len(allowed) == 1), (
            "a forced token, and no other, shows"
        )
        assert kept == allowed
    else:
        assert one.kept is not None
        assert abs(len(kept) - len(one.kept)) <= 1 and (kept >= set(one.kept) or kept <= set(one.kept))
        kept = set(one.kept)
    assert one.log_kept == pytest.approx(float(logprobs[sorted(kept)].logsumexp(0)), rel=1e-5, abs=1e-4)


def test_a_token_is_forced_only_where_there_is_no_other() -> None:
    """However unlikely the other one is."""
    logits = torch.zeros(4, 300)
    logits[:, 7] = 80.0
    params = [SamplingParams(grammar="some")] * 4
    drawn = draw(logits, params, [0.5] * 4, {b: words_of(ids, 300) for b, ids in enumerate([{7}, {7, 8}, {8}, {8, 9}])})
    assert [one.log_kept == one.logprob for one in drawn] == [True, False, True, False]
    assert [one.token_id for one in drawn[:3]] == [7, 7, 8]
    for one in drawn[1::2]:
        assert one.log_kept is not None and 0 < one.log_kept - one.logprob < 0.7


@pytest.mark.parametrize(
    "params", [SamplingParams(grammar="some"), SamplingParams(temperature=0.9, top_p=0.9, grammar="some")]
)
def test_allowed_ids_are_drawn_as_often_as_their_probability_says(params: SamplingParams) -> None:
    logits = random_logits(1, 600)
    allowed = set(range(0, 600, 3))
    words = words_of(allowed, 600)
    rng = random.Random(7)
    counts = torch.zeros(600, dtype=torch.double)
    for _ in range(10):
        drawn = draw(
            logits.expand(500, -1), [params] * 500, [rng.random() for _ in range(500)], dict.fromkeys(range(500), words)
        )
        counts += torch.bincount(torch.tensor([d.token_id for d in drawn]), minlength=600)
    probs = torch.zeros(600, dtype=torch.double)
    inside = sorted(allowed)
    kept = [inside[i] for i in kept_by_definition(logits[0, inside], params)]
    probs[kept] = torch.softmax(logits[0, kept].double() / params.temperature, dim=-1)
    assert counts[probs == 0].sum() == 0
    assert chi_square(counts, probs) < 4


# --------------------------------------------------------------------------- the engine


async def check(
    engine: Any, model: LlamaForCausalLM, prompt: list[int], sample: Sample, grammars: Grammars, **params: Any
) -> None:
    """A sample's text, logprobs and log masses against the model's plain forward and the replayed grammar."""
    temperature = params.get("temperature", 1.0)
    assert worst_difference(model, prompt, sample, temperature) < 1e-4 * max(1.0, 1 / temperature)
    (segment,) = sample.segments
    assert segment.log_kept is not None
    sets = replay(grammars.matcher(params["grammar"], (END,)), array("i"), segment.token_ids)
    if segment.kept is not None:
        return
    ids = ids_of(sample)
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs_TV = torch.log_softmax(logits_TV / temperature, dim=-1)
    for t, words in enumerate(sets):
        inside = members(words)
        mass = float(logprobs_TV[t, inside].logsumexp(0))
        assert segment.log_kept[t] == pytest.approx(mass, abs=2e-4 * max(1.0, 1 / temperature))
        assert (segment.log_kept[t] == segment.logprobs[t]) == (len(inside) == 1)


async def test_constrained_requests_sample_beside_free_ones(
    model: LlamaForCausalLM, make_engine: MakeEngine, grammars: Grammars, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = await make_engine()
    assert isinstance(engine, ConstrainedEngine)
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 260) for _ in range(rng.randint(2, 30))] for _ in range(12)]

    def params(i: int) -> dict[str, Any]:
        own: list[dict[str, Any]] = [
            {},
            {"grammar": JSON_GRAMMAR},
            {"grammar": YES_NO, "temperature": 0.5},
            {"grammar": JSON_GRAMMAR, "top_p": 0.9},
        ]
        return {"max_tokens": 60, "seed": i, "stop_token_ids": (END,), **own[i % 4]}

    together = await asyncio.gather(*(engine.sample(request(p, str(i), **params(i))) for i, p in enumerate(prompts)))
    for i, (prompt, sample) in enumerate(zip(prompts, together, strict=True)):
        alone = await engine.sample(request(prompt, "alone", **params(i)))
        assert ids_of(alone) == ids_of(sample), "company changes nothing"
        if i % 4 == 0:
            assert sample.segments[0].log_kept is None
            continue
        await check(engine, model, prompt, sample, grammars, **params(i))
        assert sample.finish is FinishReason.STOP
        assert ids_of(sample)[-1] == END, "the end of the turn is sampled too"
        text = text_of(tokenizer, ids_of(sample))
        if i % 4 == 2:
            assert text in ("yes", "no") or set(text) <= {"a", "b"}
        else:
            assert json.loads(text).keys() == {"name", "age"}


async def test_a_complete_grammar_ends_the_turn_and_an_open_one_may_go_on(
    make_engine: MakeEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = await make_engine()
    samples = await asyncio.gather(
        *(
            engine.sample(request([5, 6], max_tokens=40, seed=i, stop_token_ids=(END, 0), grammar=YES_NO))
            for i in range(40)
        )
    )
    texts = {text_of(tokenizer, ids_of(sample)) for sample in samples}
    assert all(ids_of(sample)[-1] == END and sample.finish is FinishReason.STOP for sample in samples)
    assert len({len(text) for text in texts if set(text) <= {"a", "b"}}) > 2, "the model decides how long it goes on"
    for sample in samples:
        (segment,) = sample.segments
        assert segment.log_kept is not None
        if text_of(tokenizer, ids_of(sample)) == "yes":
            assert [a == b for a, b in zip(segment.log_kept, segment.logprobs, strict=True)] == [
                False,
                True,
                True,
                True,
            ]


async def test_max_tokens_and_stop_strings_cut_a_constrained_sample(
    make_engine: MakeEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = await make_engine()
    cut = await engine.sample(request([5, 6], max_tokens=7, seed=1, stop_token_ids=(END,), grammar=JSON_GRAMMAR))
    assert cut.finish is FinishReason.LENGTH
    assert text_of(tokenizer, ids_of(cut)) == '{"name"'
    stopped = await engine.sample(
        request([5, 6], max_tokens=70, seed=1, stop_token_ids=(END,), grammar=JSON_GRAMMAR, stop=('"age"',))
    )
    assert (stopped.finish, stopped.stop_string) == (FinishReason.STOP, '"age"')
    assert text_of(tokenizer, ids_of(stopped)).endswith('"age"')


async def test_greedy_samples_keep_to_their_grammar(
    make_engine: MakeEngine, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = await make_engine()
    sample = await engine.sample(
        request([5, 6], temperature=0, max_tokens=70, stop_token_ids=(END,), grammar=JSON_GRAMMAR)
    )
    assert json.loads(text_of(tokenizer, ids_of(sample))).keys() == {"name", "age"}
    assert sample.segments[0].log_kept is None, "greedy: there is no distribution that was cut"


async def test_prefixes_are_reused_across_free_and_constrained_requests(
    make_engine: MakeEngine, model: LlamaForCausalLM, grammars: Grammars
) -> None:
    engine = await make_engine()
    prompt = [random.Random(1).randrange(3, 260) for _ in range(60)]
    first = await engine.sample(request(prompt, max_tokens=30, seed=1, stop_token_ids=(END,), grammar=JSON_GRAMMAR))
    longer = [*prompt, *ids_of(first), 5, 6]
    second = await engine.sample(request(longer, max_tokens=40, seed=1, stop_token_ids=(END,), grammar=JSON_GRAMMAR))
    assert second.reused_tokens >= len(prompt) + len(ids_of(first)) - 1
    await check(engine, model, longer, second, grammars, grammar=JSON_GRAMMAR)


async def test_a_cancelled_constrained_request_frees_its_row(make_engine: MakeEngine) -> None:
    engine = await make_engine(slots=2)
    endless = 'start: /(?s:.*)/ "~~~~~~~~"'
    tasks = [
        asyncio.create_task(engine.sample(request([4, 5], max_tokens=1500, seed=i, grammar=endless))) for i in range(2)
    ]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sample = await engine.sample(request([4, 5], max_tokens=40, seed=1, stop_token_ids=(END,), grammar=YES_NO))
    assert sample.finish is FinishReason.STOP


async def test_deterministic_samples_under_a_grammar_are_the_same_bits(make_engine: MakeEngine) -> None:
    asked = {"max_tokens": 60, "stop_token_ids": (END,), "grammar": JSON_GRAMMAR}
    runs: list[list[Any]] = []
    for _ in range(2):
        engine = await make_engine(deterministic=True)
        runs.append(
            [
                (
                    await engine.sample(
                        request([7, 8, 9], max_tokens=5, seed=0) if i == 1 else request([4, 5], seed=i, **asked)
                    )
                ).segments
                for i in range(3)
            ]
        )
    assert runs[0] == runs[1]


async def test_a_grammar_that_comes_to_a_dead_end_fails_its_own_request_alone(make_engine: MakeEngine) -> None:
    """The token 250 is a byte that is no character: with it as the only way to go on, and as a stop token, nothing is
    left."""
    engine = await make_engine()
    dead, fine = await asyncio.gather(
        engine.sample(
            request([4, 5], "dead", max_tokens=40, seed=1, stop_token_ids=(END, 70), grammar='start: "a" <[70]> "b"')
        ),
        engine.sample(request([4, 5], "fine", max_tokens=40, seed=1, stop_token_ids=(END,), grammar=JSON_GRAMMAR)),
        return_exceptions=True,
    )
    assert isinstance(dead, EngineError) and "'dead'" in str(dead) and "no token" in str(dead)
    assert isinstance(fine, Sample) and fine.finish is FinishReason.STOP


async def test_a_grammar_that_cannot_be_kept_is_refused_before_sampling(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    with pytest.raises(GrammarError, match="uniqueItems"):
        await engine.check_grammar('start: %json {"type": "array", "uniqueItems": true}')
    with pytest.raises(EngineError, match="'r'.*uniqueItems"):
        await engine.sample(request([4], grammar='start: %json {"type": "array", "uniqueItems": true}'))


def test_tokens_that_span_parts_of_a_grammar_are_used() -> None:
    """The brace that ends a schema's object and the one of the text behind it are one token, where the tokenizer has
    it."""
    merged = tiny_tokenizer([*MERGES, ("}", "}")])
    spaced = {"x-guidance": {"whitespace_flexible": False}, "type": "object", "properties": {"b": {"type": "integer"}}}
    grammar = 'start: "{\\"a\\": " %json ' + json.dumps({**spaced, "additionalProperties": False}) + ' "}"'
    matcher = Grammars(merged, SIZE).matcher(grammar, (END,))
    for token_id in merged.encode('{"a": {"b":1', add_special_tokens=False):
        matcher.accept(token_id)
    assert {merged.decode([i]) for i in members(matcher.allowed())} == {"}", "}}", *"0123456789"}
