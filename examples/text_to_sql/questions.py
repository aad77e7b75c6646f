"""Graded questions about small databases, written in Spider's layout: `train.json` and `dev.json`, and the databases
under `database/NAME/NAME.sqlite`. The held-out questions are about databases that no training question is about.

count   one table: how many rows, with a condition or without
easy    one table: names with a condition, means and the like
medium  groups, the first of an order, two conditions
hard    a join with a second table

python examples/text_to_sql/questions.py FOLDER
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from execution import rows_of

LEVELS = ("count", "easy", "medium", "hard")
NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "June",
    "Kai",
    "Lea",
    "Max",
    "Nora",
    "Otto",
    "Pia",
]
DOMAINS = {  # table: texts with their values; numbers; a second table that points to it
    "singer": ({"country": "France Japan Chile", "genre": "pop jazz rock"}, ("age", "albums"), "concert"),
    "player": ({"team": "Lions Bears Hawks", "position": "keeper defender striker"}, ("goals", "height"), "match"),
    "book": ({"language": "English Spanish Hindi", "genre": "crime poetry history"}, ("pages", "price"), "loan"),
    "car": ({"color": "red blue black", "fuel": "petrol diesel electric"}, ("speed", "price"), "race"),
    "city": ({"country": "Kenya Norway Peru", "climate": "dry wet mild"}, ("population", "area"), "festival"),
    "hotel": ({"town": "Lyon Kyoto Cusco", "style": "modern rustic classic"}, ("rooms", "stars"), "booking"),
    "student": ({"subject": "physics law music", "dorm": "North South East"}, ("age", "credits"), "exam"),
    "plant": ({"color": "green yellow purple", "soil": "sand clay loam"}, ("height", "leaves"), "sale"),
    "film": ({"studio": "Apex Orion Delta", "genre": "drama comedy horror"}, ("minutes", "budget"), "showing"),
    "horse": ({"breed": "Arab Shire Morgan", "color": "black white brown"}, ("age", "wins"), "ride"),
}
HELD_OUT = ("film", "horse")
YEARS = (2019, 2020, 2021, 2022)


def write(folder: Path, train: int = 400, val: int = 100, seed: int = 0, levels: tuple[str, ...] = LEVELS) -> Path:
    """Writes databases, with their second tables where hard questions are asked, and questions. The databases and the
    held-out questions do not depend on the seed."""
    for table in DOMAINS:
        _database(folder / "database" / table / f"{table}.sqlite", table, both="hard" in levels)
    for name, tables, count, draw in (
        ("train", [table for table in DOMAINS if table not in HELD_OUT], train, random.Random(seed)),
        ("dev", list(HELD_OUT), val, random.Random(0)),
    ):
        every = [each for table in tables for each in _questions(table) if each["level"] in levels]
        every = [
            each
            for each in every
            if rows_of(folder / "database" / each["db_id"] / f"{each['db_id']}.sqlite", each["query"])
        ]
        chosen = draw.sample(every, count) if count <= len(every) else draw.choices(every, k=count)
        (folder / f"{name}.json").write_text(json.dumps(chosen, indent=1))
    return folder


def _rows(table: str) -> list[dict[str, Any]]:
    """The rows of a table, the same ones every time. No number occurs twice in a column, so that every order is one."""
    draw, (texts, numbers, _) = random.Random(table), DOMAINS[table]
    columns = {number: draw.sample(range(10, 100), len(NAMES)) for number in numbers}
    return [
        {"id": i + 1, "name": name}
        | {text: draw.choice(values.split()) for text, values in texts.items()}
        | {number: column[i] for number, column in columns.items()}
        for i, name in enumerate(NAMES)
    ]


def _database(path: Path, table: str, both: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    (texts, numbers, second), draw = DOMAINS[table], random.Random(f"{table} 2")
    with sqlite3.connect(path) as to:
        columns = [
            "id INTEGER",
            "name TEXT",
            *(f"{each} TEXT" for each in texts),
            *(f"{each} INTEGER" for each in numbers),
        ]
        to.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        to.executemany(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})",
            [tuple(row.values()) for row in _rows(table)],
        )
        if both:
            to.execute(f"CREATE TABLE {second} (id INTEGER, {table}_id INTEGER, year INTEGER)")
            events = [(i + 1, draw.randint(1, len(NAMES)), draw.choice(YEARS)) for i in range(30)]
            to.executemany(f"INSERT INTO {second} VALUES (?, ?, ?)", events)
    to.close()


def _questions(table: str) -> Iterator[dict[str, Any]]:
    """Every question that there is about a database."""
    (texts, numbers, second), many, rows = DOMAINS[table], "cities" if table == "city" else f"{table}s", _rows(table)

    def ask(level: str, question: str, query: str) -> dict[str, Any]:
        return {"db_id": table, "question": question, "query": query, "level": level}

    yield ask("count", f"How many {many} are there?", f"SELECT COUNT(*) FROM {table}")
    for number in numbers:
        for word, function in (("average", "AVG"), ("largest", "MAX"), ("smallest", "MIN"), ("total", "SUM")):
            yield ask(
                "easy", f"What is the {word} {number} of the {many}?", f"SELECT {function}({number}) FROM {table}"
            )
        for limit in range(20, 90, 10):
            where = f"FROM {table} WHERE {number} > {limit}"
            yield ask("count", f"How many {many} have {number} above {limit}?", f"SELECT COUNT(*) {where}")
            yield ask("easy", f"What are the names of {many} with {number} above {limit}?", f"SELECT name {where}")
        for word, order in (("largest", "DESC"), ("smallest", "ASC")):
            query = f"SELECT name FROM {table} ORDER BY {number} {order} LIMIT 1"
            yield ask("medium", f"What is the name of the {table} with the {word} {number}?", query)
    for text in texts:
        query = f"SELECT {text}, COUNT(*) FROM {table} GROUP BY {text}"
        yield ask("medium", f"How many {many} are there for each {text}?", query)
        for value in sorted({row[text] for row in rows}):
            where = f"FROM {table} WHERE {text} = '{value}'"
            yield ask("count", f"How many {many} have the {text} {value}?", f"SELECT COUNT(*) {where}")
            yield ask("easy", f"What are the names of {many} with the {text} {value}?", f"SELECT name {where}")
            query = f"SELECT name {where} AND {numbers[0]} > 50"
            yield ask(
                "medium", f"What are the names of {many} with the {text} {value} and {numbers[0]} above 50?", query
            )
    for year in YEARS:
        joined = f"FROM {table} JOIN {second} ON {second}.{table}_id = {table}.id WHERE {second}.year = {year}"
        yield ask(
            "hard",
            f"What are the names of {many} that had a {second} in {year}?",
            f"SELECT DISTINCT {table}.name {joined}",
        )
        query = f"SELECT AVG({table}.{numbers[0]}) {joined}"
        yield ask("hard", f"Over all {second}s of {year}, what is the average {numbers[0]} of its {table}?", query)


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "text_to_sql_data")))
