"""Task files: reads a data set from a file or a saved folder. A task is any JSON value; what a field means is between
the user's files and agent.

The format follows from the name: JSON lines or one JSON list (``.jsonl``, ``.json`` and every name not listed here),
``.csv``, ``.tsv``, ``.parquet``, or a folder that ``Dataset.save_to_disk`` wrote. Nothing here guesses: what cannot
be used is refused with the file, the line or row, and what is wrong there.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from agentlightning.errors import MissingExtra, TaskError, install
from agentlightning.nouns import Json
from agentlightning.records.json_values import exact_json
from agentlightning.text import at_home

_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""What a byte order mark says of a text. UTF-32's begins with UTF-16's."""

_OTHER_FORMATS = {
    ".xlsx": "save it as CSV, or read it with pandas and pass df.to_dict('records')",
    ".xls": "save it as CSV, or read it with pandas and pass df.to_dict('records')",
    ".arrow": "pass datasets.Dataset.from_file(PATH)",
    ".feather": "pass pandas.read_feather(PATH).to_dict('records')",
    ".pkl": "load it yourself and pass the list",
    ".pickle": "load it yourself and pass the list",
    ".yaml": "load it yourself and pass the list",
    ".yml": "load it yourself and pass the list",
    ".toml": "settings are passed as config (--config); tasks are JSON lines",
    ".py": "an agent is passed as 'FILE.py:name'; tasks are JSON lines",
    ".zip": "unpack it first",
    ".zst": "unpack it first",
}


TABLES_AND_LINES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def load_tasks(path: str | Path) -> list[Json]:
    """The tasks in a file: JSON lines, one JSON list, CSV, TSV, Parquet, or a saved Hugging Face data set (a folder).

    JSON lines: blank lines are skipped. CSV and TSV: the first line names the columns, and every value stays the text
    it is. Parquet: dates, decimals and bytes are refused by their place.

    Raises TaskError for a file that cannot be read, holds no task, or has a bad line, with its number and what is in
    it; MissingExtra where a library is missing.
    """
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are not type-checked
        raise TaskError(
            f"load_tasks({path!r:.60}): expected the path of a file; a data set in memory is passed to fit as it is"
        )
    path = at_home(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        tasks = _saved(path)
    elif suffix in _OTHER_FORMATS:
        raise TaskError(
            f"task file {path}: {suffix} is no format of tasks (JSON lines, JSON, CSV, TSV, Parquet): "
            f"{_OTHER_FORMATS[suffix]}"
        )
    elif suffix in (".parquet", ".pq"):
        tasks = _parquet(path)
    elif suffix in (".csv", ".tsv"):
        tasks = _table(_text(path), path, "\t" if suffix == ".tsv" else ",")
    else:
        text = _text(path)
        tasks = _lines(text, path) if not text.lstrip().startswith("[") else _list(text, path)
        if suffix == ".json" and len(tasks) == 1 and isinstance(tasks[0], dict) and text.lstrip().startswith("{"):
            raise _object(path, cast("dict[str, Json]", tasks[0]))
    if not tasks:
        raise TaskError(
            f"task file {path} holds no task: expected one JSON value a line, a JSON list, or rows of a table"
        )
    return tasks


# --------------------------------------------------------------------------- text


def _text(path: Path) -> str:
    data = _bytes(path)
    if data[:2] == b"\x1f\x8b":
        raise TaskError(f"task file {path} is compressed: gunzip it first")
    if data[:4] == b"PAR1":
        raise TaskError(f"task file {path} is Parquet: name it .parquet")
    encoding = next((name for mark, name in _ENCODINGS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise TaskError(
                f"task file {path} is not the {encoding} that its first bytes say: save it as UTF-8"
            ) from error
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"task file {path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        ) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if str(path).startswith(("http:/", "https:/")):
            raise TaskError(
                f"task file {path} is a URL, and URLs are not loaded: download it first, and pass the file"
            ) from error
        hint = (
            '; a data set of a hub is loaded first: load_dataset(NAME)["train"]'
            if not path.suffix and not path.parent.exists()
            else ""
        )
        raise TaskError(
            f"task file {path} cannot be read: {getattr(error, 'strerror', None) or error}{hint}"
        ) from error


def _list(text: str, path: Path) -> list[Json]:
    """A file that begins with a bracket: one list of tasks, or lines of which the first is a task that is a list."""
    try:
        return _exact(json.loads(text, parse_constant=_refuse), path, "item")
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
            task = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            if not tasks and line.lstrip().startswith("{"):
                _refuse_object(text, path)
            raise _bad_line(path, number, line, error) from error
        tasks.append(exact_json(task, f"task file {path}, line {number}: task"))
    return tasks


def _refuse_object(text: str, path: Path) -> None:
    """Raises TaskError where a whole file that is no lines is one JSON object."""
    try:
        whole = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return
    raise _object(path, whole)


def _object(path: Path, whole: dict[str, Json]) -> TaskError:
    lists = [key for key, value in whole.items() if isinstance(value, list) and value]
    how = (
        f"pass json.load(open({path.name!r}))[{lists[0]!r}]"
        if lists
        else "write [ before and ] after it for a list of one task"
    )
    return TaskError(f"task file {path} is one JSON object ({', '.join(list(whole)[:5])}), not a list of tasks: {how}")


def _bad_line(path: Path, number: int, line: str, error: Exception) -> TaskError:
    why = f"not JSON ({error.msg}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error)
    return TaskError(f"task file {path}, line {number}: {why}: {line.strip()[:80]}")


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


# --------------------------------------------------------------------------- tables


def _table(text: str, path: Path, delimiter: str) -> list[Json]:
    """Rows as dicts of texts. A cell that is empty is an empty text."""
    limit = csv.field_size_limit(max(len(text), 1))  # of the whole process: a long cell is no error
    try:
        return list(_rows(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), path, delimiter))
    finally:
        csv.field_size_limit(limit)


def _rows(reader: Any, path: Path, delimiter: str) -> Iterator[dict[str, Json]]:
    columns: list[str] = []
    first = 1
    try:
        for row in cast("Iterator[list[str]]", reader):
            line, first = first, reader.line_num + 1
            if not row:
                continue
            if not columns:
                columns = _columns(row, path, line, delimiter)
            elif len(row) != len(columns):
                shown = delimiter.join(row)[:80]
                raise TaskError(
                    f"task file {path}, line {line}: {len(row)} cells under {len(columns)} columns "
                    f"({', '.join(columns)}): {shown}"
                )
            else:
                yield dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise TaskError(f"task file {path}, line {first}: {error}") from error


def _columns(row: list[str], path: Path, line: int, delimiter: str) -> list[str]:
    other = next((mark for mark in (";", "\t", ",", "|") if mark != delimiter and mark in row[0]), None)
    if len(row) == 1 and other is not None:
        raise TaskError(
            f"task file {path}: its columns are separated by {other!r}, expected {delimiter!r}: {row[0][:80]}"
        )
    columns = [cell.strip() for cell in row]
    if unnamed := [i + 1 for i, name in enumerate(columns) if not name]:
        raise TaskError(
            f"task file {path}, line {line}: column {unnamed[0]} has no name; the first line names the columns"
        )
    if twice := [name for i, name in enumerate(columns) if name in columns[:i]]:
        raise TaskError(f"task file {path}, line {line}: two columns are named {twice[0]!r}")
    return columns


# --------------------------------------------------------------------------- binary


def _parquet(path: Path) -> list[Json]:
    _bytes_head(path)
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra(f"task file {path}: Parquet needs pyarrow: {install('data')}") from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise TaskError(f"task file {path} cannot be read as Parquet: {str(error).splitlines()[0][:200]}") from error
    return _exact(rows, path, "row")


def _bytes_head(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise TaskError(f"task file {path} cannot be read: {error.strerror or error}") from error
    if head != b"PAR1":
        raise TaskError(f"task file {path} is no Parquet file: it begins with {head!r}")


def _saved(path: Path) -> list[Json]:
    """A folder that ``Dataset.save_to_disk`` wrote."""
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(each.name for each in path.iterdir() if each.is_dir())) or "none"
        raise TaskError(f"{path} holds several data sets ({splits}): pass the folder of one of them")
    if not (path / "state.json").is_file():
        files = sorted(each.name for each in path.iterdir() if each.suffix.lower() in TABLES_AND_LINES)
        hint = f"; pass one of its files ({', '.join(files[:4])})" if files else ""
        raise TaskError(f"{path} is a folder, and no data set that Dataset.save_to_disk wrote{hint}")
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise MissingExtra(f"{path}: a saved data set needs datasets: {install('data')}") from error
    try:
        rows = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever is wrong inside the folder is told to the user
        raise TaskError(
            f"{path} cannot be read as a saved data set: {type(error).__name__}: {str(error)[:200]!r}"
        ) from error
    return _exact(rows, path, "row")


def _exact(values: Iterable[object], path: Path, what: str) -> list[Json]:
    return [exact_json(value, f"task file {path}, {what} {number}: task") for number, value in enumerate(values, 1)]
