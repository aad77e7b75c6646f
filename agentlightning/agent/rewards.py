"""Rewards on the agent's side: what counts as a reward, and how code inside an agent emits one.

``emit_reward`` talks to the attempt's own endpoint with the standard library alone, so that it works in plain and async
agents, in threads and in child processes, and returns only after the reward is durable. It never decides which reward
counts; the runner does.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

from agentlightning.agent.telling import ENDPOINT_VARIABLE as ENDPOINT_VARIABLE
from agentlightning.agent.telling import current_endpoint as current_endpoint
from agentlightning.agent.telling import endpoint, tell
from agentlightning.errors import RewardError, TaskError
from agentlightning.nouns import MAX_REWARD, Json, SpanRecord, SpanStatus
from agentlightning.records.json_values import exact_json

REWARD = "agentlightning.reward"
"""What a span that tells a reward is called, and what its attributes begin with."""


def check_reward(value: object, what: str = "reward") -> float:
    """``value`` as a float. Real numbers are taken, Python's and numpy's scalars; True and False, also numpy's, are 1.0
    and 0.0.

    Raises RewardError, naming value and type, for NaN, an infinity, what is beyond ``MAX_REWARD``, None, text, an array
    or tensor (also of one element) and anything else.
    """
    if not is_number(value):
        raise RewardError(why_not(value, what))
    try:
        number = float(cast(float, value))
    except (OverflowError, TypeError, ValueError) as error:
        raise RewardError(f"{what} is {_shown(value)} ({type(value).__name__}), which is no float: {error}") from error
    if not math.isfinite(number):
        raise RewardError(f"{what} is {number} ({type(value).__name__}): a reward has to be finite")
    if abs(number) > MAX_REWARD:
        raise RewardError(
            f"{what} is {number:g} ({type(value).__name__}): a reward has to be within {-MAX_REWARD:g} and "
            f"{MAX_REWARD:g}; scale it"
        )
    return number


def is_number(value: object) -> bool:
    """Whether a returned value is meant as a reward: a real number or a truth value, finite or not."""
    return isinstance(value, Real) or _is_numpy_bool(value)


def why_not(value: object, what: str) -> str:
    """Says that a value is no number."""
    hint = ": take the one number out of it, with .item()" if hasattr(value, "item") and hasattr(value, "shape") else ""
    return f"{what} is {_shown(value)} ({type(value).__name__}), not a number{hint}"


def _is_numpy_bool(value: object) -> bool:
    # Known by name, so that nothing imports numpy for it: "bool" since numpy 2, "bool_" before.
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


def _shown(value: object) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # noqa: BLE001  # user classes may fail to print themselves
        text = f"(its text cannot be shown: {type(error).__name__})"
    return text if len(text) <= 80 else text[:77] + "..."


def emit_reward(
    value: object,
    name: str = "reward",
    call_id: str | None = None,
    agent: str | None = None,
    reason: str | None = None,
    *,
    primary_key: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanRecord:
    """Gives the running attempt a reward and returns when it is durable. Blocks meanwhile, also in a coroutine: a few
    milliseconds.

    ``value`` is what ``check_reward`` takes. Of the rewards named ``reward`` the last one counts, unless the agent
    returns a number or a grader scores; other names are recorded beside it. A dict gives several by their names:
    the one under ``primary_key`` is recorded as ``name``, with its key as the remark. ``call_id`` (the reply's ``id``)
    or ``agent`` attaches it to a part of the rollout; ``reason`` is a remark; ``attributes`` are kept with it. With
    ``propagate`` False nothing is given to anybody. Returns what a span of this reward is.

    Works in the agent, in threads it started, and under ``process`` isolation in its child processes. Raises
    RewardError for a value that is no reward, attributes that are no JSON, outside any attempt and after the attempt
    ended; AgentLightningError when the endpoint does not answer within 30 seconds.
    """
    named = _named(value, name, primary_key)
    extras = None if attributes is None else _checked(attributes)
    for argument, part in (("call_id", call_id), ("agent", agent), ("reason", reason)):
        if part is not None and not isinstance(part, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are not type-checked
            hint = ": the reply's id, reply.id" if argument == "call_id" else ""
            raise RewardError(f"emit_reward({argument}={type(part).__name__}): expected text{hint}")
    if propagate:
        root = endpoint()
        if root is None:
            shown = ", ".join(f"{number}" for _, number, _ in named)
            raise RewardError(
                f"emit_reward({shown}) was called outside any attempt: it works inside an agent that a run calls "
                "(child processes need isolation='process')"
            )
        for key, number, remark in reversed(named):  # the primary one comes last: what it says of the others is there
            body = {"value": number, "name": key, "call_id": call_id, "agent": agent, "reason": reason or remark}
            told = body if extras is None else {**body, "attributes": extras}
            tell(root, "rewards", told, "the reward", RewardError)
    return _span(named, extras or {})


def _named(value: object, name: str, primary_key: str | None) -> list[tuple[str, float, str | None]]:
    """Rewards with their names and remarks, the primary one first. Raises RewardError."""
    if not isinstance(value, Mapping):
        if primary_key is not None:
            raise RewardError(
                f"emit_reward(primary_key={primary_key!r:.60}): it names one of several rewards, and {_shown(value)} "
                "is one"
            )
        return [(name, check_reward(value, f"emit_reward: {name!r}"), None)]
    several = cast("Mapping[object, object]", value)
    if not several or not all(isinstance(key, str) and key for key in several):
        raise RewardError(f"emit_reward({_shown(several)}): expected rewards by name")
    numbers = {str(key): check_reward(each, f"emit_reward: {key!r}") for key, each in several.items()}
    primary = primary_key if primary_key is not None else next(iter(numbers)) if len(numbers) == 1 else name
    if primary not in numbers:
        how = "is none of them" if primary_key is not None else "is none of them: pass primary_key=..."
        raise RewardError(f"emit_reward: which of {', '.join(numbers)} is the reward? {primary!r} {how}")
    rest = [(key, number, None) for key, number in numbers.items() if key != primary]
    return [(name, numbers[primary], None if primary == name else primary), *rest]


def _span(named: list[tuple[str, float, str | None]], extras: Mapping[str, Json]) -> SpanRecord:
    now = time.time()
    attributes: dict[str, Json] = {**extras, "reward": named[0][1]}
    for place, (key, number, remark) in enumerate(named):
        attributes |= {f"{REWARD}.{place}.name": remark or key, f"{REWARD}.{place}.value": number}
    return SpanRecord(secrets.token_hex(8), None, REWARD, attributes, SpanStatus.OK, now, now)


def _checked(attributes: Mapping[str, Any]) -> dict[str, Json]:
    try:
        return exact_json(dict(attributes), "emit_reward: attributes")
    except TaskError as error:
        raise RewardError(str(error)) from None
