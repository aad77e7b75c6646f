"""The text-to-SQL example: a model's query can only read and is bounded, execution match is what it says, questions are
graded and do not overlap, Spider's layout is read."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.imports import ROOT

EXAMPLE = ROOT / "examples" / "text_to_sql"
NAMES = ("execution", "questions", "spider")
LIMIT = 60.0
"""Seconds that a query which never ends may take on a machine however busy."""


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """The example's modules that do without its framework."""
    kept: dict[str, ModuleType | None] = {name: sys.modules.pop(name, None) for name in NAMES}
    sys.path.insert(0, str(EXAMPLE))
    try:
        return {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in NAMES:  # other examples have modules of the same names
            sys.modules.pop(name, None)
            if (module := kept[name]) is not None:
                sys.modules[name] = module


@pytest.fixture(scope="module")
def folder(example: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example["questions"].write(tmp_path_factory.mktemp("data"), train=200, val=60)


@pytest.fixture
def film(folder: Path) -> Path:
    return folder / "database" / "film" / "film.sqlite"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("DROP TABLE film", "not authorized"),
        ("DELETE FROM film", "not authorized|readonly"),
        ("INSERT INTO film (id) VALUES (1)", "not authorized|readonly"),
        ("ATTACH 'other.db' AS other", "not authorized"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        ("SELECT load_extension('x')", "not authorized"),
        ("SELECT 1; DROP TABLE film", "one statement"),
        ("SELECT randomblob(900000000)", "too big"),
        ("SELECT no_such FROM film", "no such column"),
        ("what is this", "syntax error"),
        ("SELECT 1\x00", "null character"),
        ("SELECT a.id FROM film a, film b, film c, film d", "more than 1000 rows"),
    ],
)
def test_a_query_can_only_read_and_what_is_wrong_with_it_is_one_line(example: Any, film: Path, query: str, why: str):
    before = film.read_bytes()
    with pytest.raises(example["execution"].QueryError, match=why) as raised:
        example["execution"].rows_of(film, query)
    assert "\n" not in str(raised.value) and film.read_bytes() == before and list(film.parent.iterdir()) == [film]


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
        f"SELECT COUNT(*) FROM {', '.join(f'film f{i}' for i in range(12))}",
    ],
)
def test_a_query_that_does_not_end_is_stopped_in_a_thread_too(example: Any, film: Path, query: str):
    done, said = threading.Event(), list[str]()

    def work() -> None:
        try:
            example["execution"].rows_of(film, query, seconds=0.1)
        except example["execution"].QueryError as error:
            said.append(str(error))
        finally:
            done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(LIMIT)
    assert said == ["it takes more than 0.1 s"]


def test_queries_match_by_the_rows_they_give(example: Any, film: Path):
    def same(said: str, right: str) -> bool:
        return example["execution"].same_result(film, said, right)

    assert same("SELECT COUNT(id) FROM film", "SELECT COUNT(*) FROM film")
    assert same("SELECT name FROM film ORDER BY name DESC", "SELECT name FROM film")
    assert not same("SELECT name FROM film ORDER BY name DESC", "SELECT name FROM film ORDER BY name")
    assert not same("SELECT id FROM film", "SELECT name FROM film")
    assert not same("SELECT name, id FROM film", "SELECT name FROM film")
    assert same("SELECT 3.0", "SELECT 3") and same("SELECT 0.1 + 0.2", "SELECT 0.3")
    assert not same("SELECT '3'", "SELECT 3")
    assert not same("DROP TABLE film", "SELECT name FROM film") and not same("", "SELECT name FROM film")


def test_held_out_questions_are_about_other_databases_and_the_same_ones_for_every_seed(
    example: Any, folder: Path, tmp_path: Path
):
    questions, spider = example["questions"], example["spider"]
    train, val = spider.load(folder, spider.TRAIN), spider.load(folder, spider.VAL)
    assert (len(train), len(val)) == (200, 60)
    assert not {task["database"] for task in train} & {task["database"] for task in val}
    other = questions.write(tmp_path, train=200, val=60, seed=1)
    assert [(task["question"], task["query"]) for task in spider.load(other, spider.VAL)] == [
        (task["question"], task["query"]) for task in val
    ]
    assert [task["question"] for task in spider.load(other, spider.TRAIN)] != [task["question"] for task in train]


def test_every_question_has_an_answer_and_its_level(example: Any, tmp_path: Path):
    questions, spider = example["questions"], example["spider"]
    for level in questions.LEVELS:
        folder = questions.write(tmp_path / level, train=50, val=10, levels=(level,))
        for name in ("train.json", "dev.json"):
            assert {each["level"] for each in json.loads((folder / name).read_text())} == {level}
        for task in spider.load(folder, spider.TRAIN):
            assert example["execution"].rows_of(task["database"], task["query"]), task
            assert example["execution"].same_result(task["database"], task["query"], task["query"])
            assert ("JOIN" in task["query"]) == (level == "hard") == ("\n" in task["schema"])


def test_spiders_own_files_are_read(example: Any, tmp_path: Path):
    (tmp_path / "database" / "pets").mkdir(parents=True)
    with sqlite3.connect(tmp_path / "database" / "pets" / "pets.sqlite") as to:
        to.execute('CREATE TABLE "My Pets" (id INTEGER PRIMARY KEY AUTOINCREMENT, "first name" TEXT)')
    to.close()
    entry = {"db_id": "pets", "question": "How many pets?", "query": 'SELECT COUNT(*) FROM "My Pets"'}
    (tmp_path / "train_spider.json").write_text(json.dumps([entry]))
    (task,) = example["spider"].load(tmp_path, example["spider"].TRAIN)
    assert task["schema"] == "My Pets(id, first name)" and task["question"] == "How many pets?"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (None, "has no train_spider.json or train.json"),
        ([{"db_id": "pets", "question": "?"}], "question 1 has no query"),
        ([{"db_id": "pets", "question": "?", "query": "SELECT 1"}], "question 1: there is no .*pets.sqlite"),
    ],
)
def test_a_folder_that_is_not_in_its_layout_is_refused_by_what_is_missing(
    example: Any, tmp_path: Path, entries: Any, said: str
):
    if entries is not None:
        (tmp_path / "train.json").write_text(json.dumps(entries))
    with pytest.raises(SystemExit, match=said):
        example["spider"].load(tmp_path, example["spider"].TRAIN)
