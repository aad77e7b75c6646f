"""Rewards on the agent's side: what counts as a reward, and how code inside an agent emits one.

``emit_reward`` talks to the attempt's own endpoint with the standard library alone, so that it works in plain and async
agents, in threads and in child processes, and returns only after the reward is durable. It never decides which reward
counts; the runner does.
"""

from __future__ import annotations

import json
import math
import os
import urllib.error
import urllib.request
from contextvars import ContextVar
from numbers import Real
from typing import cast

from agentlightning.errors import AgentLightningError, RewardError
from agentlightning.nouns import MAX_REWARD, Json

ENDPOINT_VARIABLE = "AGENTLIGHTNING_ENDPOINT"
"""The environment variable that holds an attempt's root URL in ``process`` isolation."""

TIMEOUT = 30.0
"""Seconds that ``emit_reward`` waits for its reward to be durable."""

current_endpoint: ContextVar[str | None] = ContextVar("agentlightning_endpoint", default=None)
"""The root URL of the attempt that this context belongs to, in ``thread`` isolation."""

# An agent's proxy settings are for the outside world; an attempt's endpoint is never behind one.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
) -> None:
    """Gives the running attempt a reward and returns when it is durable. Blocks meanwhile, also in a coroutine: a few
    milliseconds.

    ``value`` is what ``check_reward`` takes. Of the rewards named ``reward`` the last one counts, unless the agent
    returns a number or a grader scores; other names are recorded beside it. ``call_id`` (the reply's ``id``) or
    ``agent`` attaches it to a part of the rollout; ``reason`` is a remark. Of all that an attempt emits one reward at
    most weighs its tokens; the ledger counts the others as ``unused``, with why.

    Works in the agent, in threads it started, and under ``process`` isolation in its child processes. Raises
    RewardError for a value that is no reward, outside any attempt and after the attempt ended; AgentLightningError when
    the endpoint does not answer within 30 seconds.
    """
    number = check_reward(value, f"emit_reward: {name!r}")
    root = current_endpoint.get() or os.environ.get(ENDPOINT_VARIABLE)
    if not root:
        raise RewardError(
            f"emit_reward({number}) was called outside any attempt: it works inside an agent that a run calls "
            "(child processes need isolation='process')"
        )
    body = {"value": number, "name": name, "call_id": call_id, "agent": agent, "reason": reason}
    _post(f"{root.rstrip('/')}/rewards", body)


def _post(url: str, body: Json) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with _opener.open(request, timeout=TIMEOUT) as reply:
            reply.read()
    except urllib.error.HTTPError as error:
        said = _message(error)
        if error.code == 410:
            raise RewardError(f"the reward came after its attempt had ended, and was refused: {said}") from error
        if error.code in (400, 422):
            raise RewardError(f"the reward was refused: {said}") from error
        raise AgentLightningError(f"the reward was not accepted: HTTP {error.code}: {said}") from error
    except (OSError, ValueError) as error:
        raise AgentLightningError(f"the reward was not accepted: {getattr(error, 'reason', None) or error}") from error


def _message(error: urllib.error.HTTPError) -> str:
    """What the endpoint said, whichever of the usual shapes it said it in."""
    text = error.read().decode("utf-8", "replace")
    try:
        said: Json = json.loads(text)
    except ValueError:
        return text.strip()[:300] or error.reason
    for key in ("error", "message", "detail"):
        if isinstance(said, dict):
            said = cast("dict[str, Json]", said).get(key, said)
    return str(cast(object, said))[:300]
