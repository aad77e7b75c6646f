"""What a list of triplets is read as, and what each bad one is told. Ruling 17's matching is in test_matching.py."""

from __future__ import annotations

from array import array
from typing import Any

import numpy
import pytest
from pydantic import BaseModel

from agentlightning import Span, Triplet, emit_reward
from agentlightning.nouns import Failure, GivenTriplet, Reason
from agentlightning.runners import given
from agentlightning.runners.execution import Returned, result_from_json, result_to_json, returned
from agentlightning.runners.frames import Frames, frame
from agentlightning.runners.given import MAX_TRIPLETS, read_triplets


def triplet(prompt: Any = (1, 2), response: Any = (3,), reward: Any = 1.0, **metadata: Any) -> Triplet:
    return Triplet(
        prompt={"token_ids": prompt if isinstance(prompt, numpy.ndarray) else list(prompt)},
        response={"token_ids": list(response)},
        reward=reward,
        metadata=metadata,
    )


class Own(BaseModel):
    """A class of a user's own is none, whatever it holds."""

    prompt: Any = None


def test_a_list_of_triplets_is_what_is_given_and_the_output_says_what_it_was() -> None:
    ran = returned([triplet(reward=0.5, seat=3), triplet([7], [8, 9], None)])
    one = GivenTriplet(array("i", [1, 2]), array("i", [3]), 0.5, {"seat": 3})
    two = GivenTriplet(array("i", [7]), array("i", [8, 9]))
    assert ran == Returned(
        output=[
            {"prompt_tokens": 2, "response_tokens": 1, "reward": 0.5, "metadata": {"seat": 3}},
            {"prompt_tokens": 1, "response_tokens": 2, "reward": None, "metadata": {}},
        ],
        triplets=(one, two),
    )
    assert result_from_json(Frames().feed(frame(result_to_json(ran)))[0]) == ran


def test_ids_may_be_a_list_an_array_or_numpys_and_alone_or_in_a_dict() -> None:
    for ids in ([1, 2], (1, 2), array("i", [1, 2]), numpy.array([1, 2]), [numpy.int64(1), 2]):
        bare = Triplet(prompt=ids, response={"token_ids": ids, "logprobs": [-0.1, -0.2]}, reward=numpy.float32(0.5))
        (read,) = read_triplets([bare])  # type: ignore[misc]
        assert read.prompt_ids == read.response_ids == array("i", [1, 2]) and read.reward == 0.5


@pytest.mark.parametrize(
    ("bad", "reason", "says"),
    [
        (triplet(response=()), Reason.AGENT_ERROR, "has no tokens in its response: expected response={'token_ids'"),
        (Triplet(prompt="text", response={"token_ids": [1]}), Reason.AGENT_ERROR, "has no tokens in its prompt"),
        (Triplet(prompt=[1], response={"text": "x"}), Reason.AGENT_ERROR, "has no tokens in its response"),
        (triplet([1, 2.5]), Reason.AGENT_ERROR, "has 2.5 (float) among the token_ids of its prompt: they are whole"),
        (triplet(["a"]), Reason.AGENT_ERROR, "has 'a' (str) among the token_ids of its prompt"),
        (triplet([1, 2**31]), Reason.AGENT_ERROR, "has 2147483648 (int) among the token_ids of its prompt"),
        (triplet([True]), Reason.AGENT_ERROR, "has a truth value among the token_ids of its prompt"),
        (triplet(numpy.array([[1, 2]])), Reason.AGENT_ERROR, "has [1, 2] (list) among the token_ids of its prompt"),
        (triplet(response=[3, -1]), Reason.AGENT_ERROR, "has -1 among the token_ids of its response"),
        (
            Triplet(prompt=[1], response={"token_ids": [1, 2], "logprobs": [-0.5]}),
            Reason.AGENT_ERROR,
            "has 1 logprobs for the 2 tokens of its response",
        ),
        (
            Triplet(prompt=[1], response={"token_ids": [1, 2], "logprobs": {"content": [{}, {}, {}]}}),
            Reason.AGENT_ERROR,
            "has 3 logprobs for the 2 tokens of its response",
        ),
        (triplet(reward=float("nan")), Reason.BAD_REWARD, "has a reward that is none: its reward is nan (float)"),
        (triplet(reward=1e12), Reason.BAD_REWARD, "its reward is 1e+12 (float): a reward has to be within"),
        (
            Triplet.model_construct(prompt=[1], response=[2], reward="good", metadata={}),
            Reason.BAD_REWARD,
            "has a reward that is none: it is 'good' (str), not a number",
        ),
        (0.5, Reason.AGENT_ERROR, "is float, no Triplet: a list holds triplets alone, or none"),
        (Own(), Reason.AGENT_ERROR, "is Own, no Triplet"),
        (None, Reason.AGENT_ERROR, "is NoneType, no Triplet"),
    ],
)
def test_a_bad_triplet_is_named_by_its_place_in_one_line(bad: Any, reason: Reason, says: str) -> None:
    failure = returned([triplet(), bad, triplet()])
    assert isinstance(failure, Failure) and failure.reason is reason
    assert failure.message.startswith("triplet 2 of 3 that the agent returned ") and says in failure.message
    assert "\n" not in failure.message


def test_triplets_without_any_tokens_are_empty() -> None:
    failure = returned([triplet((), ()), triplet((), ())])
    assert isinstance(failure, Failure) and failure.reason is Reason.EMPTY
    assert "none of the 2 triplets that the agent returned has tokens" in failure.message


def test_the_same_object_twice_is_refused() -> None:
    one = triplet()
    failure = returned([one, triplet(), one])
    assert isinstance(failure, Failure) and failure.reason is Reason.AGENT_ERROR
    assert failure.message == "triplet 3 of 3 that the agent returned is triplet 1 once more: return each once"


def test_there_is_an_end_to_how_many_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = returned([triplet()] * 100_000)
    assert isinstance(failure, Failure) and failure.reason is Reason.AGENT_ERROR
    assert f"returned 100,000 triplets, and of one attempt {MAX_TRIPLETS:,} are taken" in failure.message
    monkeypatch.setattr(given, "MAX_TOKENS", 8)
    failure = returned([triplet() for _ in range(4)])
    assert isinstance(failure, Failure)
    assert "triplet 3 of 4 that the agent returned brings them to 9 tokens, and of one" in failure.message


def test_metadata_that_is_no_json_is_recorded_as_its_text() -> None:
    ran = returned([triplet(seats={1, 2}), triplet(agent_name="seer")])
    assert isinstance(ran, Returned)
    assert ran.triplets[0].metadata["note"] == "not JSON" and ran.triplets[0].agent is None
    assert ran.triplets[1].agent == "seer"


def test_a_list_of_spans_is_worth_the_reward_that_they_tell() -> None:
    """They hold no tokens of their own: what they tell of was recorded where it happened."""
    other = Span.from_attributes(attributes={"x": 1}, name="a")
    ran = returned([other, emit_reward(0.25, propagate=False), emit_reward(0.5, propagate=False)])
    assert isinstance(ran, Returned) and ran.reward == 0.5 and ran.output == {"spans": 3} and ran.triplets == ()
    ran = returned([other])
    assert isinstance(ran, Returned) and ran.reward is None
    assert ran.not_number == "none of the 1 spans that it returned tells a reward"
    failure = returned([Span.from_attributes(attributes={"reward": 1e12})])
    assert isinstance(failure, Failure) and failure.reason is Reason.BAD_REWARD
