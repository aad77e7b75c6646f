"""Tasks out of a folder in Spider's layout: a file of questions (`train_spider.json`, `train.json`, `dev.json`), and
databases under `database/NAME/NAME.sqlite`. Spider's own release unpacks to that, and `questions.py` writes it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

TRAIN = ("train_spider.json", "train.json")
VAL = ("dev.json",)


def load(folder: Path, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The questions of the first of those files that is there, each with its database and that one's schema."""
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise SystemExit(f"{folder} has no {' or '.join(names)}: pass a folder in Spider's layout")
    schemas: dict[str, str] = {}
    tasks: list[dict[str, Any]] = []
    for number, entry in enumerate(json.loads(file.read_text()), 1):
        if missing := [key for key in ("db_id", "question", "query") if key not in entry]:
            raise SystemExit(f"{file}, question {number} has no {missing[0]}")
        path = folder.absolute() / "database" / entry["db_id"] / f"{entry['db_id']}.sqlite"
        if entry["db_id"] not in schemas:
            if not path.is_file():
                raise SystemExit(f"{file}, question {number}: there is no {path}")
            schemas[entry["db_id"]] = schema(path)
        tasks.append(
            {
                "question": entry["question"],
                "query": entry["query"],
                "database": str(path),
                "schema": schemas[entry["db_id"]],
            }
        )
    return tasks


def schema(path: Path) -> str:
    """A database's tables, one a line: `singer(id, name, age)`."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            name: [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))]
            for name in tables
            if not name.startswith("sqlite_")
        }
        return "\n".join(f"{name}({', '.join(each)})" for name, each in columns.items())
    finally:
        connection.close()
