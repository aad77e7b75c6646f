"""Tasks: reads data sets from files, checks them, and splits them. A task is any JSON value; what a field means is between the user's files and agent.

Nothing here guesses: a file or list that cannot be used is refused with the place and the text that is wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from agentlightning.errors import TaskError
from agentlightning.resources import is_json
from agentlightning.types import Json

T = TypeVar("T")


def load_tasks(path: str | Path) -> list[Json]:
    """Tasks from a file: one JSON value a line (blank lines are skipped), or one JSON list.

    Raises TaskError for a file that cannot be read, is not UTF-8, holds no task, or has a bad line: with its number and first 80 characters.
    """
    path = Path(path).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"task file {path} cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(f"task file {path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8") from error
    tasks = _lines(text, path) if not text.lstrip().startswith("[") else _list(text, path)
    if not tasks:
        raise TaskError(f"task file {path} holds no task: expected one JSON value a line, or a JSON list")
    return tasks


def _list(text: str, path: Path) -> list[Json]:
    """A file that begins with a bracket: one list of tasks, or lines of which the first is a task that is a list."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        first = text.lstrip().split("\n", 1)[0]
        try:
            json.loads(first, parse_constant=_refuse)
        except (ValueError, RecursionError):
            number = error.lineno if isinstance(error, json.JSONDecodeError) else 1
            raise _bad_line(path, number, text.split("\n")[number - 1], error) from error
        return _lines(text, path)


def _lines(text: str, path: Path) -> list[Json]:
    tasks: list[Json] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            tasks.append(json.loads(line, parse_constant=_refuse))
        except (ValueError, RecursionError) as error:
            raise _bad_line(path, number, line, error) from error
    return tasks


def _bad_line(path: Path, number: int, line: str, error: Exception) -> TaskError:
    why = f"not JSON ({error.msg}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error)
    return TaskError(f"task file {path}, line {number}: {why}: {line.strip()[:80]}")


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


def check_tasks(tasks: object, name: str = "tasks") -> list[Json]:
    """The tasks of any sequence-like data set as a list. Raises TaskError, naming ``name``, for what is no data set, an empty one, or a task that is not JSON."""
    if tasks is None:
        raise TaskError(f"no tasks: pass {name}, a list of JSON values")
    kind = type(tasks).__name__
    hint = "; load_tasks(PATH) reads a file" if isinstance(tasks, str) else ""
    if isinstance(tasks, str | bytes | Mapping) or not (hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")):
        raise TaskError(f"{name} is a {kind}: expected a list of JSON values, or anything with a length and items by position{hint}")
    sized = cast("Sequence[Any]", tasks)
    try:
        items = [sized[i] for i in range(len(sized))]
    except (LookupError, TypeError) as error:
        raise TaskError(f"{name} is a {kind} without items by position: pass a list of JSON values") from error
    if not items:
        raise TaskError(f"{name} is empty: there is nothing to run")
    for position, task in enumerate(items):
        if not is_json(task):
            raise TaskError(f"{name}[{position}] is not a JSON value ({type(task).__name__}): {' '.join(repr(task).split())[:80]}")
    return items


def split(tasks: Sequence[T], fraction: float, *, seed: int = 0) -> tuple[list[T], list[T]]:
    """Divides tasks at random into ``fraction`` of them (rounded) and the rest, each in its original order. The same seed divides the same way.

    Raises TaskError for a fraction outside 0 to 1.
    """
    if not 0 <= fraction <= 1:
        raise TaskError(f"split(fraction={fraction!r}): expected a share between 0 and 1")
    count = len(tasks)
    chosen = set(random.Random(seed).sample(range(count), round(count * fraction)))
    return [tasks[i] for i in range(count) if i in chosen], [tasks[i] for i in range(count) if i not in chosen]
