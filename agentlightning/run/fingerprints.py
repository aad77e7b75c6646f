"""Fingerprints: what a run was given that is not a setting, its tasks and the code of its agent and grader, so that a
resumed run can tell whether it is given the same.

A run goes on at a position in the order of its tasks, so other tasks, or these in another order, are refused. Code
may change, and is said. A fingerprint is at most some three kilobytes, however many tasks there are.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from agentlightning.agent.calling import AgentSpec
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json
from agentlightning.text import plural

_MOST_BLOCKS = 256
"""Neighbouring tasks share a digest where there are more tasks than this."""


def fingerprint(
    train: Sequence[Json],
    val: Sequence[Json],
    agent: AgentSpec,
    grader: Callable[..., Any] | None,
    compact: Callable[..., Any] | None = None,
    adapt: Callable[..., Any] | None = None,
) -> dict[str, Json]:
    """What is recorded of a run: ``tasks`` and ``code``."""
    return {
        "tasks": {"train_dataset": _of_tasks(train), "val_dataset": _of_tasks(val)},
        "code": {
            "agent": _of_agent(agent),
            "grader": _of_code(grader),
            "compact": _of_code(compact),
            "adapter": _of_code(adapt),
        },
    }


def compare(
    run_id: str, recorded: Mapping[str, Json], train: Sequence[Json], val: Sequence[Json], now: Mapping[str, Json]
) -> list[str]:
    """What a resumed run is given otherwise than before, a line each. ``now`` is the fingerprint of what it is given.

    Raises ConfigError for other tasks, with the first that differs and the way out.
    """
    if "tasks" not in recorded:
        return [f"run {run_id} kept no fingerprint of its tasks: whether these are the same cannot be told"]
    notes: list[str] = []
    for name, tasks in (("train_dataset", train), ("val_dataset", val)):
        before, after = recorded["tasks"][name], now["tasks"][name]
        if before["count"] and after["count"]:
            _refuse_others(run_id, name, before, after, tasks)
        elif before["count"] or after["count"]:
            had, has = (plural(each["count"], "task") if each["count"] else "none" for each in (before, after))
            notes.append(
                f"run {run_id} had {had} in its {name} and is given {has}: scores before and after are not of the same"
            )
    for what in ("agent", "grader", "compact", "adapter"):
        before, after = recorded["code"].get(what), now["code"][what]
        if before is not None and after is not None and before["digest"] != after["digest"]:
            notes.append(
                f"{after['name']} (the {what}'s code) has changed since run {run_id} began: the steps until now were "
                "made by what it was then"
            )
        elif (before is None) != (after is None) and what != "agent":
            name = "function that shortens histories" if what == "compact" else what
            change = f"had a {name} and is given none" if after is None else f"had no {name} and is given one"
            notes.append(f"run {run_id} {change}")
    return notes


def _refuse_others(
    run_id: str, name: str, before: Mapping[str, Json], after: Mapping[str, Json], tasks: Sequence[Json]
) -> None:
    if before["digest"] == after["digest"]:
        return
    if before["count"] == after["count"] and before["any_order"] == after["any_order"]:
        how = "they are the same in another order"
    else:
        had, has = before["count"], after["count"]
        counts = f"there were {had}, and there are {has}; " if had != has else ""
        how = counts + _first_difference(name, before, tasks)
    raise ConfigError(
        f"run {run_id} cannot be resumed with other tasks in {name}: {how}. Pass those it began with, "
        "or start a new run (from its weights: give its checkpoint as the model)"
    )


def _first_difference(name: str, before: Mapping[str, Json], tasks: Sequence[Json]) -> str:
    size: int = before["block"]
    digests = _digests(tasks[: before["count"]])
    for number, (old, new) in enumerate(zip(before["blocks"], _blocks(digests, size), strict=False)):
        if old != new:
            first, last = number * size, min((number + 1) * size, before["count"], len(tasks)) - 1
            return (
                f"the first that differs is {name}[{first}]"
                if size == 1
                else f"the first that differs is between {name}[{first}] and [{last}]"
            )
    return f"the first {min(before['count'], len(tasks))} are the same"


def _of_tasks(tasks: Sequence[Json]) -> dict[str, Json]:
    """``digest`` is of the tasks in their order, ``any_order`` of them in whichever, ``blocks`` of ``block``
    neighbours each.
    """
    digests = _digests(tasks)
    block = max(1, -(-len(digests) // _MOST_BLOCKS))
    return {
        "count": len(digests),
        "digest": _hex(b"".join(digests), 16),
        "any_order": f"{sum(int.from_bytes(each, 'big') for each in digests) & (2**64 - 1):016x}",
        "block": block,
        "blocks": _blocks(digests, block),
    }


def _digests(tasks: Sequence[Json]) -> list[bytes]:
    return [hashlib.blake2b(orjson.dumps(task, option=orjson.OPT_SORT_KEYS), digest_size=8).digest() for task in tasks]


def _blocks(digests: Sequence[bytes], size: int) -> list[str]:
    return [_hex(b"".join(digests[at : at + size]), 4) for at in range(0, len(digests), size)]


def _hex(data: bytes, size: int) -> str:
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def _of_agent(agent: AgentSpec) -> dict[str, Json] | None:
    if agent.file is not None:
        return _of_file(agent.file)
    if agent.from_path:  # a module that is imported only where the agent runs
        return None
    functions = dict.fromkeys(method.function for method in agent.load().methods.values())
    return next((found for function in functions if (found := _of_code(function)) is not None), None)


def _of_code(function: Callable[..., Any] | None) -> dict[str, Json] | None:
    """Of the file that holds a function, else of its own text (a notebook's cell). None where neither can be had."""
    if function is None:
        return None
    holder = function
    while isinstance(holder, partial):
        holder = cast("Callable[..., Any]", holder.func)
    holder = inspect.unwrap(holder)
    holder = holder if inspect.isroutine(holder) else cast(Any, type(holder))
    try:
        file = inspect.getsourcefile(holder)
        if file is not None and Path(file).is_file():
            return _of_file(Path(file))
        return {"name": getattr(holder, "__name__", "its cell"), "digest": _hex(inspect.getsource(holder).encode(), 8)}
    except (OSError, TypeError):
        return None


def _of_file(file: Path) -> dict[str, Json] | None:
    try:
        return {"name": file.name, "digest": _hex(file.read_bytes(), 8)}
    except OSError:
        return None
