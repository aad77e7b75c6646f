"""Learning from samples that followed a grammar: the replayed supports give the sampler's logprobs and the gradient of
masked logits."""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agentlightning.credit import credit_attempt, train_tree
from agentlightning.engines.base import Sample, SampleRequest
from agentlightning.engines.grammar import Grammars, replay
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.errors import RunFailed
from agentlightning.learning.learner import Gradient, Learner
from agentlightning.learning.objectives.policy_gradient import PolicyGradientLoss, clipped_policy_loss
from agentlightning.nouns import (
    Attempt,
    Call,
    CallStatus,
    FinishReason,
    Message,
    Node,
    SampleRecord,
    SamplingParams,
    Status,
)
from agentlightning.records.batch import Batch, TrainTree
from agentlightning.records.traces import AttemptTrace
from agentlightning.settings.fields import EngineConfig, LearnerConfig
from tests.tiny import tiny_model, tiny_tokenizer

from .trees import difference

END = 2
SIZE = 272
GRAMMAR = "start: %json " + json.dumps(
    {
        "x-guidance": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
GIVEN = (
    "start: body\nbody: output\noutput: /[a-c]{2,9}/",
    'start: output\noutput: "yes" | "no" | "perhaps"',
    'start: output\noutput: %lark {\nstart: "a" tail\ntail: /[xyz]{1,5}/ "!"\n}',
)
"""What a client's `guided_regex`, `guided_choice` and `guided_grammar` become."""
PARAMS = [
    SamplingParams(max_tokens=60, stop_token_ids=(END,), grammar=GRAMMAR),
    SamplingParams(max_tokens=60, stop_token_ids=(END,), grammar=GRAMMAR, temperature=0.6),
    SamplingParams(max_tokens=60, stop_token_ids=(END,), grammar=GRAMMAR, temperature=0.6, top_p=0.8),
    SamplingParams(max_tokens=60, stop_token_ids=(END,), grammar=GRAMMAR, temperature=1.7, top_k=9),
    SamplingParams(max_tokens=60, stop_token_ids=(END,), temperature=0.8, top_p=0.9),
    SamplingParams(max_tokens=60, stop_token_ids=(END,)),
    *(SamplingParams(max_tokens=40, stop_token_ids=(END,), grammar=text, temperature=0.9) for text in GIVEN),
]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tiny_tokenizer(), SIZE)


@pytest.fixture
async def engine() -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(tiny_model(), tiny_tokenizer(), EngineConfig())
    await engine.start()
    yield engine
    await engine.close()


def recorded(prompt: list[int], sample: Sample, params: SamplingParams) -> tuple[list[Node], list[Call]]:
    """A sample as the record has it: one call of an attempt."""
    nodes = [Node(0, None, False, array("i", prompt), 0)]
    for segment in sample.segments:
        at = len(nodes)
        nodes.append(
            Node(
                at,
                at - 1,
                True,
                segment.token_ids,
                0,
                segment.logprobs,
                segment.log_kept,
                segment.kept,
                segment.version,
            ),
        )
    record = SampleRecord(len(nodes) - 1, FinishReason.STOP, Message("assistant"))
    return nodes, [Call("c", "a", 0, "chat", "m", "main", CallStatus.COMPLETE, "root", 0, (record,), {}, params)]


@dataclass(frozen=True)
class Credited:
    tree: TrainTree
    sampled: int
    trained: int
    masked: Mapping[str, int]


def credited(rollout_id: str, nodes: Sequence[Node], calls: Sequence[Call], advantage: float, unit: int) -> Credited:
    attempt = Attempt("a", rollout_id, 1, "runner", Status.SUCCEEDED, 0.0, 0.0)
    trace = AttemptTrace(attempt, tuple(calls), tuple(nodes))
    credit = credit_attempt(trace, advantage)
    return Credited(train_tree(rollout_id, trace, credit, unit), credit.sampled, credit.trained, credit.masked)


async def drawn(engine: LocalEngine, params: list[SamplingParams], count: int) -> list[Credited]:
    """``count`` rollouts for each set of parameters, with advantages of both signs."""
    asked = [(i, replace(p, seed=i)) for i, p in enumerate(params * count)]
    prompts = [[5 + i % 3, 80, 90, 100 + i % 2] for i, _ in asked]
    requests = [SampleRequest(str(i), array("i", prompt), p) for (i, p), prompt in zip(asked, prompts, strict=True)]
    samples = await asyncio.gather(*(engine.sample(each) for each in requests))
    return [
        credited(f"rollout-{i:03d}", *recorded(prompt, sample, p), 1.0 if i % 3 else -0.7, unit=i)
        for (i, p), prompt, sample in zip(asked, prompts, samples, strict=True)
    ]


def batch_of(rollouts: list[Credited], group: int = 4) -> Batch:
    trees = [rollout.tree for rollout in rollouts]
    return Batch(tuple(tuple(trees[i : i + group]) for i in range(0, len(trees), group)))


def learner(grammars: Grammars | None, **config: Any) -> Learner:
    return Learner(
        tiny_model(),
        LearnerConfig(**{"lr": 1e-3, **config}),
        PolicyGradientLoss(),
        seed=0,
        total_steps=5,
        grammars=grammars,
    )


def masked_reference(batch: Batch, grammars: Grammars) -> Gradient:
    """The loss with every logit outside a token's support set to -inf, one path at a time, through autograd."""
    model = tiny_model().requires_grad_(True)
    loss = PolicyGradientLoss()
    total: list[Tensor] = []
    for tree in (tree for group in batch.groups for tree in group):
        prompt, node = tree.nodes
        assert node.logprobs is not None
        ids = torch.tensor([[*prompt.token_ids, *node.token_ids]])
        logits_TV = model(ids).logits[0, len(prompt.token_ids) - 1 : -1] / node.temperature
        masked_TV = torch.full_like(logits_TV, -math.inf)
        for t in range(len(node.token_ids)):
            if node.kept is not None:
                inside = list(node.kept.ids[node.kept.offsets[t] : node.kept.offsets[t + 1]])
            elif node.constraint is not None:
                words = replay(grammars.matcher(node.constraint.grammar, (END,)), array("i"), node.token_ids)[t]
                inside = [i for i in range(SIZE) if int(words[i >> 5]) >> (i & 31) & 1]
            else:
                inside = list(range(SIZE))
            masked_TV[t, inside] = logits_TV[t, inside]
        new_T = masked_TV.log_softmax(-1).gather(1, torch.tensor(list(node.token_ids))[:, None])[:, 0]
        old_T = torch.tensor(node.logprobs) - torch.tensor(node.log_kept or [0.0] * len(node.logprobs))
        trained = node.trained
        weights_T = torch.tensor(node.columns["advantage"])[trained]
        total.append(clipped_policy_loss(new_T[trained], old_T[trained], weights_T, loss.clip_low, loss.clip_high))
    value = torch.cat(total).mean()
    names = [name for name, _ in model.named_parameters()]
    grads = torch.autograd.grad(value, list(model.parameters()))
    return Gradient(float(value.detach()), dict(zip(names, grads, strict=True)))


@pytest.mark.parametrize("layout", ["tree", "flat"])
async def test_parity_holds_under_a_grammar_temperature_and_top_p(
    engine: LocalEngine, grammars: Grammars, layout: str
) -> None:
    rollouts = await drawn(engine, PARAMS, 4)
    stats = learner(grammars, layout=layout).step(batch_of(rollouts))
    assert stats.trained_tokens == sum(rollout.trained for rollout in rollouts)
    assert 0 < stats.parity.max < 1e-4 / 0.6
    assert abs(stats.parity.k3) < 1e-8
    assert stats.statistics["ratio_mean"] == pytest.approx(1, abs=1e-4), (
        "the ratio of unchanged weights is one, whatever cut the support"
    )


async def test_parity_is_under_its_gate_at_temperature_one(engine: LocalEngine, grammars: Grammars) -> None:
    stats = learner(grammars).step(batch_of(await drawn(engine, [PARAMS[0], replace(PARAMS[0], top_p=0.9)], 8)))
    assert 0 < stats.parity.max < 1e-4


@pytest.mark.parametrize("chunk", [3, 512])
async def test_the_gradient_is_that_of_masked_logits(engine: LocalEngine, grammars: Grammars, chunk: int) -> None:
    batch = batch_of(await drawn(engine, PARAMS, 3))
    made = learner(grammars, head_chunk=chunk).gradient(batch)
    wanted = masked_reference(batch, grammars)
    assert made.loss == pytest.approx(wanted.loss, abs=1e-5)
    assert difference(made, wanted) < 1e-4


async def test_forced_tokens_are_masked_and_counted(engine: LocalEngine, grammars: Grammars) -> None:
    rollouts = await drawn(engine, [PARAMS[0]], 3)
    for rollout in rollouts:
        (node,) = [node for node in rollout.tree.nodes if node.sampled]
        assert node.columns and node.kept is None and node.constraint is not None
        sets = replay(grammars.matcher(GRAMMAR, (END,)), array("i"), node.token_ids)
        single = [sum(int(word).bit_count() for word in words.view("uint32")) == 1 for words in sets]
        assert [math.isnan(weight) for weight in node.columns["advantage"]] == single
        assert rollout.masked == {"forced": sum(single)}
        assert rollout.trained + sum(single) == rollout.sampled == len(node.token_ids)
        assert single[0] and single[-1], "the brace that opens and the end of the turn"


async def test_a_sample_cut_into_segments_is_replayed_from_its_beginning(
    engine: LocalEngine, grammars: Grammars
) -> None:
    (whole,) = await drawn(engine, [PARAMS[0]], 1)
    sampled = whole.tree.nodes[1]
    assert sampled.logprobs is not None and sampled.log_kept is not None
    params = replace(PARAMS[0], seed=0)
    nodes, calls = recorded(
        [5, 80, 90, 100], await engine.sample(SampleRequest("0", array("i", [5, 80, 90, 100]), params)), params
    )
    one = nodes[1]
    assert one.logprobs is not None and one.log_kept is not None
    first = replace(one, token_ids=one.token_ids[:7], logprobs=one.logprobs[:7], log_kept=one.log_kept[:7])
    second = replace(
        one,
        id=2,
        parent=1,
        token_ids=one.token_ids[7:],
        logprobs=one.logprobs[7:],
        log_kept=one.log_kept[7:],
        version=1,
    )
    last = replace(calls[0].samples[0], node=2)
    cut = credited("rollout-000", [nodes[0], first, second], [replace(calls[0], samples=(last,))], -0.7, unit=0)
    assert (cut.trained, cut.masked) == (whole.trained, whole.masked)
    a, b = (learner(grammars).gradient(Batch(((rollout.tree,),))) for rollout in (whole, cut))
    assert difference(a, b) < 1e-6


async def test_a_record_that_does_not_fit_its_grammar_stops_the_run(engine: LocalEngine, grammars: Grammars) -> None:
    (rollout,) = await drawn(engine, [PARAMS[0]], 1)
    node = rollout.tree.nodes[1]
    assert node.constraint is not None
    other = replace(node, constraint=replace(node.constraint, grammar='start: "no"'))
    tree = replace(rollout.tree, nodes=(rollout.tree.nodes[0], other))
    with pytest.raises(RunFailed, match="cannot be replayed under its grammar"):
        learner(grammars).step(Batch(((tree,),)))
    with pytest.raises(RunFailed, match="rollout-000 was sampled under a grammar"):
        learner(None).step(Batch(((rollout.tree,),)))


async def test_a_step_on_constrained_samples_makes_the_rewarded_ones_likelier(
    engine: LocalEngine, grammars: Grammars
) -> None:
    rollouts = await drawn(engine, [PARAMS[0]], 6)
    batch = batch_of(rollouts)
    trained = learner(grammars, lr=3e-3)
    before = trained.gradient(batch).loss
    trained.step(batch)
    assert trained.gradient(batch).loss < before
