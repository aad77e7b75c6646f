"""What programs emit, in every form in which they do: told to the attempt, in order, with what belongs to what."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

import agentlightning
from agentlightning import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    find_final_reward,
    operation,
    reward,
)
from agentlightning.agent.emitters import find_reward_spans, get_reward_value, is_reward_span
from agentlightning.errors import AgentLightningError, ConfigError, RewardError
from agentlightning.nouns import SpanRecord, SpanStatus
from tests.agent.conftest import Told


@dataclasses.dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    y: int


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError


def attributes(told: Told) -> dict[str, Any]:
    (span,) = told.spans
    return span["attributes"]


# --------------------------------------------------------------------------- rewards

REWARDS: list[tuple[Callable[[], Any], list[tuple[str, float, str | None]]]] = [
    (lambda: emit_reward(0.5), [("reward", 0.5, None)]),
    (lambda: emit_reward(True), [("reward", 1.0, None)]),
    (lambda: emit_reward(1, "style"), [("style", 1.0, None)]),
    (lambda: emit_reward(1, reason="because"), [("reward", 1.0, "because")]),
    (lambda: emit_reward({"reward": 1, "style": 0.5}), [("style", 0.5, None), ("reward", 1.0, None)]),
    (lambda: emit_reward({"correct": 1}), [("reward", 1.0, "correct")]),
    (
        lambda: emit_reward({"style": 0.5, "correct": 1}, primary_key="correct"),
        [("style", 0.5, None), ("reward", 1.0, "correct")],
    ),
]


@pytest.mark.parametrize(("emit", "given"), REWARDS, ids=range(len(REWARDS)))
def test_a_reward_in_each_of_its_forms_is_given_with_the_one_that_counts_last(
    told: Told, emit: Callable[[], Any], given: list[tuple[str, float, str | None]]
) -> None:
    span = emit()
    assert [(body["name"], body["value"], body["reason"]) for body in told.rewards] == given
    assert find_final_reward([span]) == given[-1][1]
    assert told.spans == [], "a reward is a reward, and no span besides"


def test_extras_of_a_reward_are_given_with_it_and_with_each_of_several(told: Told) -> None:
    emit_reward(1, attributes={"step": 3}, call_id="c1", agent="planner")
    emit_reward({"a": 1, "b": 2}, primary_key="a", attributes={"step": 4}, call_id="c2")
    assert [(r["attributes"], r["call_id"], r["agent"]) for r in told.rewards] == [
        ({"step": 3}, "c1", "planner"),
        ({"step": 4}, "c2", None),
        ({"step": 4}, "c2", None),
    ]


@pytest.mark.parametrize(
    "emit",
    [
        lambda: emit_reward(1, propagate=False),
        lambda: emit_message("m", propagate=False),
        lambda: emit_object(1, propagate=False),
        lambda: emit_annotation({"a": 1}, propagate=False),
        lambda: emit_exception(ValueError("v"), propagate=False),
    ],
)
def test_what_is_not_propagated_is_made_and_told_to_nobody(told: Told, emit: Callable[[], SpanRecord]) -> None:
    span = emit()
    assert isinstance(span, SpanRecord) and span.attributes and told.taken == []


@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda: emit_reward({}), r"emit_reward\(\{\}\): expected rewards by name"),
        (lambda: emit_reward({1: 2}), "expected rewards by name"),
        (
            lambda: emit_reward({"a": 1, "b": 2}),
            r"which of a, b is the reward\? 'reward' is none of them: pass primary",
        ),
        (lambda: emit_reward({"a": 1}, primary_key="c"), r"which of a is the reward\? 'c' is none of them"),
        (lambda: emit_reward({"a": "much"}), r"emit_reward: 'a' is 'much' \(str\), not a number"),
        (lambda: emit_reward(1, primary_key="a"), r"it names one of several rewards, and 1 is one"),
        (lambda: emit_reward(1, attributes={"x": object()}), r"emit_reward: attributes\['x'\] is an object"),
    ],
)
def test_a_reward_that_is_none_is_one_clear_line_and_nothing_is_given(
    told: Told, emit: Callable[[], Any], says: str
) -> None:
    with pytest.raises(RewardError, match=says) as refused:
        emit()
    assert "\n" not in str(refused.value) and told.taken == []


# --------------------------------------------------------------------------- moments


def test_a_message_is_told(told: Told) -> None:
    span = emit_message("hello \0 é \ud800", attributes={"turn": 1})
    (sent,) = told.spans
    assert sent["name"] == "agentlightning.message" and sent["status"] == "ok" and sent["parent_id"] is None
    assert sent["attributes"] == {"agentlightning.message.body": "hello \\0 é \\ud800", "turn": 1}
    assert sent["span_id"] == span.span_id and sent["started_ago"] == pytest.approx(sent["ended_ago"], abs=1e-3)


@pytest.mark.parametrize(
    ("value", "kind", "key", "text"),
    [
        ("text", "str", "literal", "text"),
        (3, "int", "literal", 3),
        (None, "NoneType", "literal", None),
        ({"a": [1]}, "dict", "json", '{"a": [1]}'),
        ((1, 2), "tuple", "json", "[1, 2]"),
        (Point(1), "Point", "json", '{"x": 1}'),
        (Model(y=2), "Model", "json", '{"y": 2}'),
        ({"at": Point(1), "set": {3}}, "dict", "json", '{"at": {"x": 1}, "set": "{3}"}'),
        (float("nan"), "float", "json", "NaN"),
        (2**70, "int", "json", str(2**70)),
        (Odd(), "Odd", "json", '"(its text cannot be shown: RuntimeError)"'),
    ],
)
def test_an_object_is_told_as_what_it_is(told: Told, value: Any, kind: str, key: str, text: Any) -> None:
    emit_object(value)
    assert attributes(told) == {"agentlightning.object.type": kind, f"agentlightning.object.{key}": text}


def test_notes_are_told_by_their_names(told: Told) -> None:
    emit_annotation({"seat": 3, "vote": {"for": "wolf", "sure": 0.5, "others": {}}})
    assert told.spans[0]["name"] == "agentlightning.annotation"
    assert attributes(told) == {"seat": 3, "vote.for": "wolf", "vote.sure": 0.5, "vote.others": {}}


def test_an_exception_is_told_with_its_traceback(told: Told) -> None:
    try:
        json.loads("{")
    except ValueError as error:
        emit_exception(error, attributes={"tool": "json"})
    (span,) = told.spans
    assert (span["name"], span["status"]) == ("agentlightning.exception", "error")
    assert span["attributes"]["exception.type"] == "json.decoder.JSONDecodeError"
    assert "Expecting property name" in span["attributes"]["exception.message"]
    assert "test_emitters.py" in span["attributes"]["exception.stacktrace"] and span["attributes"]["tool"] == "json"


@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda: emit_message(3), r"emit_message\(3\): expected a text; emit_object takes anything"),  # type: ignore[arg-type]
        (lambda: emit_annotation([1]), r"emit_annotation\(\[1\]\): expected notes by name"),  # type: ignore[arg-type]
        (lambda: emit_exception("no"), r"emit_exception\('no'\): expected an exception"),  # type: ignore[arg-type]
        (lambda: emit_message("m", {"x": {1}}), r"emit_message: attributes\['x'\] is a set: use sorted"),
        (lambda: emit_annotation({"a": {"b": float("nan")}}), r"emit_annotation: attributes\['a.b'\] is nan"),
        (lambda: operation(when=object()), r"operation: attributes\['when'\] is an object"),
        (lambda: operation(name=3), r"operation\(name=3\): expected a text"),
    ],
)
def test_what_cannot_be_told_is_one_clear_line(told: Told, emit: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        emit()
    assert "\n" not in str(refused.value) and told.taken == []


@pytest.mark.parametrize("emit", [lambda: emit_message("m"), lambda: emit_object(1), lambda: emit_annotation({"a": 1})])
def test_telling_outside_any_attempt_is_a_clear_error(emit: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="outside any attempt"):
        emit()


def test_what_the_attempt_does_not_take_is_an_error_with_its_words(told: Told) -> None:
    told.answer = (410, b'{"error": {"message": "this attempt has ended"}}')
    with pytest.raises(AgentLightningError, match="what emit_message told came after its attempt had ended.*has ended"):
        emit_message("late")
    told.answer = (422, b'{"error": {"message": "too many"}}')
    with pytest.raises(AgentLightningError, match="what emit_message told was refused: too many$"):
        emit_message("more")


def test_a_child_process_tells_its_attempt(told: Told) -> None:
    code = "from agentlightning import emit_message; emit_message('from below')"
    env = {"AGENTLIGHTNING_ENDPOINT": told.url, "PATH": "/usr/bin", "PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=600)
    assert attributes(told) == {"agentlightning.message.body": "from below"}


# --------------------------------------------------------------------------- operations


@operation
def bare(a: int, b: int = 2) -> int:
    emit_message("inside")
    return a + b


@operation(category="search")
def with_attributes(a: int, b: int = 2) -> int:
    emit_message("inside")
    return a + b


@operation()
def with_nothing(a: int, b: int = 2) -> int:
    emit_message("inside")
    return a + b


@operation(name="bare")
async def waited(a: int, b: int = 2) -> int:
    await asyncio.sleep(0)
    emit_message("inside")
    return a + b


def entered(a: int, b: int = 2) -> int:
    with operation(name="bare", step=1) as op:
        op.set_input(a=a)
        emit_message("inside")
        op.set_output(a + b)
    return a + b


async def entered_async(a: int, b: int = 2) -> int:
    async with operation("bare") as op:
        op.set_input(a=a)
        emit_message("inside")
        op.set_output(a + b)
    return a + b


@pytest.mark.parametrize("form", [bare, with_attributes, with_nothing, waited, entered, entered_async])
def test_an_operation_in_each_of_its_forms_is_told_with_what_happened_in_it(told: Told, form: Any) -> None:
    value = form(1)
    assert (asyncio.run(value) if asyncio.iscoroutine(value) else value) == 3
    inside, whole = told.spans
    assert whole["name"] == "agentlightning.operation" and whole["status"] == "ok" and whole["parent_id"] is None
    assert inside["parent_id"] == whole["span_id"]
    kept = whole["attributes"]
    assert kept["agentlightning.operation.name"] in ("bare", form.__name__)
    assert json.loads(kept["agentlightning.operation.input"]) == {"a": 1}
    assert kept["agentlightning.operation.output"] == "3"
    assert whole["started_ago"] >= inside["started_ago"] - 1 and whole["started_ago"] >= whole["ended_ago"]
    assert kept.get("category") == ("search" if form is with_attributes else None)


def test_operations_within_one_another_know_it_also_in_tasks_side_by_side(told: Told) -> None:
    @operation
    async def leaf(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @operation
    async def both() -> list[int]:
        return await asyncio.gather(leaf(1), leaf(2))

    assert asyncio.run(both()) == [1, 2]
    outer = told.spans[-1]
    assert [span["parent_id"] for span in told.spans[:-1]] == [outer["span_id"]] * 2 and outer["parent_id"] is None


def test_an_operation_that_fails_tells_why_and_the_error_goes_on(told: Told) -> None:
    with pytest.raises(ZeroDivisionError):
        with operation(name="divide"):
            _ = 1 / 0
    (span,) = told.spans
    assert span["status"] == "error" and span["attributes"]["exception.type"] == "ZeroDivisionError"
    told.answer = (500, b"full")
    with pytest.raises(ZeroDivisionError):
        with operation(name="divide"):
            _ = 1 / 0


@pytest.mark.parametrize("form", [bare, waited])
def test_a_decorated_function_can_be_tried_outside_any_attempt(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.agent.test_emitters.emit_message", lambda text: None)
    value = form(1, b=4)
    assert (asyncio.run(value) if asyncio.iscoroutine(value) else value) == 5


def test_an_operation_that_is_not_propagated_is_told_to_nobody(told: Told) -> None:
    @operation(propagate=False)
    def quiet() -> int:
        return 1

    assert quiet() == 1 and told.taken == []


def test_one_operation_is_entered_once_at_a_time(told: Told) -> None:
    op = operation(name="x")
    with op:
        with pytest.raises(ConfigError, match="operation 'x' is entered already"):
            op.__enter__()
    assert len(told.spans) == 1


# --------------------------------------------------------------------------- @reward


@reward
def scored(answer: str) -> float:
    return float(answer == "4")


@reward
async def scored_async(answer: str) -> float:
    await asyncio.sleep(0)
    return float(answer == "4")


@reward()
def scored_with_call(answer: str) -> float:
    return float(answer == "4")


@reward(primary_key="right", attributes={"by": "rule"})
def scored_by_names(answer: str) -> dict[str, float]:
    return {"right": float(answer == "4"), "short": 0.5}


@pytest.mark.parametrize("form", [scored, scored_async, scored_with_call, scored_by_names])
def test_what_a_reward_function_returns_is_emitted_then_returned(told: Told, form: Any) -> None:
    value = form("4")
    value = asyncio.run(value) if asyncio.iscoroutine(value) else value
    assert value == (1.0 if form is not scored_by_names else {"right": 1.0, "short": 0.5})
    assert [(body["name"], body["value"]) for body in told.rewards][-1] == ("reward", 1.0)


def test_a_reward_function_can_be_tried_outside_any_attempt() -> None:
    assert scored("4") == 1.0 and asyncio.run(scored_async("5")) == 0.0 and scored.__name__ == "scored"


PATHS = ["agentlightning", "agentlightning.emitter", "agentlightning.reward", "agentlightning.emitter.reward"]


@pytest.mark.parametrize("first", PATHS)
@pytest.mark.parametrize("second", PATHS)
def test_reward_is_the_decorator_and_a_module_whichever_is_imported_first(first: str, second: str) -> None:
    code = (
        f"from {first} import reward as one\nfrom {second} import reward as two\n"
        "from agentlightning.reward import find_final_reward, emit_reward\n"
        "from agentlightning import reward as three\nimport agentlightning.reward\n"
        "f = lambda: 0.5\n"
        "assert [d(f)() for d in (one, two, three, agentlightning.reward, agentlightning.reward.reward)] == [0.5] * 5\n"
        "assert one()(f)() == 0.5 and agentlightning.reward()(f)() == 0.5\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize("path", ["", ".emitter"])
@pytest.mark.parametrize(
    "name",
    [
        "emit_reward", "emit_message", "emit_object", "emit_annotation", "emit_exception", "operation", "reward",
        "find_final_reward",
    ],
)  # fmt: skip
def test_emitters_are_found_at_the_root_and_at_emitter(path: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(f"agentlightning{path}"), name))
    assert name in agentlightning.__all__


# --------------------------------------------------------------------------- rewards in spans


def span(**kept: Any) -> SpanRecord:
    return SpanRecord("s", None, "any", kept, SpanStatus.OK, 0.0, 0.0)


def test_the_last_reward_that_spans_tell_is_the_final_one() -> None:
    several = emit_reward({"a": 0.25, "b": 2}, primary_key="b", propagate=False)
    spans = [span(reward=0.5), several, span(text="no reward"), span(reward="much"), object()]
    assert find_final_reward(spans) == get_reward_value(several) == 2.0
    assert find_reward_spans(spans) == spans[:2] and not is_reward_span(spans[2])
    assert find_final_reward([span(x=1)]) is None and find_final_reward([]) is None
    assert find_final_reward([several, span(reward=0)]) == 0.0
