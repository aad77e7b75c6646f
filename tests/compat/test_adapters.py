"""Triplets and messages of an attempt's spans: of what a real run recorded, with its tokens, and by the rules for which
calls and which rewards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from agentlightning import (
    LlmProxyTraceToTriplet,
    Span,
    TraceAdapter,
    TracerTraceToTriplet,
    TraceToMessages,
    Trainer,
    Triplet,
    TripletExporter,
    emit_reward,
    operation,
)
from agentlightning.errors import ConfigError
from agentlightning.nouns import GIVEN
from agentlightning.tracing import last_trace
from agentlightning.tracing import spans as names
from agentlightning.tracing.spans import spans_of
from tests.tiny import letter_tasks, save_letters

TOOLS: Any = [
    {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_letters(tmp_path_factory.mktemp("letters") / "model")


def tried(letters: Path, tmp_path: Path, agent: Any) -> Any:
    """What a real gateway recorded of one rollout."""
    trainer = Trainer(
        model=letters, output_dir=tmp_path / "runs", progress=False, sampling={"max_tokens": 2},
        runner={"isolation": "thread", "n_runners": 1}, threads=1,
    )  # fmt: skip
    trainer.dev(agent, letter_tasks(1), n=1)
    return last_trace().trace


def client_of(llm: Any, agent: str = "") -> OpenAI:
    headers = {"x-agent-name": agent} if agent else {}
    return OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0, default_headers=headers)


def test_triplets_of_a_recorded_attempt_have_its_tokens_and_may_be_returned(letters: Path, tmp_path: Path) -> None:
    sent: list[list[Any]] = []

    def agent(task: Any, llm: Any) -> float:
        history: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task["letter"]}]
        for turn in range(2):
            with operation(name=f"turn {turn}"):
                client = client_of(llm)
                reply = client.chat.completions.create(model=llm.model, messages=history, tools=TOOLS, max_tokens=2)
            history = [*history, {"role": "assistant", "content": reply.choices[0].message.content or ""}]
            sent.append(history)
            emit_reward(0.25 + turn, call_id=reply.id)
            history = [*history, {"role": "user", "content": "more"}]
        return 0.5

    trace = tried(letters, tmp_path, agent)
    made = spans_of(trace)
    triplets = TracerTraceToTriplet().adapt(made)
    assert [triplet.reward for triplet in triplets] == [0.25, 1.25]
    nodes = {node.id: node for node in trace.nodes}
    for call, triplet in zip(trace.calls, triplets, strict=True):
        sampled = nodes[call.samples[0].node]
        assert triplet.response["token_ids"] == list(sampled.token_ids)
        assert triplet.response["logprobs"] == list(sampled.logprobs or ())
        assert len(triplet.prompt["token_ids"]) == call.prompt_tokens
        assert triplet.metadata["response_id"] == call.id
    first, second = triplets
    begun = [*first.prompt["token_ids"], *first.response["token_ids"]]
    assert second.prompt["token_ids"][: len(begun)] == begun, "the next prompt goes on from what was sampled"
    assert TripletExporter().export(made) == LlmProxyTraceToTriplet()(made) == triplets

    messages = TraceToMessages().adapt(made)
    assert [each["messages"] for each in messages] == sent[-2:]
    assert [each["tools"] for each in messages] == [TOOLS, TOOLS], "the second call's are those of the first"

    def returns(task: Any, llm: Any) -> Sequence[Triplet]:
        agent(task, llm)
        return triplets

    again = tried(letters, tmp_path, returns)
    own = [names.call_tokens(span) for span in spans_of(again) if span.name == names.CALL]
    off = [each for each in triplets if (each.prompt["token_ids"], each.response["token_ids"]) not in own]
    assert [call.wire for call in again.calls].count(GIVEN) == len(off)
    returned = [reward.value for reward in again.rewards if reward.source == "return"]
    assert returned == [0.25, 1.25, 0.75], "each one's, and their mean"


def test_a_parallel_question_of_the_same_prompt_has_its_messages_too(letters: Path, tmp_path: Path) -> None:
    def agent(task: Any, llm: Any) -> float:
        for _ in range(2):
            ask: Any = [{"role": "user", "content": task["letter"]}]
            client_of(llm).chat.completions.create(model=llm.model, messages=ask, n=2, max_tokens=2)
        client_of(llm).completions.create(model=llm.model, prompt="abc", max_tokens=2)
        return 1.0

    trace = tried(letters, tmp_path, agent)
    made = spans_of(trace)
    assert sum("messages" in call.asked for call in trace.calls) == 1, "a text is recorded once"
    assert len(TracerTraceToTriplet().adapt(made)) == 5
    asked = [each["messages"][0] for each in TraceToMessages().adapt(made)]
    assert asked == [{"role": "user", "content": "a"}] * 4, "a prompt of text has no messages"


# --------------------------------------------------------------------------- rules


def call(agent: str = "", id: str = "", name: str = names.CALL) -> Span:
    kept: dict[str, Any] = {names.PROMPT_IDS: [1], names.RESPONSE_IDS: [2, 3], names.RESPONSE_ID: id}
    return Span.from_attributes(attributes=kept | ({names.AGENT: agent} if agent else {}), name=name)


def reward(value: float, name: str = "reward", **about: Any) -> Span:
    own = {f"agentlightning.reward.{key}": each for key, each in about.items()}
    named = {"agentlightning.reward.0.name": name, "agentlightning.reward.0.value": value}
    return Span.from_attributes(attributes=own | named, name="agentlightning.reward")


def rewards_of(*told: Span, **choice: Any) -> list[float | None]:
    return [triplet.reward for triplet in TracerTraceToTriplet(**choice).adapt(told)]


def test_a_call_gets_the_reward_that_names_it_else_the_first_after_it() -> None:
    assert rewards_of(call(), reward(0.25), reward(0.5), call(), reward(1.0)) == [0.25, 1.0]
    assert rewards_of(call(), call(), reward(1.0)) == [None, 1.0]
    assert rewards_of(call(id="a"), call(id="b"), reward(1.0), reward(0.5, call_id="a")) == [0.5, 1.0]
    assert rewards_of(call(id="a"), reward(0.25, call_id="a"), reward(0.5, call_id="a")) == [0.5], "the last one of it"
    assert rewards_of(call(), reward(0.5, name="style"), reward(0.1, agent="x"), reward(0.2, late=True)) == [None]
    assert rewards_of(reward(1.0), call()) == [None]


def test_agents_and_calls_are_chosen_by_name() -> None:
    told = [call("write_query"), call("check"), call("rewrite_query"), call(name="agentlightning.given")]

    def chosen(**choice: Any) -> list[str]:
        return [triplet.metadata["agent_name"] for triplet in TracerTraceToTriplet(**choice).adapt(told)]

    assert chosen() == ["write_query", "check", "rewrite_query", ""]
    assert chosen(agent_match="check") == ["check"]
    assert chosen(agent_match="write") == ["write_query", "rewrite_query"], "searched"
    assert chosen(agent_match="write_query") == ["write_query"], "a name that is an agent's is that agent"
    assert chosen(llm_call_match=r"openai\.chat\.completion") == ["write_query", "check", "rewrite_query"]
    assert chosen(llm_call_match="given") == [""] and chosen(agent_match="nobody") == []
    assert TracerTraceToTriplet(agent_match="check").agent_match == "check"


def test_what_was_not_a_call_gives_nothing() -> None:
    told = [Span.from_attributes(attributes={"x": 1}, name=names.CALL), reward(1.0)]
    assert TracerTraceToTriplet().adapt(told) == [] == TraceToMessages().adapt(told)
    assert TracerTraceToTriplet().adapt([]) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([call(), {"name": "x"}], "TracerTraceToTriplet.adapt: item 2 of 2 is dict, no span"),
        ("spans", "expected a list of spans"),
        (None, r"expected a list of spans, such as tracer.get_last_trace\(\) gives, not None \(NoneType\)"),
        ({"spans": []}, r"not {'spans': \[\]} \(dict\)"),
    ],
)
def test_what_is_no_list_of_spans_is_refused_in_one_line(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        TracerTraceToTriplet().adapt(given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"agent_match": "("}, r"agent_match='\(' is no regular expression"),
        ({"llm_call_match": 3}, "llm_call_match=3 is no text"),
        ({"exclude_llm_call_in_reward": True}, "let an external model judge"),
        ({"reward_match": "first_sibling"}, "reward_match='first_sibling'"),
    ],
)
def test_a_choice_that_cannot_be_honoured_is_refused(choice: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TripletExporter(**choice)


def test_programs_derive_their_own_adapters() -> None:
    class Count(TraceAdapter[int]):
        def __init__(self) -> None:
            pass

        def adapt(self, source: Sequence[Any], /) -> int:
            return len(source)

    class Only(TracerTraceToTriplet):
        def adapt(self, source: Sequence[Any], /) -> list[Triplet]:
            return super().adapt(source)[:1]

    assert Count()([call(), call()]) == 2 and len(Only().adapt([call(), call()])) == 1
    with pytest.raises(ConfigError, match="TraceAdapter has no adapt"):
        TraceAdapter[int]().adapt([])


@pytest.mark.parametrize("path", ["", ".adapter", ".tracer.triplet"])
def test_adapters_are_imported_as_programs_import_them(path: str) -> None:
    space: dict[str, Any] = {}
    exec(f"from agentlightning{path} import TracerTraceToTriplet, TraceToMessages, TripletExporter", space)
    assert space["TracerTraceToTriplet"] is TracerTraceToTriplet and space["TripletExporter"] is TripletExporter
