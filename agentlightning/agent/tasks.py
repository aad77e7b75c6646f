"""Tasks: takes a data set of any kind as a list of JSON values, or says in one sentence what would do, and splits it.

A file's path is read by task_files.py. Imports none of the libraries whose tables it recognises.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from agentlightning.agent.task_files import load_tasks as load_tasks
from agentlightning.errors import TaskError
from agentlightning.nouns import Json
from agentlightning.records.json_values import comes_from, exact_json, kind_of

T = TypeVar("T")

Tasks: TypeAlias = "Sequence[Json] | str | Path"
"""What is taken where tasks are: values, or the path of a file with them."""


def check_tasks(tasks: object, name: str = "tasks", most: int | None = None) -> list[Json]:
    """The first ``most`` tasks (None: all) of any sequence-like data set, or of the file at a path, as a list of
    plain JSON values.

    Raises TaskError, naming ``name``, for what is no data set, an empty one, or a task that is not JSON, with its
    exact place.
    """
    refuse_other_kinds(tasks, name)
    if isinstance(tasks, str | Path):
        try:
            tasks = load_tasks(tasks)
        except TaskError as error:
            raise TaskError(f"{name}: {error}") from error
    sized = cast("Sequence[Any]", tasks)
    count = len(sized) if most is None else min(len(sized), most)
    # A Hugging Face data set is read many times faster in order than by position.
    rows: Iterable[Any] = (
        islice(cast("Iterable[Any]", sized), count)
        if comes_from(sized, "datasets")
        else (sized[i] for i in range(count))
    )
    items: list[Json] = []
    try:
        for position, row in enumerate(rows):
            if row is None:
                raise TaskError(f"{name}[{position}] is None: a task is what the agent is handed; leave it out")
            items.append(exact_json(row, f"{name}[{position}]"))
    except (LookupError, TypeError) as error:
        raise TaskError(f"{name} is {kind_of(tasks)} without items by position: pass a list of JSON values") from error
    if not items:
        raise TaskError(f"{name} is empty: there is nothing to run")
    return items


def refuse_other_kinds(tasks: object, name: str) -> None:
    """Raises TaskError for what is no data set, as far as that shows without reading it: with what would be one."""
    if tasks is None:
        raise TaskError(f"no tasks: pass {name}, a list of JSON values or the path of a file")
    if isinstance(tasks, str):
        if tasks.startswith(("{", "[")) or "\n" in tasks:
            raise TaskError(f"{name} is JSON as text: pass json.loads(...), or the path of a file")
        if "://" in tasks:
            remedy = (
                "download the file first, and pass its path"
                if Path(urlsplit(tasks).path).suffix
                else "joining a running server as workers has no part behind it in this version; pass the tasks"
            )
            raise TaskError(f"{name}={tasks!r:.200} is a URL: {remedy}")
        return
    if isinstance(tasks, Path):
        return
    remedy = _remedy(tasks)
    if remedy is not None:
        raise TaskError(f"{name} is {kind_of(tasks)}: {remedy}")


def _remedy(tasks: object) -> str | None:
    """What would be a data set, for what is none."""
    if isinstance(tasks, type):
        return "pass the tasks, a list of JSON values, not a class"
    if isinstance(tasks, Mapping):
        table = cast("Mapping[Any, Any]", tasks)
        if comes_from(table, "datasets"):
            return f"pass one of its splits, such as {name_of_first(table)}"
        columns = {len(cast("Sequence[Any]", value)) for value in table.values() if isinstance(value, list | tuple)}
        if len(table) > 1 and len(columns) == 1 and all(isinstance(value, list | tuple) for value in table.values()):
            return "one list for each column; pass a list of rows, [dict(zip(d, row)) for row in zip(*d.values())]"
        return "a data set is a list of tasks; for this one task pass [task], for its values list(tasks.values())"
    for method, how in (("to_dicts", "df.to_dicts()"), ("to_pylist", "table.to_pylist()")):
        if callable(getattr(tasks, method, None)):
            return f"pass {how}"
    if callable(getattr(tasks, "to_dict", None)) and hasattr(tasks, "columns"):
        return 'pass df.to_dict("records")'
    if comes_from(tasks, "pandas"):
        return "pass .to_list()"
    if isinstance(tasks, set | frozenset):
        return "it has no order that a resumed run could keep; pass sorted(...), a list"
    if isinstance(tasks, Iterator) or (hasattr(tasks, "__iter__") and not hasattr(tasks, "__len__")):
        return "it can be read only in turn, and tasks are taken in many orders; pass list(...)"
    if isinstance(tasks, bytes | bytearray) or not (hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")):
        return "expected a list of JSON values, the path of a file, or anything with a length and items by position"
    return None


def name_of_first(splits: Mapping[Any, Any]) -> str:
    """How the split that most likely is meant is written."""
    return f"dataset[{'train' if 'train' in splits else next(iter(splits), 'train')!r}]"


def split(tasks: Sequence[T], fraction: float, *, seed: int = 0) -> tuple[list[T], list[T]]:
    """Divides tasks at random into ``fraction`` of them (rounded) and the rest, each in its original order. The same
    seed divides the same way.

    Raises TaskError for a fraction outside 0 to 1.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # users are not type-checked
        raise TaskError(f"split(fraction={fraction!r}): expected a share between 0 and 1")
    count = len(tasks)
    chosen = set(random.Random(seed).sample(range(count), round(count * fraction)))
    return [tasks[i] for i in range(count) if i in chosen], [tasks[i] for i in range(count) if i not in chosen]
