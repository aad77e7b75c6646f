"""LocalEngine against the model's plain forward and generate, under every mix of arrivals, cancellations, failures and
updates."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from array import array
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from agentlightning.engines.base import Sample
from agentlightning.engines.local.cache import SlotCache
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.engines.local.forward import SlotForward
from agentlightning.engines.local.scheduler import Scheduler
from agentlightning.errors import ConfigError, ContextLengthError, EngineError
from agentlightning.nouns import FinishReason
from agentlightning.settings.fields import EngineConfig
from tests.engines.conftest import Gate, MakeEngine, ids_of, logprobs_of, plain_logprobs, request, worst_difference
from tests.tiny import tiny_model, tiny_tokenizer

TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""Of the tiny model: 2 layers, keys and values, 2 heads of 16, float32."""


def gigabytes(tokens: int) -> float:
    return tokens * TOKEN_BYTES / 1e9


def some_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 260) for _ in range(count)]


async def until(condition: Any, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another thread
            await asyncio.sleep(0.002)


# --------------------------------------------------------------------------- what is sampled


@pytest.mark.parametrize("seed", range(4))
async def test_logprobs_are_the_plain_forwards_in_any_mix_of_admissions(
    seed: int, model: LlamaForCausalLM, make_engine: MakeEngine
) -> None:
    rng = random.Random(seed)
    tokens = rng.choice([400, 1200, 20_000])
    engine = await make_engine(
        slots=rng.choice([2, 5, 32]), kv_budget_gb=gigabytes(tokens), prefix_cache=rng.random() < 0.8
    )
    shared = some_ids(rng, 30)
    worst = 0.0

    async def conversation(name: str) -> None:
        nonlocal worst
        prompt = shared[: rng.randint(0, 30)] + some_ids(rng, rng.randint(1, 60))
        for turn in range(rng.randint(1, 3)):
            await asyncio.sleep(rng.random() * 0.05)
            temperature = rng.choice([0.0, 0.5, 1.0, 2.0])
            params = {"temperature": temperature, "top_p": rng.choice([1.0, 0.9]), "top_k": rng.choice([0, 20])}
            params |= {"max_tokens": rng.randint(1, 30), "seed": rng.getrandbits(60)}
            task = asyncio.create_task(engine.sample(request(prompt, f"{name}.{turn}", **params)))
            if rng.random() < 0.15:
                await asyncio.sleep(rng.random() * 0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                continue
            sample = await task
            worst = max(worst, worst_difference(model, prompt, sample, temperature) * min(1.0, temperature or 1.0))
            prompt = prompt + ids_of(sample) + some_ids(rng, rng.randint(1, 12))

    await asyncio.gather(*(conversation(f"c{i}") for i in range(20)))
    assert worst < 1e-4
    await until(lambda: engine.load.live == 0)
    assert engine.load.row_tokens + engine.load.prefix_tokens <= tokens


async def test_the_same_seed_gives_the_same_sample_in_any_company(make_engine: MakeEngine) -> None:
    engine = await make_engine(slots=16)
    rng = random.Random(3)
    prompts = [some_ids(rng, rng.randint(1, 50)) for _ in range(12)]
    params: list[dict[str, Any]] = [{"max_tokens": 24, "seed": i, "top_p": (1.0, 0.9)[i % 2]} for i in range(12)]
    alone = [await engine.sample(request(p, **q)) for p, q in zip(prompts, params, strict=True)]
    order = list(range(12))
    rng.shuffle(order)
    together = dict(
        zip(order, await asyncio.gather(*(engine.sample(request(prompts[i], **params[i])) for i in order)), strict=True)
    )
    for i in range(12):
        assert ids_of(together[i]) == ids_of(alone[i])
        assert together[i].segments[0].kept == alone[i].segments[0].kept


async def test_without_a_seed_samples_differ_and_with_another_seed_too(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    samples = await asyncio.gather(
        *(engine.sample(request([5, 6, 7], max_tokens=20, seed=s)) for s in (None, None, 1, 2))
    )
    assert len({tuple(ids_of(s)) for s in samples}) == 4


async def test_greedy_equals_generate(model: LlamaForCausalLM, make_engine: MakeEngine) -> None:
    engine = await make_engine()
    rng = random.Random(1)
    prompts = [some_ids(rng, n) for n in (1, 2, 9, 33, 70)]
    samples = await asyncio.gather(
        *(engine.sample(request(p, temperature=0, max_tokens=30, stop_token_ids=(2,))) for p in prompts)
    )
    for prompt, sample in zip(prompts, samples, strict=True):
        with torch.no_grad():
            want: Any = model.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, eos_token_id=2)  # pyright: ignore
        assert ids_of(sample) == want[0, len(prompt) :].tolist()


async def test_cut_supports_are_recorded_for_each_token(model: LlamaForCausalLM, make_engine: MakeEngine) -> None:
    engine = await make_engine()
    prompt = [9, 8, 7, 6]
    sample = await engine.sample(request(prompt, top_p=0.7, top_k=40, temperature=0.8, max_tokens=12, seed=4))
    (segment,) = sample.segments
    assert segment.kept is not None
    assert segment.log_kept is not None
    assert len(segment.kept.offsets) == len(segment.token_ids) + 1
    for t, token in enumerate(segment.token_ids):
        kept = list(segment.kept.ids[segment.kept.offsets[t] : segment.kept.offsets[t + 1]])
        assert token in kept
        assert len(kept) <= 40
        before = ids_of(sample)[:t]
        want = torch.stack([plain_logprobs(model, prompt, [*before, k], 0.8)[-1] for k in kept]).logsumexp(0)
        assert segment.log_kept[t] == pytest.approx(float(want), abs=1e-4)


# --------------------------------------------------------------------------- ends


async def test_a_stop_token_ends_a_sample_and_stays_in_it(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    everything = ids_of(await engine.sample(request([4, 5], max_tokens=40, seed=9)))
    stop = everything[11]
    sample = await engine.sample(request([4, 5], max_tokens=40, seed=9, stop_token_ids=(stop, 271)))
    assert ids_of(sample) == everything[: everything.index(stop) + 1]
    assert (sample.finish, sample.stop_string) == (FinishReason.STOP, None)


async def test_a_stop_string_ends_a_sample_across_token_borders_and_its_tokens_stay(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    tokenizer = tiny_tokenizer()
    everything = ids_of(await engine.sample(request([4, 5], max_tokens=60, seed=2)))
    words = [tokenizer.decode(everything[i : i + 2]) for i in range(20, 58)]
    stop = next(w for w in words if w.isascii() and len(w) == 2)
    sample = await engine.sample(request([4, 5], max_tokens=60, seed=2, stop=("never", stop)))
    assert (sample.finish, sample.stop_string) == (FinishReason.STOP, stop)
    assert ids_of(sample) == everything[: len(ids_of(sample))]
    assert tokenizer.decode(ids_of(sample)).endswith(stop)
    assert stop not in tokenizer.decode(ids_of(sample)[:-1])


async def test_max_tokens_and_the_end_of_the_context_end_a_sample_as_length(make_engine: MakeEngine) -> None:
    engine = await make_engine(context_length=50)
    assert engine.context_length == 50
    for prompt, max_tokens, expected in ((3, 7, 7), (45, 100, 5), (49, 5, 1)):
        sample = await engine.sample(request(list(range(3, 3 + prompt)), max_tokens=max_tokens))
        assert (sample.finish, len(ids_of(sample))) == (FinishReason.LENGTH, expected)
        assert 0 <= sample.queue_s <= sample.first_token_s <= sample.total_s


async def test_what_cannot_be_sampled_is_refused_by_name(make_engine: MakeEngine) -> None:
    engine = await make_engine(context_length=50)
    with pytest.raises(ContextLengthError) as caught:
        await engine.sample(request(list(range(3, 53))))
    assert (caught.value.prompt_tokens, caught.value.context_length) == (50, 50)
    for bad, words in (
        (request([], "empty"), "'empty' has an empty prompt"),
        (request([3, 272], "big"), "vocabulary of 272"),
        (request([3, -1], "low"), "vocabulary of 272"),
        (request([3], "none", max_tokens=0), "max_tokens is 0"),
        (request([3], "hot", temperature=-1.0), "temperature -1.0"),
        (request([3], "cut", top_p=0.0), "top_p 0.0"),
    ):
        with pytest.raises(EngineError, match=words):
            await engine.sample(bad)
    with pytest.raises(EngineError, match="'main', not 'other'"):
        engine.version("other")


# --------------------------------------------------------------------------- streaming


async def test_tokens_are_streamed_in_order_on_the_callers_loop_and_never_after_the_return(
    make_engine: MakeEngine,
) -> None:
    engine = await make_engine()
    here = threading.get_ident()

    async def one(i: int) -> None:
        shown: list[int] = []
        over = False

        def on_tokens(ids: array[int]) -> None:
            assert threading.get_ident() == here
            assert not over
            shown.extend(ids)

        sample = await engine.sample(request([3 + i, 4], max_tokens=10 + i, seed=i), on_tokens)
        over = True
        assert shown == ids_of(sample)

    await asyncio.gather(*(one(i) for i in range(8)))
    await asyncio.sleep(0.05)


async def test_after_a_cancellation_no_more_tokens_are_shown(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    shown: list[int] = []
    task = asyncio.create_task(engine.sample(request([5], max_tokens=2000), shown.extend))
    await until(lambda: len(shown) > 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    count = len(shown)
    await until(lambda: engine.load.live == 0)
    await asyncio.sleep(0.02)
    assert len(shown) == count


async def test_an_error_in_the_callers_callback_ends_that_sample_alone(make_engine: MakeEngine) -> None:
    engine = await make_engine()

    def bad(ids: array[int]) -> None:
        raise ValueError("mine")

    other = asyncio.create_task(engine.sample(request([5], max_tokens=200)))
    with pytest.raises(ValueError, match="mine"):
        await engine.sample(request([6], max_tokens=1000), bad)
    assert len(ids_of(await other)) == 200
    await until(lambda: engine.load.live == 0)


async def test_it_can_be_awaited_from_any_event_loop_in_any_thread(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    results: list[list[int]] = []

    def elsewhere() -> None:
        results.append(ids_of(asyncio.run(engine.sample(request([5, 6], max_tokens=15, seed=3)))))

    threads = [threading.Thread(target=elsewhere) for _ in range(4)]
    for thread in threads:
        thread.start()
    mine = ids_of(await engine.sample(request([5, 6], max_tokens=15, seed=3)))
    await asyncio.to_thread(lambda: [t.join() for t in threads])
    assert results == [mine] * 4


# --------------------------------------------------------------------------- admission, memory, cancellation


async def test_a_hundred_requests_at_once_are_all_answered(make_engine: MakeEngine) -> None:
    engine = await make_engine(slots=16)
    rng = random.Random(0)
    samples = await asyncio.gather(
        *(engine.sample(request(some_ids(rng, rng.randint(1, 40)), max_tokens=8, seed=i)) for i in range(100))
    )
    assert [len(ids_of(s)) for s in samples] == [8] * 100


async def test_a_request_is_admitted_while_others_decode(make_engine: MakeEngine, gate: Gate) -> None:
    engine = await make_engine()
    gate.shut()
    long = asyncio.create_task(engine.sample(request([5], max_tokens=2000)))
    await gate.reached()
    order: list[str] = []
    short = asyncio.create_task(engine.sample(request([6], max_tokens=3)))
    for name, task in (("long", long), ("short", short)):
        task.add_done_callback(lambda _, name=name: order.append(name))
    await asyncio.sleep(0)  # it is in the engine's mailbox
    gate.open()
    assert len(ids_of(await short)) == 3
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    assert order == ["short", "long"]


async def test_requests_queue_in_order_under_a_tiny_budget_and_the_budget_holds(
    make_engine: MakeEngine, monkeypatch: Any
) -> None:
    budget = 200
    held: list[int] = []
    original = SlotCache.resize

    def resize(self: SlotCache, rows: int, tokens: int) -> None:
        original(self, rows, tokens)
        held.append(rows * tokens)

    monkeypatch.setattr(SlotCache, "resize", resize)
    engine = await make_engine(kv_budget_gb=gigabytes(budget))
    assert engine.context_length == budget
    order: list[int] = []

    async def one(i: int, prompt: int, tokens: int) -> None:
        await engine.sample(request(list(range(3, 3 + prompt)), max_tokens=tokens, seed=i))
        order.append(i)
        assert engine.load.row_tokens + engine.load.prefix_tokens <= budget

    await asyncio.gather(*(one(i, 30, 30) for i in range(6)), one(6, 150, 49), one(7, 10, 4))
    assert max(held) <= budget
    assert order.index(6) < order.index(7)
    assert sorted(order[:6]) == list(range(6))


async def test_a_cancelled_request_frees_its_row_at_the_next_step_and_others_go_on(
    make_engine: MakeEngine, gate: Gate
) -> None:
    engine = await make_engine(slots=3)
    gate.shut()
    tasks = [asyncio.create_task(engine.sample(request([5 + i], max_tokens=2000, seed=i))) for i in range(5)]
    await gate.reached()
    gate.open()
    await until(lambda: engine.load.live == 3 and engine.load.waiting == 2)
    gate.shut()
    await gate.reached()
    for i in (0, 4):  # one that decodes, one that waits
        tasks[i].cancel()
    await asyncio.sleep(0)
    gate.open()
    await until(lambda: engine.load.waiting == 0)
    gate.shut()
    await gate.reached()
    assert engine.load.live == 3
    gate.open()
    for i in (1, 2, 3):
        tasks[i].cancel()
    await until(lambda: engine.load.live == 0)
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    assert len(ids_of(await engine.sample(request([5], max_tokens=4)))) == 4


async def test_a_long_prompt_is_computed_in_pieces_between_the_others_tokens(
    make_engine: MakeEngine, gate: Gate, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agentlightning.engines.local.engine._PREFILL_TOKENS", {"cpu": 32})
    engine = await make_engine()
    steps: list[str] = []
    for name in ("prefill", "decode"):
        original = getattr(SlotForward, name)
        monkeypatch.setattr(
            SlotForward, name, lambda *args, name=name, original=original: (steps.append(name), original(*args))[1]
        )
    gate.shut()
    decoding = asyncio.create_task(engine.sample(request([5], max_tokens=1000)))
    await gate.reached()
    long = asyncio.create_task(engine.sample(request([3 + i % 200 for i in range(400)], max_tokens=1)))
    await asyncio.sleep(0)
    gate.open()
    await long
    pieces = [i for i, name in enumerate(steps) if name == "prefill"]
    assert len(pieces) == 13
    assert all(b - a == 2 for a, b in itertools.pairwise(pieces))
    decoding.cancel()


def computed_tokens(monkeypatch: Any) -> list[int]:
    """Sizes of all forwards over prompts from now on, in tokens."""
    sizes: list[int] = []
    original = SlotForward.prefill

    def prefill(self: SlotForward, rows: Any, sequences: Any, width: int) -> torch.Tensor:
        sizes.append(len(rows) * width)
        return original(self, rows, sequences, width)

    monkeypatch.setattr(SlotForward, "prefill", prefill)
    return sizes


async def test_equal_prompts_that_arrive_together_are_computed_once(make_engine: MakeEngine, monkeypatch: Any) -> None:
    engine = await make_engine()
    sizes = computed_tokens(monkeypatch)
    prompt = some_ids(random.Random(0), 90)
    samples = await asyncio.gather(*(engine.sample(request(prompt, max_tokens=5, seed=i)) for i in range(16)))
    assert sizes == [90]
    assert sorted(s.reused_tokens for s in samples) == [0] + [89] * 15


async def test_prompts_with_a_common_beginning_compute_it_once_and_the_rest_together(
    make_engine: MakeEngine, monkeypatch: Any
) -> None:
    engine = await make_engine()
    sizes = computed_tokens(monkeypatch)
    rng = random.Random(0)
    beginning = some_ids(rng, 80)
    prompts = [[*beginning, 3 + i, *some_ids(rng, 9)] for i in range(12)]
    samples = await asyncio.gather(*(engine.sample(request(p, max_tokens=5, seed=i)) for i, p in enumerate(prompts)))
    assert sizes == [90, 110]
    assert sorted(s.reused_tokens for s in samples) == [0] + [80] * 11


async def test_a_second_turn_computes_only_what_is_new(model: LlamaForCausalLM, make_engine: MakeEngine) -> None:
    engine = await make_engine()
    rng = random.Random(2)
    prompt = some_ids(rng, 80)
    first = await engine.sample(request(prompt, max_tokens=20, seed=0))
    longer = prompt + ids_of(first) + some_ids(rng, 15)
    second = await engine.sample(request(longer, max_tokens=20, seed=1))
    assert second.reused_tokens == 99  # the last sampled token was never forwarded
    assert worst_difference(model, longer, second) < 1e-4
    off = await make_engine(prefix_cache=False)
    await off.sample(request(prompt, max_tokens=20, seed=0))
    assert (await off.sample(request(longer, max_tokens=2))).reused_tokens == 0


async def test_a_row_whose_donor_is_cancelled_still_gets_its_sample(
    model: LlamaForCausalLM, make_engine: MakeEngine, gate: Gate, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agentlightning.engines.local.engine._PREFILL_TOKENS", {"cpu": 16})
    engine = await make_engine()
    prompt = [3 + i % 250 for i in range(600)]
    gate.shut()
    donor = asyncio.create_task(engine.sample(request(prompt, max_tokens=4)))
    await gate.reached()
    follower = asyncio.create_task(engine.sample(request([*prompt[:500], 7], max_tokens=4, seed=1)))
    await asyncio.sleep(0)
    gate.let_one_pass()
    await gate.reached()
    assert engine.load.live == 2
    donor.cancel()
    await asyncio.gather(donor, return_exceptions=True)
    gate.open()
    assert worst_difference(model, [*prompt[:500], 7], await follower) < 1e-4


# --------------------------------------------------------------------------- updates


def shake(model: torch.nn.Module, seed: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


async def test_after_an_update_no_key_or_value_of_the_old_weights_is_used(
    model: LlamaForCausalLM, make_engine: MakeEngine
) -> None:
    engine = await make_engine(version=3)
    prompt = some_ids(random.Random(2), 80)
    first = await engine.sample(request(prompt, max_tokens=20, seed=0))
    assert first.segments[0].version == engine.version() == 3
    assert engine.load.prefix_tokens > 0
    await engine.update(lambda: shake(model))
    assert engine.version() == 4
    longer = prompt + ids_of(first) + [9, 9]
    second = await engine.sample(request(longer, max_tokens=20, seed=1))
    assert (second.reused_tokens, second.segments[0].version) == (0, 4)
    assert worst_difference(model, longer, second) < 1e-4


async def test_live_requests_end_before_an_update_and_waiting_ones_get_the_new_version(
    model: LlamaForCausalLM, make_engine: MakeEngine, gate: Gate
) -> None:
    engine = await make_engine(slots=2)
    old_model = tiny_model()
    gate.shut()
    tasks = [asyncio.create_task(engine.sample(request([5 + i] * 20, max_tokens=150, seed=i))) for i in range(4)]
    await gate.reached()
    update = asyncio.create_task(engine.update(lambda: shake(model)))
    await asyncio.sleep(0)
    gate.open()
    await update
    assert [t.done() for t in tasks] == [True, True, False, False]
    samples = await asyncio.gather(*tasks)
    assert [s.segments[0].version for s in samples] == [0, 0, 1, 1]
    for i, (sample, weights) in enumerate(zip(samples, (old_model, old_model, model, model), strict=True)):
        assert worst_difference(weights, [5 + i] * 20, sample) < 1e-4


async def test_an_update_that_raises_is_a_new_version_too(model: LlamaForCausalLM, make_engine: MakeEngine) -> None:
    engine = await make_engine()
    prompt = some_ids(random.Random(2), 60)
    await engine.sample(request(prompt, max_tokens=3))

    def half() -> None:
        shake(model)
        raise ZeroDivisionError("half done")

    with pytest.raises(ZeroDivisionError, match="half done"):
        await engine.update(half)
    assert (engine.version(), engine.load.prefix_tokens) == (1, 0)
    assert worst_difference(model, prompt, await engine.sample(request(prompt, max_tokens=3))) < 1e-4


async def test_exclusive_work_keeps_prefixes_and_the_version_and_returns_its_result(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    prompt = some_ids(random.Random(2), 60)
    await engine.sample(request(prompt, max_tokens=3))
    assert await engine.run_exclusive(lambda: threading.current_thread().name) == "engine-main"
    assert engine.version() == 0
    assert (await engine.sample(request(prompt, max_tokens=3))).reused_tokens == 59
    await engine.run_exclusive(lambda: None, release_memory=True)
    assert (engine.load.row_tokens, engine.load.prefix_tokens) == (0, 0)
    with pytest.raises(KeyError):
        await engine.run_exclusive(lambda: {}["missing"])
    assert (await engine.sample(request(prompt, max_tokens=3))).reused_tokens == 0


async def test_exclusive_work_that_changes_weights_is_refused_and_still_invalidates(
    model: LlamaForCausalLM, make_engine: MakeEngine
) -> None:
    engine = await make_engine()
    prompt = some_ids(random.Random(2), 60)
    await engine.sample(request(prompt, max_tokens=3))
    with pytest.raises(EngineError, match=r"give it to LocalEngine\.update"):
        await engine.run_exclusive(lambda: shake(model))
    assert (engine.version(), engine.load.prefix_tokens) == (1, 0)
    sample = await engine.sample(request(prompt, max_tokens=3))
    assert (sample.reused_tokens, sample.segments[0].version) == (0, 1)
    assert worst_difference(model, prompt, sample) < 1e-4


async def test_weights_changed_behind_the_engines_back_fail_what_is_live(
    model: LlamaForCausalLM, make_engine: MakeEngine, gate: Gate
) -> None:
    engine = await make_engine()
    gate.shut()
    task = asyncio.create_task(engine.sample(request([5] * 30, "victim", max_tokens=2000)))
    await gate.reached()
    shake(model)  # whole, between two looks of the engine
    gate.open()
    with pytest.raises(EngineError, match=r"'victim': the weights were changed outside LocalEngine\.update"):
        await task
    sample = await engine.sample(request([5] * 30, max_tokens=4))
    assert (sample.reused_tokens, sample.segments[0].version) == (0, 1)
    assert worst_difference(model, [5] * 30, sample) < 1e-4


async def test_a_version_only_grows(make_engine: MakeEngine) -> None:
    engine = await make_engine()
    prompt = some_ids(random.Random(2), 60)
    await engine.sample(request(prompt, max_tokens=3))
    await engine.set_version(7)
    assert (engine.version(), engine.load.prefix_tokens) == (7, 0)
    with pytest.raises(EngineError, match="versions only grow"):
        await engine.set_version(6)


async def test_a_model_left_in_training_mode_samples_in_evaluation_mode(
    model: LlamaForCausalLM, make_engine: MakeEngine
) -> None:
    engine = await make_engine()
    await engine.update(lambda: model.train() and None)
    await engine.sample(request([5], max_tokens=2))
    assert not model.training


# --------------------------------------------------------------------------- failures


async def test_a_failing_forward_fails_the_requests_in_it_and_the_engine_lives_on(
    model: LlamaForCausalLM, make_engine: MakeEngine, gate: Gate, monkeypatch: Any
) -> None:
    engine = await make_engine()
    original = SlotForward.prefill

    def prefill(self: SlotForward, rows: Any, sequences: Any, width: int) -> torch.Tensor:
        if any(s[0] == 13 for s in sequences):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore")
        return original(self, rows, sequences, width)

    monkeypatch.setattr(SlotForward, "prefill", prefill)
    gate.shut()
    good = asyncio.create_task(engine.sample(request([5] * 9, max_tokens=300, seed=1)))
    await gate.reached()
    bad = asyncio.create_task(engine.sample(request([13] * 9, "bad", max_tokens=4)))
    await asyncio.sleep(0)
    gate.open()
    with pytest.raises(
        EngineError, match=r"request 'bad' failed: OutOfMemoryError: CUDA out of memory\. Tried to allocate 3 GiB$"
    ):
        await bad
    assert worst_difference(model, [5] * 9, await good) < 1e-4
    assert len(ids_of(await engine.sample(request([6], max_tokens=4)))) == 4


async def test_memory_that_cannot_be_had_fails_the_requests_and_the_engine_lives_on(
    make_engine: MakeEngine, monkeypatch: Any
) -> None:
    engine = await make_engine()
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.Tensor, "new_zeros", lambda *_: (_ for _ in ()).throw(RuntimeError("can't allocate memory: 9 GB"))
        )
        with pytest.raises(EngineError, match="'big' failed: RuntimeError: can't allocate memory"):
            await engine.sample(request([5] * 9, "big", max_tokens=4))
    assert len(ids_of(await engine.sample(request([6], max_tokens=4)))) == 4


async def test_weights_that_are_not_finite_fail_the_request_by_name(
    model: LlamaForCausalLM, make_engine: MakeEngine
) -> None:
    engine = await make_engine()

    def ruin() -> None:
        with torch.no_grad():
            model.lm_head.weight.fill_(float("nan"))

    await engine.update(ruin)
    for params in ({}, {"temperature": 0.0}, {"top_p": 0.9}):
        with pytest.raises(EngineError, match="not finite"):
            await engine.sample(request([5, 6], max_tokens=4, **params))


async def test_a_fault_of_the_engine_itself_leaves_nobody_waiting(make_engine: MakeEngine, monkeypatch: Any) -> None:
    engine = await make_engine(slots=1)
    tasks = [asyncio.create_task(engine.sample(request([5 + i], f"r{i}", max_tokens=2000))) for i in range(3)]
    await until(lambda: engine.load.live == 1 and engine.load.waiting == 2)
    monkeypatch.setattr(Scheduler, "step", lambda *_, **__: (_ for _ in ()).throw(AssertionError("a bug")))
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [str(r) for r in results] == [f"request 'r{i}': the engine died: AssertionError: a bug" for i in range(3)]
    for call in (engine.sample(request([5])), engine.update(lambda: None)):
        with pytest.raises(EngineError, match="the engine died"):
            await asyncio.wait_for(call, 10)


async def test_closing_fails_live_and_waiting_requests_by_name(make_engine: MakeEngine) -> None:
    engine = await make_engine(slots=1)
    tasks = [asyncio.create_task(engine.sample(request([5 + i], f"r{i}", max_tokens=2000))) for i in range(3)]
    await until(lambda: engine.load.live == 1 and engine.load.waiting == 2)
    update = asyncio.create_task(engine.update(lambda: None))
    await asyncio.sleep(0)
    await engine.close()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [str(r) for r in results] == [f"request 'r{i}': the engine was closed" for i in range(3)]
    with pytest.raises(EngineError, match="the engine was closed"):
        await update
    with pytest.raises(EngineError, match="the engine was closed"):
        await engine.sample(request([5]))
    await engine.close()


async def test_an_engine_that_was_not_started_says_so(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model, tiny_tokenizer())
    with pytest.raises(EngineError, match=r"await engine\.start\(\)"):
        await engine.sample(request([5]))
    with pytest.raises(EngineError, match=r"await engine\.start\(\)"):
        await engine.update(lambda: None)
    await engine.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig(context_length=4096), "engine.context_length is 4096 and the model holds 2048 tokens"),
        (
            EngineConfig(context_length=500, kv_budget_gb=gigabytes(300)),
            "holds 300 tokens .512 bytes each.: raise the budget",
        ),
        (EngineConfig(kv_budget_gb=1e-9), "holds 0 tokens"),
    ],
)
async def test_a_context_that_cannot_be_had_is_refused_at_start(
    model: LlamaForCausalLM, config: EngineConfig, words: str
) -> None:
    engine = LocalEngine(model, tiny_tokenizer(), config)
    with pytest.raises(ConfigError, match=words):
        await engine.start()
    with pytest.raises(EngineError, match="did not start"):
        await engine.sample(request([5]))
    await engine.close()


# --------------------------------------------------------------------------- deterministic, half precision


async def test_a_deterministic_engine_repeats_itself_to_the_last_bit_whatever_came_before(
    make_engine: MakeEngine,
) -> None:
    rng = random.Random(6)
    prompts = [some_ids(rng, rng.randint(1, 60)) for _ in range(6)]

    async def run(engine: LocalEngine, order: list[int]) -> dict[int, Sample]:
        asked = [engine.sample(request(prompts[i], max_tokens=20, seed=i)) for i in order]
        return dict(zip(order, await asyncio.gather(*asked), strict=True))

    one = await run(await make_engine(deterministic=True), [0, 1, 2, 3, 4, 5])
    other = await run(await make_engine(deterministic=True), [5, 3, 4])
    for i in (3, 4, 5):
        assert ids_of(one[i]) == ids_of(other[i])
        assert logprobs_of(one[i]) == logprobs_of(other[i])
        assert one[i].reused_tokens == 0


async def test_adapters_are_sampled_with_the_model_they_sit_on(
    model: LlamaForCausalLM, make_engine: MakeEngine
) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    ).eval()
    engine = await make_engine(of=adapted)
    prompt = [5] * 20
    first = await engine.sample(request(prompt, max_tokens=10, seed=0))
    assert worst_difference(adapted, prompt, first) < 1e-4
    await engine.update(lambda: shake(adapted))
    assert worst_difference(adapted, prompt, await engine.sample(request(prompt, max_tokens=10, seed=0))) < 1e-4


async def test_half_precision_samples_with_float32_logprobs(make_engine: MakeEngine) -> None:
    model = tiny_model(dtype=torch.bfloat16)
    engine = await make_engine(of=model)
    samples = await asyncio.gather(
        *(engine.sample(request([5 + i] * (3 + i), max_tokens=20, seed=i)) for i in range(8))
    )
    assert max(worst_difference(model, [5 + i] * (3 + i), s) for i, s in enumerate(samples)) < 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_on_cuda_logprobs_are_the_plain_forwards_and_seeds_hold(
    dtype: torch.dtype, make_engine: MakeEngine
) -> None:
    model: Any = tiny_model(dtype=dtype).to("cuda")
    engine = await make_engine(of=model)
    rng = random.Random(0)
    prompts = [some_ids(rng, rng.randint(1, 80)) for _ in range(40)]
    params: list[dict[str, Any]] = [
        {"max_tokens": 20, "seed": i, "top_p": (1.0, 0.9)[i % 2], "temperature": (1.0, 0.0, 0.7)[i % 3]}
        for i in range(40)
    ]
    samples = await asyncio.gather(*(engine.sample(request(p, **q)) for p, q in zip(prompts, params, strict=True)))
    again = await asyncio.gather(*(engine.sample(request(p, **q)) for p, q in zip(prompts, params, strict=True)))
    cpu = tiny_model(dtype=dtype)
    worst = max(worst_difference(cpu, p, s, q["temperature"]) for p, s, q in zip(prompts, samples, params, strict=True))
    assert worst < (1e-3 if dtype == torch.float32 else 0.2)
    if dtype == torch.float32:
        assert [ids_of(s) for s in samples] == [ids_of(s) for s in again]
