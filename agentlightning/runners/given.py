"""Given: the triplets that an agent returned, read into records, and how they travel from its process.

A triplet is the tokens of a prompt and of a reply, and what the reply is worth (agent/triplets.py). It is read where
the agent runs; whether its tokens are those of a recorded call, matching.py finds out where the record is.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentlightning.agent.rewards import check_reward, is_number, why_not
from agentlightning.errors import RewardError
from agentlightning.nouns import Failure, GivenTriplet, Json, Reason
from agentlightning.runners.output import as_json

MAX_TRIPLETS = 10_000
"""Triplets that are taken of one attempt."""

MAX_TOKENS = 2**23
"""Tokens that all of them together may have, prompts included: a prompt that is a part of the next one counts anew."""


class _Bad(Exception):
    """A value that is no triplet, in words that continue ``triplet 3 of 7``."""

    def __init__(self, says: str, reason: Reason = Reason.AGENT_ERROR) -> None:
        super().__init__(says)
        self.reason = reason


def is_triplet(value: object) -> bool:
    """Whether it was meant as one. Told by the name of its class, so that nothing of a triplet's is imported here."""
    return any(kind.__name__ == "Triplet" for kind in type(value).__mro__)


def read_triplets(items: Sequence[object], whose: str = "the agent returned") -> tuple[GivenTriplet, ...] | Failure:
    """The triplets of a list that has some, or the failure that the first bad one is. ``whose`` says in messages where
    they come from."""
    if len(items) > MAX_TRIPLETS:
        return Failure(
            Reason.AGENT_ERROR,
            f"{whose} {len(items):,} triplets, and of one attempt {MAX_TRIPLETS:,} are taken: return those "
            "to be trained, or make several tasks of this one",
        )
    read: list[GivenTriplet] = []
    places: dict[int, int] = {}
    tokens = 0
    for place, item in enumerate(items, 1):
        try:
            if (before := places.setdefault(id(item), place)) != place:
                raise _Bad(f"is triplet {before} once more: return each once")
            triplet = _read(item)
            tokens += len(triplet.prompt_ids) + len(triplet.response_ids)
            if tokens > MAX_TOKENS:
                raise _Bad(
                    f"brings them to {tokens:,} tokens, and of one attempt {MAX_TOKENS:,} are taken: return those to "
                    "be trained, or make several tasks of this one"
                )
            read.append(triplet)
        except _Bad as error:
            if tokens == 0 and not any(map(_has_tokens, items)):
                return Failure(
                    Reason.EMPTY,
                    f"none of the {len(items)} triplets that {whose} has tokens: triplet {place} {error}",
                )
            return Failure(error.reason, f"triplet {place} of {len(items)} that {whose} {error}")
    return tuple(read)


def _read(item: Any) -> GivenTriplet:
    if not is_triplet(item):
        raise _Bad(f"is {type(item).__name__}, no Triplet: a list holds triplets alone, or none")
    prompt, response = (_ids(getattr(item, name, None), name) for name in ("prompt", "response"))
    _check_logprobs(getattr(item, "response", None), len(response))
    reward = getattr(item, "reward", None)
    if reward is not None:
        if not is_number(reward):
            raise _Bad(f"has a reward that is none: {why_not(reward, 'it')}", Reason.BAD_REWARD)
        try:
            reward = check_reward(reward, "its reward")
        except RewardError as error:
            raise _Bad(f"has a reward that is none: {error}", Reason.BAD_REWARD) from error
    metadata: Json = as_json(getattr(item, "metadata", None) or {})
    kept = cast("dict[str, Json]", metadata) if isinstance(metadata, dict) else {"metadata": metadata}
    return GivenTriplet(prompt, response, reward, kept)


def _token_ids(side: Any) -> Any:
    """What a prompt or a response has for tokens: ``{"token_ids": [...]}``, or the ids themselves."""
    ids: Any = cast("Mapping[str, Any]", side).get("token_ids") if isinstance(side, Mapping) else side
    to_list = getattr(ids, "tolist", None)  # numpy's arrays and torch's tensors, without importing either
    return ids if to_list is None else to_list()


def _has_tokens(item: Any) -> bool:
    return any(
        isinstance(ids, list | tuple) and len(cast("Sequence[object]", ids)) > 0
        for ids in (_token_ids(getattr(item, name, None)) for name in ("prompt", "response"))
    )


def _ids(side: object, name: str) -> array[int]:
    ids = _token_ids(side)
    if not isinstance(ids, list | tuple) or not ids:
        raise _Bad(f"has no tokens in its {name}: expected {name}={{'token_ids': [...]}}, and at least one")
    values = cast("Sequence[object]", ids)
    try:
        read = array("i", cast("Sequence[int]", values))
    except (TypeError, OverflowError):
        wrong = next((value for value in values if not _is_id(value)), values)
        raise _Bad(f"has {wrong!r:.80} ({type(wrong).__name__}) among the token_ids of its {name}: they are whole "
                   "numbers of 32 bits") from None  # fmt: skip
    if bool in set(map(type, values)):
        raise _Bad(f"has a truth value among the token_ids of its {name}: they are whole numbers")
    if min(read) < 0:
        raise _Bad(f"has {min(read)} among the token_ids of its {name}: they are counted from 0")
    return read


def _is_id(value: object) -> bool:
    try:
        array("i", [cast(int, value)])
    except (TypeError, OverflowError):
        return False
    return True


def _check_logprobs(response: object, tokens: int) -> None:
    """Logprobs that come with a response have to be as many. They are not kept: of a recorded call the record has them,
    and of another nobody knows under which weights it was sampled."""
    given: Any = cast("Mapping[str, Any]", response).get("logprobs") if isinstance(response, Mapping) else None
    if isinstance(given, Mapping):  # as the reply of a chat completion has them
        given = cast("Mapping[str, Any]", given).get("content")
    if given is not None and (not hasattr(given, "__len__") or len(given) != tokens):
        count = len(given) if hasattr(given, "__len__") else given
        raise _Bad(f"has {count} logprobs for the {tokens} tokens of its response: one for each, or none")


# --------------------------------------------------------------------------- between processes


def triplet_to_json(triplet: GivenTriplet) -> dict[str, Json]:
    """Tokens as little-endian int32 in base64: a tenth of the time that a list of numbers takes."""
    return {
        "prompt_ids": _packed(triplet.prompt_ids),
        "response_ids": _packed(triplet.response_ids),
        "reward": triplet.reward,
        "metadata": triplet.metadata,
    }


def triplet_from_json(value: Mapping[str, Json]) -> GivenTriplet:
    return GivenTriplet(
        _unpacked(value["prompt_ids"]), _unpacked(value["response_ids"]), value["reward"], value["metadata"]
    )


def _packed(ids: array[int]) -> str:
    return base64.b64encode(_little_endian(ids).tobytes()).decode()


def _unpacked(text: str) -> array[int]:
    return _little_endian(array("i", base64.b64decode(text)))


def _little_endian(ids: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return ids
    swapped = array("i", ids)
    swapped.byteswap()
    return swapped
