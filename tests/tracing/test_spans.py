"""What is recorded of an attempt, as spans: whole, in order, and nothing but the record."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentlightning import Span, find_final_reward
from agentlightning.agent.emitters import find_reward_spans
from agentlightning.compat.semconv import AGL_REWARD, LightningResourceAttributes, LightningSpanAttributes
from agentlightning.nouns import (
    GIVEN,
    Attempt,
    Call,
    CallStatus,
    External,
    FinishReason,
    Message,
    Node,
    Reward,
    SampleRecord,
    SamplingParams,
    SpanRecord,
    SpanStatus,
    Status,
)
from agentlightning.records.traces import AttemptTrace
from agentlightning.tracing import spans
from agentlightning.tracing.spans import call_tokens, spans_of

ATTEMPT = Attempt("r.1", "r", 1, "runner", Status.SUCCEEDED, 0.0, 0.0)


def ids(values: Sequence[int]) -> array[int]:
    return array("i", values)


def call(index: int, prompt: int | None, *samples: int, **more: Any) -> Call:
    message = Message("assistant", f"said {index}")
    made = Call(
        f"c{index}", ATTEMPT.id, index, "chat", "m", "main", CallStatus.COMPLETE, "root", prompt,
        tuple(SampleRecord(node, FinishReason.STOP, message) for node in samples), {}, SamplingParams(seed=3),
        prompt_tokens=2, received_at=10.0 + index, total_s=0.5,
    )  # fmt: skip
    return replace(made, **more)


def sampled(id: int, parent: int, values: Sequence[int], index: int, version: int = 1) -> Node:
    return Node(id, parent, True, ids(values), index, array("f", [-0.5] * len(values)), version=version)


def reward(value: float, at: float, **more: Any) -> Reward:
    return Reward("r", "r.1", value, created_at=at, **more)


TWO_TURNS = AttemptTrace(
    ATTEMPT,
    (call(0, 0, 2, agent="seer"), call(1, 3, 4)),
    (
        Node(0, None, False, ids([1, 2]), 0),
        sampled(1, 0, [3], 0),
        sampled(2, 1, [4], 0, version=2),  # the weights changed within the sample
        Node(3, 2, False, ids([5]), 1),
        sampled(4, 3, [6], 1, version=2),
    ),
    (reward(0.5, 10.75, call_id="c0"), reward(0.75, 12.0, source="return")),
    (
        SpanRecord("op", None, "agentlightning.operation", {"agentlightning.operation.name": "plan"}, SpanStatus.OK, 9, 13),
        SpanRecord("x", "op", "agentlightning.exception", {"exception.message": "no"}, SpanStatus.ERROR, 10.6, 10.6),
    ),
)  # fmt: skip


def test_every_call_is_a_span_with_its_agent_tokens_and_logprobs() -> None:
    first, second = [span for span in spans_of(TWO_TURNS) if span.name == spans.CALL]
    assert call_tokens(first) == ([1, 2], [3, 4]) and call_tokens(second) == ([1, 2, 3, 4, 5], [6])
    kept = first.attributes
    assert kept[spans.LOGPROBS] == [-0.5, -0.5] and kept[spans.VERSIONS] == [1, 2] and spans.LOG_KEPT not in kept
    assert kept["gen_ai.agent.name"] == kept["agent.name"] == "seer" and "agent.name" not in second.attributes
    assert (kept["gen_ai.response.id"], kept["gen_ai.request.model"], kept["gen_ai.response.model"]) == (
        "c0",
        "m",
        "main",
    )
    assert kept["gen_ai.usage.input_tokens"] == 2 and kept["gen_ai.usage.output_tokens"] == 2
    assert kept["gen_ai.response.finish_reasons"] == ["stop"] and kept["gen_ai.request.seed"] == 3
    assert json.loads(kept["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "said 0"}], "finish_reason": "stop"}
    ]
    assert (first.start_time, first.end_time) == (10.0, 10.5) and first.status.status_code == "OK"


def test_spans_come_in_the_order_in_which_they_began_and_the_same_each_time() -> None:
    made = spans_of(TWO_TURNS)
    assert [span.name.rpartition(".")[2] for span in made] == [
        "operation", "completion", "exception", "reward", "completion", "reward"
    ]  # fmt: skip
    assert [span.sequence_id for span in made] == [1, 2, 3, 4, 5, 6]
    assert made == spans_of(TWO_TURNS)
    assert len({span.span_id for span in made}) == 6 and len({span.trace_id for span in made}) == 1
    assert all((span.rollout_id, span.attempt_id) == ("r", "r.1") for span in made)
    assert made[2].parent_id == "op" and made[2].parent is not None and made[2].parent.span_id == "op"
    assert made[2].status.status_code == "ERROR" and made[2].status.description == "no"
    assert made[0].resource.attributes[LightningResourceAttributes.ATTEMPT_ID] == "r.1"
    assert Span.model_validate_json(made[1].model_dump_json()) == made[1]


def test_rewards_are_spans_and_the_final_one_is_found() -> None:
    made = spans_of(TWO_TURNS)
    of_call, final = find_reward_spans(made)
    assert of_call.parent_id == made[1].span_id and of_call.attributes["agentlightning.reward.call_id"] == "c0"
    assert of_call.name == AGL_REWARD == LightningSpanAttributes.REWARD and final.parent is None
    assert final.attributes["agentlightning.reward.source"] == "return"
    assert find_final_reward(made) == 0.75


@pytest.mark.parametrize(
    ("rewards", "final"),
    [
        ([reward(1.0, 1), reward(0.25, 2, name="style")], 1.0),
        ([reward(1.0, 1), reward(0.25, 2, call_id="c1")], 1.0),
        ([reward(1.0, 1), reward(0.25, 2, agent="seer")], 1.0),
        ([reward(0.5, 1, call_id="c0"), reward(0.25, 2, call_id="c1")], 0.25),
        ([reward(0.5, 1), reward(0.25, 2, late=True)], 0.5),
        ([reward(0.5, 1, name="style")], 0.5),
        ([reward(0.5, 1, late=True)], None),
        ([], None),
    ],
)
def test_the_final_reward_of_spans_is_the_one_that_counts(rewards: Sequence[Reward], final: float | None) -> None:
    assert find_final_reward(spans_of(replace(TWO_TURNS, rewards=tuple(rewards)))) == final


def test_several_samples_of_a_call_are_a_span_each() -> None:
    best_of = AttemptTrace(
        ATTEMPT,
        (call(0, 0, 1, 2),),
        (Node(0, None, False, ids([1]), 0), sampled(1, 0, [2], 0), sampled(2, 0, [3], 0)),
    )
    made = spans_of(best_of)
    assert [call_tokens(span) for span in made] == [([1], [2]), ([1], [3])]
    assert [span.attributes[spans.SAMPLE] for span in made] == [0, 1] and made[0].span_id != made[1].span_id


def test_a_call_without_a_sample_says_why_and_has_no_tokens() -> None:
    refused = call(0, None, status=CallStatus.REFUSED, error="too long", used=None)
    away = call(
        1, None, policy="", model="judge", used=None, external=External("gpt", 200, "{}", "{}", {"prompt_tokens": 7})
    )
    one, other = spans_of(AttemptTrace(ATTEMPT, (refused, away), ()))
    assert (one.status.status_code, one.status.description, call_tokens(one)) == ("ERROR", "too long", None)
    assert other.attributes[spans.EXTERNAL] and other.attributes["gen_ai.usage.input_tokens"] == 7
    assert other.attributes["gen_ai.request.model"] == "judge" and "gpt" not in str(other.attributes)


def test_a_given_call_is_a_span_without_logprobs() -> None:
    given = call(
        0, 0, 1, wire=GIVEN, branch=GIVEN, model="", used=None, agent="seer", asked={"metadata": {"night": 1}}
    )  # fmt: skip
    (made,) = spans_of(
        AttemptTrace(ATTEMPT, (given,), (Node(0, None, False, ids([1]), 0), Node(1, 0, False, ids([2, 3]), 0)))
    )
    assert made.name == spans.GIVEN_CALL and call_tokens(made) == ([1], [2, 3])
    assert spans.LOGPROBS not in made.attributes and json.loads(made.attributes[spans.METADATA]) == {"night": 1}


def test_the_mass_of_a_cut_support_stands_beside_its_logprobs() -> None:
    cut = replace(sampled(1, 0, [2, 3], 0), log_kept=array("f", [-0.25, -0.125]))
    trace = AttemptTrace(ATTEMPT, (call(0, 0, 2),), (Node(0, None, False, ids([1]), 0), cut, sampled(2, 1, [4], 0)))
    (made,) = spans_of(trace)
    assert made.attributes[spans.LOG_KEPT] == [-0.25, -0.125, 0.0] and len(made.attributes[spans.LOGPROBS]) == 3


def test_a_span_is_made_of_opentelemetry_s_own() -> None:
    """Needs OpenTelemetry's SDK, which frameworks bring."""
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
    export: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    resources: Any = pytest.importorskip("opentelemetry.sdk.resources")
    simple: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter = export.InMemorySpanExporter()
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "mine"}))
    provider.add_span_processor(simple.SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner") as inner:
        inner.set_attribute("agent.name", "seer")
        inner.add_event("tick", {"n": 1})
        inner.record_exception(ValueError("no"))
    ended = enumerate(exporter.get_finished_spans(), 1)
    within, around = (Span.from_opentelemetry(each, "r", "r.1", place) for place, each in ended)
    assert within.parent_id == around.span_id and within.trace_id == around.trace_id and len(within.trace_id) == 32
    assert within.attributes == {"agent.name": "seer"}
    assert [event.name for event in within.events] == ["tick", "exception"]
    assert around.start_time is not None and within.start_time is not None and within.start_time >= around.start_time
    assert within.resource.attributes["service.name"] == "mine" and around.parent_id is None


def test_a_span_is_built_of_its_attributes_alone() -> None:
    made = Span.from_attributes(attributes={"reward": 0.5}, rollout_id="r", name=None)
    assert made.rollout_id == "r" and made.name == "" and find_final_reward([made]) == 0.5
